"""What every arm is expected to cost at one place: the estimator's parts put together, for all arms at once.

Arrays, because this is what an answer waits for most: some forty arms by thirteen levels of text. What the estimator
knows of single arms is in mappings, and few arms were ever played, so those are gone through one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.acceptance import LEVELS, MIDDLE, draft_table, reach_of
from adaptive_dd.core.estimator import (
    BIAS_LEAN,
    BIAS_LEAN_P,
    NO_LIFT,
    NO_NODE,
    NO_SHAPE,
    NO_TEXT,
    NOTHING,
    SLANT_LEAN,
    Arm,
    Learned,
    Lift,
    Residuals,
    band_of,
    depth_of,
    jump_doubt,
    node_coef,
    node_of,
    residual,
    text_key,
)
from adaptive_dd.core.regression import SHAPE_SD, Fit

Array = NDArray[np.float64]

# Before an arm was played: sd of the log of its cycle time around the line, and of its cycles per token.
UNTRIED_SD, UNTRIED_P_SD, BIAS_SD, BIAS_P_SD = 0.10, 0.05, 0.03, 0.06
MODEL_SD = 0.012  # of any prediction: no model is exact
ANSWER_SD = 0.15  # of log cycles per token around what text and conversation say

# Precision of log cycle time by an answer of the load and of the node, and of cycles per token by an answer.
AT_LOAD, AT_NODE, AT_TEXT = 1.0 / 0.05**2, 1.0 / 0.035**2, 1.0 / ANSWER_SD**2
# sd of the log of an arm's cycle time at a load where it was never played: drafting may cost up to three times as much.
LOAD_SD = 0.2
# A line says no less than this about an arm: costs differ by factors, not by orders of magnitude.
LARGEST_VARIANCE = 0.3**2
# Weight from which an arm counts as played where distances to it are taken.
PLAYED = 0.3
_BAND_OF_LEVEL = np.array([band_of(z) for z in LEVELS])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prediction is asked for: bucket, load and kind of request."""

    bucket: int
    load: int
    kind: str


class Outlooks(NamedTuple):
    """What is expected of arms somewhere.

    cost   ms per token by text (arm, level)
    sd     standard error of the log of that (arm,), apart from what all arms share
    """

    cost: Array
    sd: Array


class _Board(NamedTuple):
    """What follows from a set of arms alone (arm,). `levels`: index of each arm's p among `p_levels`."""

    place: Mapping[str, int]
    depth: Array
    plain: NDArray[np.bool_]
    p_min: Array
    reach: Array
    p_levels: tuple[float, ...]
    levels: NDArray[np.int64]


@lru_cache(maxsize=64)
def _board(arms: tuple[Arm, ...], server_depth: float) -> _Board:
    depth = np.array([arm.depth if arm.depth >= 0.0 else server_depth for arm in arms])
    p_min = np.array([arm.p_min for arm in arms])
    p_levels = tuple(sorted({arm.p_min for arm in arms}))
    reach = [reach_of(float(d), arm.p_min) if d > 0.0 else 0.0 for d, arm in zip(depth, arms, strict=True)]
    levels = np.array([p_levels.index(arm.p_min) for arm in arms])
    place = {arm.name: at for at, arm in enumerate(arms)}
    return _Board(place, depth, p_min == 0.0, p_min, np.array(reach), p_levels, levels)


@lru_cache(maxsize=64)
def _tables(arms: tuple[Arm, ...], server_depth: float, shifts: tuple[float, ...]) -> Array:
    """(4, arm, level): share of cycles that draft, drafted tokens, share with a rejection, cycles per token."""
    depth = _board(arms, server_depth).depth.tolist()
    return np.stack([_table(d, arm.p_min, s) for d, arm, s in zip(depth, arms, shifts, strict=True)], axis=1)


@lru_cache(maxsize=4096)
def _table(depth: float, p_min: float, shift: float) -> Array:
    """(4, level): see `_tables`."""
    return np.array(draft_table(depth, p_min, shift).rows).T


class _Heard(NamedTuple):
    """What was heard of each arm (arm,): the log of its own factor on the tables, and the evidence behind it."""

    log_factor: Array
    load_weight: Array
    node_weight: Array
    text_weight: Array


def outlooks(learned: Learned, place: Place, arms: tuple[Arm, ...]) -> Outlooks:
    """What is expected of each arm at a place."""
    server_depth = depth_of(learned, arms[0])
    board = _board(arms, server_depth)
    tables = _tables(arms, server_depth, _shifts(learned.lifts, board))
    heard = _heard(learned, place, arms, board)
    cost = _cost(learned, place, tables, heard)
    answers = np.where(board.plain, heard.text_weight, 0.0)
    for name, tallies in learned.slants.items():
        at = board.place.get(name)
        if at is not None:
            slant = np.exp([tally.shrunk(SLANT_LEAN) for tally in tallies])
            cost[at] *= slant[_BAND_OF_LEVEL]
            answers[at] = 0.5 * sum([tally.weight for tally in tallies])
    variance = _time_variance(learned, place, board, tables, heard)
    bias_precision = np.where(board.plain, 1.0 / BIAS_SD**2, 1.0 / BIAS_P_SD**2)
    variance += np.where(board.depth > 0.0, 1.0 / (bias_precision + answers * AT_TEXT), 0.0)
    return Outlooks(cost, np.sqrt(variance + MODEL_SD * MODEL_SD))


