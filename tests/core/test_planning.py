"""Plans: what the estimator expects, put before the policy with what a request may cost at worst."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adaptive_dd.core import controller, planning, policy
from adaptive_dd.core.domain import (
    Cell,
    Frontier,
    FrontierRow,
    Kind,
    Listens,
    PolicySettings,
    ServerFacts,
    Setting,
)
from adaptive_dd.core.events import Decided, FactsFound
from adaptive_dd.core.explain import decision_view
from adaptive_dd.core.rng import rng_for
from tests.core.worlds import N2, Play, World, answered

KIND = str(Kind())
N8 = Setting(8, 0.0)


# --- how long an answer may be -----------------------------------------------------------------------------------


def test_answers_that_are_all_alike_make_worst_cases_of_hardly_longer_ones_and_mixed_ones_of_much_longer() -> (
    None
):
    alike, mixed = answered([200] * 40), answered([20, 380] * 20)
    assert alike.lengths[KIND].mean == pytest.approx(200.0)
    assert mixed.lengths[KIND].mean == pytest.approx(200.0, abs=10.0)
    assert planning.long_answer(alike, KIND) < 1.3 * 200.0
    assert planning.long_answer(mixed, KIND) > 4.0 * 200.0


def test_before_any_answer_the_guess_is_a_long_one() -> None:
    nothing = Play(World()).state
    guess = planning.TOKENS_GUESS
    assert planning.long_answer(nothing, KIND) == guess * (1.0 + planning.LONGER * planning.SPREAD_GUESS)
    first = answered([100])
    assert planning.long_answer(first, KIND) > 2.0 * 100.0, "one answer tells nothing of how far they spread"


def test_a_state_that_was_kept_before_spreads_were_learned_still_plans() -> None:
    state = replace(answered([200] * 40), spreads={}, plans={})
    assert planning.long_answer(state, KIND) == pytest.approx(200.0 * (1.0 + 5.0 * planning.SPREAD_GUESS))
    assert controller.decide(state, Play(World()).context, rng_for(1, 99)).arm is not None


# --- what the client allows --------------------------------------------------------------------------------------


def with_little_room() -> Play:
    """A play in which the fastest is expected to be a setting whose trial the budget does not pay for."""
    play = Play(World(), PolicySettings(baseline=N2, cap=8))
    play.state = answered([200] * 40, accepted=0.63)
    cell = controller.cell_of(play.state, play.context)
    plan = play.state.plans[cell][0]
    assert plan is not None
    dear = policy.Option(N8, "explore", 1.0, worst_ms=4000.0)
    plans = {cell: (replace(plan, tries=(), best=dear, proven=plan.fallback, tokens=400.0),) * planning.PLANS}
    play.state = replace(play.state, plans=plans, headroom_ms=1500.0, tight={})
    return play


@pytest.mark.parametrize(("max_tokens", "tried"), [(None, False), (400, False), (160, False), (140, True)])
def test_a_trial_is_paid_for_sooner_where_the_client_allows_few_tokens(
    max_tokens: int | None, tried: bool
) -> None:
    play = with_little_room()
    asked = replace(play.context, max_tokens=max_tokens)
    decision = controller.decide(play.state, asked, rng_for(1, 41))
    assert (decision.arm == N8) == tried
    shown = {arm.setting: arm.chance for arm in decision_view(play.state, asked).arms}
    assert shown[N8] == (1.0 if tried else 0.0)
    if tried:
        sent = controller.apply(play.state, Decided(0.0, 41, asked, decision, 1.0))
        assert sent.guard.reserved[41] == pytest.approx(4000.0 * 140 / 400)


def test_why_a_trial_is_not_made_is_told_in_what_this_request_can_cost_and_what_the_budget_has() -> None:
    play = with_little_room()
    why = [
        next(
            arm.why
            for arm in decision_view(play.state, replace(play.context, max_tokens=m)).arms
            if arm.setting == N8
        )
        for m in (None, 160)
    ]
    assert why == [
        "unproven: a trial may cost 4,000 ms, the budget has 1,500 ms",
        "unproven: a trial may cost 1,600 ms, the budget has 1,500 ms",
    ]


# --- how fresh the price is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "share"), [(150, policy.REFRESH), (250, policy.OVERDUE)])
def test_a_baseline_that_was_not_heard_for_long_is_asked_more_often(others: int, share: float) -> None:
    play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    kept = replace(play.state.guard, since_ms=others * play.state.guard.usual.mean)
    cell = controller.cell_of(play.state, play.context)
    (plan, *_) = planning.planned(play.state, play.state.learned, kept, cell, (0,))
    assert plan is not None
    refresh = [option for option in plan.tries if option.reason == "refresh"]
    assert [option.share for option in refresh] == [share]


# --- what was heard, and what was claimed ------------------------------------------------------------------------


def test_a_deep_draft_that_nobody_heard_has_a_dearer_worst_case() -> None:
    play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    cell = controller.cell_of(play.state, play.context)
    best = [
        plan.best.worst_ms
        for heard in (play.state.heard, {})
        for plan in planning.planned(
            replace(play.state, heard=heard, settings=replace(play.state.settings, margin=0.0)),
            play.state.learned,
            replace(play.state.guard, trials={}),
            cell,
            (0,),
        )[:1]
        if plan is not None
    ]
    assert best[1] > 20.0 * best[0], best


def test_the_shape_of_this_machine_says_nothing_of_other_places() -> None:
    places = (N2, Setting(4, 0.0), N8)
    worst = []
    for arms in (None, places):
        play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8))
        facts = ServerFacts(Listens.HONOURS, cap=8, arms=arms)
        play.tell(FactsFound(0.0, facts))
        play.requests(60)
        cell = controller.cell_of(play.state, play.context)
        state = replace(play.state, heard={})
        (plan, *_) = planning.planned(state, state.learned, replace(state.guard, trials={}), cell, (0,))
        assert plan is not None
        worst.append(plan.best.worst_ms)
    assert worst[0] > 20.0 * worst[1]


def test_what_the_frontier_got_wrong_somewhere_counts_against_all_its_claims() -> None:
    rows = tuple(FrontierRow(300, Setting(n, 0.0), s, samples=5, sd=0.5) for n, s in ((2, 80.0), (8, 130.0)))
    state = Play(World(), frontier=Frontier(rows, N2)).state
    cell = Cell(0, 0, KIND)
    trials = controller.credits_for(state, cell)
    claims = [
        planning._beliefs(replace(state.guard, lies=lies), cell, trials)["n8,p0.0"]
        for lies in (0.0, 2.0, 9.0)
    ]
    assert claims[0] == (pytest.approx(math.log(130.0 / 80.0)), 1.0)
    assert [share for _, share in claims] == [1.0, pytest.approx(1.0 - 2.0 * planning.CAUGHT_OUT), 0.0]
