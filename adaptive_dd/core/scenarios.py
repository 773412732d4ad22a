"""The scenarios: one table of simulated deployments, each there to show one thing.

`SCENARIOS` maps a name to what it shows, the rows of public data that it is built from (see `core.machines` for how
to read `m295`) and the function that builds it; `scenario(name)` gives the built one. Frontiers are what calibration
would have measured on the model, with its error, unless the scenario is about a frontier that lies or is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from adaptive_dd.core import machines as m
from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
    Context,
    Frontier,
    FrontierRow,
    Listens,
    ServerFacts,
    Setting,
)
from adaptive_dd.core.sim import SimRequest, World, linear_shape, machine, noise_for
from adaptive_dd.core.traffic import BUILD, HONOURING, NO_FRONTIER, Phase, Scenario, Workload

N2 = Setting(2, 0.0)
N4 = Setting(4, 0.0)
ALONE = ((1, 1.0),)
MOSTLY_ALONE = ((1, 0.75), (2, 0.25))
# What calibration tries, and the spread of one of its answers (variance.csv: 1-3% within an arm).
GRID = (OFF, *(Setting(n, p) for n in (1, 2, 3, 4, 6, 8) for p in (0.0, 0.3)))
SPREAD = 0.03
SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the table. build: makes the scenario, but for its name, what it shows and its sources."""

    shows: str
    sources: tuple[str, ...]
    build: Callable[[], Scenario]


@cache
def scenario(name: str) -> Scenario:
    """The scenario of that name. Raises KeyError where there is none."""
    entry = SCENARIOS[name]
    return replace(entry.build(), name=name, shows=entry.shows, sources=entry.sources)


def measured(
    world: World,
    workloads: tuple[Workload, ...],
    contexts: tuple[int, ...],
    *,
    baseline: Setting = SERVER,
    grid: tuple[Setting, ...] = GRID,
    error: float = SPREAD,
    claims: Mapping[Setting, float] | None = None,
) -> Frontier:
    """The frontier that calibration finds on a world: the mix's tok/s per context and setting, with its error.

    error: relative sd of one measured answer. claims: factors on the tok/s of some settings, for a frontier that lies.
    """
    box, rows = machine(world), []
    for context_tokens in contexts:
        for number, arm in enumerate(sorted({*grid, baseline}, key=lambda arm: arm.order)):
            asked = [SimRequest(1, Context(context_tokens), load.content, 257) for load in workloads]
            shares = [load.share / sum(other.share for other in workloads) for load in workloads]
            ms = sum(s * box.expected_ms(one, arm) for one, s in zip(asked, shares, strict=True)) / 256.0
            luck = 1.0 + error / SAMPLES**0.5 * float(noise_for(1, context_tokens * 100 + number).normal())
            tok_s = 1000.0 / ms * luck * (claims or {}).get(arm, 1.0)
            rows.append(FrontierRow(context_tokens, arm, tok_s, samples=SAMPLES, sd=error * tok_s))
    return Frontier(tuple(rows), baseline, build=BUILD, cap=8, generated_tokens=256)


def plain(
    world: World,
    workloads: tuple[Workload, ...],
    *,
    launch: Setting,
    frontier: Frontier = NO_FRONTIER,
    baseline: Setting = SERVER,
    cap: int = 8,
    loads: tuple[tuple[int, float], ...] = MOSTLY_ALONE,
    facts: ServerFacts = HONOURING,
) -> Scenario:
    """A world that stays as it is."""
    world = replace(world, launch=Setting(launch.n_max, launch.p_min or 0.0, launch.n_min or 0))
    phase = Phase(1, world, workloads, loads, facts)
    return Scenario("", "", (), (phase,), frontier, baseline, cap)


def then(first: Scenario, start: int, **changes: object) -> Scenario:
    """The scenario with one more phase: the last one with `changes` (of Phase) from request `start` on."""
    last = replace(first.phases[-1], start=start, **changes)  # type: ignore[arg-type]
    return replace(first, phases=(*first.phases, last))


def one(content: Content, **more: object) -> tuple[Workload, ...]:
    """A single workload, half greedy and half sampled to the eye, which says nothing about its content."""
    load = Workload("mixed", content, m.GREEDY, disguise=m.SAMPLED, disguised=0.5)
    return (replace(load, **more),)  # type: ignore[arg-type]


# --- the builders ----------------------------------------------------------------------------------------------


