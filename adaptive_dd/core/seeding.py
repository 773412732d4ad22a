"""A frontier's rows, taken as if they had been answers: weak evidence, soon outweighed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from adaptive_dd.core import estimator
from adaptive_dd.core.acceptance import LEVELS, draft_table
from adaptive_dd.core.domain import SERVER, Frontier, FrontierRow, Timings
from adaptive_dd.core.frontier import bucket_of
from adaptive_dd.core.learned import Answer, Learned, Residuals, arm_of
from adaptive_dd.core.regression import scaled

# Tokens of the pretended answer, and the most that one arm's rows may weigh: below what makes an arm familiar.
ROW_TOKENS, ROW_WEIGHT = 400, 0.8
# Share of that weight which rows of another model or build have: its kernels may have turned the ranking round.
FROM_ELSEWHERE = 0.02
# Where nothing tells how predictable the measured texts were: as the middle of public figures.
USUAL_PLACE = 8


def seeded(learned: Learned, frontier: Frontier, edges: tuple[int, ...], *, foreign: bool = False) -> Learned:
    """The estimator after the frontier's rows. foreign: they were measured on another model or build."""
    usable = [row for row in frontier.rows if row.setting != SERVER and not row.mark and row.tok_s > 0.0]
    for context_tokens, kind in sorted({(row.context_tokens, row.kind) for row in usable}):
        here = [row for row in usable if (row.context_tokens, row.kind) == (context_tokens, kind)]
        place = _usual_place(here)
        for row in here:
            answer = _as_answer(row, place, bucket_of(edges, context_tokens))
            learned = estimator.learn(learned, answer, estimator.read(learned, answer))
    return _weakened(learned, FROM_ELSEWHERE if foreign else 1.0)


def _usual_place(rows: Sequence[FrontierRow]) -> int:
    """The level at which the rows of one context make cycle time most nearly a line in depth.

    tok/s alone does not tell acceptance from cycle time; but T = E / tok_s, and T is close to a line.
    """
    plain = [r for r in rows if r.setting.n_max is not None and not r.setting.p_min]
    if len({r.setting.n_max for r in plain}) < 4:
        return USUAL_PLACE
    return min(range(len(LEVELS)), key=lambda place: _bend(plain, place))


def _bend(rows: Iterable[FrontierRow], place: int) -> float:
    """Relative residual of the straight line through cycle times at a level."""
    points = []
    for row in rows:
        depth = float(row.setting.n_max or 0)
        points.append((depth, (1.0 + draft_table(depth, 0.0).accepted[place]) / row.tok_s))
    n, mean_x, mean_y = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    mean_x, mean_y = mean_x / n, mean_y / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = max(0.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)
    return math.sqrt(sum(((y - mean_y - slope * (x - mean_x)) / y) ** 2 for x, y in points) / n)


def _as_answer(row: FrontierRow, place: int, bucket: int) -> Answer:
    arm = arm_of(row.setting)
    table = draft_table(arm.depth, arm.p_min)
    if row.acceptance is not None and row.setting.n_max:
        shares = [a / max(d, 1e-9) for a, d in zip(table.accepted, table.drafted, strict=True)]
        place = min(range(len(LEVELS)), key=lambda i: abs(shares[i] - (row.acceptance or 0.0)))
    cycles = max(1, round(ROW_TOKENS / (1.0 + table.accepted[place])))
    timings = Timings(
        row.context_tokens,
        1.0,
        ROW_TOKENS + 1,
        1000.0 * ROW_TOKENS / row.tok_s,
        draft_n=round(cycles * table.drafted[place]),
        draft_n_accepted=ROW_TOKENS - cycles,
    )
    return Answer(arm, bucket, 0, row.kind, "", timings)


def _weakened(learned: Learned, share: float) -> Learned:
    """The estimator with what single rows weigh limited, and `share` of all that.

    Texts stay as they are: acceptance is the models' and hardly the build's.
    """
    shapes = {
        load: replace(shape, fit=scaled(shape.fit, share), rho=_limited(shape.rho, share))
        for load, shape in learned.shapes.items()
    }
    nodes = {
        key: replace(node, fit=scaled(node.fit, share), rho=_limited(node.rho, share))
        for key, node in learned.nodes.items()
    }
    return replace(learned, shapes=shapes, nodes=nodes)


def _limited(rho: Residuals, share: float) -> Residuals:
    return {name: replace(tally, weight=share * min(tally.weight, ROW_WEIGHT)) for name, tally in rho.items()}
