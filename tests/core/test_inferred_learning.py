"""What inferred answers teach: the same as the server's own account, and nothing that they do not know."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adaptive_dd.core import controller, estimator
from adaptive_dd.core.arrivals import Arrivals
from adaptive_dd.core.codec import event_from_json, event_to_json, state_to_json
from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
    Context,
    Decision,
    Deployment,
    Frontier,
    Kind,
    Listens,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Began, Decided, FactsFound, Observed
from adaptive_dd.core.inferred import inferred
from adaptive_dd.core.learned import Answer, Learned, arm_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.sim import SimRequest, World, generate, linear_shape, noise_for
from adaptive_dd.core.texts import texts_of
from adaptive_dd.simulated import bursts

N2, N8, N8P = Setting(2, 0.0), Setting(8, 0.0), Setting(8, 0.6)
ARMS = (OFF, N2, N8)
WORLD = World(base_ms=((0.0, 60.0),), shape=linear_shape(1.0, 0.12))
MESSAGES = Kind(endpoint="messages")


EASY = Content(0.8)
# Its drafter is surer than it should be, so that a p_min lets more through than the tables say.
BOASTING = Content(0.8, boast=2.0)


def answer(arm: Setting, number: int, content: Content = EASY) -> Timings:
    """The server's own account of one simulated answer."""
    request = SimRequest(number, Context(500), content, answer_tokens=120)
    return generate(WORLD, request, arm, noise_for(1, number))


def by_arrival(true: Timings, arm: Setting, number: int) -> Timings:
    """The same answer, told by when its tokens came: cycles of equal length, tokens some tenths of a ms apart."""
    luck, each = random.Random(number), true.predicted_ms / max(1, true.cycles)
    times = []
    for cycle, size in enumerate(bursts(true, arm.n_max or 0, number)):
        times += [cycle * each + 0.3 * luck.random() * token for token in range(size)]
    times[-1] = true.predicted_ms
    seen = Arrivals(
        -50.0, 0.0, times[-1] + 0.2, 0.0, tuple(times), (1,) * len(times), true.predicted_n, 500, 0
    )
    found = inferred(seen, arm)
    assert isinstance(found, Timings), found
    return found


def initial() -> controller.State:
    began = Began(0.0, Deployment("http://a", actuator="replicas"), PolicySettings(baseline=OFF), Frontier())
    facts = FactsFound(0.0, ServerFacts(Listens.HONOURS, cap=8, arms=(*ARMS, N8P)))
    return controller.apply(controller.initial(began), facts)


def after(
    state: controller.State, number: int, arm: Setting, outcome: Outcome, **more: Any
) -> controller.State:
    context = Context(500, kind=MESSAGES, conversation=f"c{number % 5}", **more)
    decision = Decision(arm, "explore", 0.5, controller.cell_of(state, context))
    state = controller.apply(state, Decided(0.0, number, context, decision, 0.0))
    return controller.apply(state, Observed(0.0, number, outcome))


def plain(state: controller.State) -> Any:
    return json.loads(state_to_json(state))


