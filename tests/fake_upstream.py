"""A scripted upstream on a real socket: a test says what it answers byte for byte, and sees what it received.

It runs on the loop that starts it; the test may live in another thread and wait with `until`. Each request is handed
to the script; when the other side closes while the script runs, the script is cancelled and `gone` counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

TIMINGS: Mapping[str, object] = {
    "cache_n": 0,
    "prompt_n": 9,
    "prompt_ms": 20.5,
    "predicted_n": 64,
    "predicted_ms": 800.25,
    "predicted_per_second": 80.0,
    "draft_n": 60,
    "draft_n_accepted": 41,
}


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def last_event(timings: object = TIMINGS) -> bytes:
    return event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings})


DONE = b"data: [DONE]\n\n"
STREAM = delta("Hel") + delta("lo") + last_event() + DONE


def document(timings: object = TIMINGS) -> bytes:
    choices = [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]
    return json.dumps({"choices": choices, "timings": timings}).encode()


@dataclass(frozen=True)
class Received:
    """One request as it arrived. link: which connection; nth: its number on that connection, from 1."""

    method: str
    target: bytes
    headers: list[tuple[str, bytes]]
    body: bytes
    link: int
    nth: int
    at: float = field(default_factory=time.monotonic)

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def json(self) -> object:
        return json.loads(self.body)


class Peer:
    """The upstream's end of a connection, in a script's hands."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.method = ""

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def start(self, status: str = "200 OK", *headers: str, kind: str = "text/event-stream") -> None:
        """The head of a chunked answer."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Transfer-Encoding: chunked", *headers]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def stream(self, *chunks: bytes, gap_s: float = 0.0) -> None:
        await self.start()
        for chunk in chunks:
            await self.chunk(chunk)
            await asyncio.sleep(gap_s)
        await self.end()

    async def whole(
        self,
        body: bytes,
        status: str = "200 OK",
        *headers: str,
        kind: str = "application/json; charset=utf-8",
    ) -> None:
        """An answer with a length."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
        await self.raw("\r\n".join([*lines, "", ""]).encode() + (b"" if self.method == "HEAD" else body))

    def reset(self) -> None:
        """Break the connection the hard way."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Close the connection where it stands."""
        self.writer.close()


Script = Callable[[Received, Peer], Awaitable[None]]


async def answer(request: Received, peer: Peer) -> None:
    """The default script: an ordinary server."""
    if b'"stream": true' in request.body or b'"stream":true' in request.body:
        await peer.stream(STREAM)
    else:
        await peer.whole(document())


async def silence(request: Received, peer: Peer) -> None:
    """Say nothing, for longer than any test."""
    await asyncio.sleep(600)


class FakeUpstream:
    def __init__(self, script: Script = answer) -> None:
        self.script = script
        self.received: list[Received] = []
        self.links = 0  # connections ever accepted
        self.open_links = 0
        self.busy = 0  # requests being answered
        self.gone = 0  # requests whose asker left
        self.port = 0
        self._changed = threading.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=2**24)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listening socket and every connection."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def until(self, true: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        """Wait (in another thread) until something is true of what was received; False when it never was."""
        with self._changed:
            return self._changed.wait_for(true, timeout_s)

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.links += 1
        self.open_links += 1
        link = self.links
        self._note()
        try:
            nth = 0
            while (request := await self._read(reader, link, nth + 1)) is not None:
                nth += 1
                if not await self._answer(request, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self.open_links -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._note()

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        self.received.append(request)
        self.busy += 1
        self._note()
        peer = Peer(writer)
        peer.method = request.method
        work = asyncio.ensure_future(self.script(request, peer))
        left = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or isinstance(work.exception(), ConnectionError):
                self.gone += 1
                return False
            work.result()
            return not writer.is_closing()
        finally:
            self.busy -= 1
            work.cancel()
            left.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
            self._note()

    async def _read(self, reader: asyncio.StreamReader, link: int, nth: int) -> Received | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ")
        headers = [
            (name.decode(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)
        ]
        body = await _body(reader, {name.lower(): value for name, value in headers})
        return Received(method.decode(), target, headers, body, link, nth)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, bytes]) -> bytes:
    if "content-length" in headers and "transfer-encoding" in headers:
        raise AssertionError("two framings in one request")
    if "transfer-encoding" not in headers:
        return await reader.readexactly(int(headers.get("content-length", b"0")))
    body = b""
    while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
