"""Shared by the tests of the record: a deployment, some traffic, a journal in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptive_dd.core.domain import Context, Deployment, Kind, Outcome, Status, Timings
from adaptive_dd.engine import Engine
from adaptive_dd.journal import StoredJournal

HERE = Deployment("http://up", "model", "b1", 8)


def context_of(index: int) -> Context:
    """Prompts of many lengths and two kinds."""
    kind = Kind("greedy" if index % 2 else "sampled")
    return Context(100 + 397 * (index % 50), "counted", kind=kind, conversation=f"c{index % 3}")


def outcome_of(index: int) -> Outcome:
    """A plausible answer: some 60 tokens at some 20 ms."""
    tokens = 40 + index % 40
    timings = Timings(
        100, 50.0, tokens, 20.0 * tokens + index % 7, draft_n=tokens, draft_n_accepted=tokens // 2
    )
    return Outcome(Status.OK, timings)


def traffic(engine: Engine, requests: int, *, start: int = 0) -> None:
    """Requests one after the other."""
    for index in range(start, start + requests):
        engine.finish(engine.begin(context_of(index)).number, outcome_of(index))


@contextmanager
def journal_in(folder: Path, **options: Any) -> Iterator[StoredJournal]:
    """A started journal that is closed at the end; it writes at once and tries again at once."""
    options = {"every_s": 0.01, "retry_s": (0.0, 0.0)} | options
    journal = StoredJournal(folder, **options)
    journal.start()
    try:
        yield journal
    finally:
        journal.close()
