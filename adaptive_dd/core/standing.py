"""What the answers measured at one place say: how settings stand against the baseline and against each other.

Answers come in blocks (see `core.measure`). The luck of acceptance is taken out of each by `core.surface`, the rest is
a paired ratio of sums by `core.paired`; an interval carries the uncertainty of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptive_dd.core.domain import FrontierRow, Setting, Timings
from adaptive_dd.core.paired import Cost, Interval, Ratio, compare, interval, typical_variance
from adaptive_dd.core.surface import Answer, Smoothed, smoothed

# A wrong drop costs at most what the next best loses; a wrong winner breaks the promise.
DROP_CONFIDENCE = 0.99
CLAIM_CONFIDENCE = 0.995
# Fewer blocks say little about their own spread, whatever they agree on.
CLAIM_BLOCKS = 5
# An interval wider than this to either side is too wide to say anything of use.
NOISY = 0.10


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A prompt length and a kind of request (empty for any): where settings are compared."""

    context_tokens: int
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.context_tokens} {self.kind}".rstrip()


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured answer.

    block     which text of this place it read; 0 is the warm-up
    timings   the server's account; one that decoded nothing stands for a setting that the server did not serve
    wall_ms   all the time it took, that before it included (reading the prompt, waiting)
    sort      the sort of text
    """

    place: Place
    block: int
    setting: Setting
    timings: Timings
    wall_ms: float
    sort: str = ""

    @property
    def counts(self) -> bool:
        """Whether it says anything about speed."""
        return self.block > 0 and self.timings.cycles > 0 and self.timings.predicted_ms > 0.0

    @property
    def answer(self) -> Answer:
        """The same, as the acceptance surface looks at it."""
        t = self.timings
        return Answer(
            self.setting, self.block, self.sort, t.decode_tokens, t.cycles, t.draft_n, t.predicted_ms
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the settings of a place stand.

    gains     gain over the baseline, for every setting measured beside it
    active    settings still in the race, the baseline among them
    best      the fastest of them by its mean
    to_best   gain of the others over the best one
    typical   spread that the settings have in common (see `core.paired`)
    """

    baseline: Setting
    gains: Mapping[Setting, Ratio]
    active: tuple[Setting, ...]
    best: Setting
    to_best: Mapping[Setting, Ratio]
    typical: float | None

    def claim(self, setting: Setting) -> Interval:
        """The gain over the baseline, with the interval on which a winner is named."""
        return interval(self.gains[setting], self.typical, confidence=CLAIM_CONFIDENCE)

    def chance(self, setting: Setting) -> Interval:
        """The gain over the best setting, with the interval on which a setting is dropped."""
        return interval(self.to_best[setting], self.typical, confidence=DROP_CONFIDENCE)

    def proven(self, setting: Setting) -> bool:
        """Whether the setting is faster than the baseline beyond doubt."""
        claim = self.claim(setting)
        return setting != self.baseline and claim.blocks >= CLAIM_BLOCKS and claim.low > 1.0

    @property
    def winner(self) -> Setting:
        """What is to be played: the best setting if it is proven, else the baseline."""
        return self.best if self.proven(self.best) else self.baseline


def standing(samples: Iterable[Sample], baseline: Setting, active: Iterable[Setting]) -> Standing | None:
    """The standing at one place. None while the baseline has no sample there.

    active: the settings that are still measured; only they can be best.
    """
    measured = [s for s in samples if s.counts]
    if not any(s.setting == baseline for s in measured):
        return None
    table = _Table.of(measured)
    gains = table.against(baseline, table.costs)
    racing = {s for s in active if s in gains} | {baseline}
    best = max(racing, key=lambda s: (gains[s].gain, s == baseline, s.order))
    typical = typical_variance([r for s, r in gains.items() if s != baseline])
    order = tuple(sorted(racing, key=lambda s: s.order))
    return Standing(baseline, gains, order, best, table.against(best, order), typical)


