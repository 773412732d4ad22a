"""Simulated users: conversations that grow, of several kinds, at changing load, on a server that may change.

A `Scenario` is data: phases, each with its world, its mix of workloads and its load. `traffic` turns it into requests,
the same ones for every policy under the same seed. A request's kind is only partly visible: workloads differ in what
the proxy can see (greedy or sampled, schema, endpoint), and some conversations disguise themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import SERVER, Context, Frontier, Kind, Listens, ServerFacts, Setting
from adaptive_dd.core.sim import SimRequest, World

HONOURING = ServerFacts(listens=Listens.HONOURS)
NO_FRONTIER = Frontier()
PLAIN = Kind()
# What servers say that they are built from, and frontiers that they were measured on.
BUILD = "b1"
# Conversations that are open at the same time, whatever the load: their turns interleave.
OPEN_CONVERSATIONS = 8
# A load lasts this many requests on average, before the next one is drawn.
LOAD_LASTS = 40
# Periods, in requests, of the slow common swing of a machine's speed.
WANDER_PERIODS = (37.0, 211.0, 790.0)


@dataclass(frozen=True, slots=True)
class Workload:
    """One sort of conversation.

    kind, disguise   what the proxy sees, and what it sees instead in `disguised` of the conversations
    answer_tokens    median length of an answer; answer_spread is the sd of its logarithm
    context          (low, high) prompt tokens of a first turn, log-uniform between them
    turns            mean number of turns
    growth           prompt tokens that a user's further turn adds, besides the last answer
    character        sd in logits of acceptance between conversations; `mood` between answers of one
    """

    name: str
    content: Content
    kind: Kind = PLAIN
    share: float = 1.0
    answer_tokens: float = 250.0
    answer_spread: float = 0.5
    context: tuple[float, float] = (200.0, 3000.0)
    turns: float = 4.0
    growth: float = 80.0
    character: float = 0.25
    mood: float = 0.15
    disguise: Kind | None = None
    disguised: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What holds from request `start` on. loads: (requests in flight, share of the time); build: told to a policy."""

    start: int
    world: World
    workloads: tuple[Workload, ...]
    loads: tuple[tuple[int, float], ...] = ((1, 1.0),)
    facts: ServerFacts = HONOURING
    build: str = BUILD


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulated deployment. shows: what it is there for; sources: the rows of public data it is built from."""

    name: str
    shows: str
    sources: tuple[str, ...]
    phases: tuple[Phase, ...]
    frontier: Frontier = NO_FRONTIER
    baseline: Setting = SERVER
    cap: int = 8
    context_limit: int = 262144
    wander: float = 0.01

    def phase_index(self, number: int) -> int:
        """Index of the phase that request `number` belongs to."""
        return max(i for i, phase in enumerate(self.phases) if phase.start <= number or i == 0)


@dataclass(frozen=True, slots=True)
class _Talk:
    """One conversation between two of its turns."""

    workload: Workload
    kind: Kind
    name: str
    prompt_tokens: int
    cached_tokens: int
    skill: float


def traffic(scenario: Scenario, seed: int, requests: int) -> tuple[SimRequest, ...]:
    """The requests 1 .. `requests` of a scenario under a seed."""
    rng = np.random.Generator(np.random.PCG64([seed, 0]))
    swing = rng.random(len(WANDER_PERIODS))
    talks: list[_Talk | None] = [None] * OPEN_CONVERSATIONS
    made, in_flight, phase = [], 1, scenario.phases[0]
    for number in range(1, requests + 1):
        now = scenario.phases[scenario.phase_index(number)]
        if number == 1 or now.loads is not phase.loads or rng.random() < 1.0 / LOAD_LASTS:
            in_flight = _pick(now.loads, rng)
        if now.workloads != phase.workloads:
            talks = [None] * OPEN_CONVERSATIONS
        phase, slot = now, int(rng.integers(OPEN_CONVERSATIONS))
        talk = talks[slot] or _begin(phase, f"{seed}-{number}", rng)
        request = _ask(talk, number, in_flight, rng)
        made.append(replace(request, common=_common(scenario, swing, number)))
        talks[slot] = _go_on(talk, request, scenario.context_limit, rng)
    return tuple(made)


def _pick(loads: tuple[tuple[int, float], ...], rng: np.random.Generator) -> int:
    shares = np.array([share for _, share in loads])
    return loads[int(rng.choice(len(loads), p=shares / shares.sum()))][0]


def _begin(phase: Phase, name: str, rng: np.random.Generator) -> _Talk:
    shares = np.array([workload.share for workload in phase.workloads])
    workload = phase.workloads[int(rng.choice(len(shares), p=shares / shares.sum()))]
    low, high = workload.context
    prompt_tokens = round(low * (high / low) ** rng.random())
    hidden = workload.disguise is not None and rng.random() < workload.disguised
    kind = workload.disguise if hidden and workload.disguise is not None else workload.kind
    return _Talk(workload, kind, name, prompt_tokens, 0, workload.character * rng.standard_normal())


def _ask(talk: _Talk, number: int, in_flight: int, rng: np.random.Generator) -> SimRequest:
    workload = talk.workload
    length = workload.answer_tokens * math.exp(workload.answer_spread * rng.standard_normal())
    context = Context(talk.prompt_tokens, "counted", in_flight, talk.kind, talk.name)
    skill = talk.skill + workload.mood * rng.standard_normal()
    tokens = max(1, round(length))
    return SimRequest(number, context, workload.content, tokens, skill, cached_tokens=talk.cached_tokens)


def _go_on(talk: _Talk, asked: SimRequest, context_limit: int, rng: np.random.Generator) -> _Talk | None:
    """The conversation at its next turn, None where it ended."""
    held = talk.prompt_tokens + asked.answer_tokens
    grown = held + round(talk.workload.growth * (0.5 + rng.random()))
    if rng.random() < 1.0 / talk.workload.turns or grown > context_limit:
        return None
    return replace(talk, prompt_tokens=grown, cached_tokens=held)


def _common(scenario: Scenario, swing: NDArray[np.float64], number: int) -> float:
    """Factor on every time at this moment: slow swings of the whole machine, of a size of `wander`."""
    waves = sum(
        math.sin(2.0 * math.pi * (number / period + turn))
        for period, turn in zip(WANDER_PERIODS, swing.tolist(), strict=True)
    )
    return 1.0 + scenario.wander * waves / math.sqrt(len(WANDER_PERIODS) / 2.0)
