"""Random deployments, hostile ones among them: what the guard's promise is tested on.

`random_world(seed)` is one of a family that holds, besides plausible machines, worlds made to break a guard: the
ranking reversed again and again once a policy has had time to settle, costs that rise because we moved, frontiers
that lie in either direction, outliers and slow spells that provoke alarms, drafters that break, memory that spills,
refusals, and baselines that nothing beats, where every trial is a loss.
`truthful_world(seed)` is the family for alpha = c0 = 0: a world that stays, and a frontier that is right about it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import SERVER, Context, Frontier, Listens, ServerFacts, Setting
from adaptive_dd.core.machines import GREEDY, SAMPLED, TOOLS, decaying
from adaptive_dd.core.scenarios import GRID, measured
from adaptive_dd.core.sim import SimRequest, World, linear_shape, machine
from adaptive_dd.core.traffic import HONOURING, NO_FRONTIER, Phase, Scenario, Workload

KINDS = (GREEDY, SAMPLED, TOOLS)
LOADS = (((1, 1.0),), ((1, 0.7), (2, 0.3)), ((1, 0.4), (2, 0.3), (4, 0.3)))
# Shortest spell of a world that turns against what was learned: enough to promote a setting, not more.
SPELLS = (40, 80, 150, 300)


def random_world(seed: int) -> Scenario:
    """World number `seed` of the random family."""
    rng = np.random.Generator(np.random.PCG64([seed, 0xBAD]))
    world, workloads = _machine(rng), _workloads(rng)
    if rng.random() < 0.4:
        world = replace(world, launch=_best_depth(world, workloads))
    loads = LOADS[int(rng.integers(len(LOADS)))]
    facts = (
        HONOURING if world.listens is Listens.HONOURS else ServerFacts(world.listens, cap=world.launch.n_max)
    )
    phases = _story(Phase(1, world, workloads, loads, facts), rng)
    baseline = SERVER if rng.random() < 0.6 else Setting(world.launch.n_max, 0.0)
    frontier = _frontier(world, workloads, baseline, rng)
    shows = f"random world {seed}: {len(phases)} phases, {'a' if frontier.rows else 'no'} frontier"
    return Scenario(f"world-{seed}", shows, (), phases, frontier, baseline, 8, wander=0.05 * rng.random())


def truthful_world(seed: int) -> Scenario:
    """A random world that stays as it is, one kind of text, and a frontier without error."""
    rng = np.random.Generator(np.random.PCG64([seed, 0x600D]))
    world = replace(_machine(rng), spite=0.0, heat_gain=0.0, limit=None, listens=Listens.HONOURS)
    content = _content(rng)
    workloads = (
        Workload("one", content, GREEDY, character=0.0, mood=0.0, context=(200.0, 1500.0), turns=2.0),
    )
    baseline = Setting(world.launch.n_max, 0.0)
    rows = measured(world, workloads, (200, 900, 3000), baseline=baseline, error=0.0)
    phases = (Phase(1, world, workloads, ((1, 1.0),)),)
    return Scenario(f"truth-{seed}", "a truthful frontier", (), phases, rows, baseline, 8)


def _machine(rng: np.random.Generator) -> World:
    cliffs = {int(rng.integers(2, 9)): float(rng.normal(0.0, 0.4)) for _ in range(int(rng.integers(0, 3)))}
    shape = linear_shape(float(rng.uniform(0.8, 1.4)), float(np.exp(rng.uniform(-3.5, -0.4))), cliffs=cliffs)
    shape = (1.0, *(max(0.7, ratio) for ratio in shape[1:]))
    hybrid = rng.random() < 0.25
    return World(
        decaying(float(np.exp(rng.uniform(2.0, 5.0)))),
        shape,
        launch=Setting(int(rng.integers(1, 9)), float(rng.choice([0.0, 0.0, 0.3])), 0),
        listens=Listens.LOWERS_N if rng.random() < 0.05 else Listens.HONOURS,
        limit=int(rng.integers(3, 8)) if rng.random() < 0.1 else None,
        rejection=float(rng.uniform(0.0, 0.8)) if hybrid else 0.0,
        rewind=float(rng.uniform(0.0, 0.4)) if hybrid else 0.0,
        context_slope=float(rng.uniform(0.0, 0.5)),
        load_slope=(1.0, float(rng.uniform(1.0, 2.5)), float(rng.uniform(1.0, 3.0))),
        heat_gain=float(rng.uniform(0.0, 0.4)) if rng.random() < 0.2 else 0.0,
        spite=float(rng.uniform(0.0, 0.15)) if rng.random() < 0.1 else 0.0,
        noise_request=float(rng.choice([0.006, 0.02, 0.1])),
        outliers=float(rng.choice([0.003, 0.003, 0.05])),
        outlier_factor=float(rng.choice([2.0, 5.0])),
    )


def _best_depth(world: World, workloads: tuple[Workload, ...]) -> Setting:
    """The depth at which a launch leaves the least to gain."""
    box, asked = machine(world), [SimRequest(1, Context(1000), load.content, 200) for load in workloads]

    def cost(depth: int) -> float:
        arm = Setting(depth, 0.0, 0)
        return sum(load.share * box.expected_ms(one, arm) for one, load in zip(asked, workloads, strict=True))

    return Setting(min(range(1, 9), key=cost), 0.0, 0)


def _content(rng: np.random.Generator) -> Content:
    easy = float(rng.uniform(0.3, 0.97))
    return Content(
        easy,
        easy * float(rng.uniform(0.3, 0.9)),
        float(rng.uniform(0.0, 0.5)),
        fade=float(rng.choice([1.0, 1.0, 0.93])),
        sureness=float(rng.choice([1.5, 5.0, 40.0])),
        insight=float(rng.random()),
    )


def _workloads(rng: np.random.Generator) -> tuple[Workload, ...]:
    return tuple(
        Workload(
            f"w{i}",
            _content(rng),
            KINDS[i % len(KINDS)],
            share=float(rng.uniform(0.2, 1.0)),
            answer_tokens=float(np.exp(rng.uniform(3.0, 6.3))),
            context=(200.0, float(np.exp(rng.uniform(7.0, 10.5)))),
            disguise=KINDS[int(rng.integers(len(KINDS)))],
            disguised=float(rng.choice([0.0, 0.1, 0.5])),
        )
        for i in range(int(rng.integers(1, 4)))
    )


def _frontier(
    world: World, workloads: tuple[Workload, ...], baseline: Setting, rng: np.random.Generator
) -> Frontier:
    sort = rng.random()
    if sort < 0.4:
        return NO_FRONTIER
    claims = {arm: float(rng.uniform(0.6, 1.8)) for arm in GRID} if sort < 0.75 else {}
    return measured(world, workloads, (500, 4000), baseline=baseline, claims=claims)


def _story(first: Phase, rng: np.random.Generator) -> tuple[Phase, ...]:
    """A world that stays, one that changes now and then, or one that turns each time a policy may have settled."""
    sort = rng.random()
    if sort < 0.3:
        return (first,)
    if sort < 0.65:
        starts = sorted(int(start) for start in rng.integers(50, 1400, int(rng.integers(1, 4))))
    else:
        spell = int(rng.choice(SPELLS))
        starts = list(range(1 + spell, 1500, spell))
    phases = [first]
    for start in starts:
        phases.append(replace(_turn(phases[-1], first, rng), start=start))
    return tuple(phases)


def _turn(now: Phase, first: Phase, rng: np.random.Generator) -> Phase:
    """The phase that follows."""
    world, sort = now.world, int(rng.integers(8))
    if sort == 0:
        return replace(now, world=replace(world, skill=-20.0 if world.skill == 0.0 else 0.0))
    if sort == 1:
        return replace(now, world=replace(world, spill=2.5 if world.spill == 1.0 else 1.0))
    if sort == 2:
        factor = float(rng.choice([0.5, 1.5, 2.0]))
        return replace(
            now, world=replace(world, base_ms=tuple((at, ms * factor) for at, ms in first.world.base_ms))
        )
    if sort == 3:
        return replace(now, workloads=_workloads(rng))
    if sort == 4:
        return replace(now, world=replace(world, skill=float(rng.uniform(-1.5, 1.0))))
    # the ranking turns round: everything but the baseline's own depth gets slower or faster
    launch, factor = world.launch.n_max or 0, float(rng.choice([0.75, 0.9, 1.25, 1.6]))
    shape = tuple(
        ratio if depth in {0, launch} else max(0.7, ratio * factor)
        for depth, ratio in enumerate(first.world.shape)
    )
    return replace(now, world=replace(world, shape=shape))
