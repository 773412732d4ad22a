"""The live journal: batches, restarts, kill -9, and every way in which a disk says no."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.core import controller
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Deployment
from adaptive_dd.core.events import Abandoned, Event, Observed
from adaptive_dd.engine import Engine
from adaptive_dd.files import take_lock
from adaptive_dd.journal import LOCK_NAME, StoredJournal
from adaptive_dd.metrics import Metrics
from adaptive_dd.reader import Reader
from adaptive_dd.store import FILE_NAME, Store
from tests.journals import HERE, journal_in, outcome_of, read_only, traffic


def resumed(folder: Path, deployment: Deployment = HERE) -> State | None:
    with closing(Reader(folder)) as reader:
        answer = reader.resume(deployment)
    assert answer.notes == ()
    return answer.state


def rows(folder: Path, sql: str) -> list[dict[str, Any]]:
    with closing(Reader(folder)) as reader:
        return reader.rows(sql)


class Flaky:
    """Stores that fail to open or to write while `broken` holds an error."""

    def __init__(self) -> None:
        self.broken: Exception | None = None
        self.opened = 0

    def __call__(self, path: Path) -> Store:
        if self.broken is not None:
            raise self.broken
        self.opened += 1
        store = Store(path)
        whole = store.write

        def write(*arguments: Any) -> None:
            if self.broken is not None:
                raise self.broken
            whole(*arguments)

        store.write = write  # type: ignore
        return store


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 30)
        left = engine.state
    assert resumed(tmp_path) == left
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        assert engine.state == left
        assert engine.next_number == 31
        traffic(engine, 5)
    assert resumed(tmp_path) == engine.state
    assert rows(tmp_path, "select count(*) as n from decisions") == [{"n": 35}]


def test_what_was_used_last_is_folded_at_the_start_and_not_while_a_client_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_in(tmp_path) as journal:
        left = Engine(journal, HERE)
        traffic(left, 10)
    with journal_in(tmp_path) as journal:
        monkeypatch.setattr(Reader, "resume", lambda *_: pytest.fail("read again"))
        assert Engine(journal, HERE).state == left.state


def test_a_disk_that_hangs_at_the_end_delays_it_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("adaptive_dd.journal.CLOSE_S", 0.05)
    hanging = threading.Event()

    def slow(path: Path) -> Store:
        store = Store(path)
        store.write = lambda *_: hanging.wait(30)  # type: ignore
        return store

    journal = StoredJournal(tmp_path, open_store=slow)
    journal.start()
    traffic(Engine(journal, HERE), 1)
    journal.close()
    assert "hangs" in caplog.text
    hanging.set()


def test_after_a_formula_changed_the_journal_is_folded_again_once_and_not_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_in(tmp_path, snapshot_events=10) as journal:
        engine = Engine(journal, HERE)
        for start in range(0, 40, 10):
            traffic(engine, 10, start=start)
            journal.flush()
    whole = controller.apply

    def changed(state: State, event: Event) -> State:
        after = whole(state, event)
        return replace(after, headroom_ms=after.headroom_ms + 1.0) if isinstance(event, Observed) else after

    monkeypatch.setattr(controller, "apply", changed)
    with journal_in(tmp_path) as journal:
        again = Engine(journal, HERE)
        assert "does not follow" in " ".join(journal.health()["notes"])
        assert again.state.headroom_ms == pytest.approx(engine.state.headroom_ms + 1.0)
        traffic(again, 5)
    with journal_in(tmp_path) as journal:
        assert Engine(journal, HERE).state == again.state
        assert journal.health()["notes"] == []


def test_a_clean_end_leaves_a_snapshot_so_the_next_start_folds_nothing(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        traffic(Engine(journal, HERE), 3)
    last = rows(
        tmp_path, "select max(event_id) as covered, (select max(id) from events) as last from snapshots"
    )
    assert last[0]["covered"] == last[0]["last"]


def test_snapshots_are_taken_on_the_way(tmp_path: Path) -> None:
    with journal_in(tmp_path, snapshot_events=20) as journal:
        engine = Engine(journal, HERE)
        for start in range(0, 50, 10):
            traffic(engine, 10, start=start)
            journal.flush()
        assert len(rows(tmp_path, "select id from snapshots")) >= 4
        assert resumed(tmp_path) == engine.state


def test_two_deployments_share_a_journal_and_keep_their_own_states(tmp_path: Path) -> None:
    other = Deployment("http://up", "model", "b2", 8)
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        first = engine.state
        engine.deploy(other)
        traffic(engine, 7)
    assert resumed(tmp_path) == first
    assert resumed(tmp_path, other) == engine.state
    with journal_in(tmp_path) as journal:
        again = Engine(journal, HERE)
        assert again.next_number == 13, "numbers are never used twice within one journal"
        again.deploy(other)
        assert again.state == engine.state


def test_a_full_queue_refuses_and_nothing_is_learned_from_what_it_refused(tmp_path: Path) -> None:
    metrics = Metrics()
    journal = StoredJournal(tmp_path, room=10)  # not started: nobody drains it
    engine = Engine(journal, HERE, metrics=metrics)
    traffic(engine, 10)
    assert metrics.value("journal_skipped_total") > 0
    journal.start()
    journal.flush()
    traffic(engine, 1)
    journal.close()
    assert resumed(tmp_path) == engine.state


def test_a_writer_that_lags_behind_holds_events_and_not_a_state_for_each(tmp_path: Path) -> None:
    def states() -> int:
        gc.collect()
        return sum(isinstance(found, State) for found in gc.get_objects())

    before = states()  # other tests' are none of ours
    journal = StoredJournal(tmp_path)  # not started: everything waits
    engine = Engine(journal, HERE)
    traffic(engine, 200)
    assert states() - before < 50
    journal.start()
    journal.flush()
    journal.close()
    assert resumed(tmp_path) == engine.state


def test_rows_that_retention_removes_are_not_missed(tmp_path: Path) -> None:
    with journal_in(tmp_path, snapshot_events=10, keep_events=30) as journal:
        engine = Engine(journal, HERE)
        for start in range(0, 100, 5):
            traffic(engine, 5, start=start)
            journal.flush()
        assert rows(tmp_path, "select count(*) as n from events")[0]["n"] < 201
        assert resumed(tmp_path) == engine.state


# --- kill -9 --------------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from adaptive_dd.engine import Engine
from tests.journals import HERE, journal_in, traffic

with journal_in(Path(sys.argv[1]), every_s=0.02, snapshot_events=50) as journal:
    engine = Engine(journal, HERE)
    done = 0
    while True:
        traffic(engine, 10, start=done)
        journal.flush()
        done += 10
        print(done, flush=True)
        traffic(engine, 3, start=done)  # in the queue, perhaps on its way, when the kill comes
        done += 3
"""


