"""Showing a calibration while it runs: a bar with the time left and the best so far, or a plain log."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adaptive_dd.core.measure import Plan, Record, place_standing, settled
from adaptive_dd.core.standing import Place, Standing
from adaptive_dd.frontier_report import percent

# Standings take milliseconds to work out; a bar that moves every answer need not.
REDRAW_S = 2.0


def share_done(plan: Plan, record: Record) -> float:
    """How much of the budget is used, 0 to 1."""
    shares = [0.0]
    if plan.budget_ms:
        shares.append(record.spent_ms / plan.budget_ms)
    if plan.answers:
        counted = sum(1 for s in record.samples if s.block > 0)
        shares.append(counted / (plan.answers * len(plan.places)))
    return min(1.0, max(shares))


def time_left(plan: Plan, record: Record) -> str:
    """The time that the budget leaves, in words; a calibration may settle sooner."""
    done = share_done(plan, record)
    if done <= 0.0:
        return "time left unknown"
    seconds = record.spent_ms / 1000.0 * (1.0 - done) / done
    return f"at most {seconds / 60.0:.0f} min left" if seconds >= 90.0 else f"at most {seconds:.0f} s left"


def best_line(now: Standing | None, margin: float) -> str:
    """The best setting of a place so far, and how sure that is."""
    if now is None:
        return "waiting"
    if now.best == now.baseline:
        state = "settled" if settled(now, margin) else f"{len(now.active)} in the race"
        return f"{now.baseline} (the baseline), {state}"
    claim = now.claim(now.best)
    sure = (
        "proven"
        if now.proven(now.best)
        else f"at least {percent(claim.low)}"
        if claim.low > 0
        else "one text"
    )
    return f"{now.best} {percent(claim.gain)} ({sure}), {len(now.active)} in the race"


class PlainView:
    """Lines for a log: one for each block, with the best so far."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._blocks = 0

    def note(self, text: str) -> None:
        """See `calibrate.View`."""
        self._say(text)

    def moved(self, plan: Plan, record: Record) -> None:
        """See `calibrate.View`."""
        if len(record.blocks) == self._blocks or not record.blocks:
            return
        self._blocks = len(record.blocks)
        place = record.blocks[-1].place
        best = best_line(place_standing(plan, record, place), plan.margin)
        self._say(f"{share_done(plan, record):4.0%}, {time_left(plan, record)}: {place} tokens: {best}")

    def close(self) -> None:
        """See `calibrate.View`."""


class LiveView:
    """A bar and a table on a terminal."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()
        self._drawn_s = 0.0
        self._best: dict[Place, str] = {}

    def note(self, text: str) -> None:
        """See `calibrate.View`."""
        self._live.console.print(text, highlight=False)

    def moved(self, plan: Plan, record: Record) -> None:
        """See `calibrate.View`."""
        if time.monotonic() - self._drawn_s < REDRAW_S:
            return
        place = record.samples[-1].place
        self._best[place] = best_line(place_standing(plan, record, place), plan.margin)
        table = Table("context", "answers", "best so far", box=None)
        for one in plan.places:
            table.add_row(str(one), str(len(record.at(one))), self._best.get(one, "waiting"))
        done = share_done(plan, record)
        head = Text(f"calibrating: {done:.0%}, {time_left(plan, record)}")
        self._live.update(Group(head, ProgressBar(total=1.0, completed=done), table))
        self._drawn_s = time.monotonic()

    def close(self) -> None:
        """See `calibrate.View`."""
        self._live.stop()
