"""The state of a deployment: one immutable value, and what follows from it without learning anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from adaptive_dd.core import guard
from adaptive_dd.core.domain import (
    SERVER,
    Cell,
    Context,
    Deployment,
    Frontier,
    Kind,
    Listens,
    PolicySettings,
    ServerFacts,
    Setting,
)
from adaptive_dd.core.events import Decided
from adaptive_dd.core.frontier import bucket_of, ladder, safe_rows_at
from adaptive_dd.core.grid import arms_at, arms_of
from adaptive_dd.core.guard import Guard
from adaptive_dd.core.learned import Arm, Learned, Tally
from adaptive_dd.core.policy import Plan
from adaptive_dd.core.trials import Standing, Trial

# Kinds that are told apart; clients may invent hints without end.
KINDS = 64
OTHER_KIND = "other"
# A ladder that was given as rules claims that its setting wins, and not by how much (log).
RULE_CLAIM = 0.05
# Conversations are sorted by the logit of their acceptance: a plan for each sort, and one for none (index 0).
SORTS = (-0.25, 0.75, 1.75, 2.75)


@dataclass(frozen=True, slots=True)
class State:
    """Everything that deciding depends on.

    edges       where context buckets end
    rungs       the static ladder by kind covered by the frontier's rows ("" for any): one setting per bucket
    frozen      nothing is learned and nothing is tried
    open        decisions that still wait for their outcome, by number
    arms        every arm of the deployment, the baseline first
    refused     the shallowest depth that the server refused
    learned     what predictions are made from         guard    what may be lost, and who may play
    lengths     mean decode tokens of an answer, by kind; `spreads`: how far they are from it, on average
    heard       arms that an answer was heard of, each with the number of the first
    plans       by cell: for requests without a known conversation, then by sort of conversation
    headroom_ms what may still be lost; `tight` by bucket, where a bucket's own account allows less
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
    arms: tuple[Arm, ...] = ()
    refused: int | None = None
    learned: Learned = field(default_factory=Learned)
    guard: Guard = field(default_factory=Guard)
    lengths: Mapping[str, Tally] = field(default_factory=dict)
    spreads: Mapping[str, Tally] = field(default_factory=dict)
    heard: Mapping[str, int] = field(default_factory=dict)
    plans: Mapping[Cell, tuple[Plan | None, ...]] = field(default_factory=dict)
    headroom_ms: float = 0.0
    tight: Mapping[int, float] = field(default_factory=dict)


def cap_of(state: State) -> int | None:
    """The deepest n_max that may be sent, None where nothing limits it.

    The user's cap, else the launch value; never what the server refuses, and never above the launch value on a server
    that can only lower it.
    """
    facts = state.facts
    chosen = state.settings.cap if state.settings.cap is not None else facts.cap
    if chosen is None:
        chosen = state.deployment.cap
    lowered = facts.cap if facts.listens is Listens.LOWERS_N else None
    below = None if state.refused is None else state.refused - 1
    known = [limit for limit in (chosen, facts.limit, lowered, below) if limit is not None]
    return min(known) if known else None


def baseline_of(state: State) -> Setting:
    """The baseline within the cap; where the server refuses it, what the server does by itself.

    Refused requests are served as they came, and so would be every one of a fixed baseline: something shallower that we
    would put in its place is not what must never be beaten.
    """
    baseline = state.settings.baseline
    if state.refused is not None and (baseline.n_max or 0) >= state.refused:
        return SERVER
    return baseline.clamped(cap_of(state))


def load_level(in_flight: float) -> int:
    """0: alone, 1: two or three at a time, 2: more."""
    return 0 if in_flight < 1.5 else 1 if in_flight < 3.5 else 2


def cell_of(state: State, context: Context) -> Cell:
    """The cell that a context falls into."""
    # An answer without timings teaches nothing; what chats taught is the nearest there is.
    kind = replace(context.kind, endpoint="chat") if context.blind else context.kind
    return cell_at(state, kind, context.prompt_tokens or 0, context.in_flight)


