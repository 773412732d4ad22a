"""The record of a running proxy: killed, damaged, filled up, locked out, and serving all the while."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.core.domain import Deployment
from adaptive_dd.reader import Reader
from adaptive_dd.store import FILE_NAME
from tests.fake_llama import FakeLlama
from tests.journals import read_only
from tests.support.cli import run_here
from tests.support.process import ServeProcess, serve_process

FLAGS = ("--no-probe", "--baseline", "n2,p0.0", "--cap", "8")


@pytest.fixture
def upstream() -> Iterator[str]:
    with FakeLlama(launch_n=8).serving() as url:
        yield url


def ask(proxy: ServeProcess, index: int, **fields: object) -> dict[str, Any]:
    """One generating request; its text is a number in words that no file of ours may hold."""
    answer = proxy.post("/completion", {"prompt": f"zanzibar {index}\n", "n_predict": 20, **fields})
    assert isinstance(answer, dict)
    assert answer["timings"]["predicted_n"] == 20
    return answer


def ask_many(proxy: ServeProcess, count: int, *, start: int = 0) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: ask(proxy, index), range(start, start + count)))


def until(true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)


def health(proxy: ServeProcess) -> dict[str, Any]:
    answer = proxy.get("/_dd/health")
    assert isinstance(answer, dict)
    return dict(answer["journal"])


def written(folder: Path, status: str = "ok") -> int:
    with closing(Reader(folder)) as reader:
        sql = "select count(*) as n from decisions where status = ?"
        return int(reader.rows(sql, [status])[0]["n"])


def attached(proxy: ServeProcess) -> None:
    """The proxy knows its server, so that requests belong to one deployment."""
    until(lambda: bool(proxy.get("/_dd/health")["model"]), "the model's name")  # type: ignore[index]


def deployment_of(folder: Path) -> Deployment:
    with closing(Reader(folder)) as reader:
        return list(reader.deployments().values())[-1]


def test_killed_with_9_in_mid_traffic_it_starts_again_with_at_most_the_last_batch_missing(
    tmp_path: Path, upstream: str
) -> None:
    served = threading.Semaphore(0)
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 60)
        until(lambda: written(tmp_path) >= 60, "a commit of the first sixty")

        def hammer(index: int) -> None:
            try:
                ask(proxy, index)
            except OSError:
                return  # killed under us
            served.release()

        with ThreadPoolExecutor(8) as pool:
            for index in range(60, 400):
                pool.submit(hammer, index)
            for _ in range(40):
                served.acquire()
            proxy.process.send_signal(signal.SIGKILL)
            pool.shutdown(cancel_futures=True)
        proxy.process.wait(30)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    kept = written(tmp_path)
    assert kept >= 60
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 20)
        until(lambda: written(tmp_path) >= kept + 20, "the next twenty")
        assert health(proxy)["ok"]
        assert proxy.stop() == 0
    assert not proxy.said("WARNING.*snapshot|cannot be read|damaged")
    with closing(Reader(tmp_path)) as reader:
        state = reader.resume(deployment_of(tmp_path)).state
        lost = reader.rows("select number from decisions where status = 'lost'")
        again = reader.rows("select number from decisions group by number having count(*) > 1")
    assert state is not None
    assert state.open == {}
    assert len(lost) <= 8, "only what was under way when the kill came"
    assert again == [], "no number is used twice"


def test_a_restart_goes_on_from_what_was_learned(tmp_path: Path, upstream: str) -> None:
    for round_number in (1, 2):
        with serve_process(upstream, tmp_path, *FLAGS) as proxy:
            shown = proxy.get("/_dd/decisions?last=100")
            assert len(shown["decisions"]) == 30 * (round_number - 1)  # type: ignore[index]
            attached(proxy)
            ask_many(proxy, 30)
            assert proxy.stop() == 0
        assert written(tmp_path) == 30 * round_number
        with closing(Reader(tmp_path)) as reader:
            state = reader.resume(deployment_of(tmp_path)).state
        assert state is not None
        assert state.next_number == 30 * round_number + 1


def test_a_journal_of_concurrent_traffic_decides_and_applies_again_bit_for_bit(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 80)
        until(lambda: written(tmp_path) >= 40, "a commit of the first forty")
        proxy.process.send_signal(signal.SIGKILL)
        proxy.process.wait(30)
    with serve_process(upstream, tmp_path, *FLAGS, "--alpha", "0.05") as proxy:
        attached(proxy)
        ask_many(proxy, 80, start=80)
        assert proxy.stop() == 0
    done = run_here("replay", str(tmp_path), "--json")
    verified = json.loads(done.stdout)["verified"]
    assert done.returncode == 0, verified
    assert verified["decisions"] >= 100
    assert (verified["different"], verified["skipped"], verified["live_state_same"]) == (0, 0, True)
    inspected = json.loads(run_here("inspect", "--state-dir", str(tmp_path), "--json").stdout)
    assert inspected["journal"]["decisions"] == verified["decisions"]


def damage_snapshots(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.execute("update snapshots set body = substr(body, 1, 50)")


def test_with_every_snapshot_corrupt_it_says_so_and_learns_again_from_the_rows(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 30)
        proxy.stop()
    damage_snapshots(tmp_path)
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10)
        proxy.stop()
    assert proxy.said("snapshot 1 cannot be used")
    assert proxy.said("folded again")
    assert written(tmp_path) == 40


def test_a_corrupt_database_is_moved_aside_said_aloud_and_serving_goes_on(
    tmp_path: Path, upstream: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xa5" * 50_000)
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10)
        assert "moved aside" in " ".join(health(proxy)["notes"])
        proxy.stop()
    assert proxy.said(r"is damaged .*moved aside to adaptive-dd\.db\.damaged-")
    assert written(tmp_path) == 10


def test_damaged_while_it_runs_it_serves_on_and_keeps_what_it_learned(tmp_path: Path, upstream: str) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 30)
        until(lambda: written(tmp_path) >= 30, "a commit")
        for path in (tmp_path / FILE_NAME, tmp_path / f"{FILE_NAME}-wal"):
            path.write_bytes(b"\xa5" * 50_000)
        ask_many(proxy, 30, start=30)
        until(lambda: any("moved aside" in note for note in health(proxy)["notes"]), "the damage to be seen")
        ask_many(proxy, 10, start=60)
        assert proxy.stop() == 0
    with closing(Reader(tmp_path)) as reader:
        state = reader.resume(deployment_of(tmp_path)).state
    assert state is not None
    assert state.next_number == 71


def test_a_disk_that_fills_up_under_it_costs_nobody_an_answer_and_is_written_when_there_is_room(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10)
        _, hard = resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
        ask_many(proxy, 30, start=10)
        until(lambda: not health(proxy)["ok"], "the trouble to be seen")
        assert proxy.get("/_dd/health")["status"] == "degraded"  # type: ignore[index]
        metrics = urllib.request.urlopen(proxy.url + "/_dd/metrics", timeout=10).read().decode()
        assert "adaptive_dd_journal_failures_total 0.0" not in metrics
        ask_many(proxy, 10, start=40)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        until(lambda: bool(health(proxy)["ok"]), "the recovery", 60)
        assert proxy.stop() == 0
    assert proxy.said("journal cannot be written, learning goes on in memory")
    assert proxy.said("journal is written again; 0 events were lost")
    assert written(tmp_path) == 50


def test_a_state_folder_that_cannot_be_made_is_said_and_serving_goes_on(
    tmp_path: Path, upstream: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    with serve_process(upstream, tmp_path / "file" / "state", *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10)
        assert not health(proxy)["ok"]
        assert proxy.stop() == 0
    assert proxy.said("learning goes on in memory")
    assert not proxy.said("Traceback")


def test_on_a_read_only_disk_it_starts_from_what_was_learned_and_serves_from_memory(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10)
        proxy.stop()
    with read_only(tmp_path) as target, serve_process(upstream, target, *FLAGS) as proxy:
        attached(proxy)
        ask_many(proxy, 10, start=10)
        decisions = proxy.get("/_dd/decisions")
        assert isinstance(decisions, dict)
        assert decisions["decisions"][0]["number"] == 20
        assert not health(proxy)["ok"]
        assert proxy.stop() == 0
    assert proxy.said("learning goes on in memory")
    assert written(tmp_path) == 10


# A wall clock that leaps ten years ahead, twenty back, and home again, while it runs.
JUMPING = """
import itertools, time
real, leaps = time.time, itertools.cycle([0.0] * 7 + [3e8] * 3 + [-6e8] * 2)
time.time = lambda: real() + next(leaps)
from adaptive_dd.cli import main
main()
"""


def test_a_clock_that_jumps_under_it_costs_no_answer_no_row_and_nothing_learned(
    tmp_path: Path, upstream: str
) -> None:
    command = (sys.executable, "-c", JUMPING)
    with serve_process(upstream, tmp_path, *FLAGS, "--retention-days", "1", command=command) as proxy:
        attached(proxy)
        ask_many(proxy, 60)
        assert proxy.stop() == 0
    assert not proxy.said("Traceback|WARNING.*snapshot")
    done = run_here("replay", str(tmp_path), "--json")
    assert done.returncode == 0, done.stdout
    with closing(Reader(tmp_path)) as reader:
        state = reader.resume(deployment_of(tmp_path)).state
    assert state is not None
    assert state.next_number == 61
    assert state.open == {}


def test_a_second_proxy_on_the_same_folder_is_one_clear_line_and_serves_from_memory(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS) as first:
        attached(first)
        ask_many(first, 10)
        until(lambda: written(tmp_path) >= 10, "a commit")
        with serve_process(upstream, tmp_path, *FLAGS) as second:
            attached(second)
            ask_many(second, 10)
            assert written(tmp_path) == 10
            assert second.stop() == 0
        ask_many(first, 10)
        assert first.stop() == 0
    said = [line for line in second.lines if "another proxy" in line]
    assert any(f"written by another proxy (process {first.process.pid})" in line for line in said)
    assert written(tmp_path) == 20


def test_neither_text_nor_key_nor_header_of_a_client_reaches_the_folder_the_log_or_the_metrics(
    tmp_path: Path, upstream: str
) -> None:
    with serve_process(upstream, tmp_path, *FLAGS, "--log-level", "debug") as proxy:
        attached(proxy)
        for path, body in (
            ("/completion", {"prompt": "zanzibar secret words", "n_predict": 8}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "zanzibar secret words"}]}),
            ("/completion", {"prompt": "zanzibar", "n_predict": 8, "speculative.n_max": 3}),
        ):
            headers = {"content-type": "application/json", "authorization": "Bearer sk-tombouctou"}
            headers |= {"x-api-key": "sk-tombouctou", "x-custom": "ouagadougou"}
            request = urllib.request.Request(proxy.url + path, json.dumps(body).encode(), headers)
            urllib.request.urlopen(request, timeout=20).read()
        until(lambda: written(tmp_path) >= 3, "a commit")
        metrics = urllib.request.urlopen(proxy.url + "/_dd/metrics", timeout=10).read()
        decisions = json.dumps(proxy.get("/_dd/decisions")).encode()
        proxy.stop()
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    everything += metrics + decisions + "".join(proxy.lines).encode()
    for secret in (b"zanzibar", b"secret words", b"tombouctou", b"ouagadougou"):
        assert secret not in everything
