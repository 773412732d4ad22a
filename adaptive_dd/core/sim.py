"""A llama-server as a model: what a request costs under a setting, expected and drawn.

Pure values and functions; randomness comes in as a numpy Generator made by `noise_for(seed, number)`. The model is
the generator that public measurements fit (see `data/README.md`): a verification cycle with d drafted tokens takes
T0(context) x shape[d], content decides how many of the d are accepted, and everything else (load, heat, spilled
memory, a price per rejection, a drafter that is broken) bends one of these two. It simplifies on purpose: decode
speed does not fall within one answer, acceptance does not depend on the setting played before, and cycles are
independent of each other, given the request.

    world = World(base_ms=((0, 20.0),), shape=linear_shape(1.0, 0.17))
    request = SimRequest(1, Context(400), Content(0.8), answer_tokens=300)
    expected_ms(world, request, Setting(4, 0.0))                  # mean decode time, no noise
    generate(world, request, Setting(4, 0.0), noise_for(7, 1))    # one answer's `Timings`

`Machine(world)` is the same world with its tables kept: use it in loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.cycles import EXACT_TOKENS, Content, Cycles, tabulate
from adaptive_dd.core.domain import OFF, Context, Listens, Setting, Timings

Points = tuple[tuple[float, float], ...]

LAUNCH = Setting(2, 0.0, 0)
# Depths that a shape table covers; deeper drafts than any scenario plays.
SHAPE_LENGTH = 33
# Acceptance is tabulated in steps of a tenth of a logit: below the noise of any answer, and a small table.
LEVELS_PER_LOGIT = 10


@dataclass(frozen=True, slots=True)
class World:
    """A server on its machine, at one time.

    base_ms        (context tokens, ms per token without drafting), interpolated
    shape          T(d)/T(0) for d drafted tokens, d = 0, 1, ...; see `linear_shape`
    launch         the setting the server was started with: what SERVER means, and what unset fields fall back to
    listens        what it does with per-request settings; HONOURS and LOWERS_N act, all else plays `launch`
    limit          n_max above which it refuses a request, None where it does not
    draft_step     cost of one drafting step that p_min or n_min throws away, as a share of T(0)
    rejection      cost of a cycle in which something was rejected, as a share of T(0)
    rewind         cost per drafted token of such a cycle on top (a model that cannot roll back computes it again)
    context_slope  extra cost per drafted token at 65,536 tokens of context, as a share of T(0) (linear in context)
    context_skill  (context tokens, logits added to acceptance), interpolated
    skill          logits added to acceptance everywhere; a broken drafter is -20
    load_ms        factor on T(0) by requests in flight 1, 2, ... (the last one holds beyond)
    load_slope     factor on what drafting adds, by requests in flight
    spill          factor on cycles that draft, from `spill_context` tokens on (draft memory that no longer fits)
    heat_gain      drafting costs 1 + heat_gain x heat times as much; heat is the recent mean of drafted tokens over
                   `heat_free`, in tokens per cycle, with a memory of `heat_memory` requests
    spite          everything costs 1 + spite x (recent share of requests not on `launch`): a world that punishes moving
    noise_cycle    relative sd of one cycle's time
    noise_request  relative sd of one answer's time (launch-to-launch and other common noise)
    outliers       share of answers slowed by something else, by a factor of up to `outlier_factor`
    prompt_ms      ms per prompt token that is not cached
    """

    base_ms: Points
    shape: tuple[float, ...]
    launch: Setting = LAUNCH
    listens: Listens = Listens.HONOURS
    limit: int | None = None
    draft_step: float = 0.05
    rejection: float = 0.0
    rewind: float = 0.0
    context_slope: float = 0.0
    context_skill: Points = ((0.0, 0.0),)
    skill: float = 0.0
    load_ms: tuple[float, ...] = (1.0, 1.05, 1.1, 1.2)
    load_slope: tuple[float, ...] = (1.0,)
    spill: float = 1.0
    spill_context: int = 0
    heat_gain: float = 0.0
    heat_free: float = 1.0
    heat_memory: float = 20.0
    spite: float = 0.0
    noise_cycle: float = 0.015
    noise_request: float = 0.006
    outliers: float = 0.003
    outlier_factor: float = 2.0
    prompt_ms: float = 1.0


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request: what the proxy sees (`context`) and what only the world knows.

    skill           logits added to the content's acceptance: this conversation's and this answer's own character
    answer_tokens   tokens the answer will have (predicted_n)
    common          factor on every setting's time at this moment (slow machine, fast machine)
    cached_tokens   prompt tokens that the server already holds
    """

    number: int
    context: Context
    content: Content
    answer_tokens: int
    skill: float = 0.0
    common: float = 1.0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Wear:
    """What recent requests left behind in the machine: heat in tokens per cycle, and the share of moves."""

    heat: float = 0.0
    moved: float = 0.0


FRESH = Wear()


