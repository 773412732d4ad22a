"""The live proxy's hold on the core: one State, its numbering, its clock, its journal.

`begin` and `finish` are plain synchronous methods: on one event loop nothing can come between their lines, so
there are no locks, and both may stand in a `finally`. State and journal move together: an event that the journal
cannot take changes nothing, so `State == fold(apply, journal)` holds even while rows are being lost.

Another model or build is another *deployment* with a state of its own; a request that began under the old one also
ends there. Numbers are never used twice within one journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from adaptive_dd.core import controller
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import (
    Context,
    Decision,
    Deployment,
    Frontier,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
)
from adaptive_dd.core.events import (
    Abandoned,
    Began,
    Charged,
    Decided,
    Event,
    FactsFound,
    FreezeSet,
    ModeSet,
    Observed,
)
from adaptive_dd.core.rng import rng_for
from adaptive_dd.metrics import Metrics, count_ending

log = logging.getLogger("adaptive_dd.engine")

# Decisions kept for `/_dd/decisions`: a screen of history, under a megabyte. The journal has the rest.
RECENT = 1000
# Events of a former process that are read again for it.
RECALLED = 400


class Journal(Protocol):
    """Where events go, in order. `scope` is the journal's own number for a deployment."""

    @property
    def last_number(self) -> int:
        """The highest request number that it holds, of any deployment."""

    def latest(self, last: int) -> list[Event]:
        """The newest events of requests that it holds, of any deployment, oldest first."""

    def resume(self, deployment: Deployment) -> tuple[int, State | None]:
        """The scope of a deployment and the state it was left in, None where it is new."""

    def offer(self, scope: int, event: Event, state: State) -> bool:
        """Take one event and the state after it. False when there is no room: then it has not happened."""


@dataclass(slots=True)
class MemoryJournal:
    """A journal that forgets with its process: for tests, the bench and a proxy without a state directory.

    limit: number of events after which offers are refused; None for no limit.
    """

    limit: int | None = None
    events: list[tuple[int, Event]] = field(default_factory=list)
    scopes: list[Deployment] = field(default_factory=list)

    @property
    def last_number(self) -> int:
        """The highest request number kept."""
        return max((event.number for _, event in self.events if isinstance(event, Decided)), default=0)

    def latest(self, last: int) -> list[Event]:
        """The newest events of requests."""
        found: list[Event] = [e for _, e in self.events if isinstance(e, Decided | Observed | Abandoned)]
        return found[-last:]

    def resume(self, deployment: Deployment) -> tuple[int, State | None]:
        """Fold what was kept of a deployment."""
        if deployment not in self.scopes:
            self.scopes.append(deployment)
        scope = self.scopes.index(deployment)
        events = self.of(scope)
        if not events:
            return scope, None
        assert isinstance(events[0], Began)
        return scope, controller.fold(events[0], events[1:])

    def offer(self, scope: int, event: Event, state: State) -> bool:
        """Keep an event, unless the limit is reached."""
        if self.limit is not None and len(self.events) >= self.limit:
            return False
        self.events.append((scope, event))
        return True

    def of(self, scope: int) -> list[Event]:
        """The events of one deployment, in order."""
        return [event for owner, event in self.events if owner == scope]