def same(one: Any, other: Any, where: str = "") -> None:
    """Equal, but for rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{number}]")
    elif isinstance(one, float) or isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-9), where
    else:
        assert one == other, where


def test_without_a_p_min_arrivals_leave_the_same_state_as_the_servers_own_timings() -> None:
    by_timings, told = initial(), initial()
    for number in range(1, 61):
        arm = ARMS[number % 3]
        true = answer(arm, number)
        guess = by_arrival(true, arm, number)
        assert (guess.cycles, guess.draft_n) == (true.cycles, true.draft_n)
        by_timings = after(by_timings, number, arm, Outcome(Status.OK, true))
        told = after(told, number, arm, Outcome(Status.OK, guess, inferred=True))
    same(plain(by_timings), plain(told))
    assert told.guard.prices
    assert any(trial.weight > 1.0 for trials in told.guard.trials.values() for trial in trials.values())


def learned(arms: Sequence[Setting], content: Content = EASY, *, told: bool) -> Learned:
    found = Learned()
    for number in range(1, 91):
        arm = arms[number % len(arms)]
        true = answer(arm, number, content)
        timings = by_arrival(true, arm, number) if told else true
        heard = Answer(arm_of(arm), 0, 0, str(MESSAGES), "", timings, inferred=told)
        found = estimator.learn(found, heard, estimator.read(found, heard))
    return found


def cost(found: Learned, arm: Setting) -> float:
    costs = outlooks(found, Place(0, 0, str(MESSAGES)), (arm_of(arm),)).cost[0]
    return float(costs @ texts_of(found, str(MESSAGES), 0))


@pytest.mark.parametrize("content", [EASY, BOASTING], ids=["easy", "boasting"])
@pytest.mark.parametrize("arm", [OFF, N2, N8, N8P])
def test_with_a_p_min_the_unknown_draft_misleads_neither_its_own_arm_nor_the_others(
    arm: Setting, content: Content
) -> None:
    arms = (OFF, N2, N8, N8P)
    told, true = (learned(arms, content, told=how) for how in (True, False))
    assert cost(told, arm) == pytest.approx(cost(true, arm), rel=0.02)


def test_an_arm_that_was_never_played_is_not_judged_by_a_draft_that_nobody_saw() -> None:
    told, true = (learned((OFF, N8P), BOASTING, told=how) for how in (True, False))
    assert cost(told, N2) == pytest.approx(cost(true, N2), rel=0.2)


def test_the_line_believes_an_answer_less_where_its_p_min_is_not_known_to_be_none() -> None:
    timings = by_arrival(answer(N8, 1), N8, 1)

    def weight(arm: Setting) -> float:
        heard = Answer(arm_of(arm), 0, 0, "k", "", timings, inferred=True)
        found = estimator.learn(Learned(), heard, estimator.read(Learned(), heard))
        return found.nodes[0].fit.total[0]

    assert weight(Setting(8)) == weight(N8P) == pytest.approx(estimator.UNTOLD * weight(N8))


def test_an_arm_that_was_rejected_throughout_is_not_taken_for_one_that_did_not_draft() -> None:
    timings = Timings(500, 0.0, 101, 9000.0)
    heard = Answer(arm_of(N8P), 0, 0, "k", "", timings, inferred=True)
    reading = estimator.read(Learned(), heard)
    assert reading.shown is not None
    assert reading.seen.drawn == reading.typical
    assert reading.seen.drawn[2] > 0.0
    state = after(initial(), 1, N8P, Outcome(Status.OK, timings, inferred=True))
    assert state.learned.texts, "the state hears of it in the same way"


def test_an_inferred_answer_of_an_unnamed_depth_teaches_nothing() -> None:
    state = initial()
    timings = by_arrival(answer(OFF, 1), OFF, 1)
    assert after(state, 1, SERVER, Outcome(Status.OK, timings, inferred=True)).learned == state.learned
    assert after(state, 1, OFF, Outcome(Status.OK, timings, inferred=True)).learned != state.learned


def test_an_answer_that_was_thought_to_be_blind_and_was_not_teaches_its_own_cell() -> None:
    timings = by_arrival(answer(OFF, 1), OFF, 1)
    state = after(initial(), 1, OFF, Outcome(Status.OK, timings, inferred=True), blind=True)
    assert set(state.lengths) == {str(MESSAGES)}


def test_an_outcome_of_an_older_journal_was_the_servers_own() -> None:
    event = Observed(0.0, 1, Outcome(Status.OK, Timings(1, 1.0, 2, 3.0), inferred=True))
    text = event_to_json(event)
    assert event_from_json(text) == event
    older = json.loads(text)
    del older["outcome"]["inferred"]
    assert event_from_json(json.dumps(older)) == replace(
        event, outcome=replace(event.outcome, inferred=False)
    )
