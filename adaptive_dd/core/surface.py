"""Tokens per cycle as a smooth surface over settings: what one setting's acceptance says about its neighbours'.

The noise of a measured speed is nearly all content: how many drafts happened to be accepted in these few hundred
tokens. But drafts of length n are prefixes of longer ones, so the mean acceptance of neighbouring settings cannot
differ much, while their cycle times can (kernel cliffs). So log tokens per cycle is smoothed over (depth, p_min), for
each sort of text and each text, by a Gaussian process (Rasmussen and Williams, 2006, ch. 2), and the cycle time stays
as it was measured.

`smoothed` uses that as a control variate: an answer whose drafts were luckier than the surface expects is priced as if
they had not been. The slope between luck and time is estimated from the answers themselves.

Where it works: many settings, few answers of each. Where it misleads: a drafter whose acceptance jumps between
neighbouring depths or p levels; a term for each setting's own deviation lets many answers overrule the surface then.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.domain import Setting

Array = NDArray[np.float64]

# Prior of log tokens per cycle, which grows like SLOPE * log(1 + n): amplitudes in units of log(1 + n).
SLOPE = 0.5
LEVEL, SHAPE = 0.25, 0.12  # of all texts: overall, and its bend over depth and p
SORT_LEVEL, SORT_SHAPE = 0.2, 0.06  # of one sort of text
TEXT_LEVEL = 0.1  # of one text
OWN = 0.015  # of one setting: what smoothness cannot know
DEPTH_SCALE, P_SCALE = 0.7, 0.4
# Emitted tokens of a cycle lie between 1 and n + 1, mostly at the ends: the share of the largest possible variance.
TWO_POINT_SHARE = 0.6
NOISE_FLOOR = 1e-5


@dataclass(frozen=True, slots=True)
class Answer:
    """One measured answer, as far as the surface looks at it."""

    setting: Setting
    block: int
    sort: str
    tokens: int
    cycles: int
    drafted: int
    ms: float


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Per answer: time per token with the luck taken out; and the posterior covariance of log tokens per cycle."""

    ms_per_token: Array
    covariance: Array
    slope: Array


def smoothed(answers: Sequence[Answer]) -> Smoothed:
    """Take the luck out of each answer's time per token."""
    emitted = np.array([math.log(a.tokens / a.cycles) for a in answers])
    depth = _depths(answers)
    x = np.log1p(depth)
    prior = _kernel(answers, x)
    noise = _noise(answers, depth)
    solved = np.linalg.solve(prior + np.diag(noise), prior).T
    mean = SLOPE * x + solved @ (emitted - SLOPE * x)
    covariance = prior - solved @ prior
    log_cost = np.array([math.log(a.ms / a.tokens) for a in answers])
    slope = _slopes(answers, emitted, log_cost)
    return Smoothed(np.exp(log_cost - slope * (emitted - mean)), covariance, slope)


def _depths(answers: Sequence[Answer]) -> Array:
    """Depth of each answer's setting; for a setting that leaves n to the server, what it was seen to draft."""
    seen: dict[Setting, float] = {}
    for a in answers:
        seen[a.setting] = max(seen.get(a.setting, 0.0), a.drafted / a.cycles)
    return np.array(
        [seen[a.setting] if a.setting.n_max is None else a.setting.n_max for a in answers], dtype=float
    )


def _codes(values: Sequence[Hashable]) -> NDArray[np.int64]:
    """Each value as the number of its first appearance."""
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    return np.array([codes[value] for value in values], dtype=np.int64)


def _same(values: Sequence[Hashable]) -> Array:
    codes = _codes(values)
    same: Array = (codes[:, None] == codes[None, :]).astype(np.float64)
    return same


def _kernel(answers: Sequence[Answer], x: Array) -> Array:
    p = np.array([a.setting.p_min or 0.0 for a in answers])
    near = np.exp(-(((x[:, None] - x) / DEPTH_SCALE) ** 2 + ((p[:, None] - p) / P_SCALE) ** 2) / 2.0)
    sort = _same([a.sort for a in answers])
    text = _same([a.block for a in answers])
    own = _same([a.setting for a in answers])
    amplitude = LEVEL**2 + SHAPE**2 * near + sort * (SORT_LEVEL**2 + SORT_SHAPE**2 * near)
    total: Array = np.outer(x, x) * (amplitude + TEXT_LEVEL**2 * text + OWN**2 * own * (1.0 + sort))
    return total


def _noise(answers: Sequence[Answer], depth: Array) -> Array:
    mean = np.array([a.tokens / a.cycles for a in answers])
    cycles = np.array([a.cycles for a in answers], dtype=float)
    spread = np.maximum(0.0, (mean - 1.0) * (depth + 1.0 - mean)) / mean**2
    noise: Array = TWO_POINT_SHARE * spread / cycles + NOISE_FLOOR
    return noise


def _slopes(answers: Sequence[Answer], emitted: Array, log_cost: Array) -> Array:
    """d log(time per token) / d log(tokens per cycle) within a setting and sort of text, for each p level.

    -1 where a cycle's time does not depend on content; with p_min a luckier draft is also a longer one, which costs.
    Drawn towards the typical slope with the weight of twenty typical answers.
    """
    group = _codes([(a.setting, a.sort) for a in answers])
    size = np.bincount(group)
    e = emitted - (np.bincount(group, emitted) / size)[group]
    c = log_cost - (np.bincount(group, log_cost) / size)[group]
    levels = [a.setting.p_min or 0.0 for a in answers]
    level = _codes(levels)
    see, sec = np.bincount(level, e * e), np.bincount(level, e * c)
    p = np.array(list(dict.fromkeys(levels)))
    prior = 20.0 * 0.05**2
    slopes: Array = ((sec - prior * (1.0 - 0.6 * p)) / (see + prior))[level]
    return slopes