@dataclass(frozen=True, slots=True)
class _Table:
    """Smoothed costs by setting and block, and where each answer stands in the surface."""

    costs: Mapping[Setting, Mapping[int, Cost]]
    index: Mapping[Setting, Mapping[int, int]]
    surface: Smoothed

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Table:
        surface = smoothed([s.answer for s in samples])
        costs: dict[Setting, dict[int, Cost]] = {}
        index: dict[Setting, dict[int, int]] = {}
        for i, s in enumerate(samples):
            tokens = s.timings.decode_tokens
            cost = Cost(tokens, float(surface.ms_per_token[i]) * tokens, s.sort)
            costs.setdefault(s.setting, {})[s.block] = cost
            index.setdefault(s.setting, {})[s.block] = i
        return cls(costs, index, surface)

    def against(self, reference: Setting, settings: Iterable[Setting]) -> dict[Setting, Ratio]:
        """The gain of settings over one of them, where they share a block."""
        found = ((s, compare(self.costs[s], self.costs[reference])) for s in settings)
        return {s: replace(r, shared=self._shared(s, reference)) for s, r in found if r is not None}

    def _shared(self, setting: Setting, reference: Setting) -> float:
        """Variance of the log gain that comes from the surface's own uncertainty."""
        mine, other = self.index[setting], self.index[reference]
        common = sorted(mine.keys() & other.keys())
        at = [mine[block] for block in common] + [other[block] for block in common]
        sign = np.repeat([1.0, -1.0], len(common)) / len(common)
        weights = sign * self.surface.slope[at]
        return max(0.0, float(weights @ self.surface.covariance[np.ix_(at, at)] @ weights))


# --- rows of the file ----------------------------------------------------------------------------------------


def rows_of(now: Standing, samples: Sequence[Sample]) -> tuple[FrontierRow, ...]:
    """A row for every setting measured beside the baseline at one place.

    The baseline's tok_s is its own ratio of sums; the others' are that times their paired gain, so that a setting
    that was dropped early is not judged by the texts it happened to read.
    """
    own: dict[Setting, list[Sample]] = {}
    for s in samples:
        if s.counts:
            own.setdefault(s.setting, []).append(s)
    level = _tok_s(own[now.baseline])
    ordered = sorted(now.gains, key=lambda s: s.order)
    return tuple(_row(now, s, own[s], level) for s in ordered)


def _tok_s(samples: Sequence[Sample]) -> float:
    tokens = sum(s.timings.decode_tokens for s in samples)
    return 1000.0 * tokens / sum(s.timings.predicted_ms for s in samples)


def _row(now: Standing, setting: Setting, own: Sequence[Sample], level: float) -> FrontierRow:
    drafted = sum(s.timings.draft_n for s in own)
    cycles = sum(s.timings.cycles for s in own)
    row = FrontierRow(
        own[0].place.context_tokens,
        setting,
        tok_s=round(level * now.gains[setting].gain, 3),
        acceptance=round(sum(s.timings.draft_n_accepted for s in own) / drafted, 4) if drafted else None,
        samples=len(own),
        kind=own[0].place.kind,
        cycle_ms=round(sum(s.timings.predicted_ms for s in own) / cycles, 3),
    )
    if setting == now.baseline:
        return replace(row, sd=_sd_of_rates(own))
    return _with_gain(row, now, setting)


def _sd_of_rates(own: Sequence[Sample]) -> float | None:
    if len(own) < 2:
        return None
    return round(
        float(np.std([1000.0 * s.timings.decode_tokens / s.timings.predicted_ms for s in own], ddof=1)), 3
    )


def _with_gain(row: FrontierRow, now: Standing, setting: Setting) -> FrontierRow:
    ratio, claim = now.gains[setting], now.claim(setting)
    known = math.isfinite(claim.high)
    spread = ratio.variance if ratio.variance is not None else now.typical
    return replace(
        row,
        sd=None if spread is None else round(row.tok_s * math.sqrt(spread + ratio.shared * ratio.blocks), 3),
        gain=round(claim.gain, 5),
        gain_low=round(claim.low, 5) if known else 0.0,
        gain_high=round(claim.high, 5) if known else None,
        mark=_mark(now, setting, claim),
    )


def _mark(now: Standing, setting: Setting, claim: Interval) -> str:
    """Why a row makes no claim; empty where it may."""
    if setting not in now.active:
        return "dropped"
    if claim.blocks < CLAIM_BLOCKS:
        return "too-few"
    wide = claim.high / claim.gain > 1.0 + NOISY
    return "too-noisy" if wide and claim.low <= 1.0 <= claim.high else ""