def test_killed_with_9_in_mid_traffic_at_most_the_last_batch_is_missing(tmp_path: Path) -> None:
    for round_number in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert writer.stdout is not None
        with writer, writer.stdout:
            before = rows(tmp_path, "select count(*) as n from decisions")[0]["n"] if round_number else 0
            said = [int(writer.stdout.readline()) for _ in range(7 + round_number)][-1]
            os.kill(writer.pid, signal.SIGKILL)
        kept = rows(tmp_path, "select count(*) as n from decisions")[0]["n"] - before
        assert kept >= said
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
            assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        assert resumed(tmp_path) is not None
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        assert engine.state.open == {}, "what was under way is closed as lost"
        assert journal.health()["notes"] == []


# --- the disk says no -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.OperationalError("attempt to write a readonly database"),
        sqlite3.OperationalError("database is locked"),
        OSError(5, "Input/output error"),
        RuntimeError("something nobody thought of"),
    ],
)
def test_while_the_disk_says_no_learning_goes_on_and_nothing_is_lost_when_it_ends_soon(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    flaky, metrics = Flaky(), Metrics()
    with journal_in(tmp_path, open_store=flaky, metrics=metrics) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        journal.flush()
        flaky.broken = error
        with caplog.at_level(logging.WARNING):
            for start in range(5, 25, 5):
                traffic(engine, 5, start=start)
                journal.flush()
        health = journal.health()
        assert not health["ok"]
        assert str(error) in health["error"]
        assert health["events_waiting"] > 0
        assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1, "said once"
        assert engine.state.next_number == 26
        flaky.broken = None
        traffic(engine, 1)
        journal.flush()
        assert journal.health()["ok"]
    assert resumed(tmp_path) == engine.state
    assert metrics.value("journal_failures_total") > 0
    assert metrics.value("journal_lost_total") == 0
    assert rows(tmp_path, "select count(*) as n from decisions") == [{"n": 26}]
    assert rows(tmp_path, "select * from snapshots where origin = 'start'") == []


def test_when_it_lasts_rows_are_given_up_and_counted_but_what_was_learned_is_kept(tmp_path: Path) -> None:
    flaky, metrics = Flaky(), Metrics()
    options = {"open_store": flaky, "metrics": metrics, "waiting": 20, "retry_s": (0.0, 0.2)}
    with journal_in(tmp_path, **options) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        journal.flush()
        flaky.broken = sqlite3.OperationalError("database or disk is full")
        traffic(engine, 50, start=5)
        while not metrics.value("journal_lost_total"):
            journal.flush()
        flaky.broken = None
        while not journal.health()["ok"]:
            traffic(engine, 1)
            journal.flush()
        traffic(engine, 4)
        journal.flush()
        assert resumed(tmp_path) == engine.state, "at once, not only after a clean end"
        assert any("events were lost" in note for note in journal.health()["notes"])
    assert resumed(tmp_path) == engine.state
    assert metrics.value("journal_lost_total") == journal.health()["events_lost"] > 20
    assert len(rows(tmp_path, "select * from snapshots where origin = 'start'")) == 1


def test_an_end_with_a_broken_disk_is_said_and_never_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = Flaky()
    with caplog.at_level(logging.WARNING), journal_in(tmp_path, open_store=flaky) as journal:
        engine = Engine(journal, HERE)
        journal.flush()
        flaky.broken = sqlite3.OperationalError("database or disk is full")
        traffic(engine, 5)
    assert "the journal ends with 10 events that could not be written" in caplog.text


def test_a_really_full_disk_and_then_room_again(tmp_path: Path) -> None:
    # A limit on the file's size is what a full disk looks like to SQLite, and needs no rights.
    script = """
import resource, signal, sys
from pathlib import Path
from adaptive_dd.engine import Engine
from tests.journals import HERE, journal_in, traffic
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with journal_in(Path(sys.argv[1])) as journal:
    engine = Engine(journal, HERE)
    traffic(engine, 5)
    journal.flush()
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    traffic(engine, 50, start=5)
    journal.flush()
    assert not journal.health()["ok"], journal.health()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    traffic(engine, 5, start=55)
    journal.flush()
    assert journal.health()["ok"], journal.health()
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=root, timeout=60, check=False)
    assert done.returncode == 0
    assert rows(tmp_path, "select count(*) as n from decisions") == [{"n": 60}]
    assert resumed(tmp_path) is not None


def test_a_state_folder_that_cannot_be_made_does_not_stop_anything(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with journal_in(tmp_path / "file" / "state") as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        journal.flush()
        assert not journal.health()["ok"]
        assert engine.next_number == 6
        (tmp_path / "file").unlink()
        traffic(engine, 5, start=5)
        journal.flush()
        assert journal.health()["ok"]
    assert resumed(tmp_path / "file" / "state") == engine.state


def test_a_second_proxy_on_the_folder_serves_from_memory_and_says_so_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with journal_in(tmp_path) as first:
        one = Engine(first, HERE)
        traffic(one, 10)
        first.flush()
        with caplog.at_level(logging.WARNING), journal_in(tmp_path) as second:
            two = Engine(second, HERE)
            assert two.state == one.state, "it starts from what is known"
            traffic(two, 10)
            second.flush()
            assert "written by another proxy" in second.health()["error"]
            first.close()
            traffic(two, 1)
            second.flush()
            assert second.health()["ok"]
    assert resumed(tmp_path) == two.state
    assert len([r for r in caplog.records if "another proxy" in r.message]) == 1


@pytest.mark.parametrize("snapshot_events", [1, 250])
def test_rows_of_the_other_proxy_make_a_gap_and_no_mixture(tmp_path: Path, snapshot_events: int) -> None:
    with journal_in(tmp_path) as first:
        one = Engine(first, HERE)
        traffic(one, 10)
        first.flush()
        with journal_in(tmp_path, snapshot_events=snapshot_events) as second:
            two = Engine(second, HERE)
            traffic(two, 10)
            traffic(one, 3)
            first.close()
            traffic(two, 1)
            second.flush()
    assert resumed(tmp_path) == two.state


# --- damage ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_moved_aside_and_said_and_serving_goes_on(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database, not at all\n" * 500)
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        journal.flush()
        health = journal.health()
    assert health["ok"]
    assert "moved aside" in health["notes"][0]
    assert "nothing could be saved" in health["notes"][0]
    assert resumed(tmp_path) == engine.state
    assert [p.name for p in tmp_path.glob(f"{FILE_NAME}.damaged-*")] != []


def scribble(path: Path, pages: list[int]) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek(4096 * page)
            file.write(b"\xa5" * 4096)


def pages_of(folder: Path, table: str) -> list[int]:
    """Page numbers (from 0) that a table's leaves lie on."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        try:
            found = connection.execute("select pageno - 1 from dbstat where name = ?", (table,)).fetchall()
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")
    return [row[0] for row in found]


def test_a_database_with_broken_pages_is_moved_aside_and_its_snapshots_are_saved(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 200)
    scribble(tmp_path / FILE_NAME, pages_of(tmp_path, "events")[1:])
    with journal_in(tmp_path) as journal:
        again = Engine(journal, HERE)
        assert "1 learned states were saved" in journal.health()["notes"][0]
        assert again.state == engine.state
        traffic(again, 5)
    assert resumed(tmp_path) == again.state


def test_broken_rows_that_opening_did_not_look_at_cost_rows_but_not_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 200)
    scribble(tmp_path / FILE_NAME, pages_of(tmp_path, "events")[1:])
    monkeypatch.setattr("adaptive_dd.store.CHECKED_BYTES", 0)
    with journal_in(tmp_path) as journal:
        again = Engine(journal, HERE)
        assert again.state == engine.state
        notes = " ".join(journal.health()["notes"])
        for start in range(200, 230, 10):
            traffic(again, 10, start=start)
            journal.flush()
        assert journal.health()["ok"]
    assert "its last snapshot is taken as it stands" in notes
    assert resumed(tmp_path) == again.state


