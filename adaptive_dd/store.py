"""The journal's database, written: all SQL that writes lives here (the schema is in `migrations`, reading in `reader`).

A `Store` is one open SQLite file, used by one thread. It knows nothing of queues, retries or live states: `journal`
does. Another database (a fleet sharing one journal) would be another class with these methods.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import NamedTuple

from sqlite_utils import Database

from adaptive_dd.core.codec import event_to_json
from adaptive_dd.core.domain import Deployment
from adaptive_dd.core.events import Event
from adaptive_dd.migrations import migrate
from adaptive_dd.resume import LAST

FILE_NAME = "adaptive-dd.db"
MAGIC = b"SQLite format 3\0"
DEPLOYMENT_COLUMNS = tuple(field.name for field in fields(Deployment))

# Snapshots kept at the end; older ones are thinned to one per `SPACING`, so that retention has where to cut.
NEWEST_SNAPSHOTS = 3
SPACING_EVENTS = 20_000
# A file up to this size is always checked whole at opening (some 0.1 s), a larger one after an unclean end.
CHECKED_BYTES = 32_000_000
# How long one statement waits for another process (a person with a SQL shell) to let go.
BUSY_MS = 2_000


class EventRow(NamedTuple):
    """One event as a row. deployment: the caller's number for it."""

    deployment: int
    at_s: float
    type: str
    number: int | None
    body: str


class SnapshotRow(NamedTuple):
    """A state as a row; it covers every event written with it or before. origin: see `resume.Snapshot`."""

    deployment: int
    origin: str
    body: str


def event_row(deployment: int, event: Event) -> EventRow:
    """Write an event as a row. Raises CodecError."""
    number = getattr(event, "number", None)
    return EventRow(deployment, event.at_s, type(event).__name__, number, event_to_json(event))


