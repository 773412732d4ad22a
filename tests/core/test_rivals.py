"""The rivals follow their descriptions, quirks included."""

from __future__ import annotations

import pytest

from adaptive_dd.core.arena import Terms
from adaptive_dd.core.domain import (
    OFF,
    Context,
    Frontier,
    FrontierRow,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.rivals import RIVALS
from adaptive_dd.core.rivals.common import geometric_chance

N2 = Setting(2, 0.0)
TABLE = Frontier(
    (
        FrontierRow(1000, N2, 80.0),
        FrontierRow(1000, Setting(5, 0.1), 100.0),
        FrontierRow(50000, N2, 60.0),
    ),
    N2,
)
SHORT, LONG = Context(900), Context(60000)


def terms(frontier: Frontier = TABLE) -> Terms:
    return Terms(PolicySettings(baseline=N2, cap=8), frontier, Setting(3, 0.0, 0))


def outcome(tok_s: float, *, per_cycle: float = 2.0, drafted: int = 4, tokens: int = 300) -> Outcome:
    """An answer at this speed with so many accepted per cycle of `drafted`."""
    cycles = round(tokens / (1 + per_cycle))
    timings = Timings(10, 10.0, tokens + 1, 1000.0 * tokens / tok_s, 0, drafted * cycles, tokens - cycles)
    return Outcome(Status.OK, timings)


def feed(rival: object, arm: Setting, result: Outcome, times: int = 1, context: Context = SHORT) -> None:
    for _ in range(times):
        rival.learn(1, context, arm, result, 0.0)  # type: ignore[attr-defined]


def choices(rival: object, numbers: range = range(1, 200), context: Context = SHORT) -> list[Setting]:
    return [rival.choose(number, context, 0.0) for number in numbers]  # type: ignore[attr-defined]


def test_off_and_fixed_never_move() -> None:
    assert set(choices(RIVALS["off"](terms()))) == {OFF}
    assert set(choices(RIVALS["fixed"](terms()))) == {N2}


def test_the_ladder_takes_the_last_rule_and_the_baseline_without_a_frontier() -> None:
    rival = RIVALS["ladder"](terms())
    assert rival.choose(1, SHORT, 0.0) == Setting(5, 0.1)
    assert rival.choose(1, LONG, 0.0) == N2
    assert RIVALS["ladder"](terms(Frontier())).choose(1, SHORT, 0.0) == N2


def test_rocmfpx_goes_one_above_its_best_where_acceptance_is_high() -> None:
    rival = RIVALS["rocmfpx"](terms())
    feed(rival, Setting(5, 0.1), outcome(100.0, per_cycle=4.6, drafted=5))
    picked = choices(rival)
    assert picked.count(Setting(6, 0.1)) > 0.85 * len(picked)
    assert {arm.n_max for arm in picked} == {5, 6, 7}  # the .05 exploration, then the step


def test_rocmfpx_steps_down_and_raises_p_where_acceptance_is_low() -> None:
    rival = RIVALS["rocmfpx"](terms())
    feed(rival, Setting(5, 0.1), outcome(100.0, per_cycle=1.0, drafted=5))
    assert choices(rival).count(Setting(4, 0.25)) > 180


def test_rocmfpx_looks_no_further_than_two_from_its_profile_and_one_sample_wins() -> None:
    rival = RIVALS["rocmfpx"](terms())
    feed(rival, Setting(8, 0.1), outcome(900.0, per_cycle=5.0, drafted=8))
    feed(rival, Setting(4, 0.1), outcome(300.0, per_cycle=2.4, drafted=4))
    assert choices(rival).count(Setting(4, 0.1)) > 180
    feed(rival, Setting(6, 0.1), outcome(301.0, per_cycle=3.6, drafted=6))
    assert choices(rival).count(Setting(6, 0.1)) > 180


def test_rocmfpx_learns_nothing_from_a_reply_without_drafts() -> None:
    rival = RIVALS["rocmfpx"](terms())
    feed(rival, Setting(6, 0.1), outcome(900.0, per_cycle=0.0, drafted=0))
    assert choices(rival).count(Setting(5, 0.1)) > 180


def test_ik_begins_at_the_smallest_and_forgets_all_after_thirty_slow_replies() -> None:
    rival = RIVALS["ik"](terms())
    assert choices(rival).count(Setting(1, 0.0)) > 120
    feed(rival, Setting(6, 0.095), outcome(100.0))
    assert choices(rival).count(Setting(6, 0.095)) > 120
    feed(rival, Setting(6, 0.095), outcome(10.0), 29)
    assert choices(rival).count(Setting(6, 0.095)) > 120
    feed(rival, Setting(6, 0.095), outcome(10.0), 1)
    assert choices(rival).count(Setting(1, 0.0)) > 120


def test_epsilon_greedy_keeps_a_mean_per_bucket() -> None:
    rival = RIVALS["eps"](terms())
    feed(rival, N2, outcome(50.0))
    feed(rival, Setting(8, 0.0), outcome(90.0))
    feed(rival, OFF, outcome(200.0), context=LONG)
    assert choices(rival).count(Setting(8, 0.0)) > 160
    assert choices(rival, context=LONG).count(OFF) > 160


def test_ucb1_tries_everything_once_then_the_best_index() -> None:
    rival, tried = RIVALS["ucb1"](terms()), []
    for number in range(1, 60):
        arm = rival.choose(number, SHORT, 0.0)
        tried.append(arm)
        feed(rival, arm, outcome(100.0 if arm == Setting(4, 0.0) else 30.0))
    assert len(set(tried[:7])) == 7
    assert tried[7:].count(Setting(4, 0.0)) == max(tried[7:].count(arm) for arm in set(tried))


def test_discounted_thompson_turns_to_the_faster_arm_and_back() -> None:
    rival = RIVALS["dts"](terms())

    def play(best: Setting, numbers: range) -> list[Setting]:
        picked = []
        for number in numbers:
            arm = rival.choose(number, SHORT, 0.0)
            picked.append(arm)
            feed(rival, arm, outcome(100.0 if arm == best else 40.0))
        return picked

    assert play(Setting(4, 0.0), range(1, 300))[200:].count(Setting(4, 0.0)) > 70
    assert play(Setting(1, 0.0), range(300, 900))[500:].count(Setting(1, 0.0)) > 60


def test_sglang_moves_by_acceptance_every_five_requests_blind_to_speed() -> None:
    rival = RIVALS["sglang"](terms())
    assert rival.choose(1, SHORT, 0.0) == Setting(3, 0.0)
    feed(rival, Setting(3, 0.0), outcome(1.0, per_cycle=2.9, drafted=3), 4)
    assert rival.choose(1, SHORT, 0.0) == Setting(3, 0.0)
    feed(rival, Setting(3, 0.0), outcome(1.0, per_cycle=2.9, drafted=3), 1)
    assert rival.choose(1, SHORT, 0.0) == Setting(5, 0.0)
    feed(rival, Setting(5, 0.0), outcome(900.0, per_cycle=0.2, drafted=5), 20)
    assert rival.choose(1, SHORT, 0.0) == Setting(1, 0.0)


def test_the_cost_model_switches_only_above_three_per_cent_and_probes() -> None:
    rival = RIVALS["cost-model"](terms())
    cycles = {depth: 20.0 * (1 + 0.9 * depth) for depth in range(9)}  # a steep machine: not drafting is best
    picked = []
    for number in range(1, 200):
        arm = rival.choose(number, SHORT, 0.0)
        depth = arm.n_max or 0
        picked.append(depth)
        per_cycle = sum(0.6**k for k in range(1, depth + 1))
        tok_s = 1000.0 * (1 + per_cycle) / cycles[depth]
        feed(rival, arm, outcome(tok_s, per_cycle=per_cycle, drafted=depth))
    assert picked[0] == 3
    assert picked[100:].count(0) > 85
    assert len(set(picked[100:])) > 2


def test_ucbspec_counts_accepted_length_and_no_cost() -> None:
    rival = RIVALS["ucbspec"](terms())
    for number in range(1, 400):
        arm = rival.choose(number, SHORT, 0.0)
        feed(
            rival,
            arm,
            outcome(100.0 / (arm.n_max or 1), per_cycle=0.7 * (arm.n_max or 0), drafted=arm.n_max or 0),
        )
    late = choices(rival, range(400, 401))
    assert late[0].n_max in {6, 8}


def test_full_information_scores_depths_it_never_played() -> None:
    rival = RIVALS["full-information"](terms())
    for arm, ms in ((Setting(3, 0.0), 26.0), (Setting(1, 0.0), 22.0)):
        depth = arm.n_max or 0
        per_cycle = sum(0.95**k for k in range(1, depth + 1))
        feed(rival, arm, outcome(1000.0 * (1 + per_cycle) / ms, per_cycle=per_cycle, drafted=depth), 5)
    assert rival.choose(1, SHORT, 0.0) == Setting(8, 0.0)


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_survives_answers_without_timings_or_tokens(name: str) -> None:
    rival = RIVALS[name](terms())
    rival.learn(1, SHORT, N2, Outcome(Status.CUT), 0.0)
    rival.learn(1, SHORT, N2, Outcome(Status.OK, Timings(10, 1.0, 1, 0.0)), 0.0)
    assert all((arm.n_max or 0) <= 8 for arm in choices(rival))


def test_the_chance_behind_an_accepted_length_is_found_again() -> None:
    assert geometric_chance(sum(0.8**k for k in range(1, 6)), 5) == pytest.approx(0.8, abs=1e-6)
