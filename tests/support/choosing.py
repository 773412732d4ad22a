"""A real chooser over a real engine, before a counting server on a real socket."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from adaptive_dd.chooser import Choice, Chooser
from adaptive_dd.core.domain import (
    Deployment,
    Frontier,
    FrontierRow,
    Mode,
    Outcome,
    PolicySettings,
    Status,
    parse_setting,
)
from adaptive_dd.core.wire import parse_timings, route_of
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.metrics import Metrics
from adaptive_dd.upstream import Upstream
from tests.counting_server import CountingServer

N4, N2, N8 = parse_setting("n4,p0.25"), parse_setting("n2,p0.0"), parse_setting("n8,p0.0")
CHAT = "/v1/chat/completions"


def frontier(*winners: tuple[int, str], baseline: str = "server") -> Frontier:
    """At each context the named setting is faster than the baseline."""
    rows = []
    for context, setting in winners:
        rows.append(FrontierRow(context, parse_setting(setting), 150.0))
        rows.append(FrontierRow(context, parse_setting(baseline), 100.0))
    return Frontier(tuple(rows), parse_setting(baseline))


STEPS = frontier((1000, "n4,p0.25"), (4000, "n8,p0.0"), (16000, "n2,p0.0"), (64000, "n4,p0.25"))


def settings(mode: Mode = Mode.STATIC, **others: Any) -> PolicySettings:
    return PolicySettings(mode=mode, **others)


class Bench:
    """A chooser over a real engine, before a server on a real socket."""

    def __init__(self, server: CountingServer, chosen: PolicySettings, measured: Frontier) -> None:
        self.server = server
        self.metrics = Metrics()
        self.journal = MemoryJournal()
        self.engine = Engine(self.journal, Deployment(server.url), settings=chosen, frontier=measured)
        self.upstream = Upstream(server.url)
        self.chooser = Chooser(self.engine, self.upstream, metrics=self.metrics)

    async def choose(
        self, request: object, *, path: str = CHAT, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Choice:
        route = route_of("POST", path)
        assert route is not None
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        return await self.chooser.choose(route, headers, body, path=path)

    async def exchange(self, request: dict[str, Any], *, path: str = CHAT) -> tuple[Choice, str]:
        """Choose, send, finish; returns the choice and what the server said."""
        choice = await self.choose(request, path=path)
        status, answer = await self.upstream.ask("POST", path, choice.body)
        assert status == 200
        assert isinstance(answer, dict)
        timings = parse_timings(answer["timings"])
        assert not isinstance(timings, str)
        self.chooser.finish(choice, Outcome(Status.OK, timings))
        return choice, answer["choices"][0]["message"]["content"]


def bench(
    test: Callable[[Bench], Awaitable[None]],
    server: CountingServer | None = None,
    *,
    chosen: PolicySettings | None = None,
    measured: Frontier = STEPS,
) -> None:
    """Run a test with everything around it."""

    async def run() -> None:
        async with (server or CountingServer()).serving() as serving:
            around = Bench(serving, chosen or settings(), measured)
            try:
                await test(around)
            finally:
                await around.upstream.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))


def prose(rng: random.Random, words: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklm", k=rng.randint(1, 11))) for _ in range(words))


def code(rng: random.Random, lines: int) -> str:
    return "\n".join(
        f"    {prose(rng, 1)}[{rng.randint(0, 9999)}] = ({prose(rng, 2)}, {rng.random():.6f});"
        for _ in range(lines)
    )


def chat(*messages: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": m} for i, m in enumerate(messages)], **fields}
