from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adaptive_dd.core import guard
from adaptive_dd.core.acceptance import LEVELS
from adaptive_dd.core.domain import Cell
from adaptive_dd.core.guard import Account, Guard, Price
from adaptive_dd.core.learned import Reading, Tally
from adaptive_dd.core.regression import Cycle
from adaptive_dd.core.trials import Standing, Trial

FLAT = (1.0 / len(LEVELS),) * len(LEVELS)
COEF = (10.0, 0.0, 2.0, 0.0)


def baseline_reading(cycle_ms: float) -> Reading:
    drawn = (1.0, 1.0, 2.0, 0.3)
    return Reading(Cycle(drawn, cycle_ms, 1.0), drawn, FLAT, FLAT, FLAT, None, 0.0, 0.0, True)


def priced(kept: Guard, cycle_ms: float, number: int = 1) -> Guard:
    after, _ = guard.priced(kept, 0, baseline_reading(cycle_ms), COEF, number, sd=0.03)
    return after


def after_ten() -> Guard:
    kept = Guard()
    for _ in range(10):
        kept = priced(kept, 10.0)
    return kept


def price_of(kept: Guard) -> float:
    return math.exp(kept.prices[0].level + kept.drift)


def test_a_slow_answer_of_another_arm_never_raises_the_baselines_price() -> None:
    kept = priced(Guard(), 14.0)
    before = price_of(kept)
    for number in range(30):
        kept = guard.listened(kept, ("n8,p0.0", 0), 0.7, sd=0.03, number=number)
    assert price_of(kept) == before
    assert kept.alarm is not None


def test_a_fast_answer_of_another_arm_lowers_it_at_once() -> None:
    kept = priced(Guard(), 14.0)
    kept = guard.listened(kept, ("n8,p0.0", 0), -0.5, sd=0.03, number=3)
    assert price_of(kept) < 0.7 * 14.0


@pytest.mark.parametrize(("error", "shared"), [(0.6, 0.6), (0.01, 0.0), (-0.5, 0.0)])
def test_only_what_the_baseline_shows_too_is_the_whole_machines(error: float, shared: float) -> None:
    kept = guard.listened(priced(Guard(), 14.0), ("n8,p0.0", 0), 0.7, sd=0.03, number=1)
    after, shift = guard.explained(kept, error, sd=0.03, number=2)
    if shared:
        assert shift == 0.0
        after, shift = guard.explained(after, error, sd=0.03, number=3)
    assert shift == pytest.approx(shared)
    assert after.alarm is None


def test_one_slow_answer_of_the_baseline_does_not_make_an_arms_surprise_the_machines() -> None:
    kept = guard.listened(priced(Guard(), 14.0), ("n8,p0.0", 0), 0.7, sd=0.03, number=1)
    sent = replace(kept, alarm=replace(kept.alarm, due=False))  # type: ignore[type-var]
    asked, shift = guard.explained(sent, 1.4, sd=0.03, number=2)
    assert asked.alarm is not None
    assert (shift, asked.drift, asked.alarm.due) == (0.0, kept.drift, True), "it is asked again"
    after, shift = guard.explained(asked, 0.02, sd=0.03, number=3)
    assert (shift, after.drift, after.alarm) == (0.0, kept.drift, None)
    _, shift = guard.explained(asked, 0.4, sd=0.03, number=3)
    assert shift == pytest.approx(0.4), "what both answers show"
    little, _ = guard.explained(sent, 0.3, sd=0.03, number=2)
    _, shift = guard.explained(little, 1.4, sd=0.03, number=3)
    assert shift == pytest.approx(0.3), "whichever of them is the slow one"


def test_a_fall_of_the_whole_machine_is_believed_at_once() -> None:
    kept = guard.listened(priced(Guard(), 14.0), ("n8,p0.0", 0), -0.7, sd=0.03, number=1)
    after, shift = guard.explained(kept, -0.6, sd=0.03, number=2)
    assert (shift, after.alarm) == (pytest.approx(-0.6), None)


def test_a_baseline_that_turns_out_faster_takes_back_half_of_what_crept_and_all_of_what_fell() -> None:
    kept = replace(priced(Guard(), 14.0), since_ms=1000.0)
    assert priced(kept, 14.0 * math.exp(-0.06), number=9).total.saved_ms == pytest.approx(-30.0)
    usual = 3.0 * 0.03
    fell = priced(kept, 14.0 * math.exp(-0.2), number=9)
    assert fell.total.saved_ms == pytest.approx(-1000.0 * (0.5 * usual + (0.2 - usual)))
    assert priced(kept, 14.0 * math.exp(0.2), number=9).total.saved_ms == 0.0


def test_headroom_is_savings_less_slack_and_reserves_plus_what_may_be_lost() -> None:
    often = {0: Price(level=3.0, drawn=(1.0, 1.0, 2.0, 0.5), weight=guard.HEARD, number=9)}
    kept = Guard(total=Account(saved_ms=300.0, ref_ms=10_000.0), reserved={1: 50.0, 2: 25.0}, prices=often)
    lent = guard.LENT * 1000.0
    assert guard.headroom_ms(kept, alpha=0.01, c0_ms=1000.0, quantile=1.6) == pytest.approx(325.0 + lent)
    lost = replace(kept, total=Account(saved_ms=-300.0, ref_ms=10_000.0))
    assert guard.headroom_ms(lost, alpha=0.01, c0_ms=1000.0, quantile=1.6) == pytest.approx(-275.0 + lent)


