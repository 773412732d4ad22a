"""Acceptance as arithmetic: what a draft of depth n at level p_min gives for text of a known predictability.

Text is described by one number, `q`, the chance that a drafted token is accepted given that those before it were.
Drafts of length n are prefixes of longer ones, so one q speaks for every depth:

    accepted per cycle  A(n, q) = q + q^2 + ... + q^n      tokens per cycle E = 1 + A

q is kept on a fixed grid of logits (`LEVELS`), so that a distribution of texts is a tuple of weights and a prediction
is a sum over a table. Public figures of survival by position are close to geometric within one kind of content; over
mixed content the tail is heavier, which a *distribution* over q reproduces.

p_min ends a draft at the first token whose confidence is below it. The tables assume a calibrated drafter whose
confidence in a token is Beta distributed around the true chance with concentration 3 (three pseudo-observations: it
knows a little about its own errors). That is a prior for p levels that were never played and nothing more: real
drafters shift by text and context, so direct evidence corrects both drafted length and acceptance.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

# Logits of q: .027 to .995 in steps that one answer of some forty cycles can just tell apart.
LEVELS = tuple(-3.6 + 0.7 * i for i in range(13))
CHANCES = tuple(1.0 / (1.0 + math.exp(-z)) for z in LEVELS)
MIDDLE = 7  # index of q = .79, the middle of public figures
CONCENTRATION = 3.0

Weights = tuple[float, ...]  # (level,): a distribution of texts over LEVELS, or a likelihood


@dataclass(frozen=True, slots=True)
class DraftTable:
    """What a draft form gives at each level (level,), per cycle.

    accepted, drafted      tokens; `accepted` grows with the level
    drafts                 share of cycles that draft
    rejected               share of cycles in which something drafted was rejected
    cycles_per_token       1 / (1 + accepted)
    rows                   (level, 4): share of cycles that draft, drafted, rejected, cycles_per_token
    """

    accepted: Weights
    drafts: Weights
    drafted: Weights
    rejected: Weights
    cycles_per_token: Weights
    rows: tuple[tuple[float, float, float, float], ...]


@lru_cache(maxsize=8192)
def draft_table(depth: float, p_min: float, shift: float = 0.0) -> DraftTable:
    """The table of a draft form. depth need not be whole (a launch value is seen only as a mean).

    shift: logits by which this form finds a text easier than a draft of two tokens would (see `estimator.Lift`).
    """
    cells = [_cycle(1.0 / (1.0 + math.exp(-z - shift)), depth, p_min) for z in LEVELS]
    per_token = tuple(1.0 / (1.0 + cell[0]) for cell in cells)
    rows = tuple(
        (drafts, drafted, rejected, k)
        for (_, drafts, drafted, rejected), k in zip(cells, per_token, strict=True)
    )
    columns = [tuple(column) for column in zip(*cells, strict=True)]
    return DraftTable(columns[0], columns[1], columns[2], columns[3], per_token, rows)


@lru_cache(maxsize=1024)
def reach_of(depth: float, p_min: float) -> float:
    """How far beyond two tokens a form drafts for a middling text, in doublings."""
    return math.log2((1.0 + _cycle(CHANCES[MIDDLE], depth, p_min)[2]) / 3.0)


def _cycle(chance: float, depth: float, p_min: float) -> tuple[float, float, float, float]:
    """Accepted tokens, share of cycles that draft, drafted tokens and share of cycles with a rejection."""
    passing, kept = 1.0, chance
    if p_min > 0.0:
        right, wrong = chance * CONCENTRATION, (1.0 - chance) * CONCENTRATION
        passing = max(1.0 - beta_cdf(right, wrong, p_min), 1e-9)
        kept = chance * (1.0 - beta_cdf(right + 1.0, wrong, p_min))  # drafted and right
    accepted = drafted = 0.0
    reach, survive, whole = 1.0, 1.0, 1.0
    left = depth
    while left > 0.0:
        part = min(1.0, left)
        reach, survive = reach * passing, survive * kept
        drafted, accepted = drafted + part * reach, accepted + part * survive
        # No rejection: every token that was drafted is right, wherever the draft ended.
        whole += part * (survive - survive / kept * passing if kept > 0.0 else 0.0)
        left -= 1.0
    return accepted, min(1.0, depth) * passing, drafted, min(1.0, max(0.0, 1.0 - whole))


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction (Numerical Recipes 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(b, a, 1.0 - x)
    c, d = 1.0, 1.0 / max(1e-30, 1.0 - (a + b) * x / (a + 1.0))
    total = d
    for m in range(1, 200):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / (1.0 + step * d)
            c = 1.0 + step / c
            total *= c * d
        if abs(c * d - 1.0) < 1e-10:
            break
    return math.exp(log_front) * total / a


def level_of(table: DraftTable, accepted: float) -> float:
    """The logit at which a draft form accepts this many tokens a cycle, between the ends of LEVELS."""
    right = bisect_left(table.accepted, accepted)
    if right <= 0:
        return LEVELS[0]
    if right >= len(LEVELS):
        return LEVELS[-1]
    low, high = table.accepted[right - 1], table.accepted[right]
    share = (accepted - low) / (high - low) if high > low else 0.0
    return LEVELS[right - 1] + share * (LEVELS[right] - LEVELS[right - 1])


def at_level(values: Weights, level: float) -> float:
    """A table's value at a logit, interpolated."""
    place = min(max((level - LEVELS[0]) / 0.7, 0.0), len(LEVELS) - 1.0)
    left = min(int(place), len(LEVELS) - 2)
    return values[left] + (place - left) * (values[left + 1] - values[left])


def likelihood(level: float, sd: float) -> Weights:
    """How well each level explains an answer seen at `level` with standard error `sd` in logits."""
    scale = -0.5 / (sd * sd)
    return tuple([math.exp(scale * (z - level) * (z - level)) + 1e-6 for z in LEVELS])


def normalised(weights: Weights) -> Weights:
    """The same weights with sum 1."""
    total = sum(weights)
    return tuple([w / total for w in weights])


def product(first: Weights, second: Weights) -> Weights:
    """Prior times likelihood, normalised."""
    both = [a * b for a, b in zip(first, second, strict=True)]
    total = sum(both)
    return tuple([w / total for w in both]) if total > 0.0 else first


def blurred(weights: Weights) -> Weights:
    """Weights spread to the neighbouring levels: texts do not sit on the grid, and the mixture must not collapse."""
    padded = (weights[0], *weights, weights[-1])
    return tuple(
        [0.08 * a + 0.84 * b + 0.08 * c for a, b, c in zip(padded, padded[1:], padded[2:], strict=False)]
    )
