"""The load side of the relay benchmark: raw sockets under asyncio, so that what is measured is not the client."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

BODY = b'{"stream":true,"messages":[{"role":"user","content":"Say hello to the world."}]}'


def request(*, events: int = 0, gap_ms: float = 0.0, stamp: bool = False) -> bytes:
    extra = b"x-stamp: 1\r\n" if stamp else b""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"x-events: %d\r\nx-gap-ms: %g\r\n%bContent-Length: %d\r\n\r\n%b"
        % (events, gap_ms, extra, len(BODY), BODY)
    )


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer)

    async def document(self) -> float:
        """One request that is not streamed; seconds until its answer was complete."""
        start = time.perf_counter()
        self.writer.write(request())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await self.reader.readexactly(int(length.split(b":")[1]))
        return time.perf_counter() - start

    async def stream(self, events: int, gap_ms: float) -> tuple[int, float]:
        """One stream; how many bytes it had, and the longest silence within it in seconds."""
        self.writer.write(request(events=events, gap_ms=gap_ms))
        size, tail, last, longest, head = 0, b"", 0.0, 0.0, b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await self.reader.read(1 << 18)
            if not data:
                raise EOFError(f"the stream broke off after {size} bytes; it began {head[:400]!r}")
            head = head or data
            now = time.perf_counter()
            longest = max(longest, now - last) if last else 0.0
            size, tail, last = size + len(data), (tail + data)[-7:], now
        return size, longest

    async def blob(self, megabytes: int) -> None:
        """Read one event of that size, and forget it."""
        self.writer.write(request(events=1).replace(b"x-gap-ms: 0", b"x-blob-mb: %d" % megabytes))
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await self.reader.read(1 << 20)
            if not data:
                raise EOFError("the stream broke off")
            tail = (tail + data)[-7:]

    async def delays(self, events: int, gap_ms: float) -> list[float]:
        """One stream of stamped events; seconds between writing and reading each."""
        self.writer.write(request(events=events, gap_ms=gap_ms, stamp=True))
        out, tail = list[float](), b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await self.reader.read(1 << 18)
            now = time.monotonic_ns()
            tail = (tail + data)[-7:]
            for piece in data.split(b'"content":"')[1:]:
                stamp, found, _ = piece.partition(b'"')
                if found and stamp.isdigit():
                    out.append((now - int(stamp)) / 1e9)
        return out

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()


async def flood(port: int, streams: int, events: int, gap_ms: float) -> tuple[float, float]:
    """`streams` at once; seconds until the last was complete, and the longest silence within any."""
    connections = [await Connection.open(port) for _ in range(streams)]
    start = time.perf_counter()
    done = await asyncio.gather(*(one.stream(events, gap_ms) for one in connections))
    spent = time.perf_counter() - start
    for one in connections:
        one.close()
    return spent, max(longest for _, longest in done)


async def soak(port: int, streams: int, *, at_once: int, resets: bool) -> None:
    """Many short streams, `at_once` at a time; with `resets` each on its own connection that ends with a reset."""
    left = streams

    async def worker() -> None:
        nonlocal left
        connection: Connection | None = None
        while left > 0:
            left -= 1
            if connection is None:
                connection = await Connection.open(port)
            await connection.stream(5, 0.0)
            if resets:
                connection.reset()
                connection = None
        if connection is not None:
            connection.close()

    await asyncio.gather(*(worker() for _ in range(at_once)))
