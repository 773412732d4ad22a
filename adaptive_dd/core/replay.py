"""Going through a journal again: fold it, decide it again, and compare.

All pure: events in, findings out; reading the file is the store's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from adaptive_dd.core import controller
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Decision, Frontier, Mode, PolicySettings, Setting
from adaptive_dd.core.events import Began, Decided, Event
from adaptive_dd.core.rng import rng_for

# Differences that are kept to be shown; the others are only counted.
SHOWN = 20


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
        after = _after(state, event)
        skipped += after is None
        state = after or state
    return Folded(state, count, skipped)


def _after(state: State | None, event: Event) -> State | None:
    """The state after an event, None where it cannot be applied."""
    try:
        if state is None:
            return controller.initial(event) if isinstance(event, Began) else None
        return controller.apply(state, event)
    except Exception:
        return None


# --- verifying ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that comes out otherwise when it is made again; `again` is None where deciding failed."""

    number: int
    recorded: Decision
    again: Decision | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What going through a journal again gave.

    differences   the first SHOWN of `different`      marked   the state after `mark` events
    """

    events: int
    skipped: int
    decisions: int
    different: int
    differences: tuple[Difference, ...]
    state: State | None
    marked: State | None


def verify(start: State | None, events: Iterable[Event], *, mark: int = 0) -> Verified:
    """Decide every `Decided` again from the state before it, and apply every event.

    start: the state that the events follow, None where the first of them begins it.
    """
    state, marked = start, start if mark == 0 else None
    count = skipped = decisions = different = 0
    shown: list[Difference] = []
    for event in events:
        count += 1
        if isinstance(event, Decided) and state is not None:
            decisions += 1
            again = _again(state, event)
            if again != event.decision:
                different += 1
                shown += [Difference(event.number, event.decision, again)] if len(shown) < SHOWN else []
        after = _after(state, event)
        skipped += after is None
        state = after or state
        marked = state if count == mark else marked
    return Verified(count, skipped, decisions, different, tuple(shown), state, marked)


def _again(state: State, event: Decided) -> Decision | None:
    try:
        return controller.decide(state, event.context, rng_for(state.settings.seed, event.number))
    except Exception:
        return None


# --- what another policy would have sent ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """How another policy differs from the one in the journal; None leaves a thing as it was recorded."""

    alpha: float | None = None
    mode: Mode | None = None
    frontier: Frontier | None = None

    def of(self, began: Began) -> Began:
        """A first event with the change in it."""
        settings: PolicySettings = began.settings
        if self.alpha is not None:
            settings = replace(settings, alpha=self.alpha)
        if self.mode is not None:
            settings = replace(settings, mode=self.mode)
        return replace(began, settings=settings, frontier=self.frontier or began.frontier)


def redecided(
    start: State | None, events: Iterable[Event], change: Change, *, draws: int
) -> Iterator[tuple[int, tuple[Setting, ...]]]:
    """For each decision, its number and what a changed policy draws there (several independent draws).

    The changed policy learns from the answers that were really given, as they came: what it would have learned from
    answers to its own choices nobody knows. Its draws are independent of the recorded ones, as weighing by
    propensities needs.
    """
    state = start
    if state is not None:
        state = _after(state, change.of(Began(0.0, state.deployment, state.settings, state.frontier)))
    for event in events:
        if isinstance(event, Decided) and state is not None:
            yield event.number, tuple(_drawn(state, event, draw) for draw in range(draws))
        state = _after(state, change.of(event) if isinstance(event, Began) else event) or state


def _drawn(state: State, event: Decided, draw: int) -> Setting:
    # The recorded draw used (seed, number); these use other seeds, far from any that a user would give.
    rng = rng_for(state.settings.seed + (draw + 1) * 0x9E3779B97F4A7C15, event.number)
    return controller.decide(state, event.context, rng).arm
