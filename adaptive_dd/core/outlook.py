"""What every arm is expected to cost at one place: the estimator's parts put together, for all arms at once.

Arrays, because this is what an answer waits for most: some forty arms by thirteen levels of text. What the estimator
knows of single arms is in mappings, and few arms were ever played, so those are gone through one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.acceptance import LEVELS, MIDDLE, draft_table
from adaptive_dd.core.estimator import jump_doubt, node_coef, residual
from adaptive_dd.core.learned import (
    NO_LIFT,
    NO_NODE,
    NO_SHAPE,
    NO_TEXT,
    Arm,
    Learned,
    Lift,
    node_of,
    text_key,
)
from adaptive_dd.core.regression import SHAPE_PRIOR, Fit, uncertainty
from adaptive_dd.core.texts import (
    BANDS,
    BIAS_LEAN,
    SLANT_LEAN,
    Rows,
    band_of,
    baseline_rows,
    depth_of,
    traits_of,
)

Array = NDArray[np.float64]
Known = TypeVar("Known")

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

    cost     ms per token by text (arm, level)
    sd       standard error of the log of that (arm,), apart from what all arms share
    cycles   cycles per token by text (arm, level), by the tables alone
    middling cost by text (arm, level) on a machine of the usual shape, in units of its cycle that drafts nothing
    """

    cost: Array
    sd: Array
    cycles: Array
    middling: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Board:
    """What follows from a set of arms alone (arm,). Hashed by identity, so that what is kept for it is found at once.

    place           index by name
    drafts          whether it drafts; `other_sort`: whether it does and the baseline does not, or the reverse
    doublings       of its depth plus one
    bias_precision  of its cycles per token before any answer
    traits          what may make an arm see a text differently (trait, arm), by `trait_names`
    """

    place: Mapping[str, int]
    depth: Sequence[float]
    p_min: Sequence[float]
    drafts: NDArray[np.bool_]
    other_sort: NDArray[np.bool_]
    doublings: Array
    bias_precision: Array
    trait_names: Sequence[str]
    traits: Array


@lru_cache(maxsize=64)
def _board(arms: tuple[Arm, ...], server_depth: float) -> _Board:
    depth = [arm.depth if arm.depth >= 0.0 else server_depth for arm in arms]
    p_min = [arm.p_min for arm in arms]
    drafts = np.array(depth) > 0.0
    plain = np.array(p_min) == 0.0
    own = [traits_of(d, p) for d, p in zip(depth, p_min, strict=True)]
    names = sorted({name for traits in own for name in traits})
    return _Board(
        place={arm.name: at for at, arm in enumerate(arms)},
        depth=depth,
        p_min=p_min,
        drafts=drafts,
        other_sort=drafts != drafts[0],
        doublings=np.log2(1.0 + np.array(depth)),
        bias_precision=np.where(plain, 1.0 / BIAS_SD**2, 1.0 / BIAS_P_SD**2),
        trait_names=names,
        traits=np.array([[traits.get(name, 0.0) for traits in own] for name in names]).reshape(-1, len(arms)),
    )


class _Tables(NamedTuple):
    """What arms draft. drawn: features of a cycle with a middling text (4, arm); per_token: 1, share of cycles that
    draft, drafted tokens and share with a rejection, over the tokens of a cycle (4, arm x level); middling: see
    `Outlooks` (arm x level)."""

    drawn: Array
    per_token: Array
    middling: Array


@lru_cache(maxsize=64)
def _tables(board: _Board, shifts: tuple[float, ...]) -> _Tables:
    forms = zip(board.depth, board.p_min, shifts, strict=True)
    rows = np.concatenate([_table(*form) for form in forms]).reshape(len(shifts), len(LEVELS), 4)
    features, per_token = rows.transpose(2, 0, 1)[:3], rows[:, :, 3]
    drawn = np.concatenate([np.ones((1, len(shifts))), features[:, :, MIDDLE]])
    over_tokens = np.concatenate([per_token[None], features * per_token]).reshape(4, -1)
    return _Tables(drawn, over_tokens, np.array(SHAPE_PRIOR) @ over_tokens)


