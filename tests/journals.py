"""Shared by the tests of the record: a deployment, some traffic, a journal in a folder."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.core.domain import (
    Context,
    Deployment,
    Frontier,
    FrontierRow,
    Kind,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.engine import Engine
from adaptive_dd.journal import StoredJournal

HERE = Deployment("http://up", "model", "b1", 8)


def context_of(index: int) -> Context:
    """Prompts of many lengths and two kinds."""
    kind = Kind("greedy" if index % 2 else "sampled")
    return Context(100 + 397 * (index % 50), "counted", kind=kind, conversation=f"{kind.sampling}{index % 6}")


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


# A world in which drafting deep pays on greedy requests and not on sampled ones.
WORLD = PolicySettings(baseline=Setting(2, 0.0), cap=8)
ROWS = Frontier(
    (FrontierRow(1000, Setting(2, 0.0), 50.0), FrontierRow(16000, Setting(2, 0.0), 40.0)), WORLD.baseline
)


def play(engine: Engine, requests: int, *, seed: int = 1, conversations: bool = False) -> None:
    """Requests whose answers depend on the setting that was sent: a cycle costs 20 ms and 2 ms a drafted token."""
    rng = random.Random(seed)
    for _ in range(requests):
        kind = Kind(rng.choice(("greedy", "sampled")))
        tokens_before, in_flight = rng.choice((900, 9000)), engine.in_flight + 1
        talk = kind.sampling if conversations else ""
        context = Context(tokens_before, "counted", in_flight=in_flight, kind=kind, conversation=talk)
        ticket = engine.begin(context)
        depth, chance = ticket.decision.arm.n_max or 0, 0.9 if kind.sampling == "greedy" else 0.4
        tokens, left, drafted, accepted, ms = 60 + rng.randrange(200), 0, 0, 0, 0.0
        left = tokens - 1
        while left > 0:
            right = 0
            while right < min(depth, left - 1) and rng.random() < chance:
                right += 1
            drafted, accepted, left = drafted + depth, accepted + right, left - right - 1
            ms += 20.0 + 2.0 * depth
        timings = Timings(
            context.prompt_tokens or 0,
            50.0,
            tokens,
            ms * (1.0 + 0.02 * rng.gauss(0.0, 1.0)),
            draft_n=drafted,
            draft_n_accepted=accepted,
        )
        engine.finish(ticket.number, Outcome(Status.OK, timings))


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """The folder through a read-only mount: the rights of root do not end at permission bits. Skips where denied."""
    target = folder.parent / f"{folder.name}-read-only"
    target.mkdir()
    if subprocess.run(["mount", "--bind", folder, target], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs more rights than this test has")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)
        yield target
    finally:
        subprocess.run(["umount", target], check=True)


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
