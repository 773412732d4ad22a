"""Choosing: which arm is expected to be fastest, and which are worth a trial.

Most decisions exploit. A trial is drawn with a probability that is worked out in advance for every arm, from its
expected improvement over the best (Mockus 1978): the mean of what it would gain if its cost is as uncertain as the
estimator says, and nothing where it would lose. So a settled cell tries nothing, a fresh one tries in about one
decision of five, and every propensity is an exact number. Full Thompson draws explore too much here: the model
already tells most of what a draw would be made to find out.

Where it misleads: an arm whose cost is wrong *and* believed certain is never tried again; the estimator's forgetting
and the alarms keep that from lasting.

A `Plan` is worked out off the request's path, one for each cell and sort of conversation. Deciding draws one number
and looks at the budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adaptive_dd.core.acceptance import Weights
from adaptive_dd.core.domain import Setting
from adaptive_dd.core.field import BASELINE, Candidate, Field, is_open
from adaptive_dd.core.guard import TAIL, worst_ms
from adaptive_dd.core.trials import NEW, Standing

# Share of decisions that keep the baseline's price fresh while something else is played, and the same once more than
# OVERDUE_AFTER usual answers were not the baseline's: what is booked against a price that nobody heard is a guess.
REFRESH, OVERDUE, OVERDUE_AFTER = 0.01, 0.1, 200.0
# Most that trials may take together, and what one percent of expected improvement is worth in trials.
MOST_TRIALS, TRIALS_PER_GAIN = 0.2, 8.0
# The same once trials have cost what they may and nothing pays for them; and the share of an arm that is expected to
# win but not proven then.
SPENT_TRIALS, DOUBTED = 0.01, 0.1
# Answers of such an arm in the cell from which it is played all the same as long as they saved time: it is what pays.
PAYING = 1.0
# Expected improvement below which nothing is tried: a trial costs more than it can find.
LEAST_GAIN = 0.002
# Expected improvement beyond which a trial may be expected to cost something and is not put off for thrift: an open
# question, such as what no drafting would cost after memory may have spilled.
GREAT_GAIN, GREAT_TRIALS = 0.03, 0.1
# Standard errors by which an unproven arm must be expected to beat a proven one before it takes its place: until
# then it is tried like others.
CAUTION = 0.7
# An unproven arm may cost at least this factor more than is expected of it, however sure the estimator is.
LEAST_STRETCH = 1.5
# Share of the length that worst cases are reckoned with which is used where the cost itself is a bound.
BOUNDED = 0.5
# A cycle that drafts no more than the baseline's takes at most this many times as long: a kernel may have a cliff below
# the baseline's depth.
NO_DEARER = 1.2
# Arms that share the trials of a plan.
TRIED_AT_ONCE = 3
# Staying with the arm played before costs nothing below this predicted loss: every switch has a price.
STAY = 0.005


@dataclass(frozen=True, slots=True)
class Option:
    """An arm that may be drawn. share: its probability; worst_ms: what the budget must be able to pay.

    ms_per_token: what decoding is expected to take, 0.0 where that is not said.
    """

    arm: Setting
    reason: str
    share: float
    worst_ms: float
    ms_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with the next request of a cell.

    tries    drawn first, each with its own probability
    best     played otherwise, if the budget pays for its worst case
    proven   played otherwise: proven faster than the baseline, or the baseline
    fallback the baseline
    others   every arm that is not barred, where arms are places and a conversation may have to stay at one
    tokens   length of answer that its worst cases are reckoned with
    """

    tries: tuple[Option, ...]
    best: Option
    proven: Option
    fallback: Option
    others: tuple[Option, ...] = ()
    tokens: float = 0.0

    def share_of(self, max_tokens: int | None) -> float:
        """The share of its worst cases that a request can cost whose client allows no more than this many tokens."""
        return 1.0 if max_tokens is None or max_tokens >= self.tokens else max(1, max_tokens) / self.tokens

    def eased(self, headroom_ms: float, max_tokens: int | None) -> float:
        """The headroom against which this plan's worst cases are held for such a request."""
        return headroom_ms / self.share_of(max_tokens) if headroom_ms > 0.0 else headroom_ms


