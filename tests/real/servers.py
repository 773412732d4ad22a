"""Start and stop a real llama-server: one at a time, because a test machine has few cores."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.install import binary, model

# Loading a model from cold pages on two cores takes some seconds; a build that takes longer is stuck.
START_S = 120.0
CONTEXT_TOKENS = 8192
# A deep draft on a machine with other work can take minutes for a few tokens.
PATIENCE_S = 1200.0


@dataclass(frozen=True)
class RealServer:
    """A running server: where it is, what it was launched with, and its process."""

    build: str
    url: str
    flags: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        """The parsed JSON answer of a call, straight to the server; an error status is an HTTPError."""
        return call(self.url + path, method, body, headers)


def call(url: str, method: str = "GET", body: object = None, headers: dict[str, str] | None = None) -> Any:
    """One JSON call with nothing but the standard library, so that what is under test takes no part in it."""
    data = None if body is None else json.dumps(body).encode()
    named = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data=data, method=method, headers=named)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def missing(build: str) -> str:
    """What keeps a build from running here, one line; empty when it can."""
    absent = [name for name in ("target-f32.gguf", "draft-q2_k.gguf") if model(name) is None]
    if binary(build) is None or absent:
        return f"llama-server {build} and its models are not installed: python -m tests.real.install"
    return ""


def command(build: str, port: int, flags: Sequence[str], *, drafter: bool = True) -> list[str]:
    """The command line: target and draft, few threads, a small context.

    ADAPTIVE_DD_REAL_THREADS: 2 by default; 1 helps on a machine that is busy with other work, because the threads
    of one computation wait for each other.
    """
    threads = os.environ.get("ADAPTIVE_DD_REAL_THREADS", "2")
    fixed = ["--host", "127.0.0.1", "--port", str(port), "-t", threads, "-c", str(CONTEXT_TOKENS)]
    models = ["-m", str(model("target-f32.gguf"))]
    models += ["-md", str(model("draft-q2_k.gguf"))] if drafter else []
    return [str(binary(build)), *models, *fixed, *flags]


def draft_flags(n_max: int, *, p_min: float = 0.0, build: str = "b9101") -> tuple[str, ...]:
    """Launch flags for a draft model of at most n_max tokens; the newer build must be told the type as well."""
    kind = () if build == "b9101" else ("--spec-type", "draft-simple")
    depth = ("--spec-draft-n-max", str(n_max), "--spec-draft-n-min", "0", "--spec-draft-p-min", str(p_min))
    return (*kind, *depth)


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for `/health` to say that the model is loaded. Raises RuntimeError with the log's end otherwise."""
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            call(url + "/health")
            return
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise RuntimeError(f"llama-server did not come up at {url}:\n{tail}")


@contextlib.contextmanager
def starting(
    build: str, *flags: str, slots: int = 1, wait: bool = True, drafter: bool = True, port: int | None = None
) -> Iterator[RealServer]:
    """A server for the length of a `with`; skips the test with one line where it is not installed."""
    reason = missing(build)
    if reason:
        pytest.skip(reason)
    port = port or free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as sink:
            line = command(build, port, ("-np", str(slots), *flags), drafter=drafter)
            process = subprocess.Popen(line, stdout=sink, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            if wait:
                wait_until_up(url, process, log)
            yield RealServer(build, url, flags, process, log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
