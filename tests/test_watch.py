from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from adaptive_dd.core.domain import OFF, SERVER, Deployment, Listens, ServerFacts, Timings
from adaptive_dd.errors import UpstreamError
from adaptive_dd.probe import Headers
from adaptive_dd.watch import Watch
from tests.fake_llama import FakeLlama

URL = "http://server"


@dataclass
class Engine:
    """What the watch tells an engine, in order, and an event for every word."""

    in_flight: int = 0
    deployed: list[tuple[Deployment, ServerFacts | None]] = field(default_factory=list)
    facts: list[ServerFacts] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    def deploy(self, deployment: Deployment, facts: ServerFacts | None = None) -> None:
        self.deployed.append((deployment, facts))
        self.told.set()

    def found(self, facts: ServerFacts) -> None:
        self.facts.append(facts)
        self.told.set()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                self.told.clear()
                await self.told.wait()


async def until(true: Callable[[], object]) -> None:
    """Give the loop turns until something holds; the caller's timeout bounds it."""
    while not true():  # noqa: ASYNC110 (what it waits for has no event)
        await asyncio.sleep(0.002)


@dataclass
class Line:
    """The wire to a server that may be absent, replaced, or told to hold an answer back."""

    server: FakeLlama | None
    asked: list[str] = field(default_factory=list)
    hold: asyncio.Event | None = None
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Headers = (),
        *,
        timeout_s: float = 5.0,
    ) -> tuple[int, object]:
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.server is None:
            raise UpstreamError(f"no connection to {URL}: refused")
        if self.hold is not None and path == "/completion":
            self.holding.set()
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await self.server.ask(method, path, json_body, headers)


def watching(
    line: Line,
    script: Callable[[Watch, Engine], Awaitable[None]],
    *,
    engine: Engine | None = None,
    may_probe: bool = True,
    api_key: str = "",
    cap: int | None = None,
) -> Watch:
    """Run a watch beside a script, and stop it."""

    async def both() -> Watch:
        told = engine or Engine()
        watch = Watch(URL, line, told, may_probe=may_probe, api_key=api_key, cap=cap, poll_s=0.01)
        task = asyncio.ensure_future(watch.run())
        try:
            async with asyncio.timeout(20):
                await script(watch, told)
        finally:
            task.cancel()
        return watch

    return asyncio.run(both())


def last_facts(engine: Engine) -> ServerFacts | None:
    return engine.deployed[-1][1] if engine.deployed else None


def is_known(engine: Engine) -> bool:
    facts = last_facts(engine)
    return facts is not None and facts.listens is not Listens.UNKNOWN


def test_a_server_is_attached_at_once_and_then_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))

    engine = Engine()
    with caplog.at_level(logging.INFO, "adaptive_dd"):
        watch = watching(Line(FakeLlama(launch_n=6)), script, engine=engine)
    first, second = engine.deployed
    assert first == (Deployment(URL, "models/tiny.gguf", "b0-unknown"), ServerFacts())
    assert second[0] == Deployment(URL, "models/tiny.gguf", "b0-unknown", cap=6)
    assert watch.facts == second[1] == ServerFacts(Listens.HONOURS, cap=6)
    assert "honours per-request draft settings (launched with n_max 6)" in caplog.text


def test_ignored_fields_are_said_once_with_the_lever(caplog: pytest.LogCaptureFixture) -> None:
    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        for _ in range(5):
            watch.nudge()
            await asyncio.sleep(0)

    with caplog.at_level(logging.INFO, "adaptive_dd"):
        watch = watching(Line(FakeLlama(honours=frozenset())), script)
    said = [record.message for record in caplog.records if "ignores" in record.message]
    assert len(said) == 1
    assert "--spec-draft-n-max" in said[0]
    assert any("ignores" in note for note in watch.notes)


def test_a_server_that_is_absent_at_start_is_attached_when_it_comes() -> None:
    line = Line(None)

    async def script(watch: Watch, engine: Engine) -> None:
        await until(lambda: watch.up is not None)
        assert watch.up is False
        line.server = FakeLlama()
        watch.nudge()
        await engine.until(lambda: is_known(engine))
        assert watch.up is True

    watching(line, script)


