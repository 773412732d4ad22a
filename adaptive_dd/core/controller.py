"""The one entry point to everything learned: `initial`, `decide`, `apply`, `fold`.

The order in which a decision is made: what may not be touched, what the user or the client ordered, what the server
can hear at all, and only then what is fastest. `decide` reads a state and changes nothing; `apply` is the only
function that changes anything; a state is the fold of `apply` over the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from adaptive_dd.core.domain import (
    SERVER,
    Cell,
    Context,
    Decision,
    Deployment,
    Frontier,
    Listens,
    Mode,
    PolicySettings,
    ServerFacts,
    Setting,
)
from adaptive_dd.core.events import Began, Decided, Event, FactsFound, FreezeSet, ModeSet
from adaptive_dd.core.frontier import bucket_edges, bucket_of, ladder
from adaptive_dd.core.rng import Rng

# Servers that cannot be told a setting: what to say instead of choosing one.
UNHEARD: Mapping[Listens, str] = {
    Listens.IGNORES: "not-honoured",
    Listens.NO_DRAFTING: "no-drafting",
    Listens.DRAFTLESS: "draftless",
}


@dataclass(frozen=True, slots=True)
class State:
    """Everything that deciding depends on.

    edges    where context buckets end
    rungs    the static ladder by kind covered by the frontier's rows ("" for any): one setting per bucket
    frozen   nothing is learned and nothing is tried
    open     decisions that still wait for their outcome, by number
    """

    deployment: Deployment
    settings: PolicySettings
    frontier: Frontier
    edges: tuple[int, ...]
    rungs: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    facts: ServerFacts = field(default_factory=ServerFacts)
    frozen: bool = False
    next_number: int = 1
    open: Mapping[int, Decided] = field(default_factory=dict)


def initial(began: Began) -> State:
    """The state that a deployment starts from."""
    state = State(began.deployment, began.settings, began.frontier, bucket_edges(began.frontier))
    return _with_rungs(state)


def cap_of(state: State) -> int | None:
    """The deepest n_max that may be sent, None where nothing limits it.

    The user's cap, else the launch value; never above what the server refuses, and never above the launch value
    on a server that can only lower it.
    """
    facts = state.facts
    chosen = state.settings.cap if state.settings.cap is not None else facts.cap
    if chosen is None:
        chosen = state.deployment.cap
    limits = [chosen, facts.limit, facts.cap if facts.listens is Listens.LOWERS_N else None]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def load_level(in_flight: float) -> int:
    """0: alone, 1: two or three at a time, 2: more."""
    return 0 if in_flight < 1.5 else 1 if in_flight < 3.5 else 2


def cell_of(state: State, context: Context) -> Cell:
    """The cell that a context falls into."""
    bucket = bucket_of(state.edges, context.prompt_tokens or 0)
    return Cell(bucket, load_level(context.in_flight), str(context.kind))


def rung_of(state: State, cell: Cell) -> Setting:
    """The static ladder's setting for a cell, within the cap."""
    rungs = state.rungs.get(cell.kind)
    if rungs is None:
        rungs = state.rungs.get("") or _rungs(state, cell.kind)
    return rungs[min(cell.bucket, len(rungs) - 1)]


def decide(state: State, context: Context, rng: Rng) -> Decision:
    """Choose for one request. Reads; changes nothing."""
    cell = cell_of(state, context)
    settled = _settled(state, context)
    if settled is not None:
        arm, reason = settled
        return Decision(arm, reason, 1.0, cell)
    arm = rung_of(state, cell)
    reason = "frozen" if state.settings.mode is Mode.FROZEN or state.frozen else "frontier"
    return Decision(arm, reason if arm != state.settings.baseline else "baseline", 1.0, cell)


def _settled(state: State, context: Context) -> tuple[Setting, str] | None:
    """What is sent, and why, where there is nothing to choose; in order of precedence."""
    settings, unheard = state.settings, UNHEARD.get(state.facts.listens)
    if context.untouchable:
        return SERVER, context.untouchable
    if settings.mode is Mode.OFF:
        return SERVER, "off"
    if context.override is not None and not settings.force:
        return context.override, "request-override"
    if unheard is not None:
        return SERVER, unheard
    if settings.mode is Mode.OBSERVE:
        return SERVER, "observe"
    if context.prompt_tokens is None:
        return settings.baseline.clamped(cap_of(state)), "no-count"
    return None


def apply(state: State, event: Event) -> State:
    """The state after an event: the only function that changes anything."""
    match event:
        case Began():
            return _began_again(state, event)
        case FactsFound():
            return _with_rungs(replace(state, facts=event.facts))
        case ModeSet():
            return replace(state, settings=replace(state.settings, mode=event.mode))
        case FreezeSet():
            return replace(state, frozen=event.frozen)
        case Decided():
            opened = {**state.open, event.number: event}
            return replace(state, open=opened, next_number=max(state.next_number, event.number + 1))
        case _:
            return replace(state, open={k: v for k, v in state.open.items() if k != event.number})


def fold(began: Began, events: Iterable[Event]) -> State:
    """The state after a journal."""
    state = initial(began)
    for event in events:
        state = apply(state, event)
    return state


def _began_again(state: State, event: Began) -> State:
    """A restart: the same deployment keeps what was learned; requests then on their way are lost."""
    fresh = initial(event)
    if event.deployment != state.deployment:
        return fresh
    kept = replace(fresh, facts=state.facts, frozen=state.frozen, next_number=state.next_number)
    return _with_rungs(kept)


def _rungs(state: State, kind: str) -> tuple[Setting, ...]:
    cap, baseline = cap_of(state), state.settings.baseline.clamped(cap_of(state))
    steps = ladder(state.frontier, edges=state.edges, baseline=baseline, cap=cap, kind=kind)
    return tuple(step.setting.clamped(cap) for step in steps)


def _with_rungs(state: State) -> State:
    """The state with its static ladder computed for every kind that the frontier tells apart."""
    if any(row.kind for row in state.frontier.rows):
        return replace(state, rungs={})
    return replace(state, rungs={"": _rungs(state, "")})
