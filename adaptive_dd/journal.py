"""The live journal: a bounded queue, one writer thread, and what to do when the disk says no.

Nothing here ever stops serving. An event waits in the queue for at most a quarter of a second and is committed with
the others of its batch. While the database cannot be written (full, read-only, damaged, held by another proxy)
learning goes on in memory, rows wait up to a bound, then are given up and counted; when writing works again a
snapshot marks the gap, so what was learned is kept although its rows are not.

Only the writer thread touches the store. The threads share a deque, whose append and popleft are atomic.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

from adaptive_dd.core.codec import CodecError, state_from_json, state_to_json
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Deployment
from adaptive_dd.core.events import Event
from adaptive_dd.errors import AdaptiveDDError
from adaptive_dd.files import move_aside, take_lock
from adaptive_dd.metrics import Metrics
from adaptive_dd.reader import Reader
from adaptive_dd.store import FILE_NAME, EventRow, SnapshotRow, Store, event_row

log = logging.getLogger("adaptive_dd.journal")

LOCK_NAME = "adaptive-dd.lock"
EVERY_S = 0.25  # between commits: what a kill -9 may cost
ROOM = 10_000  # events in the queue: 0.25 s at 20,000 requests a second; above that the writer hangs
WAITING = 20_000  # rows that wait for a disk to come back, some 10 MB
SNAPSHOT_EVENTS = 250  # between snapshots: bounds what a restart folds again
KEEP_EVENTS = 200_000  # per deployment, some 80 MB
PREPARED = 3  # deployments used last, folded before serving starts and not while a client waits
CLOSE_S = 10.0  # what a hanging disk may delay the end
RETRY_S = (1.0, 60.0)  # first and longest pause before a broken store is tried again
DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DAY_S = 86_400.0


class StoredJournal:
    """The engine's `Journal` over a folder. `start` before use, `close` at the end; neither raises."""

    def __init__(
        self,
        folder: Path,
        *,
        metrics: Metrics | None = None,
        retention_days: float = 90.0,
        keep_events: int = KEEP_EVENTS,
        snapshot_events: int = SNAPSHOT_EVENTS,
        every_s: float = EVERY_S,
        retry_s: tuple[float, float] = RETRY_S,
        room: int = ROOM,
        waiting: int = WAITING,
        open_store: Callable[[Path], Store] = Store,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = folder / FILE_NAME
        self._metrics = metrics or Metrics()
        self._retention_s = retention_days * _DAY_S
        self._keep_events, self._snapshot_events = keep_events, snapshot_events
        self._every_s, self._retry_s, self._room, self._waiting = every_s, retry_s, room, waiting
        self._open_store, self._wall_s = open_store, wall_s
        # Events alone: with a state beside each of them a busy minute held ten thousand states, some 60 MB.
        self._queue: deque[tuple[int, Event]] = deque()
        # Of each scope: the place in order of its last event, and the state after it.
        self._newest: dict[int, tuple[int, State]] = {}
        self._offered = self._drained = 0
        self._deployments: list[Deployment] = []
        self._prepared: dict[Deployment, State | None] = {}
        self._notes: list[str] = []
        # The writer's own
        self._store: Store | None = None
        self._lock: TextIO | None = None
        self._rows: list[EventRow] = []
        self._states: dict[int, State] = {}  # of each scope, where it is that of the last event drained
        self._since: Counter[int] = Counter()  # events of each scope since its last snapshot
        self._gaps: set[int] = set()  # scopes whose next snapshot is a start: rows before it are missing
        self._position: int | None = None  # the last event's id as we left it
        self._error = ""
        self._pause_s, self._retry_at_s = retry_s[0], 0.0
        self._written = self._lost = 0
        self._thread: threading.Thread | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._steps = threading.Condition()
        self._step_count = 0
        for name in ("journal_events_total", "journal_failures_total", "journal_lost_total"):
            self._metrics.inc(
                name, 0.0
            )  # made here, so that the writer thread never adds a key under a scrape

    # --- the engine's side ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the database (or say why not), take up what was used last, and start the writer."""
        try:
            self._open()
        except Exception as error:
            self._failed(error)
        if self._store is None:
            self._position = int(self._read(Reader.position, 0))
        for deployment in list(self._read(Reader.deployments, {}).values())[-PREPARED:]:
            self._prepared[deployment] = self._resumed(deployment)
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    def resume(self, deployment: Deployment) -> tuple[int, State | None]:
        """The scope of a deployment and the state that it was left in. Never raises: a loss is said and noted."""
        scope = self._scope_of(deployment)
        if deployment in self._prepared:
            return scope, self._prepared.pop(deployment)
        return scope, self._resumed(deployment)

    def _scope_of(self, deployment: Deployment) -> int:
        if deployment not in self._deployments:
            self._deployments.append(deployment)
        return self._deployments.index(deployment)

    def _resumed(self, deployment: Deployment) -> State | None:
        resumed = self._read(lambda reader: reader.resume(deployment), None)
        if resumed is None:
            return self._salvaged(deployment)
        if resumed.notes:
            # What follows begins anew, so that the next start need not find out the same again.
            self._gaps.add(self._scope_of(deployment))
        return cast(State | None, resumed.state)

    def _salvaged(self, deployment: Deployment) -> State | None:
        """The newest readable snapshot of a journal whose rows cannot be read."""
        text = self._read(Reader.newest_snapshots, {}).get(deployment)
        if text is None:
            return None
        self._gaps.add(self._scope_of(deployment))
        self._say(f"{self.path}: its last snapshot is taken as it stands")
        return state_from_json(text)

    @property
    def last_number(self) -> int:
        """The highest request number in the journal."""
        return int(self._read(Reader.last_number, 0))

    def latest(self, last: int) -> list[Event]:
        """The newest events of requests, oldest first."""
        return cast(list[Event], self._read(lambda reader: reader.latest(last), []))

    def offer(self, scope: int, event: Event, state: State) -> bool:
        """Queue one event with the state after it. False when the queue is full."""
        if len(self._queue) >= self._room:
            return False
        self._offered += 1
        # Before the event: the writer must never take an older state for that after this one.
        self._newest[scope] = (self._offered, state)
        self._queue.append((scope, event))
        return True

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything offered so far was handed to the database, or tried. False after the timeout."""
        with self._steps:
            goal = self._step_count + 2  # the step under way may have drained the queue before our events
            while self._step_count < goal:
                self._wake.set()
                if not self._steps.wait(timeout_s):
                    return False
        return True

    def health(self) -> dict[str, Any]:
        """What `/_dd/health` says of the journal."""
        return {
            "ok": not self._error,
            "path": str(self.path),
            "error": self._error,
            "events_written": self._written,
            "events_waiting": len(self._queue) + len(self._rows),
            "events_lost": self._lost,
            "notes": list(self._notes),
        }

    def close(self) -> None:
        """Write what waits, leave a snapshot, and let go of the folder."""
        if self._thread is not None:
            self._stop.set()
            self._wake.set()
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning("the disk of %s hangs: what waits is not written", self.path)
            self._thread = None

    def _read(self, ask: Callable[[Reader], Any], missing: Any) -> Any:
        if not self.path.exists():
            return missing
        try:
            with contextlib.closing(Reader(self.path)) as reader:
                answer = ask(reader)
        except Exception as error:
            self._say(f"what was learned before cannot be read: {error}")
            return missing
        for note in getattr(answer, "notes", ()):
            self._say(f"{self.path}: {note}")
        return answer

    def _say_once(self, text: str) -> None:
        if text not in self._notes:
            self._say(text)

    def _say(self, text: str) -> None:
        log.warning("%s", text)
        self._notes = [*self._notes[-9:], text]

    # --- the writer's side ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._every_s)
            self._wake.clear()
            self._step()
        self._step(last=True)
        self._let_go()
        if self._rows:
            self._give_up()
            log.warning(
                "the journal ends with %d events that could not be written: %s", self._lost, self._error
            )

    def _step(self, *, last: bool = False) -> None:
        """Drain the queue and commit it, or keep it waiting while the store is broken."""
        try:
            self._drain()
            if last or not self._error or time.monotonic() >= self._retry_at_s:
                self._commit(last=last)
        except Exception as error:
            self._failed(error)
        finally:
            if len(self._rows) > self._waiting:
                self._give_up()
            with self._steps:
                self._step_count += 1
                self._steps.notify_all()

    def _drain(self) -> None:
        for _ in range(self._room):
            if not self._queue:
                break
            scope, event = self._queue.popleft()
            self._drained += 1
            self._since[scope] += 1
            try:
                self._rows.append(event_row(scope, event))
            except CodecError as error:
                self._lose(1, {scope})
                self._say_once(f"an event cannot be written: {error}")
        newest = dict(self._newest)
        self._states = {scope: state for scope, (place, state) in newest.items() if place <= self._drained}

    def _commit(self, *, last: bool) -> None:
        """Write what waits; an idle proxy touches no file."""
        due = {
            s for s in self._states if self._since[s] >= self._snapshot_events or (last and self._since[s])
        }
        if not self._rows and not due and not self._gaps & self._states.keys():
            return
        self._open()  # may find gaps
        assert self._store is not None
        if (self._gaps & {row.deployment for row in self._rows}) - self._states.keys():
            return  # what begins anew begins with a state; there is one as soon as the writer has caught up
        snapshots = self._snapshots(due | self._gaps)
        scopes = {row.deployment for row in self._rows} | {row.deployment for row in snapshots}
        self._store.write({s: self._deployments[s] for s in scopes}, self._rows, snapshots)
        self._position = self._store.position()
        self._written += len(self._rows)
        self._metrics.inc("journal_events_total", len(self._rows))
        self._rows = []
        for row in snapshots:
            self._since[row.deployment] = 0
            self._gaps.discard(row.deployment)
        self._recovered()
        for row in snapshots:
            self._store.thin(
                self._deployments[row.deployment],
                older_than_s=self._wall_s() - self._retention_s,
                keep_events=self._keep_events,
            )

    def _snapshots(self, scopes: set[int]) -> list[SnapshotRow]:
        rows = []
        for scope in sorted(scopes & self._states.keys()):
            try:
                body = state_to_json(self._states[scope])
            except CodecError as error:
                self._since[scope] = 0  # not again with every batch
                self._say_once(f"the state cannot be written as a snapshot: {error}")
                continue
            rows.append(SnapshotRow(scope, "start" if scope in self._gaps else "fold", body))
        return rows

    def _open(self) -> None:
        """Hold the lock and an open store; notice a database that is not as we left it."""
        if self._store is not None and self._store.is_there():
            return
        self._close_store()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = take_lock(self.path.with_name(LOCK_NAME))
        self._store = self._open_store(self.path)
        position = self._store.position()
        if self._position is not None and position != self._position:
            self._gaps |= set(range(len(self._deployments)))
        self._position = position

    # --- when the disk says no -----------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        """Count, say once, and try again later, at once after a damaged database was moved aside."""
        self._metrics.inc("journal_failures_total")
        self._close_store()
        if getattr(error, "sqlite_errorcode", None) in DAMAGED and self._move_aside(error):
            return
        text = str(error) if isinstance(error, AdaptiveDDError) else f"{self.path}: {error}"
        if text != self._error:
            self._say(f"the journal cannot be written, learning goes on in memory: {text}")
        self._error = text
        self._retry_at_s = time.monotonic() + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, self._retry_s[1])

    def _move_aside(self, error: Exception) -> bool:
        """Put a damaged database aside and begin a fresh one with the snapshots that can still be read."""
        saved: dict[Deployment, str] = {}
        with contextlib.suppress(Exception), contextlib.closing(Reader(self.path)) as reader:
            saved = reader.newest_snapshots()
        try:
            aside = move_aside(self.path, time.strftime("damaged-%Y%m%d-%H%M%S", time.gmtime(self._wall_s())))
            self._store = self._open_store(self.path)
            numbered = dict(enumerate(saved))
            rows = [SnapshotRow(n, "start", saved[deployment]) for n, deployment in numbered.items()]
            self._store.write(numbered, [], rows)
        except Exception as second:
            log.warning("%s is damaged (%s) and cannot be replaced: %s", self.path, error, second)
            self._close_store()
            return False
        self._gaps |= set(range(len(self._deployments)))
        self._position = self._store.position()
        kept = (
            f"{len(saved)} learned states were saved from it" if saved else "nothing could be saved from it"
        )
        self._say(f"{self.path} is damaged ({error}): moved aside to {aside.name}; {kept}")
        return True

    def _recovered(self) -> None:
        if self._error:
            self._say(f"the journal is written again; {self._lost} events were lost")
        self._error, self._pause_s = "", self._retry_s[0]

    def _give_up(self) -> None:
        """Drop waiting rows; their effect stays in the states, which the next snapshot keeps."""
        self._lose(len(self._rows), {row.deployment for row in self._rows})
        self._rows = []

    def _lose(self, count: int, scopes: set[int]) -> None:
        self._lost += count
        self._metrics.inc("journal_lost_total", count)
        self._gaps |= scopes

    def _close_store(self) -> None:
        if self._store is not None:
            with contextlib.suppress(sqlite3.Error):
                self._store.close()
            self._store = None

    def _let_go(self) -> None:
        self._close_store()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
