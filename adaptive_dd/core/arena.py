"""Policies against scenarios: the loop that plays one, and what it is compared with.

All policies meet the same requests and the same noise. What counts are *expected* times from the model, never the
drawn ones: luck moves what a policy believes, not how it is judged.

The references, all in hindsight and on the same requests:
baseline     the scenario's baseline for every request, on the machine as it would be had nothing else been played
best fixed   the one setting of `arms` with the smallest total
oracle       the best setting per (phase, bucket, kind, load). It knows every change of the world (the phase); a policy
             that sees conversations can beat it where conversations differ
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core import controller
from adaptive_dd.core.domain import (
    OFF,
    Context,
    Deployment,
    Frontier,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
)
from adaptive_dd.core.events import Began, Decided, FactsFound, Observed
from adaptive_dd.core.frontier import bucket_edges, bucket_of
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.sim import FRESH, Machine, SimRequest, Wear, machine, noise_for, refuses
from adaptive_dd.core.traffic import Scenario, traffic

P_LEVELS = (0.0, 0.3, 0.6)
# Beyond 8 the grid thins out: speed moves slowly with depth there.
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)


class Policy(Protocol):
    """Something that chooses settings and may learn. at_s: seconds of simulated time; outcomes may come late."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The setting to send for request `number`."""

    def learn(self, number: int, context: Context, arm: Setting, outcome: Outcome, at_s: float) -> None:
        """Request `number`, sent with `arm`, ended."""

    def told(self, facts: ServerFacts, build: str, at_s: float) -> None:
        """What the server does became known, or another build was found; before the first request and on changes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a policy is given to start from: the user's settings (baseline, cap, alpha, ...) and the frontier.

    launch is the server's launch setting. The product is not told; rivals that are configured by hand need it.
    """

    settings: PolicySettings
    frontier: Frontier
    launch: Setting
    name: str = "sim"

    @property
    def edges(self) -> tuple[int, ...]:
        """The context buckets."""
        return bucket_edges(self.frontier)


Maker = Callable[[Terms], Policy]


def terms_of(scenario: Scenario, seed: int, settings: PolicySettings | None = None) -> Terms:
    """The terms on which a policy plays a scenario; `settings` gives alpha, c0_ms, delta and margin."""
    asked = settings or PolicySettings()
    own = PolicySettings(
        mode=asked.mode,
        baseline=scenario.baseline,
        cap=scenario.cap,
        alpha=asked.alpha,
        c0_ms=asked.c0_ms,
        delta=asked.delta,
        margin=asked.margin,
        seed=seed,
    )
    return Terms(own, scenario.frontier, scenario.phases[0].world.launch, scenario.name)


class ControllerPolicy:
    """The product itself: `core.controller` fed with the events that the live proxy would make."""

    def __init__(self, terms: Terms) -> None:
        """Begin as a fresh deployment."""
        self._terms = terms
        self._build = ""
        self.state = controller.initial(self._began("", 0.0))

    def _began(self, build: str, at_s: float) -> Began:
        deployment = Deployment("sim", self._terms.name, build, self._terms.settings.cap)
        return Began(at_s, deployment, self._terms.settings, self._terms.frontier)

    def told(self, facts: ServerFacts, build: str, at_s: float) -> None:
        """Another build is another deployment; facts are an event."""
        if build != self._build:
            self._build = build
            self.state = controller.apply(self.state, self._began(build, at_s))
        self.state = controller.apply(self.state, FactsFound(at_s, facts))

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """Decide and record it, as the engine does."""
        rng = rng_for(self._terms.settings.seed, number)
        decision = controller.decide(self.state, context, rng)
        self.state = controller.apply(self.state, Decided(at_s, number, context, decision, 0.0))
        return decision.arm

    def learn(self, number: int, context: Context, arm: Setting, outcome: Outcome, at_s: float) -> None:
        """Record the outcome."""
        self.state = controller.apply(self.state, Observed(at_s, number, outcome))


