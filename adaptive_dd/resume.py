"""Taking up a state where its journal left it, trusting no snapshot blindly.

A snapshot is a cache of the fold, so it can be checked: the rows between the last two are folded again, and where
that does not give the same state (a formula changed with an upgrade, a file was damaged) the fold starts further back.
All of it is bounded, because a proxy that starts is a proxy that does not serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from adaptive_dd.core.controller import State
from adaptive_dd.core.events import Event
from adaptive_dd.core.replay import Folded, fold_on

# Rows between two snapshots that are folded again at opening: a fifth of a second of start-up at most.
VERIFY_EVENTS = 500
# Rows folded when no snapshot can be trusted: some seconds of start-up, once, for most of what matters now.
REBUILD_EVENTS = 20_000
LAST = 2**62  # above every row's id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A kept state, and the id of the last event that it covers.

    origin: `fold` where it follows from the rows before it; `start` where those are not there (retention removed
    them, or they could not be written).
    """

    event_id: int
    origin: str
    state: State


@dataclass(frozen=True, slots=True)
class Resumed:
    """What opening a deployment's journal gave. notes: what has to be said about it."""

    state: State | None
    notes: tuple[str, ...] = ()


class Rows(Protocol):
    """The journal of one deployment, as a database keeps it."""

    @property
    def notes(self) -> list[str]:
        """What could not be read so far."""

    def is_whole(self) -> bool:
        """Does it still have its first event, and no gap?"""

    def snapshots(self) -> Iterator[Snapshot]:
        """Readable snapshots, newest first, back to the latest start."""

    def count(self, after: int, upto: int) -> int:
        """Number of events after one id, up to another."""

    def events(self, after: int, upto: int) -> Iterator[Event]:
        """Those events, in order."""


def resume(rows: Rows) -> Resumed:
    """The state after the last row."""
    chain, said = rows.snapshots(), []
    base = next(chain, None)
    if base is None and rows.notes:
        said.append("no snapshot can be used; the state is folded again from the journal's rows")
    elif base is not None and base.origin == "fold":
        before = next(chain, None)
        if not _follows(rows, base, before):
            said.append("the last snapshot does not follow from the journal; the state is folded again")
            base = _far_base(rows, [base, *([before] if before else []), *chain])
    folded = _fold(rows, base)
    if folded.skipped:
        said.append(f"{folded.skipped} events cannot be applied by this version and are left out")
    return Resumed(folded.state, (*rows.notes, *said))


def _follows(rows: Rows, last: Snapshot, before: Snapshot | None) -> bool:
    """Is the last snapshot the fold from the one before it (or from the first event)? True where too far to tell."""
    if before is None and not rows.is_whole():
        return True
    if rows.count(_id(before), last.event_id) > VERIFY_EVENTS:
        return True
    return _fold(rows, before, last.event_id).state == last.state


def _far_base(rows: Rows, chain: list[Snapshot]) -> Snapshot | None:
    """The earliest start whose fold is of bounded length: the first event, or a snapshot of a chain, newest first."""
    starts: list[Snapshot | None] = [None] if rows.is_whole() else []
    for start in starts + chain[::-1]:
        if rows.count(_id(start), LAST) <= REBUILD_EVENTS:
            return start
    return chain[0]


def _fold(rows: Rows, base: Snapshot | None, upto: int = LAST) -> Folded:
    return fold_on(base.state if base else None, rows.events(_id(base), upto))


def _id(base: Snapshot | None) -> int:
    return base.event_id if base else 0
