from __future__ import annotations

import pytest

from adaptive_dd.core import controller
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
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
from adaptive_dd.core.events import Abandoned, Began, Decided, FactsFound, FreezeSet, ModeSet, Observed
from adaptive_dd.core.rng import rng_for

N2, N4, N8 = Setting(2, 0.0), Setting(4, 0.25), Setting(8, 0.0)
ROWS = (
    FrontierRow(4000, N2, 100.0),
    FrontierRow(4000, N4, 120.0),
    FrontierRow(64000, N2, 80.0),
    FrontierRow(64000, N8, 95.0),
    FrontierRow(128000, N2, 50.0),
    FrontierRow(128000, N4, 40.0),
)
FRONTIER = Frontier(ROWS, baseline=N2)
ANY = rng_for(0, 1)


def began(mode: Mode = Mode.STATIC, **settings: object) -> Began:
    return Began(
        0.0,
        Deployment("http://a"),
        PolicySettings(mode=mode, baseline=N2, **settings),  # type: ignore[arg-type]
        FRONTIER,
    )


def decide(state: controller.State, context: Context) -> tuple[Setting, str]:
    decision = controller.decide(state, context, ANY)
    return decision.arm, decision.reason


@pytest.mark.parametrize(("tokens", "arm"), [(50, N4), (20_000, N8), (200_000, N2)])
def test_static_plays_the_ladder_at_each_context(tokens: int, arm: Setting) -> None:
    expected = "baseline" if arm == N2 else "frontier"
    assert decide(controller.initial(began()), Context(tokens)) == (arm, expected)


def test_precedence_is_untouchable_off_override_unheard_observe_no_count() -> None:
    blind = ServerFacts(listens=Listens.IGNORES)
    everything = Context(None, override=OFF, untouchable="not-json")
    state = controller.apply(controller.initial(began(Mode.OFF)), FactsFound(0.0, blind))
    assert decide(state, everything) == (SERVER, "not-json")
    assert decide(state, Context(None, override=OFF)) == (SERVER, "off")
    state = controller.apply(state, ModeSet(0.0, Mode.OBSERVE))
    assert decide(state, Context(None, override=OFF)) == (OFF, "request-override")
    assert decide(state, Context(None)) == (SERVER, "not-honoured")
    state = controller.apply(state, FactsFound(0.0, ServerFacts(listens=Listens.HONOURS)))
    assert decide(state, Context(None)) == (SERVER, "observe")
    state = controller.apply(state, ModeSet(0.0, Mode.STATIC))
    assert decide(state, Context(None)) == (N2, "no-count")


def test_force_overrules_the_client() -> None:
    state = controller.initial(began(force=True))
    assert decide(state, Context(50, override=OFF)) == (N4, "frontier")


@pytest.mark.parametrize(
    ("listens", "reason"),
    [
        (Listens.IGNORES, "not-honoured"),
        (Listens.NO_DRAFTING, "no-drafting"),
        (Listens.DRAFTLESS, "draftless"),
    ],
)
def test_a_server_that_cannot_be_told_gets_its_own_bytes(listens: Listens, reason: str) -> None:
    state = controller.apply(controller.initial(began()), FactsFound(0.0, ServerFacts(listens=listens)))
    assert decide(state, Context(50)) == (SERVER, reason)


@pytest.mark.parametrize(
    ("cap", "facts", "expected"),
    [
        (None, ServerFacts(), None),
        (6, ServerFacts(cap=4), 6),
        (None, ServerFacts(cap=4), 4),
        (6, ServerFacts(limit=5, cap=4), 5),
        (6, ServerFacts(listens=Listens.LOWERS_N, cap=4), 4),
    ],
)
def test_the_cap_is_the_users_else_the_launch_value_and_never_above_what_the_server_takes(
    cap: int | None, facts: ServerFacts, expected: int | None
) -> None:
    state = controller.apply(controller.initial(began(cap=cap)), FactsFound(0.0, facts))
    assert controller.cap_of(state) == expected


def test_no_setting_deeper_than_the_cap_is_played() -> None:
    state = controller.apply(controller.initial(began()), FactsFound(0.0, ServerFacts(cap=3)))
    for tokens in (50, 20_000, 200_000):
        assert (decide(state, Context(tokens))[0].n_max or 0) <= 3


def test_kinds_of_the_frontier_choose_their_own_rows() -> None:
    rows = (
        FrontierRow(4000, N2, 100.0, kind="greedy"),
        FrontierRow(4000, N8, 200.0, kind="greedy"),
        FrontierRow(4000, N2, 100.0, kind="sampled"),
        FrontierRow(4000, OFF, 130.0, kind="sampled"),
    )
    start = Began(0.0, Deployment("u"), PolicySettings(mode=Mode.STATIC, baseline=N2), Frontier(rows, N2))
    state = controller.initial(start)
    assert decide(state, Context(100, kind=Kind("greedy")))[0] == N8
    assert decide(state, Context(100, kind=Kind("sampled")))[0] == OFF


def test_frozen_says_so_and_a_freeze_can_be_lifted() -> None:
    state = controller.initial(began())
    frozen = controller.apply(state, FreezeSet(0.0, frozen=True))
    assert decide(frozen, Context(50)) == (N4, "frozen")
    assert decide(controller.apply(frozen, FreezeSet(0.0, frozen=False)), Context(50)) == (N4, "frontier")


def test_a_request_is_open_from_its_decision_to_its_end_and_numbers_grow() -> None:
    state = controller.initial(began())
    context = Context(50)
    for number in (1, 2):
        decision = controller.decide(state, context, rng_for(0, number))
        state = controller.apply(state, Decided(0.0, number, context, decision, 1.0))
    assert set(state.open) == {1, 2}
    assert state.next_number == 3
    state = controller.apply(state, Observed(0.0, 1, Outcome(Status.OK, Timings(50, 1.0, 10, 100.0))))
    state = controller.apply(state, Abandoned(0.0, 2, "client-gone"))
    assert state.open == {}


def test_deciding_changes_nothing_and_twice_gives_the_same() -> None:
    state = controller.initial(began())
    before = repr(state)
    first = controller.decide(state, Context(50), rng_for(7, 3))
    assert controller.decide(state, Context(50), rng_for(7, 3)) == first
    assert repr(state) == before
