"""The relay with a chooser that costs nothing, to tell its own price from that of deciding.

    python -m tests.benchmarks.relay_only PORT UPSTREAM [--lean] [--h11] [--profile]

`--lean` puts the leaner HTTP client behind the same seam, `--h11` uvicorn's pure-Python parser in front.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from typing import Any

from adaptive_dd import httpd
from adaptive_dd.core.domain import Setting
from adaptive_dd.metrics import Metrics
from adaptive_dd.proxy import Relay
from adaptive_dd.upstream import Upstream
from tests.benchmarks.lean_client import LeanUpstream
from tests.support.relay import FakeChooser


class Forgetful(FakeChooser):
    """Keeps nothing, so that what grows is the relay's."""

    async def choose(self, *args: Any, **more: Any) -> Any:
        self.seen.clear()
        return await super().choose(*args, **more)

    def finish(self, choice: Any, outcome: Any) -> None:
        pass


def main() -> None:
    port, url, *flags = sys.argv[1:]
    upstream: Any = LeanUpstream(url) if "--lean" in flags else Upstream(url)
    relay = Relay(Forgetful(upstream, Setting(4)), upstream, Metrics())
    listening = httpd.bind("127.0.0.1", int(port))
    server = httpd.server_for(relay, grace_s=1)
    if "--h11" in flags:
        server.config.http = "h11"
    profile = cProfile.Profile(time.thread_time)  # CPU, not waiting
    with asyncio.Runner(loop_factory=httpd.loop_factory()) as runner:
        if "--profile" in flags:
            profile.enable()
        runner.run(server.serve(sockets=[listening]))
        profile.disable()
    if "--profile" in flags:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