def expected_improvement(gain: float, sd: float) -> float:
    """Mean of max(0, x) for x normal with this mean and sd."""
    if sd <= 0.0:
        return max(0.0, gain)
    z = gain / sd
    return sd * math.exp(-0.5 * z * z) / _ROOT_2PI + gain * 0.5 * (1.0 + math.erf(z / _ROOT_2))


_ROOT_2, _ROOT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a plan is made under.

    price      the baseline's price, ms per token by text (level,)
    text       the texts to expect (level,)
    tokens     length of answer that a worst case is reckoned with
    stretch    normal quantile for the upper end of an unproven arm's cost
    margin     predicted gain below which the baseline stays
    may_try    False: proven arms and the baseline only
    bare       cycle time of the baseline by text (level,): what a cycle that drafts nothing takes at most
    places     whether arms are places, so that a plan must name them all
    spare_ms   what a trial may be expected to cost against the baseline
    refresh    share of decisions that keep the baseline's price fresh
    """

    price: Weights
    text: Weights
    tokens: float
    stretch: float
    margin: float
    may_try: bool
    bare: Weights = ()
    places: bool = False
    spare_ms: float = math.inf
    refresh: float = REFRESH


def refresh_share(since_ms: float, usual_ms: float) -> float:
    """The share of refreshes, by what the baseline would have needed for the answers since it was last heard."""
    return OVERDUE if since_ms > OVERDUE_AFTER * usual_ms else REFRESH


def plan(field: Field, stakes: Stakes, *, stay: Setting | None) -> Plan:
    """Work out a plan. `stay` is the arm that was best before."""
    mean, proven = field.mean, _best(field, field.proven, stakes.margin, stay)
    best = _best(field, field.fit, stakes.margin, stay) if stakes.may_try else proven
    if proven not in (best, BASELINE) and best not in field.proven:
        best = best if mean[best] * math.exp(CAUTION * field.sd[best]) < mean[proven] else proven
    safe = _option(field, proven, stakes)
    played = safe if best == proven else _option(field, best, stakes)
    tries = _tries(field, best, stakes) if stakes.may_try else _refresh(field, best, stakes)
    if stakes.spare_ms < 0.0 and best != BASELINE and best not in field.proven and not _pays(field, best):
        doubted = replace(played, share=DOUBTED)
        rest = [option for option in _tries(field, proven, stakes) if option.arm != doubted.arm]
        tries, played = (*rest, doubted), safe
    fallback = Option(field.arms[BASELINE].setting, "guard", 1.0, -math.inf, mean[BASELINE])
    others = tuple([_option(field, at, stakes) for at in field.fit]) if stakes.places else ()
    return Plan(tries, played, safe, fallback, others, stakes.tokens)


def _pays(field: Field, at: int) -> bool:
    trial = field.trials.get(field.arms[at].name, NEW)
    return trial.weight >= PAYING and trial.mean > 0.0


def _best(field: Field, others: Sequence[int], margin: float, stay: Setting | None) -> int:
    """The fastest by expectation; the baseline unless it gains the margin, the arm before unless it loses more than
    STAY."""
    if not others:
        return BASELINE
    mean = field.mean
    fastest = min(others, key=mean.__getitem__)
    limit = mean[fastest] * (1.0 + STAY)
    near = [at for at in others if mean[at] <= limit]
    fastest = next((at for at in near if field.arms[at].setting == stay), fastest)
    return fastest if mean[fastest] < mean[BASELINE] * (1.0 - margin) else BASELINE


def _option(field: Field, at: int, stakes: Stakes) -> Option:
    setting, mean = field.arms[at].setting, field.mean[at]
    if at == BASELINE:
        return Option(setting, "baseline", 1.0, -math.inf, mean)
    candidate = field.candidate(at)
    standing = candidate.standing
    if at in field.proven:
        reason = "frontier" if standing is Standing.CREDITED else "learned"
        worst = 0.0 if stakes.may_try else -math.inf
        if standing is Standing.CREDITED and stakes.may_try:
            worst = _worst(candidate, stakes)  # on credit of the budget: a frontier may lie
        return Option(setting, reason, 1.0, worst, mean)
    return Option(setting, "explore", 1.0, _worst(candidate, stakes), mean)


def _worst(candidate: Candidate, stakes: Stakes) -> float:
    stretch, tail = math.exp(stakes.stretch * candidate.sd), 1.0
    if candidate.standing is not Standing.CREDITED:  # of those somebody measured that they are fast
        stretch, tail = max(LEAST_STRETCH, stretch), TAIL
    cost = candidate.cost
    if candidate.floor is not None:
        cost = np.maximum(cost, candidate.floor / stretch)
    worst = worst_ms(
        cost.tolist(), stakes.price, stakes.text, stretch=stretch, tokens=stakes.tokens, tail=tail
    )
    if candidate.bound is not None:
        most = candidate.bound.tolist()
        return min(worst, worst_ms(most, stakes.price, stakes.text, stretch=NO_DEARER, tokens=stakes.tokens))
    if not is_open(candidate.arm, candidate.sd) or not stakes.bare:
        return worst
    # Without a draft a cycle takes no longer than the baseline's: a bound, so the length need not be a long one too.
    bound = worst_ms(
        list(stakes.bare), stakes.price, stakes.text, stretch=1.0, tokens=BOUNDED * stakes.tokens, tail=tail
    )
    return min(worst, bound)


def _refresh(field: Field, best: int, stakes: Stakes) -> tuple[Option, ...]:
    if best == BASELINE:
        return ()
    return (Option(field.arms[BASELINE].setting, "refresh", stakes.refresh, -math.inf),)


def _tries(field: Field, best: int, stakes: Stakes) -> tuple[Option, ...]:
    """The refresh of the baseline, and the arms of the largest expected improvement."""
    scored = sorted(_scored(field, best, stakes), key=lambda s: -s[0])[:TRIED_AT_ONCE]
    if not scored:
        return _refresh(field, best, stakes)
    spent = GREAT_TRIALS if scored[0][0] > GREAT_GAIN else SPENT_TRIALS
    most = spent if stakes.spare_ms < 0.0 else MOST_TRIALS
    together = min(most, TRIALS_PER_GAIN * scored[0][0])
    total = sum([value * value for value, _ in scored])
    chosen = [(together * value * value / total, field.candidate(at)) for value, at in scored]
    tries = [Option(c.arm.setting, "explore", share, _worst(c, stakes)) for share, c in chosen]
    return (*_refresh(field, best, stakes), *tries)


def _scored(field: Field, best: int, stakes: Stakes) -> list[tuple[float, int]]:
    """Expected improvement over the best, and index, of the arms that are worth a trial."""
    mean, sd, hope = field.mean, field.sd, field.hope
    margin = stakes.margin if best == BASELINE else STAY
    limit, spare = mean[best] * math.exp(-margin), max(0.0, stakes.spare_ms)
    scored = []
    for at in field.fit:
        if mean[at] * hope[at] > limit or at == best:
            continue
        value = expected_improvement(math.log(limit / mean[at]), sd[at])
        toll_ms = (mean[at] - mean[BASELINE]) * stakes.tokens
        if value > LEAST_GAIN and (toll_ms <= spare or value > GREAT_GAIN):
            scored.append((value, at))
    return scored


def draw(plan: Plan, uniform: float, headroom_ms: float) -> Option:
    """Draw an option with one uniform number; what the headroom does not pay for gives its share to the best.

    The option's `share` is the probability with which its arm was drawn, given the headroom.
    """
    best = plan.best
    if best.worst_ms > headroom_ms:
        best = plan.proven if plan.proven.worst_ms <= headroom_ms else plan.fallback
    low, rest, found, arm, depth = 0.0, 1.0, None, best.arm, best.arm.n_max
    for option in plan.tries:
        # The depth tells most arms apart, and sooner than all their fields.
        if option.worst_ms <= headroom_ms and (option.arm.n_max != depth or option.arm != arm):
            share = option.share
            if found is None and low <= uniform < low + share:
                found = option
            low += share
            rest -= share
    if found is not None:
        return found
    return (
        best if rest == best.share else Option(best.arm, best.reason, rest, best.worst_ms, best.ms_per_token)
    )


def chances(plan: Plan, headroom_ms: float) -> Mapping[Setting, float]:
    """Probability of every permitted arm (sum 1)."""
    rest = draw(plan, 1.0, headroom_ms)
    drawn = {o.arm: o.share for o in plan.tries if o.worst_ms <= headroom_ms and o.arm != rest.arm}
    return {**drawn, rest.arm: rest.share}
