"""The database: rows in order, snapshots that are checked, retention that loses nothing that was learned."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlite_utils import Database

from adaptive_dd import resume as resume_module
from adaptive_dd.core import controller
from adaptive_dd.core.codec import event_to_json, state_to_json
from adaptive_dd.core.controller import State, fold
from adaptive_dd.core.domain import Cell, Decision, Deployment, Outcome, Setting, Status
from adaptive_dd.core.events import Abandoned, Began, Decided, Event, Observed
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.errors import InputFileError
from adaptive_dd.migrations import MIGRATIONS, migrate
from adaptive_dd.reader import History, Reader
from adaptive_dd.resume import Resumed, Snapshot
from adaptive_dd.store import FILE_NAME, SPACING_EVENTS, SnapshotRow, Store, event_row
from tests.journals import HERE, context_of, outcome_of, traffic

T = TypeVar("T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()


def story(requests: int = 20) -> list[Event]:
    """The events of some traffic."""
    journal = MemoryJournal()
    traffic(Engine(journal, HERE, wall_s=lambda: 1000.0), requests)
    return journal.of(0)


def state_after(events: list[Event]) -> State:
    began, *rest = events
    assert isinstance(began, Began)
    return fold(began, rest)


def write(store: Store, events: list[Event], state: State | None = None, origin: str = "fold") -> None:
    snapshots = [SnapshotRow(0, origin, state_to_json(state))] if state else []
    store.write({0: HERE}, [event_row(0, event) for event in events], snapshots)


def read(path: Path, ask: Callable[[Reader], T]) -> T:
    with closing(Reader(path)) as reader:
        return ask(reader)


def resume_of(path: Path, deployment: Deployment = HERE) -> Resumed:
    return read(path, lambda reader: reader.resume(deployment))


def history_of(path: Path) -> History:
    return read(path, lambda reader: reader.history(1))


def rows_of(path: Path, statement: str) -> list[dict[str, Any]]:
    return read(path, lambda reader: reader.rows(statement))


def sql(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_the_state_is_taken_up_where_the_rows_end(store: Store, path: Path) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:])
    resumed = resume_of(path)
    assert resumed.state == state_after(events)
    assert resumed.notes == ()


def test_without_any_snapshot_the_state_is_folded_from_the_first_event(store: Store, path: Path) -> None:
    write(store, story())
    assert resume_of(path).state == state_after(story())


def test_a_deployment_that_was_never_seen_has_no_state(store: Store, path: Path) -> None:
    write(store, story())
    assert resume_of(path, Deployment("http://up", "model", "b2", 8)).state is None


def test_a_cap_that_is_not_known_is_one_deployment_and_not_many(store: Store, path: Path) -> None:
    for _ in range(2):
        store.write({5: Deployment("http://up")}, [event_row(5, Abandoned(0.0, 1, "lost"))], [])
    assert list(read(path, Reader.deployments).values()) == [Deployment("http://up")]


@pytest.mark.parametrize(
    "damage", ["body = substr(body, 1, 100)", "body = replace(body, '1', '2')", "digest = ''"]
)
def test_a_corrupt_snapshot_is_said_and_rebuilt_from_the_journal(
    store: Store, path: Path, damage: str
) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:30], state_after(events[:30]))
    write(store, events[30:])
    sql(path, f"update snapshots set {damage} where id = 2")
    resumed = resume_of(path)
    assert resumed.state == state_after(events)
    assert "snapshot 2 cannot be used" in resumed.notes[0]


def test_when_every_snapshot_is_corrupt_the_rows_still_give_the_state(store: Store, path: Path) -> None:
    events = story()
    write(store, events, state_after(events))
    sql(path, "update snapshots set body = 'x'")
    resumed = resume_of(path)
    assert resumed.state == state_after(events)
    assert any("folded again from the journal's rows" in note for note in resumed.notes)


def test_a_snapshot_that_does_not_follow_from_the_rows_is_found_and_folded_again(
    store: Store, path: Path
) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:30], state_after(events[:28]))
    write(store, events[30:])
    resumed = resume_of(path)
    assert resumed.state == state_after(events)
    assert "does not follow" in resumed.notes[0]


def test_a_snapshot_after_a_gap_is_trusted_and_nothing_is_folded_across_the_gap(
    store: Store, path: Path
) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, [], state_after(events[:20]), "start")  # events 10 to 19 could not be written
    write(store, events[20:30], state_after(events[:30]))
    write(store, events[30:])
    assert resume_of(path) == Resumed(state_after(events))
    history = history_of(path)
    assert history.start is not None
    assert (history.start.state, list(history.events)) == (state_after(events[:20]), events[20:])
    assert history.last == Snapshot(20, "fold", state_after(events[:30]))
    assert history.covered == 10


def test_a_corrupt_snapshot_at_a_gap_does_not_make_the_fold_cross_it(store: Store, path: Path) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, [], state_after(events[:20]), "start")
    write(store, events[20:30], state_after(events[:30]))
    sql(path, "update snapshots set body = 'x' where id = 2")
    assert resume_of(path).state == state_after(events[:30])


def test_verifying_is_bounded_by_the_number_of_rows(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:30], state_after(events[:30]))
    applied = []
    whole = controller.apply

    def counting(state: State, event: Event) -> State:
        applied.append(event)
        return whole(state, event)

    monkeypatch.setattr(controller, "apply", counting)
    resume_of(path)
    assert len(applied) == 20
    monkeypatch.setattr(resume_module, "VERIFY_EVENTS", 19)
    applied.clear()
    resume_of(path)
    assert applied == []


def test_folding_again_is_bounded_too(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, applied = story(), []
    whole = controller.apply

    def counting(state: State, event: Event) -> State:
        applied.append(event)
        return whole(state, event)

    monkeypatch.setattr(resume_module, "REBUILD_EVENTS", 25)
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:20], state_after(events[:20]))
    write(store, events[20:30], state_after(events[:5]))  # wrong
    write(store, events[30:])
    expected = state_after(events)
    monkeypatch.setattr(controller, "apply", counting)
    assert resume_of(path).state == expected
    assert len(applied) == 10 + 21, "ten to find out, and from the second snapshot on"


def test_a_row_that_cannot_be_read_or_applied_is_left_out_and_said(store: Store, path: Path) -> None:
    events = story()
    write(store, events)
    sql(path, "update events set body = '{\"v\":1}' where id = 5")
    resumed = resume_of(path)
    assert resumed.state is not None
    assert "1 journal rows cannot be read" in resumed.notes[-1]


def test_an_event_that_this_version_cannot_apply_is_left_out_and_said(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, story())
    whole = controller.apply

    def picky(state: State, event: Event) -> State:
        if isinstance(event, Observed) and event.number == 3:
            raise ArithmeticError
        return whole(state, event)

    monkeypatch.setattr(controller, "apply", picky)
    assert "1 events cannot be applied" in resume_of(path).notes[-1]


def test_a_batch_is_written_whole_or_not_at_all(store: Store, path: Path) -> None:
    events = story()
    with pytest.raises(KeyError):
        store.write({0: HERE}, [event_row(0, events[0]), event_row(7, events[1])], [])
    write(store, events[:1])
    assert history_of(path).events == (events[0],)


# --- retention ----------------------------------------------------------------------------------------------


def test_retention_removes_only_rows_that_a_kept_snapshot_covers(store: Store, path: Path) -> None:
    events = story(50)
    for first in range(0, 100, 20):
        write(store, events[first : first + 20], state_after(events[: first + 20]))
    write(store, events[100:])
    gone = store.thin(HERE, older_than_s=0.0, keep_events=50)
    history = history_of(path)
    assert gone == 20  # the snapshot at 40 was thinned out, and the rows after 20 are still needed
    assert history.start is not None
    assert history.start.state == state_after(events[:20])
    assert list(history.events) == events[20:]
    assert resume_of(path).state == state_after(events)
    assert store.thin(HERE, older_than_s=0.0, keep_events=50) == 0


def test_retention_by_age_keeps_the_state_when_every_row_is_too_old(store: Store, path: Path) -> None:
    events = story()
    write(store, events, state_after(events))
    assert store.thin(HERE, older_than_s=2000.0, keep_events=10**6) == len(events)
    assert resume_of(path).state == state_after(events)
    write(store, [Abandoned(3000.0, 99, "lost")])
    assert resume_of(path).notes == ()


def test_retention_without_a_snapshot_removes_nothing(store: Store) -> None:
    write(store, story())
    assert store.thin(HERE, older_than_s=2000.0, keep_events=1) == 0


def test_a_restart_after_retention_is_not_taken_for_the_first_event(store: Store, path: Path) -> None:
    events = story()
    write(store, events, state_after(events))
    began = events[0]
    write(store, [began, *story(2)[1:]])
    full = resume_of(path).state
    store.thin(HERE, older_than_s=0.0, keep_events=5)
    assert resume_of(path).state == full


def test_snapshots_are_thinned_to_the_newest_and_a_few_spaced_ones(store: Store, path: Path) -> None:
    events = story(12)
    for start in range(0, 24, 2):
        write(store, events[start : start + 2], state_after(events[: start + 2]))
    store.thin(HERE, older_than_s=0.0, keep_events=SPACING_EVENTS)
    kept = [row["event_id"] for row in rows_of(path, "select event_id from snapshots order by id")]
    assert kept == [2, 20, 22, 24]


# --- for people ---------------------------------------------------------------------------------------------


def test_the_decisions_view_speaks_the_vocabulary_of_the_docs(store: Store, path: Path) -> None:
    arms = {"server": Setting(), "n4,p0.25": Setting(4, 0.25), "n2,p0.0": Setting(2, 0.0), "n0": Setting(0)}
    arms |= {"n8,p0.5,m2": Setting(8, 0.5, 2), "n3": Setting(3), "p0.5": Setting(None, 0.5)}
    events: list[Event] = []
    for number, arm in enumerate(arms.values(), start=1):
        decision = Decision(arm, "learned", 0.75, Cell(1, 0, "k"))
        events.append(Decided(0.0, number, context_of(number), decision, 3.5))
    events += [Observed(1.0, 1, outcome_of(0)), Abandoned(1.0, 2, "client-gone")]
    events += [Observed(1.0, 3, Outcome(Status.REJECTED, None, "no-time"))]
    write(store, events)
    rows = rows_of(path, "select * from decisions order by number")
    assert [row["setting"] for row in rows] == list(arms)
    assert [row["status"] for row in rows[:4]] == ["ok", "client-gone", "rejected", "open"]
    first = rows[0]
    assert (first["at"], first["prompt_tokens"], first["kind"], first["bucket"]) == (
        "1970-01-01 00:00:00",
        497,
        "k",
        1,
    )
    assert (first["reason"], first["propensity"], first["decide_us"]) == ("learned", 0.75, 3.5)
    assert (first["predicted_n"], first["predicted_ms"], first["draft_n"], first["accepted"]) == (
        40,
        800.0,
        40,
        20,
    )
    assert first["tokens_per_s"] == 50.0
    assert rows[2]["rejected"] == "no-time"


def test_a_past_decision_comes_back_with_the_state_that_it_was_made_in(store: Store, path: Path) -> None:
    events = story()
    write(store, events[:10], state_after(events[:10]))
    write(store, events[10:])
    for index, event in enumerate(events):
        if isinstance(event, Decided):
            number = event.number
            found = read(path, lambda reader, number=number: reader.before(number))  # type: ignore[misc]
            assert found == (1, state_after(events[:index]), event)
    assert read(path, lambda reader: reader.before(999)) is None
    store.thin(HERE, older_than_s=0.0, keep_events=1)
    assert read(path, lambda reader: reader.before(1)) is None, "its rows are gone"
    assert read(path, lambda reader: reader.before(20)) is not None


def test_a_reader_works_beside_a_writer_and_on_a_folder(store: Store, path: Path) -> None:
    write(store, story())
    assert read(path.parent, Reader.last_number) == 20
    assert read(path, Reader.position) == len(story())
    assert list(read(path, Reader.deployments).values()) == [HERE]


def test_an_older_journal_is_read_as_it_is_and_opened_for_writing_as_it_was(path: Path) -> None:
    connection = sqlite3.connect(path)
    migrate(Database(connection), MIGRATIONS[:2])
    began = event_to_json(story(1)[0])
    connection.execute(
        "insert into deployments (id, upstream, model, build, cap) values (1, 'u', 'm', 'b', 8)"
    )
    row = (1, 0.0, "Began", began)
    connection.execute("insert into events (deployment, at_s, type, body) values (?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    old = Deployment("u", "m", "b", 8)
    assert resume_of(path, old).state == state_after(story(1)[:1])
    with closing(sqlite3.connect(path)) as check:
        assert check.execute("pragma user_version").fetchone() == (2,), "reading changed nothing"
    Store(path).close()
    with closing(sqlite3.connect(path)) as check:
        assert check.execute("pragma user_version").fetchone() == (len(MIGRATIONS),)
    assert resume_of(path, old).state == state_after(story(1)[:1])


@pytest.mark.parametrize("content", [b"", b"hello, I am a text file\n" * 50, None])
def test_what_is_no_journal_is_one_clear_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputFileError, match=r"x\.db: "):
        Reader(path)


def test_a_folder_without_a_journal_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputFileError, match=r"no journal there; expected a state folder or its adaptive-dd\.db"
    ):
        Reader(tmp_path)


def test_no_other_module_speaks_sql() -> None:
    package = Path(resume_module.__file__).parent
    speaking = {
        p.name
        for p in package.rglob("*.py")
        if ".execute(" in p.read_text() or "sqlite_utils" in p.read_text()
    }
    assert speaking == {"store.py", "reader.py", "migrations.py"}