def _heard(learned: Learned, place: Place, arms: tuple[Arm, ...], board: _Board) -> _Heard:
    shape = learned.shapes.get(place.load, NO_SHAPE)
    here = learned.nodes.get(node_of(place.bucket, place.load), NO_NODE)
    text = learned.texts.get(text_key(place.kind, place.bucket), NO_TEXT)
    everything = learned.texts.get("", NO_TEXT)
    heard = _Heard(*np.zeros((4, len(arms))))
    for name in {*shape.rho, *here.rho, *text.bias, *everything.bias, *learned.apart}:
        at = board.place.get(name)
        if at is None:
            continue
        arm, own = arms[at], text.bias.get(name, NOTHING)
        lean = BIAS_LEAN if arm.p_min == 0.0 else BIAS_LEAN_P
        heard.log_factor[at] = (
            learned.apart.get(name, 0.0)
            + residual(shape, here, arm)
            + own.shrunk(lean)
            + everything.bias.get(name, NOTHING).shrunk(lean)
        )
        heard.load_weight[at] = shape.rho.get(name, NOTHING).weight
        heard.node_weight[at] = here.rho.get(name, NOTHING).weight
        heard.text_weight[at] = own.weight
    return heard


def _cost(learned: Learned, place: Place, tables: Array, heard: _Heard) -> Array:
    """ms per token (arm, level), without slants."""
    drafts, drafted, rejected, per_token = tables
    t0, t1, t2, t3 = node_coef(learned, place.bucket, place.load)
    factor = np.exp(heard.log_factor + learned.common)
    cost: Array = (t0 + t1 * drafts + t2 * drafted + t3 * rejected) * per_token * factor[:, None]
    return cost


def _time_variance(learned: Learned, place: Place, board: _Board, tables: Array, heard: _Heard) -> Array:
    """Variance (arm,) of the log of an arm's cycle time."""
    shape = learned.shapes.get(place.load, NO_SHAPE)
    drawn = np.concatenate([np.ones((len(board.depth), 1)), tables[:3, :, MIDDLE].T], axis=1)
    prior = _distances(board, shape.rho) ** 2 + _line_variance(shape.fit, drawn)
    at_node = np.minimum(heard.node_weight, heard.load_weight)
    variance: Array = 1.0 / (1.0 / prior + heard.load_weight * AT_LOAD + at_node * AT_NODE)
    if place.load:
        variance += np.where(heard.load_weight > 0.0, 0.0, LOAD_SD * LOAD_SD)
    for name, shift in learned.unsure.items():
        at = board.place.get(name)
        if at is not None:
            variance[at] += shift * shift
    if node_of(place.bucket, place.load) in learned.nodes:
        jump = jump_doubt(learned, place.bucket, place.load)
        other_sort = (board.depth > 0.0) != (board.depth[0] > 0.0)
        variance += np.where(other_sort & (heard.node_weight < 0.5), jump * jump, 0.0)
    return variance


def _shifts(lifts: Mapping[str, Lift], board: _Board) -> tuple[float, ...]:
    """Logits by which each arm finds the same text easier than two tokens do, in steps that tables are kept for."""
    if not lifts:
        return (0.0,) * len(board.depth)
    of_p = np.array([lifts.get(f"p{p}", NO_LIFT).logits if p else 0.0 for p in board.p_levels])
    shift = lifts.get("reach", NO_LIFT).logits * board.reach + of_p[board.levels]
    steps = np.where(board.depth > 0.0, np.round(20.0 * shift) / 20.0, 0.0)
    return tuple(steps.tolist())


def _line_variance(fit: Fit, drawn: Array) -> Array:
    """Relative variance (arm,) of the line at the features `drawn` (arm, 4), as the ridge regression itself has it."""
    if not fit.by_arm:
        return np.zeros(len(drawn))
    a, b, c, d, e, f, g, h, i, j = fit.total[:10]
    scale = fit.coef[0]
    p1, p2, p3 = (1.0 / (sd * sd * scale * scale) for sd in SHAPE_SD[1:])
    precision = np.array([[a, b, c, d], [b, e + p1, f, g], [c, f, h + p2, i], [d, g, i, j + p3]])
    precision += np.eye(4) * (1e-12 * np.trace(precision))  # one depth alone leaves it nearly singular
    spread = np.einsum("ni,ij,nj->n", drawn, np.linalg.inv(precision), drawn)
    variance: Array = spread / (drawn @ np.array(fit.coef)) ** 2
    return np.asarray(np.minimum(variance, LARGEST_VARIANCE))


def _distances(board: _Board, rho: Residuals) -> Array:
    """sd of the log of an arm's cycle time before it is played: how far from what was played it is."""
    played = [
        board.place[name] for name, tally in rho.items() if tally.weight > PLAYED and name in board.place
    ]
    own = np.log2(1.0 + board.depth)
    away = np.abs(own[:, None] - own[played]).min(axis=1) if played else np.ones(len(own))
    base: Array = UNTRIED_SD * (0.6 + 0.5 * away)
    seen = {float(board.p_min[at]) for at in played if board.depth[at] > 0.0}
    new_p = np.array([p != 0.0 and p not in seen for p in board.p_levels])
    return base + np.where(new_p[board.levels], UNTRIED_P_SD, 0.0)
