"""A fast scripted upstream for measuring the relay: as little work per event as Python allows.

    python -m tests.benchmarks.upstream PORT

The request's own headers say what to answer: `x-events` (0: one JSON document), `x-gap-ms` between events, and
`x-stamp: 1` to write the time of sending (monotonic, ns) into each event. One write per event.
"""

from __future__ import annotations

import asyncio
import sys
import time

TIMINGS = (
    b'"timings":{"cache_n":0,"prompt_n":26,"prompt_ms":150.0,"predicted_n":64,"predicted_ms":800.0,'
    b'"predicted_per_second":80.0,"draft_n":60,"draft_n_accepted":41}'
)
CHUNK = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"%s"}}],"created":1796014198,'
    b'"id":"chatcmpl-bakICdZ6tKEOdmMKXTXhawIzPbMIjyv3","model":"model.gguf","object":"chat.completion.chunk"}\n\n'
)
LAST = b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],' + TIMINGS + b"}\n\n"
PROPS = b'{"build_info":"b9101-bench","model_path":"model.gguf","total_slots":64,"default_generation_settings":{}}'
COUNT = b'{"input_tokens":26}'
DOCUMENT = (
    b'{"choices":[{"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],'
    + TIMINGS
    + b"}"
)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.buffer = b""
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields.get(b"content-length", 0)):
            return
        self.buffer = b""
        events = int(fields.get(b"x-events", 0))
        if events == 0:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(DOCUMENT)
                + DOCUMENT
            )
            return
        if b"x-blob-mb" in fields:
            asyncio.get_running_loop().create_task(self.blob(int(fields[b"x-blob-mb"])))
            return
        gap_s = float(fields.get(b"x-gap-ms", 0)) / 1000.0
        asyncio.get_running_loop().create_task(self.stream(events, gap_s, b"x-stamp" in fields))

    def document(self, target: bytes) -> None:
        body = PROPS if target == b"/props" else COUNT if target.endswith(b"/input_tokens") else DOCUMENT
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    async def blob(self, megabytes: int) -> None:
        """One event without an end: nothing in it lets a reader let go of what came before."""
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self.transport.write(chunked(b"data: "))
        piece = chunked(b"x" * 65536)
        for _ in range(megabytes * 16):
            await self.writable.wait()
            self.transport.write(piece)
        self.transport.write(b"0\r\n\r\n")

    async def stream(self, events: int, gap_s: float, stamp: bool) -> None:
        write = self.transport.write
        write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        plain = chunked(CHUNK % b"hello")
        for number in range(events - 1):
            if self.transport.is_closing():
                return
            write(chunked(CHUNK % str(time.monotonic_ns()).encode()) if stamp else plain)
            if gap_s:
                await asyncio.sleep(gap_s)
            elif number % 16 == 15:
                await self.writable.wait()
                await asyncio.sleep(0)
        write(chunked(LAST) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
