"""The demonstration: a simulated llama-server, the real proxy before it, and some traffic through both, over loopback.

Everything but the model behind the server is the real thing. What the table calls tok/s are *expected* speeds of the
simulator's model for what was sent, beside those of the baseline for the very same requests: no luck in either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from adaptive_dd.config import Config, resolve
from adaptive_dd.core.scenarios import SCENARIOS, scenario
from adaptive_dd.core.traffic import Scenario
from adaptive_dd.errors import UsageError
from adaptive_dd.frontier_file import dump_frontier
from adaptive_dd.httpd import bind, server_for
from adaptive_dd.serve import Proxy, assemble, running
from adaptive_dd.simserver import sim_app
from adaptive_dd.simulated import Served, SimServer, client_request

# What a first look should see: a measured frontier over context, and a start from nothing over kinds of request.
TOURS: tuple[tuple[str, int], ...] = (("note", 240), ("server-default-trap", 240))
HEAD = ("prompt tokens", "kind", "requests", "setting", "reason", "baseline tok/s", "tok/s", "gain")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request of the demonstration: what the proxy said of it, and what the simulator knows."""

    bucket: int
    kind: str
    setting: str
    reason: str
    served: Served


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    """`app` on a free loopback port while the body runs."""
    sock = bind("127.0.0.1", 0)
    server = server_for(app, grace_s=1)
    server.heeds_signals = False
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.should_exit = True
        await serving
        sock.close()


def _config(port: int, played: Scenario, folder: Path) -> Config:
    flags: dict[str, object] = {
        "upstream": f"http://127.0.0.1:{port}",
        "state_dir": str(folder),
        "baseline": str(played.baseline),
        "cap": played.cap,
    }
    if played.frontier.rows:
        (folder / "frontier.json").write_text(dump_frontier(played.frontier), encoding="utf-8")
        flags["frontier"] = str(folder / "frontier.json")
    return resolve(flags, {})


async def _attached(proxy: Proxy) -> None:
    """Wait until the proxy knows what the server does with the fields."""
    async with asyncio.timeout(30):
        while proxy.watch.found is None:  # noqa: ASYNC110 - the watch has no event for it, and this is a demonstration
            await asyncio.sleep(0.02)


async def _send(client: httpx2.AsyncClient, proxy: Proxy, server: SimServer, number: int) -> Seen:
    request = server.marked(number)
    path, headers, body = client_request(request, stream=number % 2 == 0)
    answer = await client.post(path, headers=headers, json=body)
    answer.raise_for_status()
    cell = proxy.engine.recent(1)[0].decided.decision.cell
    told = answer.headers
    kind = request.context.kind.sampling
    return Seen(cell.bucket, kind, told["x-dd-setting"], told["x-dd-reason"], server.served[-1])


async def play(name: str, requests: int, seed: int) -> tuple[Proxy, list[Seen]]:
    """Send the first requests of a scenario through the proxy, one after the other."""
    played = scenario(name)
    server = SimServer(played, seed=seed, requests=requests)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            listening(sim_app(server)) as behind,
            running(assemble(_config(behind, played, Path(folder)))) as proxy,
            listening(proxy.relay) as port,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client,
        ):
            await _attached(proxy)
            seen = [await _send(client, proxy, server, number) for number in range(1, requests + 1)]
    return proxy, seen


def _tok_s(served: Sequence[Served], times: Sequence[float]) -> float:
    return 1000.0 * sum(one.predicted_n - 1 for one in served) / max(sum(times), 1e-9)


def _range(edges: Sequence[int], bucket: int) -> str:
    low = edges[bucket - 1] if bucket else 0
    return f"{low:,} to {edges[bucket]:,}" if bucket < len(edges) else f"from {low:,}"


def rows(edges: Sequence[int], seen: Sequence[Seen]) -> list[tuple[str, ...]]:
    """The table's rows: one for each (bucket, kind), with the setting that it played most in its last third."""
    groups: Mapping[tuple[int, str], list[Seen]] = defaultdict(list)
    for one in seen:
        groups[one.bucket, one.kind].append(one)
    table: list[tuple[str, ...]] = []
    for (bucket, kind), group in sorted(groups.items()):
        late = group[-max(1, len(group) // 3) :]
        (setting, reason), _ = Counter((one.setting, one.reason) for one in late).most_common(1)[0]
        served = [one.served for one in late]
        base = _tok_s(served, [one.baseline_ms for one in served])
        ours = _tok_s(served, [one.expected_ms for one in served])
        figures = (f"{base:.1f}", f"{ours:.1f}", f"{100.0 * (ours / base - 1.0):+.1f}%")
        table.append((_range(edges, bucket), kind, str(len(group)), setting, reason, *figures))
    return table


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def report(name: str, proxy: Proxy, seen: Sequence[Seen]) -> Iterator[str]:
    """What is printed of one scenario."""
    played = scenario(name)
    start = "from the measured frontier" if played.frontier.rows else "from nothing"
    yield f"SIMULATED server, scenario {name!r}: {played.shows}"
    yield f"{len(seen)} requests through the proxy, mode adaptive, {start}; baseline {played.baseline}"
    yield ""
    yield from _aligned([HEAD, *rows(proxy.engine.state.edges, seen)])
    base, ours = (sum(getattr(one.served, what) for one in seen) for what in ("baseline_ms", "expected_ms"))
    yield ""
    yield (
        f"decode time of all {len(seen)}, trials included: {ours / 1000:.1f} s; "
        f"the baseline's: {base / 1000:.1f} s ({abs(1.0 - ours / base):.1%} {'saved' if ours <= base else 'lost'})"
    )
    yield ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the proxy would log of its start out of the demonstration's table."""
    log = logging.getLogger("adaptive_dd")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def demo_lines(tours: Sequence[tuple[str, int]], seed: int) -> Iterator[str]:
    """Everything that the demonstration prints, as it happens. Raises UsageError for an unknown scenario."""
    for name, _ in tours:
        if name not in SCENARIOS:
            raise UsageError(f"scenario: {name!r} is not known; expected one of {', '.join(SCENARIOS)}")
    for name, requests in tours:
        with _quiet():
            proxy, seen = asyncio.run(play(name, requests, seed))
        yield from report(name, proxy, seen)
    yield "tok/s: what the simulator's model expects of the settings played in the last third of a row's requests."
