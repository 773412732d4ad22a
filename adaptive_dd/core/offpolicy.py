"""What another policy would have cost, from a journal of decisions with their propensities.

Two estimates of decode milliseconds a token under a target policy:

    self-normalised   sum w t / sum w G          w = P(target plays the recorded arm) / recorded propensity
    doubly robust     sum (G q(x, target) + w (t - G q(x, recorded))) / sum G

with t the decode time and G the decoded tokens of an answer. G counts as given: speculative decoding changes when
tokens come, not which. Self-normalised weighing (Hajek; Swaminathan and Joachims, "The self-normalized estimator for
counterfactual learning", NIPS 2015) is right where the journal tried what the target plays. The doubly robust one
(Dudik, Langford and Li, "Doubly robust policy evaluation and learning", ICML 2011) adds a simple model q, fitted on
the other four fifths of the answers, and is right when either the weights or the model are.

Where it misleads: a decision that was certain (propensity 1) says nothing about other arms, so weights alone cannot
value a policy that differs there, and the doubly robust estimate leans on q. Answers of one conversation are not
independent, and machines drift, so intervals are rather too narrow than too wide. `warnings` says when not to believe.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adaptive_dd.core.domain import Cell, Setting, Status
from adaptive_dd.core.events import Decided, Event, Observed

# 95%, two-sided, of a normal.
Z = 1.96
# Answers to learn q from in turn.
FOLDS = 5
# Answers that a parent's rate counts for, when a cell has few of its own: Morris, "Parametric empirical Bayes", 1983.
PRIOR_ANSWERS = 4.0
# Below this many effective answers an interval from a normal is fiction.
FEWEST = 30.0
# Reasons under which any policy would have sent the same.
CHOSEN = ("frontier", "learned", "explore", "refresh", "baseline", "guard", "frozen", "observe")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered decision: arm and propensity as recorded, decoded tokens and their milliseconds."""

    number: int
    cell: Cell
    arm: Setting
    propensity: float
    tokens: int
    decode_ms: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Decode ms a token with a 95% interval, and the time saved against what was recorded (0.1 = 10% less)."""

    ms_per_token: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, slots=True)
class Valued:
    """What the journal says of a target policy.

    effective   answers that the weights amount to (Kish): sum(w)^2 / sum(w^2)
    agreeing    share of answers whose recorded arm the target would have played
    certain     share of answers that were certain for another arm than the target's: nothing is known there
    untried     share of answers where the target plays an arm that the journal never played anywhere
    """

    answers: int
    recorded_ms_per_token: float
    weighed: Estimate | None
    robust: Estimate
    effective: float
    agreeing: float
    certain: float
    untried: float
    warnings: tuple[str, ...]


def samples_of(events: Iterable[Event]) -> list[Sample]:
    """The answers of a journal that a policy had a say in and that came with believable timings."""
    decided: dict[int, Decided] = {}
    found = []
    for event in events:
        if isinstance(event, Decided):
            decided[event.number] = event
        elif isinstance(event, Observed) and event.number in decided:
            before, outcome = decided.pop(event.number), event.outcome
            timings, decision = outcome.timings, before.decision
            if (
                outcome.status is Status.OK
                and timings
                and timings.decode_tokens
                and decision.reason in CHOSEN
            ):
                found.append(
                    Sample(
                        event.number,
                        decision.cell,
                        decision.arm,
                        decision.propensity,
                        timings.decode_tokens,
                        timings.predicted_ms,
                    )
                )
    return found


def value(samples: Sequence[Sample], target: Mapping[int, Sequence[Setting]]) -> Valued | None:
    """Value a target policy, given by its draws for each decision's number. None without a single answer."""
    samples = [sample for sample in samples if target.get(sample.number)]
    if not samples:
        return None
    tokens = [float(sample.tokens) for sample in samples]
    times = [sample.decode_ms for sample in samples]
    shares = [target[s.number].count(s.arm) / len(target[s.number]) for s in samples]
    weights = [share / sample.propensity for share, sample in zip(shares, samples, strict=True)]
    tried = {sample.arm for sample in samples}
    certain = _mean([s.propensity >= 1.0 and share < 1.0 for s, share in zip(samples, shares, strict=True)])
    untried = _mean([_mean([arm not in tried for arm in target[s.number]]) for s in samples])
    recorded = _Ratio(times, tokens)
    weighed = _Ratio(
        [w * t for w, t in zip(weights, times, strict=True)],
        [w * g for w, g in zip(weights, tokens, strict=True)],
    )
    robust = _Ratio(_robust(samples, target, weights), tokens)
    effective = sum(weights) ** 2 / sum(w * w for w in weights) if any(weights) else 0.0
    estimate = _estimate(weighed, recorded) if any(weights) else None
    return Valued(
        len(samples),
        recorded.value,
        estimate,
        _estimate(robust, recorded),
        effective,
        _mean(shares),
        certain,
        untried,
        _warnings(effective, certain, untried, estimate, _estimate(robust, recorded)),
    )