def cell_at(state: State, kind: Kind, prompt_tokens: int, in_flight: float) -> Cell:
    """The cell of a kind of request, the length of its prompt and the requests in flight."""
    name = str(kind)
    if len(state.lengths) >= KINDS and name not in state.lengths:
        name = OTHER_KIND
    return Cell(bucket_of(state.edges, prompt_tokens), load_level(in_flight), name)


def sort_of(state: State, conversation: str) -> int:
    """Index of a conversation's sort of text; 0 where nothing is known of it."""
    talk = state.learned.talks.get(conversation) if conversation else None
    return 0 if talk is None else 1 + sum([talk.level > edge for edge in SORTS])


def rung_of(state: State, cell: Cell) -> Setting:
    """The static ladder's setting for a cell, within the cap."""
    rungs = state.rungs.get(cell.kind)
    if rungs is None:
        rungs = state.rungs.get("") or rungs_for(state, cell.kind)
    return rungs[min(cell.bucket, len(rungs) - 1)]


def rungs_for(state: State, kind: str) -> tuple[Setting, ...]:
    """The static ladder for a kind, one setting per bucket."""
    cap = cap_of(state)
    steps = ladder(state.frontier, edges=state.edges, baseline=baseline_of(state), cap=cap, kind=kind)
    return tuple(step.setting.clamped(cap) for step in steps)


def arms_for(state: State) -> tuple[Arm, ...]:
    """Every arm of the deployment, the baseline first."""
    if state.facts.arms is not None:
        return arms_at(state.facts.arms, baseline_of(state), cap=cap_of(state))
    only_n = state.facts.listens is Listens.LOWERS_N
    return arms_of(state.frontier, baseline_of(state), cap=cap_of(state), only_n=only_n)


# What models that are files end with; other servers name theirs as they like.
FILES = ".gguf"


def foreign(frontier: Frontier, deployment: Deployment) -> str:
    """On what else a frontier says that it was measured, in words; empty where it is of this model and build.

    Models are told by file name, where both are files: the same one may lie elsewhere than where it was calibrated, and
    what a server calls a model is not what another calls it.
    """
    for name in ("model", "build"):
        measured, met = (getattr(one, name).rsplit("/", 1)[-1] for one in (frontier, deployment))
        files = name == "build" or (measured.endswith(FILES) and met.endswith(FILES))
        if measured and met and measured != met and files:
            return f"measured on {name} {measured!r}, this server runs {met!r}"
    return ""


def with_settings(state: State) -> State:
    """The state with its arms and its ladder worked out anew: what may be sent at all changed."""
    by_kind = any(row.kind for row in state.frontier.rows)
    return replace(state, arms=arms_for(state), rungs={} if by_kind else {"": rungs_for(state, "")}, plans={})


def credits_for(state: State, cell: Cell) -> dict[str, Trial]:
    """Where a cell starts: arms whose own frontier rows beat the baseline are credited.

    None where the frontier was caught claiming too much, or was measured on another model or build.
    """
    if state.guard.caught or foreign(state.frontier, state.deployment):
        return {}
    baseline, cap = baseline_of(state), cap_of(state)
    rows = safe_rows_at(
        state.frontier, cell.bucket, edges=state.edges, baseline=baseline, cap=cap, kind=cell.kind
    )
    claims = {str(judged.row.setting): math.log(judged.gain) for judged in rows}
    if state.frontier.rules:
        claims.setdefault(str(rung_of(state, cell)), RULE_CLAIM)
    return {
        arm.name: Trial(Standing.CREDITED, claim=claims[arm.name])
        for arm in state.arms[1:]
        if arm.name in claims
    }


def rooms(state: State, kept: Guard) -> tuple[float, Mapping[int, float]]:
    """The headroom in ms, and that of the buckets whose own accounts allow less."""
    alpha, c0 = state.settings.alpha, state.settings.c0_ms
    quantile = NormalDist().inv_cdf(1.0 - state.settings.delta)
    room = guard.headroom_ms(kept, alpha=alpha, c0_ms=c0, quantile=quantile)
    by_bucket = {b: guard.bucket_headroom_ms(kept, b, alpha=alpha, c0_ms=c0) for b in kept.buckets}
    return room, {b: r for b, r in by_bucket.items() if r < room}
