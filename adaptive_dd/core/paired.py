"""Speeds of two settings compared on the same texts: ratio of sums, its interval, and what is clearly behind.

The ratio. Over the blocks in which both settings were measured, time per token is a ratio of sums (all milliseconds
over all tokens), and the gain of one setting over the other is the ratio of these two. That is what a user waits
for; a mean of per-answer rates would let short fast answers hide long slow ones.

The interval. Blocks are the unit: within a block both settings decode the same text near each other in time, so
content and the machine's mood mostly cancel. The standard error is that of a ratio estimator (linearised residuals
per block; Cochran, "Sampling Techniques", 3rd ed. 1977, ch. 6). With few blocks a spread estimated from one setting
alone is worth little, so it is drawn towards the typical spread of all settings measured at the same place, with the
weight of `PRIOR_FREEDOM` blocks (Smyth, "Linear models and empirical Bayes methods", 2004, the moderated t).

Where it misleads: spread is taken as equal in kind for all settings, while deep drafts really vary more than shallow
ones; and a disturbance longer than a block's half is not cancelled, only seen as spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from adaptive_dd.core.frontier import t_quantile

PRIOR_FREEDOM = 4.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one answer's decoding took; `sort` is the sort of text that its block reads."""

    tokens: int
    ms: float
    sort: str = ""

    @property
    def ms_per_token(self) -> float:
        """Time per decoded token."""
        return self.ms / self.tokens


Costs = Mapping[int, Cost]  # by block


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster one setting is than another.

    gain       speed over the other's
    variance   of log gain for one block (divide by blocks for that of the mean); None with a single block
    freedom    degrees of freedom behind that variance
    blocks     blocks in which both were measured
    shared     variance of log gain that more blocks do not average away: what smoothing is unsure of
    """

    gain: float
    variance: float | None
    freedom: int
    blocks: int
    shared: float = 0.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A gain with the ends of its interval; infinitely wide where nothing is known of the spread."""

    gain: float
    low: float
    high: float
    blocks: int


def compare(costs: Costs, reference: Costs) -> Ratio | None:
    """Gain of a setting over the reference, on the blocks that both have. None where there are none."""
    common = sorted(costs.keys() & reference.keys())
    if not common:
        return None
    mine, other = [costs[b] for b in common], [reference[b] for b in common]
    gain = _per_token(other) / _per_token(mine)
    if len(common) < 2:
        return Ratio(gain, None, 0, 1)
    level = sum(c.ms_per_token for c in other) / len(common)
    residuals = [o.ms_per_token - gain * m.ms_per_token for m, o in zip(mine, other, strict=True)]
    spread, freedom = _spread(residuals, [c.sort for c in mine])
    return Ratio(gain, spread / level**2, freedom, len(common))


def _spread(residuals: Sequence[float], sorts: Sequence[str]) -> tuple[float, int]:
    """Variance and its degrees of freedom: within the sorts of text, as every sort comes round equally often.

    While the sorts leave too little freedom, their differences count as spread: too wide rather than too narrow.
    """
    strata = len(set(sorts))
    groups = sorts if len(residuals) - strata >= max(3, strata) else [""] * len(residuals)
    total = 0.0
    for name in set(groups):
        own = [r for r, group in zip(residuals, groups, strict=True) if group == name]
        mean = sum(own) / len(own)
        total += sum((r - mean) ** 2 for r in own)
    freedom = len(residuals) - len(set(groups))
    return total / freedom, freedom


def _per_token(costs: Sequence[Cost]) -> float:
    return sum(c.ms for c in costs) / sum(c.tokens for c in costs)


def typical_variance(ratios: Sequence[Ratio]) -> float | None:
    """The spread that settings measured here have in common: the median of their own."""
    known = [r.variance for r in ratios if r.variance is not None]
    return median(known) if known else None


def interval(ratio: Ratio, typical: float | None, *, confidence: float) -> Interval:
    """The two-sided interval whose each end is missed with probability 1 - confidence.

    typical: the spread of the other settings at this place (`typical_variance`), or None to judge by this one alone.
    """
    if ratio.variance is None and typical is None:
        return Interval(ratio.gain, 0.0, math.inf, ratio.blocks)
    prior_freedom = 0.0 if typical is None else PRIOR_FREEDOM
    freedom = ratio.freedom + prior_freedom
    pooled = (ratio.freedom * (ratio.variance or 0.0) + prior_freedom * (typical or 0.0)) / freedom
    half = t_quantile(confidence, int(freedom)) * math.sqrt(pooled / ratio.blocks + ratio.shared)
    return Interval(ratio.gain, ratio.gain * math.exp(-half), ratio.gain * math.exp(half), ratio.blocks)