# --- the model q ---------------------------------------------------------------------------------------------


class _Rates:
    """Milliseconds a token of an arm in a cell: its own answers, shrunk to the arm in the kind, then to the arm."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._sums: dict[object, tuple[float, float, int]] = defaultdict(lambda: (0.0, 0.0, 0))
        for sample in samples:
            for key in (*self._keys(sample.cell, sample.arm), sample.cell, None):
                ms, tokens, count = self._sums[key]
                self._sums[key] = (ms + sample.decode_ms, tokens + sample.tokens, count + 1)

    @staticmethod
    def _keys(cell: Cell, arm: Setting) -> tuple[object, ...]:
        return arm, (cell.kind, arm), (cell, arm)

    def of(self, cell: Cell, arm: Setting) -> float:
        """The rate; where the arm was never played, the cell's own rate under the recorded policy."""
        whole_ms, whole_tokens, whole_count = self._sums.get(None, (0.0, 0.0, 0))
        if not whole_tokens:
            return 0.0
        prior_tokens = PRIOR_ANSWERS * whole_tokens / whole_count
        rate = whole_ms / whole_tokens
        for key in (cell, *self._keys(cell, arm)):
            ms, tokens, _ = self._sums.get(key, (0.0, 0.0, 0))
            rate = (ms + prior_tokens * rate) / (tokens + prior_tokens)
        return rate


def _robust(
    samples: Sequence[Sample], target: Mapping[int, Sequence[Setting]], weights: Sequence[float]
) -> list[float]:
    """The doubly robust milliseconds of each answer, its model fitted without it."""
    rates = [_Rates(s for i, s in enumerate(samples) if i % FOLDS != fold) for fold in range(FOLDS)]
    found = []
    for index, (sample, weight) in enumerate(zip(samples, weights, strict=True)):
        model = rates[index % FOLDS]
        planned = _mean([model.of(sample.cell, arm) for arm in target[sample.number]])
        surprise = sample.decode_ms - sample.tokens * model.of(sample.cell, sample.arm)
        found.append(sample.tokens * planned + weight * surprise)
    return found


# --- ratios and their intervals --------------------------------------------------------------------------------


class _Ratio:
    """sum(above) / sum(below) and each answer's pull on it (the linearised residual)."""

    def __init__(self, above: Sequence[float], below: Sequence[float]) -> None:
        total = sum(below)
        self.value = sum(above) / total if total else 0.0
        self.pulls = (
            [(a - self.value * b) / total for a, b in zip(above, below, strict=True)] if total else []
        )


def _estimate(of: _Ratio, recorded: _Ratio) -> Estimate:
    """The value with its interval, and the gain with one that knows that both come from the same answers."""
    spread = Z * math.sqrt(sum(pull * pull for pull in of.pulls))
    ratio = of.value / recorded.value if recorded.value else 1.0
    both = [
        (pull - ratio * other) / recorded.value if recorded.value else 0.0
        for pull, other in zip(of.pulls, recorded.pulls, strict=True)
    ]
    gain_spread = Z * math.sqrt(sum(pull * pull for pull in both))
    return Estimate(
        of.value,
        of.value - spread,
        of.value + spread,
        1.0 - ratio,
        1.0 - ratio - gain_spread,
        1.0 - ratio + gain_spread,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _warnings(
    effective: float, certain: float, untried: float, weighed: Estimate | None, robust: Estimate
) -> tuple[str, ...]:
    said = []
    if effective < FEWEST:
        said.append(
            f"the data cannot say: the answers that fit this policy amount to {effective:.0f}, "
            f"at least {FEWEST:.0f} are needed"
        )
    if untried > 0.02:
        said.append(f"{untried:.0%} of the requests would play a setting that this journal never tried")
    if certain > 0.2:
        said.append(
            f"{certain:.0%} of the decisions were certain for another setting: there the estimate is the model's word"
        )
    if weighed and (weighed.gain_low > robust.gain_high or weighed.gain_high < robust.gain_low):
        said.append("the two estimates contradict each other: believe neither")
    return tuple(said)
