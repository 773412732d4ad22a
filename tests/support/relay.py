"""The relay before a fake upstream, both on real sockets, on a loop in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from adaptive_dd.actuator import REFUSALS, Placed
from adaptive_dd.core.domain import OFF, SERVER, Context, Outcome, Setting
from adaptive_dd.core.wire import Route, setting_fields, splice
from adaptive_dd.httpd import bind, server_for
from adaptive_dd.metrics import Metrics
from adaptive_dd.proxy import Relay
from adaptive_dd.seams import App
from adaptive_dd.upstream import Header, Upstream
from tests.fake_upstream import FakeUpstream, Script, answer

T = TypeVar("T")


@dataclass
class FakeTicket:
    decide_us: float = 4.25


@dataclass
class FakeChoice:
    body: bytes
    original: bytes
    changed: bool
    upstream: Upstream
    arm: Setting
    reason: str = "frontier"
    ticket: FakeTicket = field(default_factory=FakeTicket)
    context: Context | None = field(default_factory=lambda: Context(12))
    unwilling: frozenset[int] = REFUSALS
    rename: tuple[tuple[str, ...], str] | None = None
    by_arrival: bool = False

    @property
    def applied(self) -> bool:
        return self.changed

    @property
    def retry(self) -> Placed | None:
        return Placed(self.original, self.upstream, SERVER) if self.changed else None


class FakeChooser:
    """Splices one setting into every body, and keeps what came of it. `fail`: raise instead of choosing."""

    def __init__(self, upstream: Upstream, setting: Setting) -> None:
        self.upstream = upstream
        self.setting = setting
        self.fail: Exception | None = None
        self.wait_s = 0.0
        self.by_arrival = False
        self.seen: list[tuple[Route, list[Header], bytes | None]] = []
        self.outcomes: list[Outcome] = []
        self._changed = threading.Condition()

    async def choose(
        self, route: Route, headers: list[Header], body: bytes | None, *, path: str = ""
    ) -> FakeChoice:
        self.seen.append((route, headers, body))
        await asyncio.sleep(self.wait_s)
        if self.fail is not None:
            raise self.fail
        sent = (
            splice(body, setting_fields(self.setting))
            if body is not None and route.takes_fields
            else body or b""
        )
        changed = sent != (body or b"")
        choice = FakeChoice(sent, body or b"", changed, self.upstream, self.setting)
        choice.by_arrival = self.by_arrival
        return choice

    def finish(self, choice: Any, outcome: Outcome) -> None:
        with self._changed:
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def outcome(self, number: int = 1, timeout_s: float = 5.0) -> Outcome:
        """Outcome `number` (from 1), once it is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= number, timeout_s), "no outcome came"
        return self.outcomes[number - 1]


@dataclass
class World:
    """port: of the relay. `run` executes a coroutine on the loop that serves."""

    port: int
    fake: FakeUpstream
    chooser: FakeChooser
    upstream: Upstream
    metrics: Metrics
    relay: Relay
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def on_loop(self, call: Callable[[], T]) -> T:
        async def go() -> T:
            return call()

        return self.run(go())


@contextlib.contextmanager
def serving(
    script: Script = answer,
    *,
    setting: Setting = OFF,
    choosing: bool = True,
    base: str = "",
    keepalive_s: float = 4.0,
    admin: App | None = None,
    port: int = 0,
    grace_s: int = 1,
    **more: Any,
) -> Iterator[World]:
    """A relay before a fake upstream. `choosing` False: without a chooser. `base`: put behind the upstream's URL."""
    loop = _new_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay under test")
    thread.start()
    fake = FakeUpstream(script)

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    try:
        run(fake.start())
        metrics = Metrics()
        retried = lambda: metrics.inc("upstream_retries_total")  # noqa: E731
        upstream = Upstream(fake.url + base, keepalive_s=keepalive_s, on_retry=retried)
        chooser = FakeChooser(upstream, setting)
        relay = Relay(chooser if choosing else None, upstream, metrics, admin, **more)
        listening = bind("127.0.0.1", port)
        server = server_for(relay, grace_s=grace_s)
        serve = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listening]), loop)
        try:
            yield World(listening.getsockname()[1], fake, chooser, upstream, metrics, relay, loop)
        finally:
            server.should_exit = True
            serve.result(30)
            listening.close()
            run(upstream.aclose())
            run(fake.stop())
            run(_quiet())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _quiet() -> None:
    """Let the last callbacks of closed connections run."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
    await asyncio.sleep(0.01)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
