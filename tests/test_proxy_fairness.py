"""One answer in full flood must not keep the others waiting: the loop gets its turn however much one read brought."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from adaptive_dd.metrics import Metrics
from adaptive_dd.proxy import Relay

CHUNKS = 1000


class FloodReply:
    status = 200
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"text/event-stream"),)

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):  # all of it there at once, as after one large read
            yield b"data: {}\n\n"

    async def aclose(self) -> None:
        pass


class FloodUpstream:
    base_url = "http://flood"

    async def send(
        self, method: str, target: bytes, headers: Iterable[Any], content: Any = None
    ) -> FloodReply:
        return FloodReply()


def test_others_get_their_turn_while_one_answer_floods() -> None:
    turns = sent = 0

    async def send(message: Any) -> None:
        nonlocal sent
        sent += message["type"] == "http.response.body" and bool(message.get("body"))

    async def receive() -> Any:
        await asyncio.sleep(600)

    async def another() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def go() -> None:
        other = asyncio.ensure_future(another())
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "headers": [],
        }
        await Relay(None, FloodUpstream(), Metrics())(scope, receive, send)  # type: ignore[arg-type]
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)

    asyncio.run(go())
    assert sent == CHUNKS
    assert turns >= 40  # at the latest after every 25 chunks
