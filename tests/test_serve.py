"""`serve` as a process: how it starts, what it says, how it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from adaptive_dd.core.context import SamplingDefaults
from adaptive_dd.core.identity import Identity
from adaptive_dd.serve import sampling_defaults
from tests.support.process import run_cli, serve_process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_absent_upstream_is_an_error_in_the_dialect_of_the_path_with_retry_after(tmp_path: Path) -> None:
    with serve_process(f"http://127.0.0.1:{free_port()}", tmp_path) as proxy:
        for path, where in (
            ("/v1/chat/completions", ("error", "message")),
            ("/v1/messages", ("error", "type")),
        ):
            request = urllib.request.Request(
                proxy.url + path, b'{"messages":[]}', {"content-type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=20)
            with contextlib.closing(caught.value) as error:
                assert error.code in (502, 503)
                assert int(error.headers["Retry-After"]) >= 1
                body = json.loads(error.read())
            assert isinstance(body[where[0]][where[1]], str)
            assert ("type" in body) == (path == "/v1/messages")
        health = proxy.get("/_dd/health")
        assert isinstance(health, dict)
        assert health["upstream_up"] is False
        head = urllib.request.Request(f"{proxy.url}/_dd/health", method="HEAD")
        with urllib.request.urlopen(head, timeout=20) as answer:  # as monitors ask
            assert (answer.status, answer.read()) == (200, b"")
        assert proxy.stop() == 0
    assert not proxy.said("Traceback")


def test_a_second_start_on_the_same_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_cli(
            "serve", "--upstream", "http://127.0.0.1:9", "--port", port, "--state-dir", str(tmp_path)
        )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert port in done.stderr
    assert not list(tmp_path.iterdir()), "a clash is found before anything is made"


def test_an_upstream_that_is_the_proxy_itself_is_refused(tmp_path: Path) -> None:
    port = str(free_port())
    done = run_cli(
        "serve", "--upstream", f"http://localhost:{port}", "--port", port, "--state-dir", str(tmp_path)
    )
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "the proxy itself" in done.stderr


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ((), "upstream: not given"),
        (("--upstream", "localhost:8080"), "expected a URL"),
        (("--upstream", "http://127.0.0.1:9", "--baseline", "4"), "baseline"),
        (("--upstream", "http://127.0.0.1:9", "--frontier", "no-such-file.json"), "no-such-file.json"),
        (("--upstream", "http://127.0.0.1:9", "--mode", "frozen"), "--policy"),
        (
            ("--upstream", "http://127.0.0.1:9", "--c0", "-3"),
            "c0_s: '-3' (--c0-s) is wrong; expected seconds",
        ),
    ],
)
def test_a_bad_start_is_one_line_and_exit_code_2(flags: tuple[str, ...], part: str, tmp_path: Path) -> None:
    done = run_cli("serve", *flags, "--port", "0", "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0_and_without_a_traceback(number: signal.Signals, tmp_path: Path) -> None:
    with serve_process(f"http://127.0.0.1:{free_port()}", tmp_path) as proxy:
        assert proxy.stop(number) == 0
    assert not proxy.said("Traceback")


def test_a_key_given_by_environment_stands_in_no_log_and_no_file(tmp_path: Path) -> None:
    env_key = "k-1f6e0a"
    with serve_process(
        f"http://127.0.0.1:{free_port()}", tmp_path, "--api-key", env_key, "--log-level", "debug"
    ) as proxy:
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(
                urllib.request.Request(
                    proxy.url + "/v1/models", headers={"Authorization": "Bearer k-77aa31"}
                ),
                timeout=20,
            )
        health, metrics = (
            proxy.get("/_dd/health"),
            urllib.request.urlopen(proxy.url + "/_dd/metrics", timeout=20).read(),
        )
        proxy.stop()
    everything = "".join(proxy.lines) + json.dumps(health) + metrics.decode()
    everything += "".join(
        path.read_bytes().decode("latin1") for path in tmp_path.rglob("*") if path.is_file()
    )
    assert env_key not in everything
    assert "k-77aa31" not in everything


def test_greedy_by_launch_flag_is_known_from_the_server() -> None:
    assert sampling_defaults(None) == SamplingDefaults(0.8, 40)
    assert sampling_defaults(Identity(temperature=0.0)) == SamplingDefaults(0.0, 40)
    assert sampling_defaults(Identity(temperature=1.0, top_k=1)) == SamplingDefaults(1.0, 1)