def test_damage_while_running_costs_rows_but_not_what_was_learned(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 100)
        journal.flush()
        (tmp_path / f"{FILE_NAME}-wal").unlink()
        (tmp_path / f"{FILE_NAME}-shm").unlink()
        (tmp_path / FILE_NAME).write_bytes(b"scribbled over by something else\n" * 2000)
        for start in range(100, 130, 10):
            traffic(engine, 10, start=start)
            journal.flush()
        left = journal.health()
    assert left["ok"], left
    assert resumed(tmp_path) == engine.state


def test_a_database_that_is_deleted_under_us_is_made_again_from_memory(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 20)
        journal.flush()
        for path in tmp_path.glob(f"{FILE_NAME}*"):
            path.unlink()
        traffic(engine, 5, start=20)
        journal.flush()
    assert resumed(tmp_path) == engine.state


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    Store(tmp_path / FILE_NAME).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("pragma user_version = 99")
    before = (tmp_path / FILE_NAME).read_bytes()
    with journal_in(tmp_path) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 5)
        journal.flush()
        assert "newer adaptive-dd" in journal.health()["error"]
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert not list(tmp_path.glob("*damaged*"))


def test_a_read_only_folder_is_read_from_and_not_stumbled_over(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        traffic(Engine(journal, HERE), 10)
    with read_only(tmp_path) as target, journal_in(target) as journal:
        engine = Engine(journal, HERE)
        assert engine.next_number == 11, "what was learned is read"
        traffic(engine, 5)
        journal.flush()
        assert not journal.health()["ok"]


def test_an_event_that_cannot_be_written_costs_its_row_only(tmp_path: Path) -> None:
    metrics = Metrics()
    with journal_in(tmp_path, metrics=metrics) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 3)
        journal.offer(0, Abandoned(float("nan"), 99, "lost"), engine.state)
        traffic(engine, 3)
        journal.flush()
        assert journal.health()["ok"]
    assert metrics.value("journal_lost_total") == 1
    assert rows(tmp_path, "select count(*) as n from decisions") == [{"n": 6}]
    assert resumed(tmp_path) == engine.state