def _note() -> Scenario:
    table = (
        (3946, N2, 120.80),
        (3946, Setting(4, 0.25), 141.77),
        (65536, N2, 74.85),
        (65536, N4, 87.94),
        (131072, N2, 54.61),
        (200704, N2, 49.89),
        (262144, N2, 33.51),
    )
    rows = tuple(FrontierRow(tokens, arm, tok_s) for tokens, arm, tok_s in table)
    loads = tuple(
        Workload(name, m.NOTE_TEXT, m.GREEDY, share, answer_tokens=700, context=context, turns=6, growth=1500)
        for name, share, context in (
            ("short", 0.4, (1000.0, 20000.0)),
            ("long", 0.35, (30000.0, 90000.0)),
            ("huge", 0.25, (110000.0, 240000.0)),
        )
    )
    return plain(m.NOTE, loads, launch=N2, baseline=N2, frontier=Frontier(rows, N2), loads=ALONE)


def _trap() -> Scenario:
    loads = (
        Workload("code", m.GEMMA_GREEDY, m.GREEDY, 0.35, answer_tokens=120, context=(50, 2000)),
        Workload("json", m.GEMMA_CODE, m.SCHEMA, 0.25, answer_tokens=100, context=(50, 2000)),
        Workload("story", m.GEMMA_STORY, m.SAMPLED, 0.4, answer_tokens=150, context=(50, 2000)),
    )
    return plain(m.GEMMA, loads, launch=Setting(16, 0.0), cap=16, loads=ALONE)


def _deep_split() -> Scenario:
    loads = (
        Workload("code", m.R9700_CODE, m.GREEDY, 0.4, 500, disguise=m.SAMPLED, disguised=0.1),
        Workload("prose", m.R9700_PROSE, m.SAMPLED, 0.25, 400),
        Workload("reasoning", m.R9700_REASONING, m.SAMPLED, 0.35, 600, disguise=m.GREEDY, disguised=0.1),
    )
    grid = (*GRID, Setting(10, 0.0), Setting(12, 0.0))
    frontier = measured(m.R9700_PAIR, loads, (500, 4000), grid=grid)
    return plain(m.R9700_PAIR, loads, launch=Setting(3, 0.0), cap=12, frontier=frontier)


def _p_min_sweep() -> Scenario:
    frontier = measured(m.PRO6000, m.PRO6000_MIX, (500, 4000))
    return plain(m.PRO6000, m.PRO6000_MIX, launch=Setting(5, 0.0), frontier=frontier)


def _p_min_matters() -> Scenario:
    return plain(m.DENSE_STRIX, one(m.DENSE_TEXT), launch=Setting(6, 0.0))


def _shallow() -> Scenario:
    kinds = {
        "python": (m.GREEDY, 0.3),
        "cpp": (m.GREEDY, 0.15),
        "qa": (m.TOOLS, 0.2),
        "creative": (m.SAMPLED, 0.2),
        "translation": (m.SAMPLED, 0.15),
    }
    loads = tuple(Workload(k, m.HYBRID_TEXTS[k], kind, share) for k, (kind, share) in kinds.items())
    return plain(m.HYBRID, loads, launch=N4)


def _nothing_wins() -> Scenario:
    loads = (
        Workload("code", m.V100_CODE, m.GREEDY, 0.5, 400, mood=0.08, character=0.1),
        Workload("prose", m.V100_PROSE, m.SAMPLED, 0.5, 400, mood=0.08, character=0.1),
    )
    return plain(
        m.V100, loads, launch=N2, baseline=N2, frontier=measured(m.V100, loads, (500, 4000), baseline=N2)
    )


def _off_wins() -> Scenario:
    loads = tuple(replace(load, share=share) for load, share in zip(m.M3_MIX, (0.15, 0.25, 0.6), strict=True))
    return plain(m.M3_ULTRA, loads, launch=Setting(3, 0.0))


def _offload() -> Scenario:
    # Four layers on the CPU: a verified row costs nearly a pass (m332, m333: n4 at 20.3, off at 25.2 tok/s).
    world = World(m.decaying(39.7), linear_shape(1.0, 0.83))
    loads = m.three(m.text(0.946, 0.204), m.text(0.85, 0.2), m.text(0.6, 0.2))
    return plain(world, loads, launch=N4, baseline=N4)


