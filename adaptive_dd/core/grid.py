"""Which arms a deployment has: off, a grid of depths and p levels, and what a frontier names."""

from __future__ import annotations

from collections.abc import Iterable

from adaptive_dd.core.domain import OFF, SERVER, Frontier, Setting
from adaptive_dd.core.learned import Arm, arm_of

# Depths that may be tried; beyond 8 speed moves slowly with depth, so the grid thins out.
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
P_LEVELS = (0.0, 0.3, 0.6)
# Without any cap to go by: as deep as public measurements show a gain.
DEPTH_WITHOUT_CAP = 8


def arms_of(frontier: Frontier, baseline: Setting, *, cap: int | None, only_n: bool) -> tuple[Arm, ...]:
    """Every arm of a deployment, the baseline first. only_n: the server takes n_max and nothing else."""
    named = [row.setting for row in frontier.rows] + [setting for _, setting in frontier.rules]
    deepest = cap if cap is not None else max([DEPTH_WITHOUT_CAP, *[s.n_max or 0 for s in named]])
    depths = sorted({n for n in DEPTHS if n <= deepest} | ({deepest} if deepest > 0 else set()))
    levels = _levels(named)
    grid = (
        [Setting(n) for n in depths]
        if only_n
        else [Setting(n, p) for n in depths for p in levels if _useful(n, p)]
    )
    wanted = [] if only_n else [s for s in named if s.n_max is not None and s.n_max <= deepest and s != OFF]
    found = {OFF, *grid, *wanted} - {baseline, SERVER}
    return tuple(arm_of(setting) for setting in (baseline, *sorted(found, key=lambda s: s.order)))


def arms_at(places: tuple[Setting, ...], baseline: Setting, *, cap: int | None) -> tuple[Arm, ...]:
    """The arms of a deployment where each is a place, the baseline first."""
    fit = {s for s in places if cap is None or (s.n_max or 0) <= cap} - {baseline, SERVER}
    return tuple(arm_of(setting) for setting in (baseline, *sorted(fit, key=lambda s: s.order)))


def _levels(named: Iterable[Setting]) -> tuple[float, ...]:
    """The p levels of the grid, without those that a named one nearly is."""
    own = {s.p_min for s in named if s.p_min is not None}
    return tuple(sorted(own | {p for p in P_LEVELS if all(abs(p - q) > 0.1 or p == q for q in own)}))


def _useful(n: int, p: float) -> bool:
    """A draft of one token hardly needs a way to stop early."""
    return p == 0.0 or n >= 2