@lru_cache(maxsize=4096)
def _table(depth: float, p_min: float, shift: float) -> Array:
    """The rows of a draft table, one after the other (level x 4)."""
    return np.array(draft_table(depth, p_min, shift).rows).ravel()


class _Heard(NamedTuple):
    """What was heard of each arm: the log of its own factor on the tables by band of text (arm, band), and the
    evidence of its load, its node and its text (arm,)."""

    log_factor: Array
    at_load: Array
    at_node: Array
    of_text: Array


def outlooks(learned: Learned, place: Place, arms: tuple[Arm, ...]) -> Outlooks:
    """What is expected of each arm at a place."""
    board = _board(arms, depth_of(learned, arms[0]))
    tables = _tables(board, _shifts(learned.lifts, board))
    heard = _heard(learned, place, arms, board)
    coef = np.array(node_coef(learned, place.bucket, place.load))
    factor = np.exp(heard.log_factor).take(_BAND_OF_LEVEL, axis=1)
    cost = (coef @ tables.per_token).reshape(factor.shape)
    middling = tables.middling.reshape(factor.shape).copy()
    cost[0], middling[0] = _of_baseline(learned, arms[0], coef)
    cost *= factor
    variance = _time_variance(learned, place, board, tables, heard)
    variance += board.drafts / (board.bias_precision + heard.of_text * AT_TEXT)
    cycles = tables.per_token[0].reshape(factor.shape)
    sd = np.sqrt(variance + MODEL_SD * MODEL_SD)
    return Outlooks(cost, sd, cycles, middling)


def _of_baseline(learned: Learned, baseline: Arm, coef: Array) -> tuple[Array, Array]:
    """The baseline's cost by text (level,), and that on a machine of the usual shape: its own answers show how much it
    drafts, which may be less on hard text where nobody said that a p_min ends its drafts."""
    per_token, middling = _per_token(baseline_rows(learned, baseline))
    return per_token @ coef, middling


@lru_cache(maxsize=64)
def _per_token(rows: Rows) -> tuple[Array, Array]:
    """Features of a cycle over its tokens (level, 4), and what they cost on a machine of the usual shape (level,)."""
    table = np.array(rows)
    per_token = np.column_stack((np.ones(len(table)), table[:, :3])) * table[:, 3:]
    return per_token, per_token @ np.array(SHAPE_PRIOR)


def _heard(learned: Learned, place: Place, arms: tuple[Arm, ...], board: _Board) -> _Heard:
    shape = learned.shapes.get(place.load, NO_SHAPE)
    here = learned.nodes.get(node_of(place.bucket, place.load), NO_NODE)
    factor, of_text = _heard_of_text(learned, place, board)
    slants = _heard_of_slants(learned, board, of_text)
    at_load, at_node = [0.0] * len(arms), [0.0] * len(arms)
    for at, tally in _on(board, shape.rho):
        at_load[at] = tally.weight
        factor[at] += residual(shape, here, arms[at])
    for at, tally in _on(board, here.rho):
        at_node[at] = tally.weight
    for at, own in _on(board, learned.apart):
        factor[at] += own
    everything = np.array([factor, at_load, at_node, of_text])
    return _Heard((slants + everything[0]).T, *everything[1:])


def _heard_of_text(learned: Learned, place: Place, board: _Board) -> tuple[list[float], list[float]]:
    """The log of each arm's factor on the tables' cycles per token, with that of the whole machine, and the evidence
    behind it (arm,)."""
    factor, of_text = [learned.common] * len(board.depth), [0.0] * len(board.depth)
    for at, tally in _beside(board, learned.texts.get("", NO_TEXT).bias):
        factor[at] += tally.shrunk(BIAS_LEAN)
    for at, tally in _beside(board, learned.texts.get(text_key(place.kind, place.bucket), NO_TEXT).bias):
        factor[at] += tally.shrunk(BIAS_LEAN)
        of_text[at] = tally.weight if board.p_min[at] == 0.0 else 0.0
    return factor, of_text


