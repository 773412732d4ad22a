"""The journal's database, read: also while a proxy writes it, on a read-only disk, or after it was damaged.

All SQL that reads lives here. Every error becomes one line about the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from adaptive_dd.core.codec import CodecError, event_from_json, state_from_json, state_to_json
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Deployment
from adaptive_dd.core.events import Decided, Event
from adaptive_dd.core.replay import fold_on
from adaptive_dd.errors import InputFileError
from adaptive_dd.migrations import MIGRATIONS, migrate, schema_version
from adaptive_dd.resume import LAST, Resumed, Snapshot, resume
from adaptive_dd.store import DEPLOYMENT_COLUMNS, FILE_NAME, connect, digest_of, position_of


@dataclass(frozen=True, slots=True)
class History:
    """A journal without a gap. start: what the events follow, None where the first of them begins it.

    last: the newest snapshot; covered: how many of the events it covers. notes: what could not be read.
    """

    start: Snapshot | None
    events: tuple[Event, ...]
    last: Snapshot | None
    covered: int
    notes: tuple[str, ...]


class Reader:
    """A read-only look at a journal that may be in use. Raises InputFileError when it cannot be read.

    path: the database, or the state folder that holds it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        if not self.path.is_file():
            raise InputFileError(f"{path}: no journal there; expected a state folder or its {FILE_NAME}")
        with self._readable():
            self._db = _connect_to_read(self.path)
            schema = schema_version(self._db)
            if 0 < schema < len(MIGRATIONS):
                self._db = _brought_up(self._db)
        if not 0 < schema <= len(MIGRATIONS):
            self._db.close()
            raise InputFileError(
                f"{self.path}: its schema is {schema}, this version reads 1 to {len(MIGRATIONS)}"
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise InputFileError(f"{self.path}: not a readable journal ({error})") from None

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def deployments(self) -> dict[int, Deployment]:
        """Every deployment by its number, the one used last at the end."""
        last = {row["deployment"]: row["id"] for row in self.rows(_LAST_USE)}
        with self._readable():
            known = _deployments(self._db)
        return {number: known[number] for number in sorted(known, key=lambda number: last.get(number, 0))}

    def resume(self, deployment: Deployment) -> Resumed:
        """The state that a deployment was left in, verified on a bounded end of its journal."""
        with self._readable():
            for number, known in _deployments(self._db).items():
                if known == deployment:
                    return resume(_StoredRows(self._db, number))
        return Resumed(None)

    def history(self, number: int) -> History:
        """The unbroken end of a deployment's journal."""
        with self._readable():
            stored = _StoredRows(self._db, number)
            chain = list(stored.snapshots())
            start = None if stored.is_whole() or not chain else chain[-1]
            last = chain[0] if chain else None
            first = start.event_id if start else 0
            events = list(stored.events(first, LAST))
            covered = stored.count(first, last.event_id) if last else 0
        return History(start, tuple(events), last, covered, tuple(stored.notes))

    def newest_snapshots(self) -> dict[Deployment, str]:
        """The newest readable snapshot of each deployment, as its text."""
        found = {}
        with self._readable():
            for number, deployment in _deployments(self._db).items():
                last = next(_StoredRows(self._db, number).snapshots(), None)
                if last is not None:
                    found[deployment] = state_to_json(last.state)
        return found

    def position(self) -> int:
        """Id of the last event ever written."""
        with self._readable():
            return position_of(self._db)

    def last_number(self) -> int:
        """The highest request number in the journal."""
        sql = "select coalesce(max(number), 0) as number from events where number is not null"
        return int(self.rows(sql)[0]["number"])

    def span(self, number: int) -> dict[str, Any]:
        """Size and age of a deployment's journal: events, decisions, from_s, to_s."""
        return self.rows(
            "select count(*) as events, sum(type = 'Decided') as decisions, min(at_s) as from_s, max(at_s) as to_s "
            "from events where deployment = ?",
            [number],
        )[0]

    def decisions(self, number: int, *, last: int) -> list[dict[str, Any]]:
        """The last rows of the view `decisions` of a deployment, oldest first."""
        # The number that they begin with, first: the view is not to read a long journal's every row.
        first = self.rows(
            "select number from events where deployment = ? and type = 'Decided' order by id desc limit 1 offset ?",
            [number, last - 1],
        )
        sql = "select * from decisions where deployment = ? and number >= ? order by number"
        return self.rows(sql, [number, first[0]["number"] if first else 0])

    def latest(self, last: int) -> list[Event]:
        """The newest events of requests, of any deployment, oldest first; what cannot be read is left out."""
        sql = "select body from events where number is not null order by id desc limit ?"
        found: list[Event] = []
        for row in self.rows(sql, [last]):
            with contextlib.suppress(CodecError):
                found.append(event_from_json(row["body"]))
        return found[::-1]

    def before(self, request: int) -> tuple[int, State, Decided] | None:
        """Deployment, state and event of one decision as it was made; None where its rows are not kept.

        Folds from the nearest snapshot before it.
        """
        found = self.rows(
            "select id, deployment from events where number = ? and type = 'Decided'", [request]
        )
        if not found:
            return None
        at, number = found[0]["id"], found[0]["deployment"]
        with self._readable():
            stored = _StoredRows(self._db, number)
            base = next((s for s in stored.snapshots() if s.event_id < at), None)
            if base is None and not stored.is_whole():
                return None
            start = base.event_id if base else 0
            state = fold_on(base.state if base else None, stored.events(start, at - 1)).state
            event = next(stored.events(at - 1, at), None)
        return None if state is None or not isinstance(event, Decided) else (number, state, event)

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Rows of a query, such as one on the view `decisions`."""
        with self._readable():
            return list(self._db.query(sql, list(parameters)))


_LAST_USE = "select deployment, max(id) as id from events group by deployment"


class _StoredRows:
    """`resume.Rows` of one deployment."""

    def __init__(self, db: Database, number: int) -> None:
        self._db, self._number = db, number
        self._unusable: dict[str, list[str]] = {}  # numbers of snapshots by why
        self._unread: list[str] = []

    @property
    def notes(self) -> list[str]:
        snapshots = [f"snapshot {', '.join(ns)} cannot be used: {why}" for why, ns in self._unusable.items()]
        return snapshots + self._unread

    def is_whole(self) -> bool:
        starts = "select count(*) from snapshots where deployment = ? and origin = 'start'"
        return bool(self._db.execute(starts, (self._number,)).fetchone()[0] == 0)

    def snapshots(self) -> Iterator[Snapshot]:
        sql = "select id, event_id, origin, digest, body from snapshots where deployment = ? order by id desc"
        for number, event_id, origin, digest, body in self._db.execute(sql, (self._number,)):
            try:
                if digest_of(body) != digest:
                    raise CodecError("its digest does not match")
                yield Snapshot(event_id, origin, state_from_json(body))
            except CodecError as error:
                self._unusable.setdefault(str(error), []).append(str(number))
            if origin == "start":
                return

    def count(self, after: int, upto: int) -> int:
        sql = "select count(*) from events where deployment = ? and id > ? and id <= ?"
        return int(self._db.execute(sql, (self._number, after, upto)).fetchone()[0])

    def events(self, after: int, upto: int) -> Iterator[Event]:
        unreadable, reason = 0, ""
        sql = "select body from events where deployment = ? and id > ? and id <= ? order by id"
        for (body,) in self._db.execute(sql, (self._number, after, upto)):
            try:
                yield event_from_json(body)
            except CodecError as error:
                unreadable, reason = unreadable + 1, str(error)
        if unreadable:
            self._unread.append(f"{unreadable} journal rows cannot be read and are left out ({reason})")


def _connect_to_read(path: Path) -> Database:
    """Open for reading, also on a read-only disk, where SQLite cannot make the files that it shares with writers."""
    db = connect(path, "ro")
    try:
        schema_version(db)
    except sqlite3.OperationalError:
        db.close()
        wal = path.with_name(path.name + "-wal")
        if wal.exists() and wal.stat().st_size > 0:
            raise
        db = connect(path, "ro&immutable=1")
    return db


def _brought_up(db: Database) -> Database:
    """A copy of an older journal in memory, with the steps taken that it lacks: reading changes nobody's file."""
    copy = Database(memory=True)
    db.conn.backup(copy.conn)
    db.close()
    migrate(copy)
    return copy


def _deployments(db: Database) -> dict[int, Deployment]:
    names = ", ".join(DEPLOYMENT_COLUMNS)
    rows = db.execute(f"select id, {names} from deployments order by id").fetchall()
    return {row[0]: Deployment(*row[1:]) for row in rows}