class Store:
    """One open database. Raises sqlite3.Error and OSError as they come; StoreError for a newer schema."""

    def __init__(self, path: Path) -> None:
        self._path, self._inode = path, 0
        unclean = path.with_name(path.name + "-wal").exists()
        self._db = connect(path, "rwc")
        try:
            _check(self._db, whole=unclean or path.stat().st_size < CHECKED_BYTES)
            self._db.enable_wal()
            self._db.execute(
                "pragma synchronous = normal"
            )  # survives a killed process; a power cut loses the tail
            self._db.execute("pragma journal_size_limit = 16777216")
            migrate(self._db)
            self._inode = path.stat().st_ino
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self._db.close()

    def is_there(self) -> bool:
        """Is the file still the one that was opened? Raises DatabaseError when something wrote over it."""
        try:
            with self._path.open("rb") as file:
                same = os.fstat(file.fileno()).st_ino == self._inode
                head = file.read(len(MAGIC))
        except FileNotFoundError:
            return False
        if same and head and head != MAGIC:
            raise _damaged("its first bytes are not SQLite's")
        return same

    def position(self) -> int:
        """Id of the last event ever written, to notice that somebody else wrote here."""
        return position_of(self._db)

    def write(
        self,
        deployments: Mapping[int, Deployment],
        events: Iterable[EventRow],
        snapshots: Iterable[SnapshotRow],
    ) -> None:
        """Add events, and snapshots that cover them and all before: all of it or nothing.

        deployments: whose the rows are, by the number that the rows carry (the caller's own; the database has its).
        """
        with self._db.atomic():
            own = {number: self._number_of(deployment) for number, deployment in deployments.items()}
            self._db.conn.executemany(
                "insert into events (deployment, at_s, type, number, body) values (?, ?, ?, ?, ?)",
                [(own[row.deployment], *row[1:]) for row in events],
            )
            position = position_of(self._db)
            self._db.conn.executemany(
                "insert into snapshots (deployment, event_id, origin, digest, body) values (?, ?, ?, ?, ?)",
                [
                    (own[row.deployment], position, row.origin, digest_of(row.body), row.body)
                    for row in snapshots
                ],
            )

    def _number_of(self, deployment: Deployment) -> int:
        known = astuple(deployment)
        where = " and ".join(f"{column} is ?" for column in DEPLOYMENT_COLUMNS)
        found = self._db.execute(f"select id from deployments where {where}", known).fetchone()
        if found is None:
            names, marks = ", ".join(DEPLOYMENT_COLUMNS), ", ".join("?" * len(known))
            sql = f"insert into deployments ({names}) values ({marks}) returning id"
            found = self._db.execute(sql, known).fetchone()
        return int(found[0])

    def thin(self, deployment: Deployment, *, older_than_s: float, keep_events: int) -> int:
        """Apply retention to one deployment; returns the rows removed.

        A row goes only when a snapshot that stays covers it: the earliest snapshot kept, and the events after
        it, still give the state.
        """
        with self._db.atomic():
            scope = self._number_of(deployment)
            self._thin_snapshots(scope)
            cut = self._cut(scope, older_than_s, keep_events)
            if cut is None:
                return 0
            start = "update snapshots set origin = 'start' where deployment = ? and event_id = ?"
            self._db.execute(start, (scope, cut))
            self._db.execute("delete from snapshots where deployment = ? and event_id < ?", (scope, cut))
            gone = self._db.execute("delete from events where deployment = ? and id <= ?", (scope, cut))
            return gone.rowcount

    def _cut(self, scope: int, older_than_s: float, keep_events: int) -> int | None:
        """The newest snapshot (its event_id) that only covers rows too old or too many; None where none are."""
        by_age = "select id from events where deployment = ? and at_s >= ? order by id limit 1"
        by_count = "select id from events where deployment = ? order by id desc limit 1 offset ?"
        young = self._db.execute(by_age, (scope, older_than_s)).fetchone()
        many = self._db.execute(by_count, (scope, keep_events)).fetchone()
        upto = max(LAST if young is None else young[0] - 1, 0 if many is None else many[0])
        newest = (
            "select max(event_id) from snapshots where deployment = :scope and event_id <= :upto "
            "and exists (select 1 from events where deployment = :scope and id <= event_id)"
        )
        cut = self._db.execute(newest, {"scope": scope, "upto": upto}).fetchone()[0]
        return None if cut is None else int(cut)

    def _thin_snapshots(self, scope: int) -> None:
        rows = self._db.execute(
            "select id, event_id, origin from snapshots where deployment = ? order by id", (scope,)
        ).fetchall()
        last_kept: int | None = None
        for number, event_id, origin in rows[:-NEWEST_SNAPSHOTS]:
            if origin == "start" or last_kept is None or event_id - last_kept >= SPACING_EVENTS:
                last_kept = event_id
            else:
                self._db.execute("delete from snapshots where id = ?", (number,))


def connect(path: Path, mode: str) -> Database:
    """Open a file; mode as in a SQLite URI (`rwc`, `ro`)."""
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1000.0, check_same_thread=False)
    return Database(connection, execute_plugins=False)


def _check(db: Database, *, whole: bool) -> None:
    """Raise what a damaged database raises: of the whole file, or of the tables that learning hangs on."""
    tables = [name for name in ("deployments", "snapshots") if name in db.table_names()]
    for which in [""] if whole else [f"('{table}')" for table in tables]:
        found = db.execute(f"pragma quick_check{which}").fetchone()[0]
        if found != "ok":
            raise _damaged(found)


def _damaged(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(f"malformed: {what}")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def position_of(db: Database) -> int:
    """Id of the last event ever written."""
    row = db.execute("select seq from sqlite_sequence where name = 'events'").fetchone()
    return 0 if row is None else int(row[0])


def digest_of(body: str) -> str:
    """What a snapshot's text is checked against."""
    return hashlib.sha256(body.encode()).hexdigest()
