"""`adaptive-dd serve` as a process of its own: what only a real process can show (signals, kill -9, exit codes)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = (sys.executable, "-W", "error", "-m", "adaptive_dd")


def run_cli(
    *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ADAPTIVE_DD_")}
    return subprocess.run(
        [*COMMAND, *args],
        env={**clean, "COLUMNS": "200", **(env or {})},
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )


@dataclass
class ServeProcess:
    """A running `serve`. lines: what it logged so far."""

    process: subprocess.Popen[str]
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 10.0) -> object:
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: object, timeout_s: float = 30.0) -> object:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return json.loads(answer.read())

    def said(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    def wait_until_said(self, pattern: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.said(pattern):
            assert time.monotonic() < deadline, f"never said {pattern!r}:\n" + "".join(self.lines)
            assert self.process.poll() is None or self.said(pattern), "ended:\n" + "".join(self.lines)
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def serve_process(
    upstream: str, state_dir: Path, *flags: str, command: tuple[str, ...] = COMMAND
) -> Iterator[ServeProcess]:
    """`serve` on a free port, ready to answer; killed at the end if it still runs."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ADAPTIVE_DD_")}
    process = subprocess.Popen(
        [*command, "serve", "--upstream", upstream, "--port", "0", "--state-dir", str(state_dir), *flags],
        env=clean,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    running = ServeProcess(process)
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: running.lines.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        running.wait_until_said(r"look at http")
        found = re.search(r"http://[^ ]+:(\d+) ->", "".join(running.lines))
        assert found is not None
        running.port = int(found.group(1))
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        reader.join(30)
        process.stderr.close()
