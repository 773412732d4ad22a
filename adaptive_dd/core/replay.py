"""Going through a journal again: fold it, verify it, and value another policy on it.

All pure: events in, findings out; reading the file is the store's work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adaptive_dd.core import controller
from adaptive_dd.core.controller import State
from adaptive_dd.core.events import Began, Event


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded journal. state: None where no first event was found; skipped: events that could not be applied."""

    state: State | None
    events: int
    skipped: int


def fold_on(state: State | None, events: Iterable[Event]) -> Folded:
    """Fold events onto a state, or from their first `Began` on.

    An event that `apply` refuses is left out, as the live engine leaves it out: a journal written by another version
    opens as far as it can.
    """
    count = skipped = 0
    for event in events:
        count += 1
        try:
            if state is None:
                state = controller.initial(event) if isinstance(event, Began) else None
                skipped += state is None
            else:
                state = controller.apply(state, event)
        except Exception:
            skipped += 1
    return Folded(state, count, skipped)