def _sign_change() -> Scenario:
    load = one(m.RADEON_TEXT, context=(300.0, 150000.0), turns=3.0, growth=800)
    steep = replace(m.RADEON780M, context_slope=0.45)
    frontier = measured(steep, load, (1000, 16000, 64000, 150000))
    return plain(steep, load, launch=N4, frontier=frontier, loads=ALONE)


def _gain_grows() -> Scenario:
    skill = ((4075.0, -0.61), (32467.0, -0.57), (64891.0, 0.18), (129781.0, 0.16))
    world = replace(m.TI5060_PAIR, context_skill=skill)
    load = one(m.text(0.768, 0.139), context=(1000.0, 120000.0), turns=3.0, growth=800)
    return plain(world, load, launch=Setting(1, 0.0), frontier=measured(world, load, (4075, 32467, 129781)))


def _valley() -> Scenario:
    # 80, 72 and 96 tok/s at n 2, 6 and 8 on two A5000 (design note; variance row v6 has 81 and 89-108).
    world = World(m.decaying(19.3), linear_shape(1.2, 0.3, cliffs={3: 1.1, 8: -0.87}))
    loads = m.three(m.text(0.965, 0.1), m.text(0.95, 0.1), m.text(0.9, 0.2))
    return plain(world, loads, launch=N2)


def _cliff() -> Scenario:
    loads = (
        Workload("code", m.STRIX_CODE, m.GREEDY, 0.6, disguise=m.SAMPLED, disguised=0.1),
        Workload("prose", m.STRIX_PROSE, m.SAMPLED, 0.4),
    )
    return plain(m.STRIX, loads, launch=Setting(12, 0.0), cap=12)


def _rejection() -> Scenario:
    # A recurrent state copied back: 14.96 ms per step (c24), at 44.87 tok/s off and 59.0 at n2 (m581, m582).
    world = World(m.decaying(22.3), linear_shape(1.0, 0.15), rejection=0.67, rewind=0.05)
    loads = m.three(m.text(0.93, 0.15), m.text(0.8, 0.2), m.text(0.6, 0.2))
    return plain(world, loads, launch=N4)


def _load() -> Scenario:
    # Wins alone, loses from two streams on (m599-m604): what a drafted row costs grows with the streams.
    world = World(
        m.decaying(41.2),
        linear_shape(1.0, 0.25),
        load_ms=(1.0, 1.0, 1.02, 1.05),
        load_slope=(1.0, 2.4, 2.6, 2.8),
    )
    loads = m.three(m.text(0.9, 0.2), m.text(0.8, 0.2), m.text(0.65, 0.2))
    return plain(world, loads, launch=Setting(3, 0.0), loads=((1, 0.4), (2, 0.3), (4, 0.3)))


def _shared() -> Scenario:
    # The gain vanishes at two streams but does not turn (m150-m155); every stream is slower there.
    world = replace(m.TI5060_PAIR, load_ms=(1.0, 1.77, 1.78, 1.79), load_slope=(1.0, 1.9, 2.0, 2.1))
    frontier = measured(world, m.TI5060_MIX, (500, 4000))
    return plain(world, m.TI5060_MIX, launch=N2, frontier=frontier, loads=((1, 0.5), (2, 0.25), (4, 0.25)))


def _heat() -> Scenario:
    # 600 W -> 400 W turns .168 per token into .241 (c1, c5); a hot M5 takes 50.6 instead of 37.3 ms (c17).
    world = replace(m.RTX5090, heat_gain=0.25, heat_free=2.5, heat_memory=25.0)
    loads = m.three(m.text(0.95, 0.15), m.text(0.85, 0.2), m.text(0.7, 0.2))
    return plain(world, loads, launch=Setting(1, 0.0), loads=ALONE)


def _spill() -> Scenario:
    # The desktop takes 115 MiB more: a drafting cycle goes from 39 to 100 ms, off stays (m13, m15, m16, m19).
    first = plain(
        m.RTX3080, m.RTX3080_MIX, launch=N2, frontier=measured(m.RTX3080, m.RTX3080_MIX, (500, 4000))
    )
    return then(first, 700, world=replace(first.phases[0].world, spill=2.5))


def _spill_context() -> Scenario:
    world = replace(m.RTX3080, spill=2.5, spill_context=8000)
    loads = tuple(replace(load, context=(200.0, 20000.0)) for load in m.RTX3080_MIX)
    return plain(world, loads, launch=N2)


