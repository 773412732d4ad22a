"""A state explained: what is played and why not the others, held to what the policy really does."""

from __future__ import annotations

import pytest

from adaptive_dd.core import controller
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Cell, Context, Kind, Listens, Outcome, ServerFacts, Setting, Status
from adaptive_dd.core.explain import ArmView, CellView, budget, cells, decision_view
from adaptive_dd.core.guard import LENT
from adaptive_dd.core.rng import rng_for
from adaptive_dd.engine import Engine, MemoryJournal
from tests.journals import HERE, ROWS, WORLD, play


def engine_with(requests: int) -> Engine:
    engine = Engine(MemoryJournal(), HERE, settings=WORLD, frontier=ROWS)
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    play(engine, requests)
    return engine


@pytest.fixture(scope="module")
def learned() -> State:
    return engine_with(400).state


def cell_of(state: State, sampling: str) -> CellView:
    return next(c for c in cells(state) if c.cell == Cell(1, 0, f"{sampling}.free.chat"))


def arm_of(view: CellView, setting: Setting) -> ArmView:
    return next(arm for arm in view.arms if arm.setting == setting)


def test_the_chances_of_a_cell_are_the_shares_with_which_decisions_come(learned: State) -> None:
    context = Context(9000, "counted", kind=Kind("greedy"))
    view = decision_view(learned, context)
    assert sum(arm.chance for arm in view.arms) == pytest.approx(1.0)
    drawn = [controller.decide(learned, context, rng_for(3, number)).arm for number in range(4000)]
    for arm in view.arms:
        assert drawn.count(arm.setting) / 4000 == pytest.approx(arm.chance, abs=0.02)
    assert view.playing == max(set(drawn), key=drawn.count)


def test_a_request_of_a_known_conversation_is_explained_by_what_that_promised() -> None:
    engine = Engine(MemoryJournal(), HERE, settings=WORLD, frontier=ROWS)
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    play(engine, 300, conversations=True)
    # A conversation of easy text that asks with the other kind: what it promised differs from its cell's usual text.
    odd = Context(9000, "counted", kind=Kind("sampled"), conversation="greedy")
    usual = Context(9000, "counted", kind=Kind("sampled"))
    drawn = [controller.decide(engine.state, odd, rng_for(3, number)).arm for number in range(2000)]
    for arm in decision_view(engine.state, odd).arms:
        assert drawn.count(arm.setting) / 2000 == pytest.approx(arm.chance, abs=0.03)
    assert decision_view(engine.state, odd).playing != decision_view(engine.state, usual).playing


def test_a_learned_cell_plays_what_is_faster_and_says_so(learned: State) -> None:
    view = cell_of(learned, "greedy")
    played = view.arms[0]
    assert view.playing == played.setting
    assert played.setting.n_max is not None
    assert played.setting.n_max >= 5
    assert view.reason == "learned"
    assert played.standing == "promoted"
    assert played.why == "the fastest that is allowed"
    assert played.saved is not None
    assert played.saved_low is not None
    assert 0.05 < played.saved_low < played.saved


def test_expected_and_observed_times_are_near_the_truth_of_the_world(learned: State) -> None:
    view = cell_of(learned, "greedy")
    baseline, best = arm_of(view, WORLD.baseline), view.arms[0]
    n = best.setting.n_max or 0
    true_baseline, true_best = 24.0 / (1 + 0.9 + 0.81), (20.0 + 2.0 * n) * 0.1 / (1 - 0.9 ** (n + 1))
    assert view.baseline_ms == pytest.approx(true_baseline, rel=0.1)
    assert baseline.expected_ms == pytest.approx(true_baseline, rel=0.1)
    assert best.expected_ms == pytest.approx(true_best, rel=0.12)
    assert best.expected_ms_low < best.expected_ms < best.expected_ms_high
    for arm in view.arms:
        assert arm.expected_gain == pytest.approx(1.0 - arm.expected_ms / baseline.expected_ms)


def test_every_arm_that_is_not_played_says_why_not(learned: State) -> None:
    for view in cells(learned):
        for arm in view.arms:
            assert arm.why
            if arm.expected_gain < 0.0 and arm.chance == 0.0 and arm.standing == "candidate":
                assert "slower than the baseline" in arm.why
    demoted = [arm for view in cells(learned) for arm in view.arms if arm.standing == "demoted"]
    assert all("a candidate again at request" in arm.why for arm in demoted)


def test_before_anything_is_known_the_baseline_is_asked_first() -> None:
    state = engine_with(0).state
    assert cells(state) == ()
    view = decision_view(state, Context(900, "counted"))
    assert view.playing == WORLD.baseline
    assert view.reason == "refresh"
    assert view.baseline_ms is None
    assert {arm.why for arm in view.arms} == {
        "it was not heard often enough here yet",
        "the baseline is asked first",
    }


def test_an_arm_that_the_server_failed_on_is_explained_as_quarantined() -> None:
    engine = engine_with(400)
    while True:
        ticket = engine.begin(Context(9000, "counted", kind=Kind("greedy")))
        failed = ticket.decision.arm
        if failed != WORLD.baseline:
            engine.finish(ticket.number, Outcome(Status.ERROR, http_status=500))
            break
        engine.abandon(ticket.number, "lost")
    arm = arm_of(cell_of(engine.state, "greedy"), failed)
    assert arm.standing == "quarantined"
    assert arm.why.startswith("the server failed or refused it; a candidate again at request ")


def test_the_budget_adds_up_to_the_headroom(learned: State) -> None:
    view = budget(learned)
    allowed = view.saved_ms - view.slack_ms - view.reserved_ms + view.alpha * view.ref_ms
    allowed += LENT * view.c0_ms  # all of what is lent: the baseline was heard often enough
    assert view.headroom_ms == pytest.approx(allowed)
    assert view.gain is not None
    assert view.gain_low is not None
    assert view.gain_high is not None
    assert 0.0 < view.gain_low < view.gain < view.gain_high
    assert view.gain == pytest.approx(view.saved_ms / view.ref_ms)


def test_an_empty_account_has_no_gain() -> None:
    view = budget(engine_with(0).state)
    assert (view.gain, view.gain_low, view.alarm) == (None, None, "")
