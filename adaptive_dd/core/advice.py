"""Which fixed launch setting would serve this traffic best, by how much, and how sure that is.

For servers that cannot be told a setting per request. What was seen is sorted into strata (context bucket, load, kind
of request), so that a setting that happened to meet easy requests is not taken for a fast one; within a stratum the
price of a setting is its decode time over its decode tokens, with the variance of a ratio estimator (Cochran,
*Sampling Techniques*, chapter 6). Prices are weighed by the traffic's own tokens over the strata that a setting shares
with the baseline. The best setting is the one whose *lower bound* of the gain is highest, with a bound that is wider
the more settings were compared (Bonferroni).

Where it misleads: inside a stratum an adaptive policy may have given a setting the easier conversations; strata that a
setting has not met are left out, which `coverage` tells; and measurements of another day may have met another machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from adaptive_dd.core.domain import Frontier, Setting
from adaptive_dd.core.frontier import bucket_of

# Answers of a setting in a stratum below which its price there has no variance worth the name.
FEWEST_ANSWERS = 3
# Share of the traffic that a setting must have met to be recommended.
LEAST_COVERAGE = 0.5
# Probability of being within the interval that is shown.
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: decode tokens and decode time of a setting in a stratum."""

    stratum: str
    arm: Setting
    tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Price:
    """ms per token of a setting in a stratum, and the sd of that mean (0.0 where it is not known)."""

    ms_per_token: float
    sd: float


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting against the baseline.

    gain       share of the baseline's decode time that it saves (negative: costs); low, high: interval of that
    sure       probability that it is faster at all
    coverage   share of the traffic's tokens in strata that both have met
    tokens_per_s  over those strata
    answers    behind it
    """

    arm: Setting
    gain: float
    low: float
    high: float
    sure: float
    coverage: float
    tokens_per_s: float
    answers: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What to launch. best: the recommended setting, which is the baseline where nothing is surely faster."""

    baseline: Setting
    best: Setting
    compared: tuple[Compared, ...]
    answers: int
    settings_met: int


Prices = Mapping[Setting, Mapping[str, Price]]


def prices_of(samples: Iterable[Sample]) -> dict[Setting, dict[str, Price]]:
    """The price of every setting in every stratum where it was met often enough."""
    grouped: dict[tuple[Setting, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.tokens > 0 and sample.ms > 0.0:
            grouped[sample.arm, sample.stratum].append(sample)
    prices: dict[Setting, dict[str, Price]] = defaultdict(dict)
    for (arm, stratum), group in grouped.items():
        if len(group) >= FEWEST_ANSWERS:
            prices[arm][stratum] = _ratio(group)
    return dict(prices)


def _ratio(group: Sequence[Sample]) -> Price:
    count, tokens = len(group), sum(sample.tokens for sample in group)
    rate = sum(sample.ms for sample in group) / tokens
    squares = sum((sample.ms - rate * sample.tokens) ** 2 for sample in group)
    return Price(rate, math.sqrt(squares * count / (count - 1)) / tokens)


def advise(
    prices: Prices, shares: Mapping[str, float], baseline: Setting, answers: Mapping[Setting, int]
) -> Advice:
    """Compare every setting with the baseline. shares: the traffic's tokens by stratum, of any sum."""
    others = [arm for arm in prices if arm != baseline]
    compared = [
        found
        for arm in others
        if (found := _compare(arm, prices, shares, baseline, answers=answers.get(arm, 0), tried=len(others)))
    ]
    compared.sort(key=lambda one: -one.low)
    fit = [one for one in compared if one.low > 0.0 and one.coverage >= LEAST_COVERAGE]
    best = fit[0].arm if fit else baseline
    return Advice(baseline, best, tuple(compared), sum(answers.values()), len(prices))


def _compare(
    arm: Setting,
    prices: Prices,
    shares: Mapping[str, float],
    baseline: Setting,
    *,
    answers: int,
    tried: int,
) -> Compared | None:
    own, base = prices[arm], prices.get(baseline, {})
    common = {stratum: shares.get(stratum, 0.0) for stratum in own if stratum in base}
    weight = sum(common.values())
    if weight <= 0.0:
        return None
    mine, theirs = _weighed(own, common), _weighed(base, common)
    sd = math.hypot(mine.sd / mine.ms_per_token, theirs.sd / theirs.ms_per_token)
    log_ratio = math.log(mine.ms_per_token / theirs.ms_per_token)
    reach = NormalDist().inv_cdf(1.0 - (1.0 - CONFIDENCE) / 2.0 / max(1, tried)) * sd
    sure = NormalDist().cdf(-log_ratio / sd) if sd > 0.0 else float(log_ratio < 0.0)
    return Compared(
        arm,
        1.0 - math.exp(log_ratio),
        1.0 - math.exp(log_ratio + reach),
        1.0 - math.exp(log_ratio - reach),
        sure,
        weight / sum(shares.values()),
        1000.0 / mine.ms_per_token,
        answers,
    )


def _weighed(prices: Mapping[str, Price], shares: Mapping[str, float]) -> Price:
    weight = sum(shares.values())
    mean = sum(share * prices[stratum].ms_per_token for stratum, share in shares.items()) / weight
    variance = sum((share * prices[stratum].sd) ** 2 for stratum, share in shares.items())
    return Price(mean, math.sqrt(variance) / weight)


def from_samples(samples: Sequence[Sample], baseline: Setting) -> Advice:
    """Advice from answers that were seen; the traffic is their own."""
    shares: dict[str, float] = defaultdict(float)
    answers: dict[Setting, int] = defaultdict(int)
    for sample in samples:
        shares[sample.stratum] += sample.tokens
        answers[sample.arm] += 1
    return advise(prices_of(samples), shares, baseline, answers)


def from_frontier(
    frontier: Frontier, baseline: Setting, contexts: Mapping[int, float] | None = None
) -> Advice:
    """Advice from offline measurements.

    contexts: the traffic's tokens by measured context; None: every measured context counts the same. A row without
    samples and sd is taken to be off by nothing, which `sure` then overstates.
    """
    prices: dict[Setting, dict[str, Price]] = defaultdict(dict)
    answers: dict[Setting, int] = defaultdict(int)
    for row in frontier.rows:
        if row.tok_s <= 0.0 or (row.mark and row.setting != baseline):
            continue  # a marked row makes no claim
        rate = 1000.0 / row.tok_s
        of_mean = (row.sd or 0.0) / math.sqrt(row.samples) if row.samples else 0.0
        prices[row.setting][f"{row.context_tokens} {row.kind}"] = Price(rate, rate * of_mean / row.tok_s)
        answers[row.setting] += row.samples or 0
    strata = {f"{row.context_tokens} {row.kind}": row.context_tokens for row in frontier.rows}
    shares = {name: 1.0 if contexts is None else contexts.get(at, 0.0) for name, at in strata.items()}
    return advise(dict(prices), shares, baseline, answers)


def tokens_by_context(
    contexts: Sequence[int], edges: tuple[int, ...], tokens: Mapping[int, float]
) -> dict[int, float]:
    """Tokens by measured context, from tokens by prompt length: each length counts for the context of its bucket."""
    found = dict.fromkeys(contexts, 0.0)
    ordered = sorted(contexts)
    for length, count in tokens.items():
        found[ordered[min(bucket_of(edges, length), len(ordered) - 1)]] += count
    return found
