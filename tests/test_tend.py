"""Looking after an actuator: what changes is told, presets take over, and loading waits until nobody waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from adaptive_dd.actuator import Fields
from adaptive_dd.config import resolve
from adaptive_dd.core.domain import OFF, SERVER, Setting
from adaptive_dd.errors import UsageError
from adaptive_dd.replicas import Replicas
from adaptive_dd.router import Presets
from adaptive_dd.tend import Tend, actuator_for
from adaptive_dd.upstream import Upstream
from tests.test_actuator import FakeRouter, fields, presets

N8 = Setting(8)


@dataclass
class Desk:
    """Who is waiting, and what time it is."""

    in_flight: int = 0
    now_s: float = 1000.0


def tending(router: FakeRouter, desk: Desk, charged: list[float]) -> Tend:
    return Tend(presets(router), desk, charged=charged.append, clock_s=lambda: desk.now_s)


def test_a_look_that_changes_what_can_be_played_is_told_once() -> None:
    router, told = FakeRouter(), []
    tend = Tend(presets(router), Desk())
    tend.changed = told.append
    router.status["gemma@n8"] = "unloaded"
    asyncio.run(tend.look())
    asyncio.run(tend.look())
    assert told == [tend.actuator]


def test_presets_take_over_once_a_router_with_some_is_there() -> None:
    router, told, seen = FakeRouter(), [], [False]
    router.up = False
    candidate = Presets(router)  # type: ignore[arg-type]
    tend = Tend(fields(), Desk(), presets=candidate, router=lambda: seen[0])
    tend.changed = told.append
    asyncio.run(tend.look())
    assert router.calls == []
    seen[0] = True
    asyncio.run(tend.look())
    assert isinstance(tend.actuator, Fields)
    router.up = True
    asyncio.run(tend.look())
    asyncio.run(tend.look())
    assert told == [candidate]
    assert tend.actuator is candidate


def test_a_missing_preset_is_loaded_after_a_while_without_requests() -> None:
    router, desk, charged = FakeRouter(), Desk(), list[float]()
    router.status["gemma@n8"], router.most = "unloaded", 4
    tend = tending(router, desk, charged)

    async def go() -> None:
        await tend.load_one()
        desk.now_s += 19.0
        desk.in_flight = 1
        await tend.load_one()
        desk.in_flight = 0
        await tend.load_one()
        desk.now_s += 19.0
        await tend.load_one()
        assert ("POST", "/models/load", {"model": "gemma@n8"}) not in router.calls
        desk.now_s += 2.0
        await tend.load_one()

    asyncio.run(go())
    assert ("POST", "/models/load", {"model": "gemma@n8"}) in router.calls
    assert charged == [], "nobody was waiting"
    assert N8 in (tend.actuator.settings() or ())


def test_what_a_load_may_have_cost_requests_that_came_meanwhile_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adaptive_dd.tend.GLANCE_S", 0.001)
    router, desk, charged = FakeRouter(), Desk(), list[float]()
    router.status["gemma@n8"] = "unloaded"
    tend = tending(router, desk, charged)

    async def slowly(arm: Setting) -> float:
        desk.in_flight = 1
        await asyncio.sleep(0.02)
        return 20.0

    tend.actuator.load = slowly  # type: ignore[attr-defined]
    asyncio.run(tend.load_one())
    desk.now_s += 60.0
    asyncio.run(tend.load_one())
    assert len(charged) == 1
    assert 1.0 <= charged[0] <= 30.0


def test_no_preset_is_loaded_where_another_one_would_have_to_go() -> None:
    router, desk, charged = FakeRouter(), Desk(), list[float]()
    router.status["gemma@n8"], router.most = "unloaded", 3
    tend = tending(router, desk, charged)
    asyncio.run(tend.load_one())
    desk.now_s += 60.0
    asyncio.run(tend.load_one())
    assert charged == []


def test_a_preset_that_does_not_load_is_tried_again_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptive_dd.router.LOAD_S", 0.0)
    router, desk, charged = FakeRouter(), Desk(), list[float]()
    router.status["gemma@n8"], router.loads = "unloaded", False
    tend = tending(router, desk, charged)

    def attempts() -> int:
        router.status["gemma@n8"] = "unloaded"
        asyncio.run(tend.look())
        asyncio.run(tend.load_one())
        return len([call for call in router.calls if call[1] == "/models/load"])

    seen = []
    for _ in range(40):
        desk.now_s += 10.0
        seen.append(attempts())
    assert seen[-1] == 3  # after 20 s, 60 s later, 120 s later
    assert charged == []


def test_a_look_that_goes_wrong_is_logged_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    tend = Tend(presets(FakeRouter()), Desk(), look_s=0.001)
    looks = 0

    async def broken() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise asyncio.CancelledError
        raise ZeroDivisionError

    tend.look = broken  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(tend.run())
    assert caplog.text.count("looking after the actuator failed") == 2


@pytest.mark.parametrize(
    ("flags", "kind", "baseline", "takes_over"),
    [
        ({"upstream": "http://a"}, Fields, SERVER, True),
        ({"upstream": "http://a", "actuator": "fields"}, Fields, SERVER, False),
        ({"upstream": "http://a", "actuator": "presets", "baseline": "n8"}, Presets, N8, False),
        ({"arm": ["off=http://a", "n8=http://b"]}, Replicas, OFF, False),
        ({"arm": ["off=http://a", "n8=http://b"], "baseline": "n8"}, Replicas, N8, False),
    ],
)
def test_the_settings_say_which_actuator_it_is(
    flags: dict[str, object], kind: type, baseline: Setting, takes_over: bool
) -> None:
    actuator, candidate = actuator_for(resolve(flags, {}), Upstream, ())
    assert isinstance(actuator, kind)
    assert actuator.baseline == baseline
    assert (candidate is not None) is takes_over


def test_an_arm_deeper_than_the_cap_is_refused() -> None:
    config = resolve({"arm": ["off=http://a", "n8=http://b"], "cap": "4"}, {})
    with pytest.raises(UsageError, match="arm: n8 is deeper than --cap 4; expected n up to 4"):
        actuator_for(config, Upstream, ())