def arms_of(scenario: Scenario) -> tuple[Setting, ...]:
    """Every setting that the references may play: off, all depths up to the cap at three p levels, and those named."""
    grid = {Setting(n, p) for n in DEPTHS if n <= scenario.cap for p in P_LEVELS}
    named = {row.setting for row in scenario.frontier.rows} | {scenario.baseline}
    return tuple(sorted(grid | named | {OFF}, key=lambda arm: arm.order))


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """A scenario's requests under one seed and what the references need for them, in expected ms (request,)."""

    requests: tuple[SimRequest, ...]
    baseline_ms: NDArray[np.float64]
    oracle_ms: NDArray[np.float64]
    best_fixed_ms: NDArray[np.float64]
    best_fixed: Setting
    oracle_arms: Mapping[tuple[int, int, str, int], Setting]


@lru_cache(maxsize=128)
def asked(scenario: Scenario, seed: int, requests: int) -> tuple[SimRequest, ...]:
    """The scenario's requests, kept for the next policy."""
    return traffic(scenario, seed, requests)


@lru_cache(maxsize=128)
def baseline_cost(scenario: Scenario, seed: int, requests: int) -> NDArray[np.float64]:
    """Expected ms (request,) of the baseline."""
    return always(scenario, asked(scenario, seed, requests), scenario.baseline)


@lru_cache(maxsize=128)
def reference(scenario: Scenario, seed: int, requests: int) -> Reference:
    """Play every arm for ever, then pick in hindsight."""
    known, arms = asked(scenario, seed, requests), arms_of(scenario)
    cost = always_all(scenario, known, arms)
    edges = bucket_edges(scenario.frontier)
    cells: dict[tuple[int, int, str, int], list[int]] = {}
    for row, request in enumerate(known):
        bucket = bucket_of(edges, request.context.prompt_tokens or 0)
        where = (
            scenario.phase_index(request.number),
            bucket,
            str(request.context.kind),
            request.context.in_flight,
        )
        cells.setdefault(where, []).append(row)
    oracle, chosen = np.empty(len(known)), {}
    for where, rows in cells.items():
        best = int(cost[rows].sum(axis=0).argmin())
        oracle[rows], chosen[where] = cost[rows, best], arms[best]
    fixed = int(cost.sum(axis=0).argmin())
    baseline = baseline_cost(scenario, seed, requests)
    return Reference(known, baseline, oracle, cost[:, fixed].copy(), arms[fixed], chosen)


def always(scenario: Scenario, requests: tuple[SimRequest, ...], arm: Setting) -> NDArray[np.float64]:
    """Expected ms (request,) of one setting played for every request, on the machine as that leaves it."""
    wear, cost, boxes = FRESH, np.empty(len(requests)), [machine(phase.world) for phase in scenario.phases]
    for row, request in enumerate(requests):
        box = boxes[scenario.phase_index(request.number)]
        cost[row] = box.expected_ms(request, arm, wear)
        wear = box.after(wear, request, arm)
    return cost


