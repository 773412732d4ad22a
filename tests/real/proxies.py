"""The proxy as its users run it: `adaptive-dd serve` in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.real.servers import call, free_port

START_S = 60.0


@dataclass(frozen=True)
class RealProxy:
    """A running proxy: where it is, its state directory and its log."""

    url: str
    state: Path
    log: Path
    process: subprocess.Popen[bytes]

    def own(self, path: str) -> Any:
        """An answer of its own API."""
        return call(f"{self.url}/_dd/{path}")

    def newest(self) -> dict[str, Any]:
        """The latest decision, once it has ended: a client has its last byte a moment before that."""
        found: dict[str, Any] = {"status": "running"}
        for _ in range(100):
            if found["status"] != "running":
                break
            found = self.own("decisions?last=1")["decisions"][0]
        return found

    def wait_for(self, listens: str, *, seconds: float = 900.0) -> None:
        """Wait until it has found out what its server does. Raises AssertionError when it finds something else."""
        ends_s, seen = time.monotonic() + seconds, "unknown"
        while seen == "unknown" and time.monotonic() < ends_s:
            seen = self.own("health")["listens"]
            time.sleep(0.2)
        assert seen == listens, self.log.read_text()


@contextlib.contextmanager
def proxying(url: str, folder: Path, *flags: str) -> Iterator[RealProxy]:
    """The proxy before `url` for the length of a `with`."""
    folder.mkdir(parents=True)
    port, log, state = free_port(), folder / "log", folder / "state"
    line = [sys.executable, "-m", "adaptive_dd", "serve", "--upstream", url, "--port", str(port)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*line, "--state-dir", str(state), *flags], stdout=sink, stderr=subprocess.STDOUT
        )
    made = RealProxy(f"http://127.0.0.1:{port}", state, log, process)
    try:
        _wait(made)
        yield made
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _wait(proxy: RealProxy) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s and proxy.process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            proxy.own("health")
            return
        time.sleep(0.05)
    raise RuntimeError(f"the proxy did not come up:\n{proxy.log.read_text()}")