def linear_shape(a: float, c: float, *, cliffs: Mapping[int, float] | None = None) -> tuple[float, ...]:
    """T(d)/T(0) = a + c*d for d >= 1, plus each cliff's jump from its depth on (a negative jump ends a valley)."""
    jumps = cliffs or {}
    drafted = (a + c * d + sum(jump for at, jump in jumps.items() if d >= at) for d in range(1, SHAPE_LENGTH))
    return (1.0, *drafted)


def noise_for(seed: int, number: int) -> np.random.Generator:
    """The source of request `number` under `seed`: the same for every policy that is compared."""
    return np.random.Generator(np.random.PCG64([seed, number]))


def played(world: World, arm: Setting) -> Setting:
    """What the server does when asked for `arm`: every field set, n0 as OFF. A refused arm plays `launch`."""
    launch = world.launch
    if world.listens not in (Listens.HONOURS, Listens.LOWERS_N) or refuses(world, arm):
        return _complete(launch, launch)
    if world.listens is Listens.LOWERS_N:
        depth = launch.n_max if arm.n_max is None else min(arm.n_max, launch.n_max or 0)
        return _complete(Setting(depth), launch)
    return _complete(arm, launch)


def refuses(world: World, arm: Setting) -> bool:
    """Whether the server answers an error to `arm`, so that the original bytes must be sent again."""
    return world.limit is not None and arm.n_max is not None and arm.n_max > world.limit


def _complete(arm: Setting, launch: Setting) -> Setting:
    n_max = launch.n_max if arm.n_max is None else arm.n_max
    p_min = launch.p_min if arm.p_min is None else arm.p_min
    n_min = launch.n_min if arm.n_min is None else arm.n_min
    return Setting(n_max, p_min or 0.0, min(n_min or 0, n_max)) if n_max else OFF


