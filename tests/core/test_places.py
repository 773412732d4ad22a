"""The controller where arms are places: which arms there are, what a switch is charged, what a blind answer teaches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_dd.bench_places import WAYS, play_places, table
from adaptive_dd.core import controller
from adaptive_dd.core.codec import event_from_json, event_to_json
from adaptive_dd.core.domain import (
    OFF,
    Context,
    Deployment,
    Frontier,
    FrontierRow,
    Kind,
    Listens,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Abandoned, Began, Charged, Decided, FactsFound, FreezeSet, Observed
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.scenarios import scenario

N2, N8, N8P = Setting(2), Setting(8), Setting(8, 0.6)
NO_FRONTIER = Frontier()
PLACES = (N8, N2, OFF, N8P)


def state_of(
    mode: Mode = Mode.ADAPTIVE, frontier: Frontier = NO_FRONTIER, **settings: object
) -> controller.State:
    given = PolicySettings(mode=mode, baseline=OFF, **settings)  # type: ignore[arg-type]
    began = Began(0.0, Deployment("http://a", actuator="presets"), given, frontier)
    facts = ServerFacts(Listens.HONOURS, cap=8, arms=PLACES)
    return controller.apply(controller.initial(began), FactsFound(0.0, facts))


def talk(**fields: object) -> Context:
    base = {"conversation": "c", "arms": PLACES, "prompt_ms_per_token": 1.0}
    return Context(3000, **{**base, **fields})  # type: ignore[arg-type]


def play(state: controller.State, number: int, context: Context, ms_per_token: float) -> controller.State:
    decision = controller.decide(state, context, rng_for(0, number))
    state = controller.apply(state, Decided(0.0, number, context, decision, 0.0))
    drafted = 10 * (decision.arm.n_max or 0)
    timings = Timings(3000, 3000.0, 101, 100.0 * ms_per_token, 0, drafted, min(drafted, 50))
    return controller.apply(state, Observed(0.0, number, Outcome(Status.OK, timings)))


def test_the_arms_are_the_places_with_the_baseline_first() -> None:
    assert [arm.setting for arm in state_of().arms] == [OFF, N2, N8, N8P]
    assert [arm.setting for arm in state_of(cap=4).arms] == [OFF, N2]


def test_a_ladder_s_setting_without_a_place_that_answers_is_the_baseline() -> None:
    rows = (FrontierRow(1000, OFF, 50.0), FrontierRow(1000, N8, 90.0))
    state = state_of(Mode.STATIC, Frontier(rows, baseline=OFF))
    assert controller.decide(state, talk(), rng_for(0, 1)).arm == N8
    away = controller.decide(state, talk(arms=(OFF, N2)), rng_for(0, 1))
    assert (away.arm, away.reason) == (OFF, "baseline")


MEASURED = (
    (1000, OFF, 50.0),
    (1000, N2, 40.0),
    (1000, N8, 90.0),
    (9000, OFF, 50.0),
    (9000, N2, 60.0),
    (9000, N8, 49.0),
)
LONG_AND_SHORT = Frontier(tuple(FrontierRow(*row) for row in MEASURED), baseline=OFF)


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.FROZEN])
def test_a_ladder_s_step_moves_a_grown_conversation_only_where_what_was_measured_pays_for_it(
    mode: Mode,
) -> None:
    state = state_of(mode, LONG_AND_SHORT)
    grown = replace(talk(reprocess=((OFF, 7000), (N2, 7000), (N8P, 7000)), turns=2), prompt_tokens=7000)
    decision = controller.decide(state, grown, rng_for(0, 1))
    assert (decision.arm, decision.reason) == (N8, "stays"), (
        "3.7 ms a token do not pay for 7 s within 600 tokens"
    )
    quick = replace(grown, prompt_ms_per_token=0.1)
    assert controller.decide(state, quick, rng_for(0, 1)).arm == N2
    new = replace(grown, reprocess=(), turns=0)
    assert controller.decide(state, new, rng_for(0, 1)).arm == N2


def test_a_ladder_without_measurements_moves_no_grown_conversation() -> None:
    state = state_of(Mode.STATIC, Frontier(baseline=OFF, rules=((0, N8), (4000, N2))))
    grown = replace(talk(reprocess=((OFF, 7000), (N2, 7000), (N8P, 7000)), turns=9), prompt_tokens=7000)
    assert controller.decide(state, grown, rng_for(0, 1)).reason == "stays"
    assert controller.decide(state, replace(grown, reprocess=()), rng_for(0, 1)).arm == N2


def test_a_switch_is_charged_to_the_account_and_frozen_learning_charges_nothing() -> None:
    state = play(state_of(), 1, talk(), 20.0)
    moved = talk(reprocess=((OFF, 700),), turns=1)
    decision = replace(controller.decide(state, talk(), rng_for(0, 2)), arm=OFF, reason="refresh")
    after = controller.apply(state, Decided(0.0, 2, moved, decision, 0.0))
    assert after.headroom_ms == pytest.approx(state.headroom_ms - 700.0)
    assert after.guard.total.saved_ms == pytest.approx(state.guard.total.saved_ms - 700.0)
    frozen = controller.apply(state, FreezeSet(0.0, True))
    kept = controller.apply(frozen, Decided(0.0, 2, moved, decision, 0.0))
    assert kept.headroom_ms == frozen.headroom_ms


def test_time_that_no_answer_shows_is_charged_and_survives_the_journal() -> None:
    state, event = state_of(), Charged(1.0, 300.0, "a preset was loading")
    after = controller.apply(state, event_from_json(event_to_json(event)))
    assert after.headroom_ms == pytest.approx(state.headroom_ms - 300.0)
    assert controller.apply(state, Charged(1.0, -5.0, "")) == state
    frozen = controller.apply(state, FreezeSet(0.0, True))
    assert controller.apply(frozen, event) == frozen


TELLING_NOTHING = (
    Outcome(Status.REJECTED, rejected="held-back", inferred=True),
    Outcome(
        Status.REJECTED, rejected="missing"
    ),  # or one whose timings are never true would be tried for ever
    Outcome(Status.NO_TIMINGS),
)


@pytest.mark.parametrize("outcome", TELLING_NOTHING, ids=str)
def test_a_trial_whose_answer_tells_nothing_is_charged_at_its_worst_case(outcome: Outcome) -> None:
    cheap = talk(conversation="new", prompt_ms_per_token=0.01)
    state = state_of()
    for number in range(1, 11):
        state = play(state, number, talk(conversation=f"c{number}", prompt_ms_per_token=0.01), 2.0)
    drawn = [controller.decide(state, cheap, rng_for(seed, 11)) for seed in range(99)]
    trial = next(decision for decision in drawn if decision.reason == "explore")
    waiting = controller.apply(state, Decided(0.0, 11, cheap, trial, 0.0))
    worst = waiting.guard.reserved[11]
    assert worst > 0.0
    after = controller.apply(waiting, Observed(0.0, 11, outcome))
    assert after.headroom_ms == pytest.approx(state.headroom_ms - worst)
    assert after.guard.total.saved_ms == pytest.approx(state.guard.total.saved_ms - worst)
    assert not after.guard.reserved
    frozen = controller.apply(waiting, FreezeSet(0.0, True))
    assert controller.apply(frozen, Observed(0.0, 11, outcome)).guard.total == state.guard.total


def test_a_trial_that_another_place_served_or_a_client_left_is_not_charged() -> None:
    state = state_of()
    for number in range(1, 11):
        state = play(state, number, talk(conversation=f"c{number}", prompt_ms_per_token=0.01), 2.0)
    cheap = talk(conversation="new", prompt_ms_per_token=0.01)
    trial = controller.decide(state, cheap, rng_for(0, 11))
    waiting = controller.apply(state, Decided(0.0, 11, cheap, trial, 0.0))
    for ended in (Observed(0.0, 11, Outcome(Status.MOVED)), Abandoned(0.0, 11, "client-gone")):
        assert controller.apply(waiting, ended).headroom_ms == pytest.approx(state.headroom_ms)


def test_a_price_that_nobody_knows_yet_is_not_found_out_by_moving_a_long_conversation() -> None:
    state = state_of()
    lives_at_n8 = talk(reprocess=((OFF, 3000), (N2, 3000), (N8P, 3000)), turns=2)
    decision = controller.decide(state, lives_at_n8, rng_for(0, 1))
    assert (decision.arm, decision.reason) == (N8, "stays")
    assert controller.decide(state, talk(), rng_for(0, 1)).arm == OFF


def test_an_answer_without_timings_is_decided_by_what_chats_taught_and_tries_nothing() -> None:
    state = state_of()
    for number in range(1, 60):
        state = play(state, number, talk(conversation=f"c{number}"), 20.0)
    blind = talk(conversation="new", kind=Kind(endpoint="messages"), blind=True)
    cell = controller.cell_of(state, blind)
    assert cell == controller.cell_of(state, talk())
    drawn = {controller.decide(state, blind, rng_for(1, number)).reason for number in range(200)}
    assert "explore" not in drawn


@pytest.mark.parametrize("name", ["note", "sign-change"])
def test_knowing_the_cost_of_a_switch_keeps_conversations_in_place_and_the_budget_kept(name: str) -> None:
    found = {way: [play_places(scenario(name), way, seed, 150) for seed in (1, 2)] for way in WAYS}

    def total(way: str, what: str) -> float:
        return sum(float(getattr(score, what)) for score in found[way])

    assert total("presets", "moved") < 0.5 * total("careless", "moved")
    assert total("presets", "switching") < 0.5 * total("careless", "switching")
    assert all(score.relative < 1.01 for score in found["presets"])
    assert all(score.worst_ms <= 0.0 for score in found["presets"]), (
        "decode and switching time together stay within (1 + alpha) x baseline + c0"
    )
    assert all(score.switching == 0.0 for score in found["fields"])
    assert table([scores[0] for scores in found.values()]).count("\n") == 3
