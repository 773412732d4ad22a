"""Do cancelled requests leak pool slots? The same script over httpx and httpx2; its figures stand in docs/decisions.md.

    python -m tests.benchmarks.cancel_leak

Per round, ten requests (to a server silent before its head, or within its stream) are cancelled once, twice or three
times in a row, after 0 to 7 turns of the event loop (before, during and after connecting) or after 2 or 50 ms. Then:
how many slots of a pool of ten are still taken, and how many of ten ordinary requests get through within a second.
The worst round of each kind is printed.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any

from tests.fake_upstream import FakeUpstream, Peer, Received, document

POOL = 10


async def script(request: Received, peer: Peer) -> None:
    if request.target == b"/silent":
        await asyncio.sleep(600)
    if request.target == b"/stream":
        await peer.start()
        await peer.chunk(b"x")
        await asyncio.sleep(600)
    await peer.whole(document())


async def read(client: Any, url: str) -> None:
    async with client.stream("GET", url) as response:
        async for _ in response.aiter_raw():
            pass


async def cancelled(client: Any, url: str, *, turns: int, seconds: float, times: int) -> None:
    task = asyncio.ensure_future(read(client, url))
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(seconds)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(task, return_exceptions=True)


async def measured(
    library: Any, url: str, path: str, *, turns: int, seconds: float, times: int
) -> tuple[int, int]:
    limits = library.Limits(max_connections=POOL)
    timeout = library.Timeout(None, pool=1.0)
    async with library.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
        await asyncio.gather(
            *(cancelled(client, url + path, turns=turns, seconds=seconds, times=times) for _ in range(POOL))
        )
        await asyncio.sleep(0.2)
        taken = len(client._transport._pool.connections)
        served = await asyncio.gather(*(client.get(f"{url}/") for _ in range(POOL)), return_exceptions=True)
        return taken, sum(not isinstance(one, BaseException) for one in served)


async def main() -> None:
    fake = FakeUpstream(script)
    await fake.start()
    print("| library | request | cancelled | slots still taken of 10 | of 10 requests then served |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or ["httpx", "httpx2"]:
        library = importlib.import_module(name)
        for path, times in [(path, times) for path in ("/silent", "/stream") for times in (1, 2, 3)]:
            rows = [
                await measured(library, fake.url, path, turns=turns, seconds=seconds, times=times)
                for turns, seconds in [(n, 0.0) for n in range(8)] + [(0, 0.002), (0, 0.05)]
            ]
            taken, served = max(row[0] for row in rows), min(row[1] for row in rows)
            print(f"| {name} {library.__version__} | {path} | {times} times | {taken} | {served} |")
    await fake.stop()


if __name__ == "__main__":
    asyncio.run(main())