def _phase_switch() -> Scenario:
    reasoning, prose, code = (
        one(m.R9700_MIX_TEXTS[k], answer_tokens=400) for k in ("reasoning", "prose", "code")
    )
    first = plain(m.R9700, code, launch=Setting(3, 0.0))
    return then(then(first, 500, workloads=reasoning), 1000, workloads=prose)


def _short_answers() -> Scenario:
    loads = tuple(replace(load, answer_tokens=18, answer_spread=0.8) for load in m.RTX3090_MIX)
    return plain(m.RTX3090, loads, launch=N4)


def _drafter_broken() -> Scenario:
    first = plain(m.MOE_R9700, one(m.MOE_TEXT), launch=Setting(3, 0.0), frontier=NO_FRONTIER)
    return then(first, 700, world=replace(first.phases[0].world, skill=-20.0))


def _build(told: bool) -> Scenario:
    # Depth 6, 7, 8 at 62.6, 64.4, 66.1 ms with matrix units and 62.5, 79.9, 91.6 without (c19); 27B, about 31 ms alone.
    old = World(m.decaying(31.0), linear_shape(1.0, 0.10))
    new = World(m.decaying(31.0), linear_shape(1.0, 0.30, cliffs={7: 0.35, 8: 0.25}))
    loads = m.three(m.text(0.955, 0.1), m.text(0.9, 0.2), m.text(0.75, 0.2))
    first = plain(old, loads, launch=N4, frontier=measured(old, loads, (500, 4000)))
    changed = replace(new, launch=first.phases[0].world.launch)
    return then(first, 600, world=changed, build="b2" if told else BUILD)


def _baseline_degrades() -> Scenario:
    # The same configuration run again: 62.7 then 51.0 tok/s at n4 (v9), 76.9 then 68.3 (v8).
    first = plain(
        m.RTX3090_TRIO, m.TRIO_MIX, launch=N4, frontier=measured(m.RTX3090_TRIO, m.TRIO_MIX, (500, 4000))
    )
    world = first.phases[0].world
    for start, factor in ((500, 1.1), (900, 1.23)):
        shape = tuple(ratio * factor if depth == 4 else ratio for depth, ratio in enumerate(world.shape))
        first = then(first, start, world=replace(world, shape=shape))
    return first


def _frontier_lies() -> Scenario:
    # One sweep says 56.4 tok/s, the next 33.5 for the same configuration (m631, v13): off by 40%.
    claims = {Setting(8, 0.0): 1.6, Setting(6, 0.0): 1.5, Setting(8, 0.3): 1.6, N2: 0.9, Setting(3, 0.0): 0.9}
    frontier = measured(m.RTX3090, m.RTX3090_MIX, (500, 4000), claims=claims, baseline=N4)
    return plain(m.RTX3090, m.RTX3090_MIX, launch=N4, baseline=N4, frontier=frontier)


def _no_frontier() -> Scenario:
    return plain(m.A6000, m.A6000_MIX, launch=N2, baseline=N2)


def _ignored() -> Scenario:
    world = replace(World(m.decaying(38.61), linear_shape(0.982, 0.19)), listens=Listens.IGNORES)
    first = plain(world, one(m.text(0.946, 0.204)), launch=N4, facts=ServerFacts())
    return then(first, 21, facts=ServerFacts(Listens.IGNORES))


def _n_max_only() -> Scenario:
    world = replace(m.P40_PAIR, listens=Listens.LOWERS_N)
    facts = ServerFacts(Listens.LOWERS_N, cap=6)
    return plain(world, one(m.P40_TEXT), launch=Setting(6, 0.75), cap=6, facts=facts)


def _refusals() -> Scenario:
    # m577-m579: 58.4, 81.4, 82.3 tok/s at 1, 4, 6 on ik_llama.cpp, which answers 400 above its start-up limit.
    world = replace(World(m.decaying(20.0), linear_shape(1.0, 0.12)), limit=4)
    loads = m.three(m.text(0.93, 0.15), m.text(0.85, 0.2), m.text(0.7, 0.2))
    return plain(world, loads, launch=N2)


def _noisy() -> Scenario:
    # Two runs of the same settings: n2 5.9 and 5.7, n5 8.5 and 6.7 tok/s (v5, m57-m67).
    world = World(
        m.decaying(385.0), linear_shape(0.9, 0.09), noise_request=0.12, outliers=0.03, outlier_factor=3.0
    )
    loads = m.three(m.text(0.92, 0.2), m.text(0.8, 0.2), m.text(0.5, 0.2))
    return replace(plain(world, loads, launch=N2), wander=0.04)


