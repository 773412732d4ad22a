"""Valuing another policy: right where the journal can say, with honest intervals, and loud where it cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from adaptive_dd.core.domain import OFF, SERVER, Cell, Context, Decision, Outcome, Setting, Status, Timings
from adaptive_dd.core.events import Abandoned, Decided, Event, Observed
from adaptive_dd.core.offpolicy import Sample, samples_of, value
from adaptive_dd.core.rng import Rng, rng_for

N2, N8 = Setting(2, 0.0), Setting(8, 0.0)
GREEDY, SAMPLED = Cell(1, 0, "greedy.free.chat"), Cell(1, 0, "sampled.free.chat")
# True milliseconds a token: a deep draft is right for one kind and wrong for the other.
TRUTH = {
    (GREEDY, OFF): 60.0,
    (GREEDY, N2): 30.0,
    (GREEDY, N8): 12.0,
    (SAMPLED, OFF): 60.0,
    (SAMPLED, N2): 70.0,
    (SAMPLED, N8): 150.0,
}


def propensity_of(cell: Cell, arm: Setting, *, explore: float = 0.3) -> float:
    """The recorded policy: mostly n2, and the other two now and then."""
    return 1.0 - explore if arm == N2 else explore / 2


def journal(seed: int, answers: int = 600, *, explore: float = 0.3) -> list[Sample]:
    """Answers of a known world under the recorded policy; lengths differ by kind and by luck."""
    found = []
    for number in range(1, answers + 1):
        rng = rng_for(seed, number)
        cell = GREEDY if rng.random() < 0.4 else SAMPLED
        drawn = rng.random()
        arm = N2 if drawn < 1.0 - explore else OFF if drawn < 1.0 - explore / 2 else N8
        tokens = 50 + rng.integers(400) + (200 if cell is GREEDY else 0)
        rate = TRUTH[cell, arm] * math.exp(0.2 * rng.normal() - 0.02)
        found.append(
            Sample(number, cell, arm, propensity_of(cell, arm, explore=explore), tokens, tokens * rate)
        )
    return found


def best(cell: Cell) -> Setting:
    return N8 if cell is GREEDY else OFF


def truth(samples: Sequence[Sample], arm_of: dict[Cell, Setting]) -> float:
    tokens = sum(s.tokens for s in samples)
    return sum(s.tokens * TRUTH[s.cell, arm_of[s.cell]] for s in samples) / tokens


def targets(samples: Sequence[Sample], arm_of: dict[Cell, Setting]) -> dict[int, tuple[Setting, ...]]:
    return {s.number: (arm_of[s.cell],) for s in samples}


BEST = {GREEDY: N8, SAMPLED: OFF}
DEEP = {GREEDY: N8, SAMPLED: N8}


@pytest.mark.parametrize("policy", [BEST, DEEP, {GREEDY: N2, SAMPLED: N2}])
def test_both_estimates_hold_the_truth_in_about_95_of_100_journals(policy: dict[Cell, Setting]) -> None:
    held = {"weighed": 0, "robust": 0}
    for seed in range(100):
        samples = journal(seed)
        valued = value(samples, targets(samples, policy))
        assert valued is not None
        assert valued.weighed is not None
        true = truth(samples, policy)
        held["weighed"] += valued.weighed.low <= true <= valued.weighed.high
        held["robust"] += valued.robust.low <= true <= valued.robust.high
    assert min(held.values()) >= 88, held


def test_the_gain_has_the_right_sign_and_size_and_its_interval_knows_the_answers_are_the_same() -> None:
    samples = journal(1, 2000)
    valued = value(samples, targets(samples, BEST))
    assert valued is not None
    recorded = sum(s.decode_ms for s in samples) / sum(s.tokens for s in samples)
    true_gain = 1.0 - truth(samples, BEST) / recorded
    assert valued.robust.gain_low <= true_gain <= valued.robust.gain_high
    assert 0.2 < valued.robust.gain_low < valued.robust.gain < valued.robust.gain_high
    assert valued.warnings == ()


def test_the_recorded_policy_is_worth_what_was_recorded() -> None:
    samples = journal(2, 3000)
    drawn = {}
    for sample in samples:
        rng = Rng(sample.number * 7919)
        arms = [N2 if u < 0.7 else OFF if u < 0.85 else N8 for u in (rng.random() for _ in range(20))]
        drawn[sample.number] = tuple(arms)
    valued = value(samples, drawn)
    assert valued is not None
    assert valued.robust.gain == pytest.approx(0.0, abs=0.02)
    assert valued.robust.gain_low < 0.0 < valued.robust.gain_high


def test_the_robust_estimate_is_the_narrower_one() -> None:
    samples = journal(3, 2000)
    valued = value(samples, targets(samples, BEST))
    assert valued is not None
    assert valued.weighed is not None
    weighed, robust = valued.weighed, valued.robust
    assert robust.high - robust.low < weighed.high - weighed.low


def test_wrong_propensities_give_wrong_answers_so_the_weights_do_matter() -> None:
    samples = [replace(s, propensity=1 / 3) for s in journal(4, 3000)]
    mixed = {s.number: (N8, OFF, N2) for s in samples}
    right = value(journal(4, 3000), mixed)
    wrong = value(samples, mixed)
    assert right is not None
    assert wrong is not None
    assert right.weighed is not None
    assert wrong.weighed is not None
    assert not right.weighed.low <= wrong.weighed.ms_per_token <= right.weighed.high


def test_a_policy_that_differs_where_decisions_were_certain_is_warned_about() -> None:
    samples = [replace(s, propensity=1.0) for s in journal(5) if s.arm == N2]
    valued = value(samples, targets(samples, BEST))
    assert valued is not None
    assert valued.weighed is None
    assert valued.certain == 1.0
    text = " ".join(valued.warnings)
    assert "the data cannot say" in text
    assert "certain for another setting" in text


def test_a_setting_that_was_never_tried_is_warned_about_and_earns_nothing() -> None:
    samples = journal(6)
    deep = {s.number: (Setting(16, 0.0),) for s in samples}
    valued = value(samples, deep)
    assert valued is not None
    assert valued.untried == 1.0
    assert "never tried" in " ".join(valued.warnings)
    assert abs(valued.robust.gain) < 0.35


def test_few_answers_that_fit_are_warned_about() -> None:
    samples = journal(7, 60)
    valued = value(samples, targets(samples, DEEP))
    assert valued is not None
    assert valued.effective < 30
    assert "the data cannot say" in valued.warnings[0]


def test_estimates_that_contradict_each_other_are_warned_about() -> None:
    # A journal whose propensities lie by a factor of ten in one arm: the model and the weights then disagree.
    samples = [
        replace(s, propensity=0.9 if s.arm == N8 and s.cell is GREEDY else s.propensity)
        for s in journal(8, 3000)
    ]
    valued = value(samples, targets(samples, DEEP))
    assert valued is not None
    assert any("contradict" in warning for warning in valued.warnings)


def test_an_empty_journal_has_no_value() -> None:
    assert value([], {}) is None
    assert value(journal(1, 5), {}) is None


def test_samples_are_answered_decisions_that_a_policy_had_a_say_in() -> None:
    def decided(number: int, reason: str = "learned") -> Decided:
        return Decided(0.0, number, Context(100), Decision(N2, reason, 0.8, GREEDY), 3.0)

    def answered(number: int, tokens: int = 11, status: Status = Status.OK) -> Observed:
        return Observed(1.0, number, Outcome(status, Timings(100, 9.0, tokens, 500.0)))

    events: list[Event] = [
        decided(1),
        decided(2, "request-override"),
        decided(3),
        decided(4),
        decided(5),
        decided(6),
        answered(1),
        answered(2),
        Abandoned(1.0, 3, "client-gone"),
        answered(4, tokens=1),
        answered(5, status=Status.ERROR),
        answered(99),
    ]
    assert samples_of(events) == [Sample(1, GREEDY, N2, 0.8, 10, 500.0)]
    assert SERVER not in {s.arm for s in samples_of(events)}


def test_where_the_model_is_blind_the_weights_set_it_right() -> None:
    # The recorded policy knew a thing that the model does not, and played the deep setting where it was fast.
    samples = []
    for number in range(1, 4001):
        rng = rng_for(9, number)
        easy = rng.random() < 0.5
        chance = 0.9 if easy else 0.1
        arm = N8 if rng.random() < chance else N2
        rate = (10.0 if easy else 40.0) if arm == N8 else 20.0
        tokens = 100 + rng.integers(100)
        propensity = chance if arm == N8 else 1.0 - chance
        samples.append(
            Sample(number, GREEDY, arm, propensity, tokens, tokens * rate * (1.0 + 0.05 * rng.normal()))
        )
    valued = value(samples, targets(samples, {GREEDY: N8}))
    assert valued is not None
    seen = [s for s in samples if s.arm == N8]
    naive = sum(s.decode_ms for s in seen) / sum(s.tokens for s in seen)
    assert naive < 15.0, "what was seen of the setting flatters it"
    assert valued.robust.low <= 25.0 <= valued.robust.high
