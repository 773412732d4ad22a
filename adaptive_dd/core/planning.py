"""Plans of a cell: what the estimator expects of every arm, put before the policy.

Worked out when an answer of the cell came in, so that a request waits for a look-up only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from adaptive_dd.core import estimator, policy
from adaptive_dd.core.acceptance import Weights, likelihood, product
from adaptive_dd.core.domain import Cell
from adaptive_dd.core.field import Anchor, field_of
from adaptive_dd.core.guard import Guard
from adaptive_dd.core.learned import Arm, Learned, node_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.policy import Plan, Stakes
from adaptive_dd.core.regression import line
from adaptive_dd.core.state import SORTS, State, credits_for
from adaptive_dd.core.texts import baseline_rows, depth_of, texts_of
from adaptive_dd.core.trials import Standing, Trial

# The texts that a sort of conversation stands for: centre and spread in logits.
SORT_CENTRES = (-0.8, 0.25, 1.25, 2.25, 3.3)
SORT_SD = 0.45
SORT_LIKELIHOODS = tuple(likelihood(centre, SORT_SD) for centre in SORT_CENTRES)
# Worst cases are reckoned with answers longer than the kind's mean by this many times their mean distance from it: less
# than one answer of a hundred is longer where the logarithm of their length has a sd of one half. And at this upper
# quantile of an arm's cost.
LONGER, STRETCH = 5.0, 2.4
# Before any answer was seen: its tokens, and the spread as a share of its length.
TOKENS_GUESS, SPREAD_GUESS = 250.0, 0.4
PLANS = len(SORTS) + 2
# Answers of an arm after which its frontier row is no longer believed against the estimator.
CLAIM_ANSWERS = 5.0
# Share of the belief in every claim that is lost by each unit of the e-detector for "what it is credited with loses".
CAUGHT_OUT = 0.2
# Until something pays, trials may be expected to cost this share of the baseline's time, and a third of c0: where
# nothing can win, that is all that looking for it costs.
THRIFT = 0.001


def price_by_text(state: State, learned: Learned, kept: Guard, cell: Cell) -> Weights | None:
    """The baseline's price, ms per token by text (level,); None where it was never heard in the node."""
    known = prices_by_text(state, learned, kept, cell)
    return None if known is None else known[0]


def prices_by_text(state: State, learned: Learned, kept: Guard, cell: Cell) -> tuple[Weights, Weights] | None:
    """The baseline's price and its cycle time by text (level,), ms per token and ms."""
    price = kept.prices.get(node_of(cell.bucket, cell.load))
    if price is None:
        return None
    coef = estimator.node_coef(learned, cell.bucket, cell.load)
    unit = math.exp(price.level + kept.drift) / line(coef, price.drawn)
    rows = baseline_rows(learned, state.arms[0])
    cycles = [unit * line(coef, (1.0, *row[:3])) for row in rows]
    return tuple([c * row[3] for c, row in zip(cycles, rows, strict=True)]), tuple(cycles)


def planned(
    state: State, learned: Learned, kept: Guard, cell: Cell, sorts: Iterable[int]
) -> tuple[Plan | None, ...]:
    """The plans of a cell whose baseline has a price, worked out again for some sorts of conversation."""
    known = prices_by_text(state, learned, kept, cell)
    assert known is not None
    price, cycle_ms = known
    old = state.plans.get(cell) or (None,) * PLANS
    texts = texts_of(learned, cell.kind, cell.bucket)
    ahead = outlooks(learned, Place(cell.bucket, cell.load, cell.kind), state.arms)
    trials = kept.trials.get(cell) or credits_for(state, cell)
    # Another place may be another machine, of which the shape of this one says nothing.
    depth = depth_of(learned, state.arms[0]) if state.facts.arms is None else 0.0
    heard = state.heard if state.facts.arms is None else [arm.name for arm in state.arms]
    field = field_of(state.arms, ahead, trials, Anchor(price, cycle_ms, depth), heard)
    tokens = long_answer(state, cell.kind)
    settings = state.settings
    may_try = settings.alpha > 0.0 or settings.c0_ms > 0.0
    total = kept.total
    spare = total.saved_ms + min(THRIFT, settings.alpha) * total.ref_ms + settings.c0_ms / 3.0
    beliefs = _beliefs(kept, cell, trials)
    new = list(old)
    for sort in sorts:
        text = product(texts, SORT_LIKELIHOODS[sort - 1]) if sort else texts
        before = old[sort] or old[0]
        means = _as_claimed((ahead.cost @ np.array(text)).tolist(), state.arms, beliefs)
        stakes = Stakes(
            price,
            text,
            tokens,
            STRETCH,
            settings.margin,
            may_try,
            bare=cycle_ms,
            places=state.facts.arms is not None,
            spare_ms=spare,
            refresh=policy.refresh_share(kept.since_ms, kept.usual.mean),
        )
        stay = None if before is None else before.best.arm
        new[sort] = policy.plan(field._replace(mean=means), stakes, stay=stay)
    return tuple(new)


def long_answer(state: State, kind: str) -> float:
    """Tokens of an answer that worst cases are reckoned with."""
    length, spread = state.lengths.get(kind), state.spreads.get(kind)
    mean = TOKENS_GUESS if length is None else length.mean
    return mean + LONGER * (SPREAD_GUESS * mean if spread is None else spread.mean)


def _beliefs(kept: Guard, cell: Cell, trials: Mapping[str, Trial]) -> Mapping[str, tuple[float, float]]:
    """What the frontier claims of arms (log gain), and the share of belief that it still has against the estimator.

    A claim is about a bucket: answers of the arm in any of its cells count against it. And what the frontier was found
    to have got wrong anywhere counts against all of it: the same sweep measured them.
    """
    of_all = max(0.0, 1.0 - CAUGHT_OUT * kept.lies)
    near = [other for where, other in kept.trials.items() if where.bucket == cell.bucket]
    found = {}
    for name, trial in trials.items():
        if trial.claim > 0.0 and trial.standing is Standing.CREDITED:
            played = sum([other[name].weight for other in near if name in other])
            found[name] = (trial.claim, of_all * max(0.0, 1.0 - played / CLAIM_ANSWERS))
    return found


def _as_claimed(
    means: list[float], arms: tuple[Arm, ...], beliefs: Mapping[str, tuple[float, float]]
) -> list[float]:
    """Expected costs (arm,) drawn towards what the frontier claims of arms: the frontier measured what the model only
    infers, until answers tell."""
    if not beliefs:
        return means
    found = list(means)
    for at, arm in enumerate(arms):
        if arm.name in beliefs:
            claim, share = beliefs[arm.name]
            found[at] *= math.exp(share * (math.log(means[0] / means[at]) - claim))
    return found