def interpolated(points: Points, x: float) -> float:
    """Linear between the points, flat outside them."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x < x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def _by_load(factors: tuple[float, ...], in_flight: int) -> float:
    return factors[min(max(in_flight, 1), len(factors)) - 1]


class Prices(NamedTuple):
    """ms of a bare cycle; on top per unit of drafting cost, drafted token, rejection and token lost to one."""

    cycle: float
    unit: float
    token: float
    rejection: float
    rewind: float


@dataclass(slots=True)
class Machine:
    """A world with its tables kept. Every method is a function of its arguments: the tables are only a cache."""

    world: World
    _tables: dict[tuple[Content, int, Setting], Cycles] = field(default_factory=dict)
    _played: dict[Setting, Setting] = field(default_factory=dict)

    def level(self, request: SimRequest) -> int:
        """Logits added to the content's acceptance here, in steps of the table."""
        tokens = request.context.prompt_tokens or 0
        logits = request.skill + self.world.skill + interpolated(self.world.context_skill, tokens)
        return round(LEVELS_PER_LOGIT * logits)

    def cycles(self, request: SimRequest, arm: Setting) -> Cycles:
        """The distribution of one cycle of this request under `arm`."""
        return self.table(request.content, self.level(request), arm)

    def table(self, content: Content, level: int, arm: Setting) -> Cycles:
        """The distribution of one cycle of a content at a level under `arm`."""
        done = self._played.get(arm)
        if done is None:
            done = self._played[arm] = played(self.world, arm)
        key = (content, level, done)
        table = self._tables.get(key)
        if table is None:
            world = self.world
            table = tabulate(content, level / LEVELS_PER_LOGIT, done, world.shape, world.draft_step)
            self._tables[key] = table
        return table

    def prices(self, request: SimRequest, wear: Wear, cycles: Cycles) -> Prices:
        """What this request's cycles cost now."""
        world, tokens = self.world, request.context.prompt_tokens or 0
        base = interpolated(world.base_ms, tokens) * _by_load(world.load_ms, request.context.in_flight)
        base *= request.common * (1.0 + world.spite * wear.moved)
        if world.spill != 1.0 and tokens >= world.spill_context and cycles.mean_drafted > 0.0:
            base *= world.spill
        drafting = base * _by_load(world.load_slope, request.context.in_flight)
        if world.heat_gain:
            drafting *= 1.0 + world.heat_gain * wear.heat
        token = base * world.context_slope * tokens / 65536.0
        return Prices(base, drafting, token, base * world.rejection, base * world.rewind)

    def expected_ms(self, request: SimRequest, arm: Setting, wear: Wear = FRESH) -> float:
        """Mean decode time of the request under `arm`, in ms: the model's own, without noise or outliers."""
        cycles = self.cycles(request, arm)
        price = self.prices(request, wear, cycles)
        each = price.cycle + price.unit * cycles.mean_cost + price.token * cycles.mean_drafted
        each += price.rejection * cycles.mean_rejected + price.rewind * cycles.mean_lost
        return cycles.mean_cycles(max(0, request.answer_tokens - 1)) * each

    def expected_all(self, requests: Sequence[SimRequest], arms: Sequence[Setting]) -> NDArray[np.float64]:
        """`expected_ms` (request, arm) of many requests on a fresh machine, as fast as arrays allow."""
        keys = [(request.content, self.level(request)) for request in requests]
        index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        which = np.array([index[key] for key in keys])  # (request,)
        tokens = np.array([max(0, request.answer_tokens - 1) for request in requests])
        some = self.table(*keys[0], LAUNCH)
        plain = np.array([self.prices(request, FRESH, self.cycles(request, OFF)) for request in requests])
        spilt = np.array(
            [self.prices(request, FRESH, replace(some, mean_drafted=1.0)) for request in requests]
        )
        cost = np.empty((len(requests), len(arms)))
        for column, arm in enumerate(arms):
            tables = [self.table(content, level, arm) for content, level in index]
            means = np.array(
                [(1.0, t.mean_cost, t.mean_drafted, t.mean_rejected, t.mean_lost) for t in tables]
            )
            price = np.where(means[which, 2:3] > 0.0, spilt, plain)  # (request, 5)
            short = np.array([t.cycles_for for t in tables])[which, np.minimum(tokens, EXACT_TOKENS)]
            line = np.array([(t.beyond, t.mean_emitted) for t in tables])[which]
            cycles = np.where(tokens <= EXACT_TOKENS, short, (tokens + line[:, 0]) / line[:, 1])
            cost[:, column] = cycles * (price * means[which]).sum(axis=1)
        return cost

    def generate(
        self, request: SimRequest, arm: Setting, rng: np.random.Generator, wear: Wear = FRESH
    ) -> Timings:
        """One answer's timings. Mean decode time is `expected_ms`, but for outliers."""
        cycles, tokens = self.cycles(request, arm), max(0, request.answer_tokens - 1)
        price = self.prices(request, wear, cycles)
        if cycles.mean_drafted == 0.0:
            count, drafted, ms = tokens, 0, tokens * (price.cycle + price.unit * cycles.mean_cost)
        else:
            states = _draw_cycles(cycles, tokens, rng)
            count, drafted = len(states), int(cycles.drafted[states].sum())
            ms = count * price.cycle + price.unit * float(cycles.cost[states].sum()) + price.token * drafted
            if price.rejection or price.rewind:
                ms += price.rejection * int(cycles.rejected[states].sum())
                ms += price.rewind * int(cycles.lost[states].sum())
        ms *= self._noise(count, rng)
        prompt_n = max(1, (request.context.prompt_tokens or 0) - request.cached_tokens)
        cache_n = max(0, (request.context.prompt_tokens or 0) - prompt_n)
        prompt_ms = prompt_n * self.world.prompt_ms
        return Timings(prompt_n, prompt_ms, tokens + 1, ms, cache_n, drafted, max(0, tokens - count))

    def _noise(self, count: int, rng: np.random.Generator) -> float:
        """Factor on an answer's time; independent noise of its cycles averages out over them."""
        world, normal = self.world, rng.standard_normal(2)
        factor = (
            1.0 + world.noise_cycle * normal[0] / math.sqrt(max(1, count)) + world.noise_request * normal[1]
        )
        if world.outliers and rng.random() < world.outliers:
            factor *= 1.0 + (world.outlier_factor - 1.0) * rng.random()
        return max(0.05, float(factor))

    def after(self, wear: Wear, request: SimRequest, arm: Setting) -> Wear:
        """What the machine feels like after this request."""
        world = self.world
        if not world.heat_gain and not world.spite:
            return wear
        fresh = 1.0 / world.heat_memory
        over = max(0.0, self.cycles(request, arm).mean_drafted - world.heat_free)
        moved = 0.0 if played(world, arm) == _complete(world.launch, world.launch) else 1.0
        return Wear(wear.heat + fresh * (over - wear.heat), wear.moved + fresh * (moved - wear.moved))


def _draw_cycles(cycles: Cycles, tokens: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Outcomes (cycle,) of the cycles that emit at least `tokens` tokens."""
    if tokens == 0:
        return np.zeros(0, dtype=np.int64)
    mean = tokens / cycles.mean_emitted
    size = int(mean + 4.0 * cycles.sd_emitted * math.sqrt(mean) / cycles.mean_emitted) + 4
    states = cycles.cumulative.searchsorted(rng.random(size), side="right")
    total = cycles.emitted[states].cumsum()
    while total[-1] < tokens:
        more = cycles.cumulative.searchsorted(rng.random(size), side="right")
        states = np.concatenate((states, more))
        total = cycles.emitted[states].cumsum()
    return states[: int(total.searchsorted(tokens)) + 1]


# Tables of a world come to some ten megabytes; a scenario has up to a few dozen worlds, one after the other.
@lru_cache(maxsize=24)
def machine(world: World) -> Machine:
    """The machine of a world; the same one for the same world."""
    return Machine(world)


def expected_ms(world: World, request: SimRequest, arm: Setting, wear: Wear = FRESH) -> float:
    """See `Machine.expected_ms`."""
    return machine(world).expected_ms(request, arm, wear)


def generate(
    world: World, request: SimRequest, arm: Setting, rng: np.random.Generator, wear: Wear = FRESH
) -> Timings:
    """See `Machine.generate`."""
    return machine(world).generate(request, arm, rng, wear)
