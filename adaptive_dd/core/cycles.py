"""One verification cycle as a probability table: what a drafter and a text make of a setting.

A cycle of a setting drafts up to n_max tokens (fewer where the drafter is not sure enough, none where fewer than n_min
are left), of which the text accepts a beginning, and emits that and one token more. `tabulate` lists every outcome
with its probability, so that expectations are exact and draws are one look-up.

Where it simplifies: cycles are independent given the text, and a drafter's confidence is one family of distributions
for all positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from adaptive_dd.core.domain import Setting

# Up to this many tokens the mean number of cycles is computed exactly, beyond it the renewal limit is exact enough.
EXACT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Content:
    """How predictable an answer's text is for the drafter. Hidden from every policy.

    easy, hard     chance that a drafted token is accepted, in a cycle of easy and of hard text
    hard_share     share of the cycles whose text is hard (mixing makes the tail of acceptance heavier than geometric)
    fade           factor on that chance for each further position of a draft
    sureness       concentration of the drafter's confidence: small = it knows when it is wrong, so p_min helps
    insight        how much the drafter's confidence knows of a cycle being easy or hard: 1 = all, 0 = nothing
    boast          exponent by which the drafter overstates its confidence: 1 = honest, 2 = p_min 0.6 acts like 0.36
    """

    easy: float
    hard: float = 0.5
    hard_share: float = 0.0
    fade: float = 1.0
    sureness: float = 3.0
    insight: float = 1.0
    boast: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Cycles:
    """The distribution of one cycle under one setting, and its means.

    Arrays are over the cycle's possible outcomes (state,): cumulative probability, tokens emitted, tokens drafted,
    cost beyond T(0) as a share of T(0), and whether something was rejected (`lost`: the drafted tokens of such a
    cycle). `cycles_for[g]` is the mean number of
    cycles that emit at least g tokens; `beyond` is its offset for longer answers.
    """

    cumulative: NDArray[np.float64]
    emitted: NDArray[np.int16]
    drafted: NDArray[np.int16]
    cost: NDArray[np.float64]
    rejected: NDArray[np.int16]
    lost: NDArray[np.int16]
    mean_emitted: float
    mean_drafted: float
    mean_cost: float
    mean_rejected: float
    mean_lost: float
    sd_emitted: float
    cycles_for: NDArray[np.float64]
    beyond: float

    def mean_cycles(self, tokens: int) -> float:
        """Mean number of cycles until `tokens` tokens are emitted."""
        if tokens < len(self.cycles_for):
            return float(self.cycles_for[tokens])
        return (tokens + self.beyond) / self.mean_emitted


def _sigmoid(x: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
    return 1.0 / (1.0 + np.exp(-x))


def acceptance_at(chance: float, logits: float, fade: float, depth: int) -> NDArray[np.float64]:
    """Chance of acceptance by position (depth,), moved by `logits` and fading with each position."""
    moved = _sigmoid(math.log(chance / (1.0 - chance)) + logits)
    return np.clip(moved * fade ** np.arange(depth), 1e-4, 0.995)


def _draft_states(
    chance: NDArray[np.float64], pooled: NDArray[np.float64], content: Content, p_min: float
) -> NDArray[np.float64]:
    """Joint probability (drafted, accepted) of one kind of cycle: a (depth+1, depth+1) lower triangle.

    The drafter's confidence in a token is Beta distributed around what it knows of the true chance (between the
    pooled one and the cycle's own, by `insight`) and, with full insight and boast aside, calibrated: a token drafted
    with confidence c is accepted with probability c. p_min ends the draft at the first token below it.
    """
    depth = len(chance)
    if p_min > 0.0:
        bar = p_min**content.boast
        believed = pooled + content.insight * (chance - pooled)
        right, wrong = believed * content.sureness, (1.0 - believed) * content.sureness
        passing = np.maximum(1.0 - betainc(right, wrong, bar), 1e-12)
        accepted = np.minimum(chance * (1.0 - betainc(right + 1.0, wrong, bar)) / passing, 0.999)
    else:
        passing, accepted = np.ones(depth), chance
    reach = np.concatenate(([1.0], np.cumprod(passing)))
    drafted = reach * np.concatenate((1.0 - passing, [1.0]))
    survive = np.concatenate(([1.0], np.cumprod(accepted)))
    joint = np.tril(
        np.broadcast_to(survive - np.concatenate((survive[1:], [0.0])), (depth + 1, depth + 1)).copy()
    )
    joint[np.diag_indices(depth + 1)] = survive
    states: NDArray[np.float64] = drafted[:, None] * joint
    return states


def tabulate(
    content: Content, logits: float, arm: Setting, shape: tuple[float, ...], draft_step: float
) -> Cycles:
    """The distribution of a cycle for a complete setting (see `played`)."""
    depth, p_min, n_min = arm.n_max or 0, arm.p_min or 0.0, arm.n_min or 0
    hard = content.hard_share
    easy_chance, hard_chance = (
        acceptance_at(c, logits, content.fade, depth) for c in (content.easy, content.hard)
    )
    pooled = (1.0 - hard) * easy_chance + hard * hard_chance
    joint = (1.0 - hard) * _draft_states(easy_chance, pooled, content, p_min)
    if hard > 0.0:
        joint += hard * _draft_states(hard_chance, pooled, content, p_min)
    drafted, accepted = np.nonzero(joint > 1e-12)
    weight = joint[drafted, accepted]
    weight = weight / weight.sum()
    cost = np.asarray(shape)[drafted] - 1.0 + np.where(drafted < depth, draft_step, 0.0)
    thrown = (drafted < n_min) & (drafted > 0)
    cost = np.where(thrown, draft_step * (drafted + 1), cost)
    drafted, accepted = np.where(thrown, 0, drafted), np.where(thrown, 0, accepted)
    return _cycles(weight, accepted + 1, drafted, cost, (accepted < drafted).astype(np.int16))


def _cycles(
    weight: NDArray[np.float64],
    emitted: NDArray[np.signedinteger],
    drafted: NDArray[np.signedinteger],
    cost: NDArray[np.float64],
    rejected: NDArray[np.int16],
) -> Cycles:
    lost = drafted * rejected
    mean = float(weight @ emitted)
    square = float(weight @ emitted**2)
    by_size = np.bincount(emitted, weights=weight)[
        1:
    ].tolist()  # (largest,): probability of emitting 1, 2, ...
    cycles_for = [0.0]
    for tokens in range(1, EXACT_TOKENS + 1):
        before = cycles_for[max(0, tokens - len(by_size)) : tokens]
        cycles_for.append(1.0 + sum(map(mul, by_size, reversed(before))))
    cumulative = np.cumsum(weight)
    cumulative[-1] = 1.0
    return Cycles(
        cumulative,
        emitted.astype(np.int16),
        drafted.astype(np.int16),
        cost,
        rejected,
        lost,
        mean_emitted=mean,
        mean_drafted=float(weight @ drafted),
        mean_cost=float(weight @ cost),
        mean_rejected=float(weight @ rejected),
        mean_lost=float(weight @ lost),
        sd_emitted=math.sqrt(max(0.0, square - mean * mean)),
        cycles_for=np.array(cycles_for),
        beyond=(square / mean - 1.0) / 2.0,
    )