def _tenant() -> Scenario:
    # Everything at half speed for a while, and slow swings of 10% (variance rows v8, v9; public complaint C45).
    loads = m.three(m.text(0.9, 0.2), m.text(0.8, 0.2), m.text(0.6, 0.2))
    first = plain(m.RTX5090, loads, launch=N2, frontier=measured(m.RTX5090, loads, (500, 4000)))
    world = first.phases[0].world
    slow = replace(world, base_ms=tuple((tokens, 2.0 * ms) for tokens, ms in world.base_ms))
    return replace(then(then(first, 500, world=slow), 800, world=world), wander=0.10)


def _acceptance_lies() -> Scenario:
    # n3 is slower than off, n2,p0.6 has acceptance .94 and is only 3% faster than n2 (m521-m525).
    return plain(m.STEP_FLASH, one(m.STEP_TEXT), launch=Setting(3, 0.0))


SCENARIOS: Mapping[str, Entry] = {
    "note": Entry("the research note's own table and frontier", ("n1-n7",), _note),
    "server-default-trap": Entry("a launch value that is 5x too slow or right, by kind", ("g1-g18",), _trap),
    "deep-split": Entry("a deep optimum, and a prose/code split", ("m427-m447",), _deep_split),
    "shallow": Entry("a shallow optimum", ("m526-m538",), _shallow),
    "nothing-wins": Entry("nothing beats the baseline", ("m295-m306",), _nothing_wins),
    "off-wins": Entry("not drafting beats the baseline for most texts", ("m368-m387",), _off_wins),
    "offload": Entry("not drafting beats the baseline for all", ("m332", "m333"), _offload),
    "sign-change": Entry("the gain changes its sign with context", ("m584-m586", "c12"), _sign_change),
    "gain-grows": Entry("the gain grows with context", ("m113", "m140-m149"), _gain_grows),
    "valley": Entry("a valley in n between two optima", ("v6",), _valley),
    "cliff": Entry("a kernel cliff below the launch value", ("c8", "m512-m515"), _cliff),
    "rejection-cost": Entry("a rejection costs a copy of the state", ("m581", "m582", "c24"), _rejection),
    "p-min-sweep": Entry("p_min gains a tenth", ("m219-m294",), _p_min_sweep),
    "p-min-matters": Entry("p_min decides between gain and loss", ("m400-m402",), _p_min_matters),
    "load": Entry("drafting wins alone and loses from two streams on", ("m599-m604",), _load),
    "load-shared": Entry("the gain vanishes under load, all streams slow down", ("m150-m155",), _shared),
    "heat": Entry("heat acts on deep settings only", ("c1", "c5", "c17"), _heat),
    "memory-spill": Entry("draft memory spills from one moment on", ("m8-m19",), _spill),
    "spill-context": Entry("draft memory spills beyond a context", ("m15", "m16", "m20-m26"), _spill_context),
    "phase-switch": Entry("the work changes and nothing visible tells", ("m467-m474",), _phase_switch),
    "short-answers": Entry("answers of some twenty tokens", ("m28-m47",), _short_answers),
    "drafter-broken": Entry("the drafter breaks at request 700", ("m493-m496",), _drafter_broken),
    "build-change": Entry("another build reverses the ranking, and is seen", ("c19",), lambda: _build(True)),
    "build-silent": Entry("the same, and nobody tells", ("c19",), lambda: _build(False)),
    "baseline-degrades": Entry(
        "the baseline alone gets slower in steps", ("v8", "v9", "m76-m96"), _baseline_degrades
    ),
    "frontier-lies": Entry(
        "a frontier that promises what is not there", ("m631", "v13", "m28-m47"), _frontier_lies
    ),
    "no-frontier": Entry("a start from nothing", ("m198-m218",), _no_frontier),
    "fields-ignored": Entry("a server that ignores the fields, found out at 21", ("m326-m329",), _ignored),
    "n-max-only": Entry("a server that only lowers n_max", ("m156-m160",), _n_max_only),
    "refusals": Entry("a server that refuses n_max above 4", ("m577-m579",), _refusals),
    "noisy": Entry("12% noise per answer, and outliers", ("v5", "m57-m67"), _noisy),
    "tenant": Entry("everything at half speed for 300 requests", ("v8", "v9", "c1"), _tenant),
    "acceptance-lies": Entry("higher acceptance, hardly more speed", ("m521-m525",), _acceptance_lies),
}