def test_loading_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(FakeLlama(status=503))

    async def script(watch: Watch, engine: Engine) -> None:
        for _ in range(6):
            watch.nudge()
            await asyncio.sleep(0.01)
        assert watch.up is False
        assert line.server is not None
        line.server.status = 200
        watch.nudge()
        await engine.until(lambda: is_known(engine))

    with caplog.at_level(logging.INFO, "adaptive_dd"):
        watching(line, script)
    assert sum("loading" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("change", [{"model": "models/other.gguf"}, {"build": "b9999-abc"}])
def test_another_model_or_build_is_another_deployment_and_is_asked_anew(change: dict[str, str]) -> None:
    line = Line(FakeLlama(launch_n=4))

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        line.server = FakeLlama(launch_n=8, run="<__media_two__>", **change)  # type: ignore[arg-type]
        await engine.until(lambda: len(engine.deployed) == 4)
        assert [d.cap for d, _ in engine.deployed] == [None, 4, None, 8]
        names = {(d.model, d.build) for d, _ in engine.deployed[2:]}
        assert names == {(line.server.model, line.server.build)}

    watching(line, script)


def test_the_same_model_restarted_with_another_launch_value_is_noticed() -> None:
    line = Line(FakeLlama(launch_n=4))

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        line.server = FakeLlama(launch_n=16, run="<__media_two__>")
        await engine.until(lambda: engine.deployed[-1][0].cap == 16)
        # Until it is known to differ, the state of the same model and build goes on.
        assert [d.cap for d, _ in engine.deployed] == [None, 4, 16]

    watching(line, script)


def test_metrics_are_never_read_and_a_sleeping_server_is_left_asleep() -> None:
    line = Line(FakeLlama(sleeping=True))

    async def script(watch: Watch, engine: Engine) -> None:
        for _ in range(10):
            watch.nudge()
            await asyncio.sleep(0.002)

    watching(line, script)
    assert set(line.asked) == {"/props"}


def test_without_probing_nothing_is_sent_and_traffic_tells() -> None:
    line = Line(FakeLlama(honours=frozenset()))
    drafted = Timings(5, 10.0, 64, 300.0, draft_n=80, draft_n_accepted=20)

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: engine.deployed)
        watch.heard(OFF, drafted)
        watch.heard(OFF, drafted)
        assert engine.facts[-1].listens is Listens.IGNORES

    watch = watching(line, script, may_probe=False)
    assert "/completion" not in line.asked
    assert any("probing is off" in note for note in watch.notes)
    assert any("ignores" in note for note in watch.notes)


def test_without_a_key_it_stays_silent_and_says_what_it_needs() -> None:
    line = Line(FakeLlama(key="secret"))

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: engine.deployed)
        for _ in range(5):
            watch.nudge()
            await asyncio.sleep(0.002)

    watch = watching(line, script)
    assert "/completion" not in line.asked
    assert any("needs a key" in note for note in watch.notes)


def test_with_a_key_it_asks_and_the_key_is_in_no_note() -> None:
    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))

    watch = watching(Line(FakeLlama(key="secret")), script, api_key="secret")
    assert "secret" not in " ".join(watch.notes)


def test_a_probe_under_way_gives_way_to_a_client() -> None:
    line, engine = Line(FakeLlama()), Engine()

    async def script(watch: Watch, engine: Engine) -> None:
        line.hold = asyncio.Event()
        await line.holding.wait()
        engine.in_flight = 1
        await until(lambda: line.cancelled)
        line.hold.set()
        assert not is_known(engine)

    watching(line, script, engine=engine)
    assert line.cancelled == 1


def test_a_crowded_server_is_asked_later() -> None:
    line, engine = Line(FakeLlama(busy=True)), Engine()

    async def script(watch: Watch, engine: Engine) -> None:
        await until(lambda: "/slots" in line.asked)
        assert "/completion" not in line.asked
        assert line.server is not None
        line.server.busy = False
        watch.nudge()
        await engine.until(lambda: is_known(engine))

    watching(line, script, engine=engine)


def test_traffic_that_contradicts_a_probe_makes_it_ask_again() -> None:
    line = Line(FakeLlama(launch_n=8))
    drafted = Timings(5, 10.0, 64, 300.0, draft_n=80, draft_n_accepted=20)

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        line.server = FakeLlama(launch_n=8, honours=frozenset())
        watch.heard(OFF, drafted)
        watch.heard(OFF, drafted)
        await engine.until(lambda: (f := last_facts(engine)) and f.listens is Listens.IGNORES)

    watching(line, script)


def test_a_refusal_lowers_the_limit_at_once() -> None:
    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        watch.refused(dataclasses.replace(SERVER, n_max=6))
        assert engine.facts[-1].limit == 5

    watching(Line(FakeLlama()), script)


def test_a_users_cap_above_the_launch_value_is_tried() -> None:
    line = Line(FakeLlama(launch_n=4, limit=6))

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: is_known(engine))
        assert watch.facts.limit == 6

    watching(line, script, cap=12)


def test_a_fault_of_its_own_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Engine):
        def deploy(self, deployment: Deployment, facts: ServerFacts | None = None) -> None:
            super().deploy(deployment, facts)
            if len(self.deployed) == 1:
                raise RuntimeError("boom")

    async def script(watch: Watch, engine: Engine) -> None:
        await engine.until(lambda: engine.deployed)
        await until(lambda: "going on" in caplog.text)
        watch.nudge()
        await engine.until(lambda: is_known(engine))

    watching(Line(FakeLlama()), script, engine=Broken())