def test_where_answers_take_long_one_misjudged_answer_is_kept_back() -> None:
    def room(usual_ms: float) -> float:
        kept = Guard(total=Account(saved_ms=9000.0), usual=Tally(usual_ms, 9.0))
        return guard.headroom_ms(kept, alpha=0.0, c0_ms=1000.0, quantile=1.6)

    covered = (1.0 - guard.LENT) * 1000.0
    assert room(0.0) == room(covered / guard.MISJUDGED) == 9000.0, "the rest of c0 is enough for short ones"
    assert room(10_000.0) == pytest.approx(9000.0 - guard.MISJUDGED * 10_000.0 + covered)


def test_c0_is_lent_with_the_first_answers_of_the_baseline_and_never_whole() -> None:
    def lent(answers: float) -> float:
        price = Price(level=3.0, drawn=(1.0, 1.0, 2.0, 0.5), weight=answers, number=9)
        kept = Guard(prices={0: price} if answers else {})
        return guard.headroom_ms(kept, alpha=0.0, c0_ms=1000.0, quantile=1.6)

    assert lent(0.0) == 0.0
    assert 0.0 < lent(1.0) < lent(3.0) < lent(guard.HEARD) == lent(8.0) < 1000.0


def test_the_worst_case_counts_no_text_on_which_an_arm_would_gain() -> None:
    half = (0.5, 0.5, *(0.0,) * (len(LEVELS) - 2))
    price = (10.0,) * len(LEVELS)
    worst = guard.worst_ms([14.0, 2.0, *[0.0] * 11], price, half, stretch=1.0, tokens=100.0)
    assert worst == pytest.approx(100.0 * 4.0), "the worst fifth of the texts is all of the losing sort"
    rare = (0.1, 0.9, *(0.0,) * (len(LEVELS) - 2))
    worst = guard.worst_ms([14.0, 2.0, *[0.0] * 11], price, rare, stretch=1.0, tokens=100.0)
    assert worst == pytest.approx(100.0 * 4.0 * 0.1 / guard.TAIL)


def test_one_slow_answer_of_the_baseline_is_a_hiccup_and_three_are_the_machine() -> None:
    kept = after_ten()
    before = math.exp(kept.prices[0].level + kept.drift)
    once = priced(kept, 50.0)
    assert math.exp(once.prices[0].level + once.drift) < 1.1 * before
    again = priced(priced(once, 10.0), 50.0)
    assert math.exp(again.prices[0].level + again.drift) < 1.15 * before, (
        "two hiccups apart are still hiccups"
    )
    stays = priced(priced(once, 50.0), 50.0)
    assert math.exp(stays.prices[0].level + stays.drift) > 1.5 * before


def test_a_fast_answer_of_the_baseline_counts_at_once_and_for_every_node() -> None:
    kept = replace(after_ten(), prices={**after_ten().prices, 8: after_ten().prices[0]})
    after = priced(kept, 5.0)
    assert math.exp(after.prices[0].level + after.drift) < 6.0
    assert after.drift < 0.0, "what only ever rose would carry the other nodes' prices along"


def test_the_noisier_the_answers_the_calmer_the_price() -> None:
    moved = []
    for sd in (0.03, 0.12):
        after, _ = guard.priced(after_ten(), 0, baseline_reading(10.7), COEF, 1, sd=sd)
        moved.append(after.prices[0].level + after.drift)
    assert moved[1] < moved[0]


def believed() -> Guard:
    """A guard whose frontier has rows in two cells, one of them proven since."""
    here = {"n4,p0.0": Trial(Standing.CREDITED, claim=0.2), "n6,p0.0": Trial(Standing.PROMOTED)}
    return Guard(
        trials={Cell(0, 0, "a"): here, Cell(1, 0, "b"): {"n8,p0.0": Trial(Standing.CREDITED, claim=0.3)}}
    )


def played_on_credit(kept: Guard, *savings: float) -> Guard:
    for number, saving in enumerate(savings):
        kept = guard.credited(kept, saving, 1.0, number=number, delta=0.05, doubt=0.02)
    return kept


def test_rows_of_a_frontier_that_lose_together_get_no_credit_in_any_cell() -> None:
    kept = played_on_credit(believed(), *[-0.25] * 7)
    assert kept.caught
    standings = {name: t.standing for own in kept.trials.values() for name, t in own.items()}
    assert standings["n4,p0.0"] is standings["n8,p0.0"] is Standing.CANDIDATE
    assert standings["n6,p0.0"] is Standing.PROMOTED, "what answers proved is not the frontier's claim"


@pytest.mark.parametrize("savings", [[-0.4, -0.4], [0.1] * 200, [0.2, -0.15] * 100])
def test_a_frontier_that_mostly_keeps_its_word_keeps_its_credit(savings: list[float]) -> None:
    kept = played_on_credit(believed(), *savings)
    assert not kept.caught
    assert kept.trials == believed().trials


def test_one_absurd_answer_does_not_discredit_a_frontier() -> None:
    assert not played_on_credit(believed(), -9.0).caught