def always_all(
    scenario: Scenario, requests: tuple[SimRequest, ...], arms: tuple[Setting, ...]
) -> NDArray[np.float64]:
    """`always` for every arm (request, arm); in one go where the world has no memory."""
    if any(phase.world.heat_gain or phase.world.spite for phase in scenario.phases):
        return np.stack([always(scenario, requests, arm) for arm in arms], axis=1)
    cost = np.empty((len(requests), len(arms)))
    for index, phase in enumerate(scenario.phases):
        rows = [row for row, request in enumerate(requests) if scenario.phase_index(request.number) == index]
        if rows:
            cost[rows] = machine(phase.world).expected_all([requests[row] for row in rows], arms)
    return cost


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """One policy on one scenario under one seed: the arm of each request, and expected ms (request,).

    known: gives the reference, which is worked out when it is first asked for.
    """

    known: Callable[[], Reference]
    baseline_ms: NDArray[np.float64]
    arms: tuple[Setting, ...]
    ms: NDArray[np.float64]

    @property
    def reference(self) -> Reference:
        """The references on the same requests."""
        return self.known()

    @property
    def relative(self) -> float:
        """Total time as a share of the baseline's."""
        return float(self.ms.sum() / self.baseline_ms.sum())

    def captured(self, start: int = 0, stop: int | None = None) -> float | None:
        """Share of the oracle's gain over requests [start, stop); None where the oracle gains under 0.1%."""
        base, best = (
            cost[start:stop].sum() for cost in (self.reference.baseline_ms, self.reference.oracle_ms)
        )
        return (
            None if base - best < 0.001 * base else float((base - self.ms[start:stop].sum()) / (base - best))
        )

    def requests_until(self, share: float = 0.9, window: int = 100) -> int | None:
        """Requests before the first window that captures `share` of the oracle's gain; None where none does."""
        base, best = (
            _rolling(cost, window) for cost in (self.reference.baseline_ms, self.reference.oracle_ms)
        )
        reached = np.nonzero(
            (base - _rolling(self.ms, window) >= share * (base - best)) & (base > 1.001 * best)
        )[0]
        return int(reached[0]) if len(reached) else None

    def behind_ms(self, alpha: float) -> NDArray[np.float64]:
        """How far the total is behind (1 + alpha) x baseline after each request, in ms (request,)."""
        return np.cumsum(self.ms - (1.0 + alpha) * self.baseline_ms)

    def worst_requests(self, alpha: float) -> float:
        """The worst moment of `behind_ms`, in mean baseline requests; 0 where it never is behind."""
        return float(max(0.0, self.behind_ms(alpha).max()) / self.baseline_ms.mean())


def _rolling(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    total = np.concatenate(([0.0], np.cumsum(values)))
    window = min(window, len(values))
    return total[window:] - total[:-window]


def answer(box: Machine, request: SimRequest, arm: Setting, *, seed: int, wear: Wear = FRESH) -> Outcome:
    """What the server answers: timings, and REFUSED where it refused the setting and served the original bytes."""
    timings = box.generate(request, arm, noise_for(seed, request.number), wear)
    status = Status.REFUSED if refuses(box.world, arm) else Status.OK
    return Outcome(status, timings, mean_in_flight=float(request.context.in_flight))


def run(
    scenario: Scenario, make: Maker, seed: int, requests: int, settings: PolicySettings | None = None
) -> RunResult:
    """Play a policy. With L requests in flight a decision is made before the L-1 latest outcomes are known."""
    policy = make(terms_of(scenario, seed, settings))
    waiting: deque[tuple[SimRequest, Setting, Outcome]] = deque()
    wear, at_s, phase, box = FRESH, 0.0, None, machine(scenario.phases[0].world)
    arms, cost = [], np.empty(requests)
    for row, request in enumerate(asked(scenario, seed, requests)):
        now = scenario.phases[scenario.phase_index(request.number)]
        if now is not phase:
            if phase is None or (now.facts, now.build) != (phase.facts, phase.build):
                policy.told(now.facts, now.build, at_s)
            phase, box = now, machine(now.world)
        while len(waiting) >= request.context.in_flight:
            at_s = _deliver(policy, waiting, at_s)
        arm = policy.choose(request.number, request.context, at_s)
        cost[row] = box.expected_ms(request, arm, wear)
        waiting.append((request, arm, answer(box, request, arm, seed=seed, wear=wear)))
        wear = box.after(wear, request, arm)
        arms.append(arm)
    while waiting:
        at_s = _deliver(policy, waiting, at_s)
    known = partial(reference, scenario, seed, requests)
    return RunResult(known, baseline_cost(scenario, seed, requests), tuple(arms), cost)


def _deliver(policy: Policy, waiting: deque[tuple[SimRequest, Setting, Outcome]], at_s: float) -> float:
    request, arm, outcome = waiting.popleft()
    if outcome.timings is not None:
        took_ms = outcome.timings.prompt_ms + outcome.timings.predicted_ms
        at_s += took_ms / 1000.0 / request.context.in_flight
    policy.learn(request.number, request.context, arm, outcome, at_s)
    return at_s