def _heard_of_slants(learned: Learned, board: _Board, of_text: list[float]) -> Array:
    """The slants (band, arm); their evidence is added to `of_text`."""
    slants = [[0.0] * len(of_text) for _ in range(len(BANDS) + 1)]
    for at, tallies in _beside(board, learned.slants):
        for own, tally in zip(slants, tallies, strict=True):
            if tally.weight:
                own[at] = tally.shrunk(SLANT_LEAN)
                of_text[at] += 0.5 * tally.weight
    return np.array(slants)


def _on(board: _Board, known: Mapping[str, Known]) -> list[tuple[int, Known]]:
    """What is known by name, by index; arms that are not on the board are left out."""
    place = board.place
    return [(place[name], own) for name, own in known.items() if name in place]


def _beside(board: _Board, known: Mapping[str, Known]) -> list[tuple[int, Known]]:
    """The same without the baseline, by which texts are told, though it may have been an arm like others once."""
    return [(at, own) for at, own in _on(board, known) if at]


def _time_variance(learned: Learned, place: Place, board: _Board, tables: _Tables, heard: _Heard) -> Array:
    """Variance (arm,) of the log of an arm's cycle time."""
    shape = learned.shapes.get(place.load, NO_SHAPE)
    played = tuple([at for at, weight in enumerate(heard.at_load.tolist()) if weight > PLAYED])
    prior = _untried_variance(board, played) + _line_variance(shape.fit, tables.drawn)
    at_node = np.minimum(heard.at_node, heard.at_load)
    variance: Array = 1.0 / (1.0 / prior + heard.at_load * AT_LOAD + at_node * AT_NODE)
    if place.load:
        variance += np.where(heard.at_load > 0.0, 0.0, LOAD_SD * LOAD_SD)
    for at, shift in _on(board, learned.unsure):
        variance[at] += shift * shift
    if node_of(place.bucket, place.load) in learned.nodes:
        jump = jump_doubt(learned, place.bucket, place.load)
        if jump > 0.0:
            variance += np.where(board.other_sort & (heard.at_node < 0.5), jump * jump, 0.0)
    return variance


def _shifts(lifts: Mapping[str, Lift], board: _Board) -> tuple[float, ...]:
    """Logits by which each arm finds the same text easier than two tokens do, in steps that tables are kept for."""
    if not lifts:
        return (0.0,) * len(board.depth)
    logits = np.array([lifts.get(name, NO_LIFT).logits for name in board.trait_names])
    steps: list[float] = (np.rint(20.0 * (logits @ board.traits)) / 20.0).tolist()
    return tuple(steps)


def _line_variance(fit: Fit, drawn: Array) -> Array:
    """Relative variance (arm,) of the line at the features `drawn` (4, arm), as the ridge regression itself has it."""
    if not fit.by_arm:
        return np.zeros(drawn.shape[1])
    rows, weights = uncertainty(fit)
    apart = np.array(rows) @ drawn
    spread = np.array(weights) @ (apart * apart)
    return np.asarray(np.minimum(spread / (np.array(fit.coef) @ drawn) ** 2, LARGEST_VARIANCE))


@lru_cache(maxsize=256)
def _untried_variance(board: _Board, played: tuple[int, ...]) -> Array:
    """Variance (arm,) of the log of an arm's cycle time before it is played: how far from what was played it is."""
    own, there = board.doublings, list(played)
    away = np.abs(own[:, None] - own[there]).min(axis=1) if played else np.ones(len(own))
    seen = {0.0, *[board.p_min[at] for at in played if board.drafts[at]]}
    new_p = np.array([p not in seen for p in board.p_min])
    sd: Array = UNTRIED_SD * (0.6 + 0.5 * away) + np.where(new_p, UNTRIED_P_SD, 0.0)
    return sd**2