# --- clocks, threads, secrets ---------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_no_order_and_loses_nothing(tmp_path: Path) -> None:
    jumps = iter([1e9, 2e9, 0.0, -5.0, 4e9, 1e9] * 100)

    def clock() -> float:
        return next(jumps)

    with journal_in(tmp_path, snapshot_events=10, wall_s=clock) as journal:
        engine = Engine(journal, HERE, wall_s=clock)
        for start in range(0, 60, 6):
            traffic(engine, 6, start=start)
            journal.flush()
    assert resumed(tmp_path) == engine.state
    with closing(Reader(tmp_path)) as reader:
        numbers = [e.number for e in reader.history(1).events if isinstance(e, Observed)]
    assert numbers == sorted(numbers)


def test_only_the_writer_thread_ever_writes(tmp_path: Path) -> None:
    threads = set()
    flaky = Flaky()

    def watched(path: Path) -> Store:
        store = flaky(path)
        whole = store.write

        def write(*arguments: Any) -> None:
            threads.add(threading.current_thread().name)
            whole(*arguments)

        store.write = write  # type: ignore
        return store

    with journal_in(tmp_path, open_store=watched) as journal:
        engine = Engine(journal, HERE)
        traffic(engine, 50)
        journal.flush()
    assert threads == {"journal-writer"}


