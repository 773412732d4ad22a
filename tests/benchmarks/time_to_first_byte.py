"""What the proxy adds to the time to first byte, by length of the prompt and by how the length became known.

    python -m tests.benchmarks.time_to_first_byte [--rounds N] [--tokens 1000,32000,128000]

Four ways to the same scripted server, each request sent along all of them in turn, so that noise meets all alike:
direct; through a pure relay (mode off); through a proxy that reads the request but needs no length (mode observe);
and through one that plays a ladder, where the first turn of a conversation is counted by the server and the second is
known from the ledger. Once before a server that counts in one call (b11434), once before one that needs two (b9101).

The server answers at once: it neither tokenizes nor processes a prompt. So this is the proxy's own share, with the
calls it makes; tokenizing comes on top where a count is asked for. The second figure of each cell is the proxy's
processor time for one such request, which a busy machine disturbs far less than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

LADDER = "0:n4,p0.25;2048:n8,p0.0;49152:n2,p0.0"
BYTES_PER_TOKEN = 4
GENERATIONS = {"one": "one call (b11434)", "two": "two calls (b9101)"}
WORDS = (
    "draft",
    "tokens",
    "are",
    "verified",
    "in",
    "batches",
    "when",
    "the",
    "context",
    "grows",
    "longer",
    "still",
)

# --- the server ----------------------------------------------------------------------------------------------


class Scripted:
    """Counts by length alone, and answers a generating request with one event and honest-looking timings."""

    def __init__(self, calls: str) -> None:
        self.calls = calls

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                writer.write(self.answer(head.split(b" ", 2)[1], body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, path: bytes, body: bytes) -> bytes:
        tokens = len(body) // BYTES_PER_TOKEN
        if path.endswith(b"/input_tokens") and self.calls == "one":
            return document(b'{"input_tokens":%d}' % tokens)
        if path == b"/apply-template":
            return document(b'{"prompt":%s}' % json.dumps("x" * len(body)).encode())
        if path == b"/tokenize":
            return document(b'{"tokens":[%s]}' % (b"12345," * tokens)[:-1])
        if not path.endswith(b"/chat/completions"):
            return document(b'{"error":{"code":404}}', b"404 Not Found")
        timings = {
            "prompt_n": tokens,
            "prompt_ms": 9.0,
            "predicted_n": 64,
            "predicted_ms": 800.0,
            "draft_n": 40,
            "draft_n_accepted": 20,
        }
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings}
        event = b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
        return document(event, kind=b"text/event-stream")


def document(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    head = (
        b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    return head + body


async def serve(calls: str) -> None:
    server = await asyncio.start_server(Scripted(calls).connected, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def process(*arguments: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, **options)
    try:
        yield running
    finally:
        running.terminate()
        await running.wait()


@asynccontextmanager
async def scripted(calls: str) -> AsyncIterator[Place]:
    arguments = (__spec__.name, "--serve", calls)
    async with process(*arguments, stdout=asyncio.subprocess.PIPE) as running:
        assert running.stdout is not None
        yield Place(int(await running.stdout.readline()), running.pid)


@asynccontextmanager
async def proxied(upstream: Place, *flags: str) -> AsyncIterator[Place]:
    with tempfile.TemporaryDirectory() as state:
        arguments = (
            "--upstream",
            f"http://127.0.0.1:{upstream.port}",
            "--port",
            "0",
            "--state-dir",
            state,
            "--no-probe",
        )
        command = ("adaptive_dd", "serve", *arguments, *flags)
        async with process(*command, stderr=asyncio.subprocess.PIPE) as running:
            assert running.stderr is not None
            line = await running.stderr.readline()
            port = int(line.partition(b"http://127.0.0.1:")[2].split(b" ", 1)[0])
            draining = asyncio.create_task(running.stderr.read())
            await asyncio.sleep(1.0)  # it looks at the server once; let that be over
            yield Place(port, running.pid)
        await draining


# --- the client ----------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A listening process."""

    port: int
    pid: int

    def cpu_ms(self) -> float:
        """Processor time it has used so far; 0 where the system does not tell."""
        stat = Path(f"/proc/{self.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return 1000.0 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Way(NamedTuple):
    """A way to the server, over one kept connection."""

    place: Place
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def way(place: Place) -> Way:
    return Way(place, *await asyncio.open_connection("127.0.0.1", place.port, limit=1 << 24))


async def first_byte_ms(to: Way, body: bytes) -> tuple[float, dict[str, str]]:
    """Milliseconds from sending a request to the first byte of its answer's body, and the answer's X-DD headers."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    start = time.perf_counter()
    to.writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await to.writer.drain()
    answer = (await to.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    await to.reader.readexactly(1)
    taken = 1000.0 * (time.perf_counter() - start)
    fields = dict(line.split(": ", 1) for line in answer.split("\r\n")[1:] if line)
    await to.reader.readuntil(b"[DONE]\n\n")
    if "content-length" not in fields:
        await to.reader.readuntil(b"0\r\n\r\n")
    return taken, {name: value for name, value in fields.items() if name.startswith("x-dd")}


def prose(rng: random.Random, size: int) -> str:
    return " ".join(rng.choices(WORDS, k=size // 5))[:size]


def turns(rng: random.Random, tokens: int) -> tuple[bytes, bytes]:
    """Two turns of a conversation that nobody has seen: the first of about so many tokens, and a short one."""
    messages = [{"role": "user", "content": f"{rng.random()} " + prose(rng, tokens * BYTES_PER_TOKEN)}]
    first = json.dumps({"messages": messages, "stream": True}).encode()
    messages += [
        {"role": "assistant", "content": prose(rng, 300)},
        {"role": "user", "content": prose(rng, 300)},
    ]
    return first, json.dumps({"messages": messages, "stream": True}).encode()


class Case(NamedTuple):
    """What is compared: a way, and which turn of a conversation goes along it."""

    way: str
    turn: int


CASES = {
    "relay only": Case("off", 0),
    "read, no length": Case("observe", 0),
    "counted": Case("ladder", 0),
    "ledger": Case("ladder", 1),
}
WARM_UP = 3


async def waited(conversations: list[tuple[bytes, bytes]], ways: dict[str, Way]) -> dict[str, list[float]]:
    """Milliseconds by case: of the direct way, and added to it by the others in the same round."""
    samples: dict[str, list[float]] = {name: [] for name in ("direct", *CASES)}
    for number, bodies in enumerate(conversations):
        base = [(await first_byte_ms(ways["direct"], body))[0] for body in bodies]
        taken = {}
        for name, case in CASES.items():
            taken[name], fields = await first_byte_ms(ways[case.way], bodies[case.turn])
            assert case.way != "ladder" or fields["x-dd-applied"] == "true", fields
        if number >= WARM_UP:
            samples["direct"].append(base[0])
            for name, case in CASES.items():
                samples[name].append(taken[name] - base[case.turn])
    return samples


async def worked(conversations: list[tuple[bytes, bytes]], ways: dict[str, Way]) -> dict[str, float]:
    """Processor milliseconds of the proxy for one request, by case."""
    costs = {}
    for name, case in CASES.items():
        to = ways[case.way]
        before = to.place.cpu_ms()
        for bodies in conversations:
            await first_byte_ms(to, bodies[case.turn])
        costs[name] = (to.place.cpu_ms() - before) / len(conversations)
    return costs


async def row(tokens: int, calls: str, rounds: int, ways: dict[str, Way]) -> str:
    rng = random.Random(tokens)
    samples = await waited([turns(rng, tokens) for _ in range(rounds + WARM_UP)], ways)
    costs = await worked([turns(rng, tokens) for _ in range(rounds)], ways)
    cells = [f"{statistics.median(samples.pop('direct')):.2f}"]
    cells += [f"{statistics.median(added):.2f} ({costs[name]:.1f})" for name, added in samples.items()]
    return f"| {tokens:,} | {GENERATIONS[calls]} | " + " | ".join(cells) + " |"


async def run(rounds: int, sizes: list[int]) -> None:
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(
        f"{machine}, Python {platform.python_version()}; medians of {rounds} in ms (processor ms of the proxy)\n"
    )
    print(f"| prompt tokens | the server counts in | direct | added: {' | '.join(CASES)} |")
    print("|---|---|---|" + "---|" * len(CASES))
    for calls in GENERATIONS:
        async with (
            scripted(calls) as server,
            proxied(server, "--mode", "off") as off,
            proxied(server, "--mode", "observe") as observe,
            proxied(server, "--mode", "static", "--frontier", LADDER) as ladder,
        ):
            places = {"direct": server, "off": off, "observe": observe, "ladder": ladder}
            ways = {name: await way(place) for name, place in places.items()}
            for tokens in sizes:
                print(await row(tokens, calls, rounds, ways), flush=True)
            for one in ways.values():
                one.writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", default="1000,32000,128000")
    parser.add_argument("--serve", choices=tuple(GENERATIONS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
    else:
        asyncio.run(run(given.rounds, [int(size) for size in given.tokens.split(",")]))


if __name__ == "__main__":
    main()