@dataclass(frozen=True, slots=True)
class Ticket:
    """What `begin` hands out. recorded: False when the journal had no room, so nothing will be learned from it."""

    number: int
    decision: Decision
    decide_us: float
    recorded: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One decision and how it ended; `ended` is None while the answer is on its way."""

    decided: Decided
    ended: Observed | Abandoned | None = None


@dataclass(slots=True)
class _Running:
    """A request between begin and finish, with the load integral and the ticks at its beginning."""

    scope: int
    recorded: bool
    load_ns: int
    began_ns: int


class Engine:
    """One State behind `begin` and `finish`.

    settings and frontier are the user's; a state that was left with others gets a `Began` with these.
    wall_s: the clock for `at_s`; ticks_ns: a monotonic clock for durations.
    """

    def __init__(
        self,
        journal: Journal,
        deployment: Deployment,
        *,
        settings: PolicySettings | None = None,
        frontier: Frontier | None = None,
        metrics: Metrics | None = None,
        wall_s: Callable[[], float] = time.time,
        ticks_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._journal = journal
        self._settings = settings or PolicySettings()
        self._frontier = frontier or Frontier()
        self._metrics = metrics or Metrics()
        self._wall_s = wall_s
        self._ticks_ns = ticks_ns
        self._frozen: bool | None = None  # what `freeze` last said; follows to another deployment
        self._scopes: dict[Deployment, int] = {}
        self._states: dict[int, State] = {}
        self._owed: dict[int, Began] = {}  # first events that found no room; nothing may come before them
        self._running: dict[int, _Running] = {}
        self._unclosed: list[tuple[int, int]] = []  # (scope, number) whose ending found no room
        self._recent: dict[int, Record] = {}
        self._load_ns = 0  # integral of in_flight over time
        self._load_at_ns = ticks_ns()
        self._said: set[str] = set()
        self.next_number = journal.last_number + 1
        self.unknown_finishes = 0
        self._recall()
        self.deploy(deployment)

    @property
    def state(self) -> State:
        """Everything learned about the deployment in use."""
        return self._states[self._scope]

    @property
    def in_flight(self) -> int:
        """Requests generating at this moment."""
        return len(self._running)

    # --- one request ---------------------------------------------------------------------------------------

    def begin(self, context: Context) -> Ticket:
        """Decide for one request. Raises whatever deciding raises; then nothing has changed."""
        self._settle()
        number, state = self.next_number, self.state
        start_ns = self._ticks_ns()
        decision = controller.decide(state, context, rng_for(state.settings.seed, number))
        now_ns = self._ticks_ns()
        decide_us = (now_ns - start_ns) / 1000.0
        self._metrics.inc("decide_seconds_total", decide_us / 1e6)
        self.next_number = number + 1
        decided = Decided(self._wall_s(), number, context, decision, decide_us)
        recorded = self._record(self._scope, decided)
        self._integrate(now_ns)
        self._running[number] = _Running(self._scope, recorded, self._load_ns, now_ns)
        self._remember(number, Record(decided))
        return Ticket(number, decision, decide_us, recorded)

    def finish(self, number: int, outcome: Outcome) -> None:
        """Record how a request ended. Never raises; an unknown number or a second call is only counted."""
        try:
            self._finish(number, outcome)
        except Exception:
            self._failed("recording an outcome failed; the request was served")

    def abandon(self, number: int, why: str) -> None:
        """Record that a request ended without an outcome. Never raises."""
        try:
            running = self._leave(number)
            if running is not None:
                self._close(running, number, Abandoned(self._wall_s(), number, why))
        except Exception:
            self._failed("recording an outcome failed; the request was served")

    def _finish(self, number: int, outcome: Outcome) -> None:
        running = self._leave(number)
        if running is None:
            return
        if outcome.status is Status.CLIENT_GONE and outcome.timings is None:
            self._close(running, number, Abandoned(self._wall_s(), number, outcome.status.value))
            return
        lasted_ns = self._load_at_ns - running.began_ns
        mean = (self._load_ns - running.load_ns) / lasted_ns if lasted_ns > 0 else 1.0
        outcome = replace(outcome, mean_in_flight=max(1.0, mean))
        self._close(running, number, Observed(self._wall_s(), number, outcome))

    def _leave(self, number: int) -> _Running | None:
        """Take a request out of the running ones, with the load integrated up to now."""
        self._integrate(self._ticks_ns())
        running = self._running.pop(number, None)
        if running is None:
            self.unknown_finishes += 1
        return running

    def _close(self, running: _Running, number: int, event: Observed | Abandoned) -> None:
        count_ending(self._metrics, event)
        self._settle()
        self._ended(event)
        if not running.recorded:
            return
        try:
            closed = self._record(running.scope, event)
        except Exception:
            # The outcome cannot be learned from, but the decision must not stay open for ever.
            self._failed("an outcome could not be applied and is left out")
            closed = self._record(running.scope, Abandoned(event.at_s, number, "failed"))
        if not closed:
            self._unclosed.append((running.scope, number))

    # --- the world ------------------------------------------------------------------------------------------

    def found(self, facts: ServerFacts) -> bool:
        """Tell what the server does with the fields. False when the journal had no room."""
        return facts == self.state.facts or self._record(self._scope, FactsFound(self._wall_s(), facts))

    def set_mode(self, mode: Mode) -> bool:
        """Change the mode while running. False when the journal had no room."""
        self._settings = replace(self._settings, mode=mode)
        return mode is self.state.settings.mode or self._record(self._scope, ModeSet(self._wall_s(), mode))

    def rebase(self, baseline: Setting) -> bool:
        """Take another baseline, as when it becomes known what the server's own is. False: the journal had no room."""
        if baseline == self._settings.baseline:
            return True
        self._settings = replace(self._settings, baseline=baseline)
        began = Began(self._wall_s(), self.state.deployment, self._settings, self._frontier)
        return self._record(self._scope, began)

    def charge(self, ms: float, why: str) -> bool:
        """Take time off the account that no answer shows. False when the journal had no room."""
        return self._record(self._scope, Charged(self._wall_s(), ms, why))

    def freeze(self, frozen: bool) -> bool:
        """Stop (or resume) learning. False when the journal had no room."""
        self._frozen = frozen
        return frozen == self.state.frozen or self._record(self._scope, FreezeSet(self._wall_s(), frozen))

    def deploy(self, deployment: Deployment, facts: ServerFacts | None = None) -> None:
        """Switch to the state of a deployment, taken up where it was left. The same one again changes nothing.

        A first visit folds the end of the journal: up to some 100 ms.
        """
        if deployment not in self._scopes:
            self._resume(deployment)
        self._scope = self._scopes[deployment]
        if self._frozen is not None:
            self.freeze(self._frozen)
        self.set_mode(self._settings.mode)
        if facts is not None:
            self.found(facts)

    def _resume(self, deployment: Deployment) -> None:
        scope, left = self._journal.resume(deployment)
        began = Began(self._wall_s(), deployment, self._settings, self._frontier)
        self._scopes[deployment] = scope
        if left is None:
            self._states[scope] = controller.initial(began)
            self._owed[scope] = began
            self._begin_scope(scope)
            return
        self._states[scope] = left
        if (left.settings, left.frontier) != (self._settings, self._frontier):
            self._record(scope, began)
        # Decisions that a former process left open: nobody will ever tell how they ended.
        self._unclosed += [(scope, number) for number in left.open]
        self._settle()

    def _recall(self) -> None:
        """Show the last decisions of a former process as well."""
        for event in self._journal.latest(RECALLED):
            if isinstance(event, Decided):
                self._remember(event.number, Record(event))
            elif isinstance(event, Observed | Abandoned):
                self._ended(event)

    def _ended(self, event: Observed | Abandoned) -> None:
        if event.number in self._recent:
            self._recent[event.number] = replace(self._recent[event.number], ended=event)

    def recent(self, last: int) -> list[Record]:
        """The last decisions, newest first."""
        return list(reversed(self._recent.values()))[: max(0, last)]

    # --- state and journal move together --------------------------------------------------------------------

    def _record(self, scope: int, event: Event) -> bool:
        """Apply and journal one event: both or neither. Raises what `apply` raises, and then it was neither."""
        after = controller.apply(self._states[scope], event)
        if not self._begin_scope(scope) or not self._offer(scope, event, after):
            return False
        self._states[scope] = after
        return True

    def _begin_scope(self, scope: int) -> bool:
        """Journal the first event of a new deployment, if that is still owed."""
        if scope in self._owed and self._offer(scope, self._owed[scope], self._states[scope]):
            del self._owed[scope]
        return scope not in self._owed

    def _offer(self, scope: int, event: Event, after: State) -> bool:
        if self._journal.offer(scope, event, after):
            return True
        self._metrics.inc("journal_skipped_total")
        if "full" not in self._said:
            self._said.add("full")
            log.warning("the journal's queue is full: some requests are not learned from")
        return False

    def _settle(self) -> None:
        """Close decisions whose ending found no room in the journal before."""
        while self._unclosed:
            scope, number = self._unclosed[-1]
            try:
                lost = Abandoned(self._wall_s(), number, "lost")
                if number in self._states[scope].open:
                    if not self._record(scope, lost):
                        return
                    self._ended(lost)
            except Exception:
                self._failed("an open decision could not be closed")
            self._unclosed.pop()

    def _integrate(self, now_ns: int) -> None:
        self._load_ns += len(self._running) * (now_ns - self._load_at_ns)
        self._load_at_ns = now_ns

    def _remember(self, number: int, record: Record) -> None:
        self._recent[number] = record
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def _failed(self, text: str) -> None:
        """Count a fault of ours, and log it with its traceback the first time."""
        self._metrics.inc("own_failures_total", where="engine")
        if text not in self._said:
            self._said.add(text)
            log.exception("%s (said once, then only counted)", text)