def test_a_batch_is_one_commit_however_many_events_it_holds(tmp_path: Path) -> None:
    batches: list[int] = []

    def counting(path: Path) -> Store:
        store = Store(path)
        whole = store.write

        def write(deployments: Any, events: Any, snapshots: Any) -> None:
            batches.append(len(events))
            whole(deployments, events, snapshots)

        store.write = write  # type: ignore
        return store

    journal = StoredJournal(tmp_path, open_store=counting)
    engine = Engine(journal, HERE)
    traffic(engine, 500)
    journal.start()
    journal.close()
    assert batches == [1001]


def test_neither_text_nor_key_nor_header_of_a_client_reaches_the_disk(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        traffic(Engine(journal, HERE), 5)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (b"Authorization", b"Bearer", b"messages", b"content"):
        assert secret not in stored.replace(b"context", b"")


def test_the_lock_is_free_again_after_a_clean_end(tmp_path: Path) -> None:
    with journal_in(tmp_path):
        pass
    take_lock(tmp_path / LOCK_NAME).close()


def test_offering_takes_no_time_worth_naming(tmp_path: Path) -> None:
    journal = StoredJournal(tmp_path, room=1)
    event: Event = Observed(0.0, 1, outcome_of(1))
    state = Engine(journal, HERE).state
    assert not journal.offer(0, event, state), "the first event filled the queue, and offering does not wait"
