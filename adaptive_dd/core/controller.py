"""The one entry point to everything learned: `initial`, `decide`, `apply`, `fold`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from adaptive_dd.core.domain import SERVER, Cell, Context, Decision, Deployment, Frontier, Listens, Mode
from adaptive_dd.core.domain import PolicySettings, ServerFacts
from adaptive_dd.core.events import Began, Decided, Event, FactsFound, FreezeSet, ModeSet
from adaptive_dd.core.frontier import bucket_edges, bucket_of
from adaptive_dd.core.rng import Rng


@dataclass(frozen=True, slots=True)
class State:
    """Everything that deciding depends on. open: decisions that still wait for their outcome, by number."""

    deployment: Deployment
    settings: PolicySettings
    frontier: Frontier
    edges: tuple[int, ...]
    facts: ServerFacts = ServerFacts()
    frozen: bool = False
    next_number: int = 1
    open: Mapping[int, Decided] = field(default_factory=dict)


def initial(began: Began) -> State:
    """The state that a deployment starts from."""
    return State(began.deployment, began.settings, began.frontier, bucket_edges(began.frontier))


def load_level(in_flight: float) -> int:
    """0: alone, 1: two or three at a time, 2: more."""
    return 0 if in_flight < 1.5 else 1 if in_flight < 3.5 else 2


def cell_of(state: State, context: Context) -> Cell:
    """The cell that a context falls into."""
    bucket = bucket_of(state.edges, context.prompt_tokens or 0)
    return Cell(bucket, load_level(context.in_flight), str(context.kind))


def decide(state: State, context: Context, rng: Rng) -> Decision:
    """Choose for one request. Reads; changes nothing."""
    cell = cell_of(state, context)
    if context.untouchable:
        return Decision(SERVER, context.untouchable, 1.0, cell)
    if state.settings.mode is Mode.OFF:
        return Decision(SERVER, "off", 1.0, cell)
    if context.override is not None and not state.settings.force:
        return Decision(context.override, "request-override", 1.0, cell)
    if state.facts.listens is Listens.IGNORES:
        return Decision(SERVER, "not-honoured", 1.0, cell)
    return Decision(state.settings.baseline, "baseline", 1.0, cell)


def apply(state: State, event: Event) -> State:
    """The state after an event: the only function that changes anything."""
    match event:
        case Began():
            return initial(event)
        case FactsFound():
            return replace(state, facts=event.facts)
        case ModeSet():
            return replace(state, settings=replace(state.settings, mode=event.mode))
        case FreezeSet():
            return replace(state, frozen=event.frozen)
        case Decided():
            opened = {**state.open, event.number: event}
            return replace(state, open=opened, next_number=event.number + 1)
        case _:
            return replace(state, open={k: v for k, v in state.open.items() if k != event.number})


def fold(began: Began, events: Iterable[Event]) -> State:
    """The state after a journal."""
    state = initial(began)
    for event in events:
        state = apply(state, event)
    return state
