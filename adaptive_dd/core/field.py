"""All arms of a cell, with what is expected and held of each: what a policy chooses from.

Arrays and lists over all arms, because a plan looks at few of them one by one. Beside what the estimator expects there
are two bounds that it does not know of: what an arm's cycles should take at most (`bound`), and what an arm that nobody
heard may cost at least (`floor`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_dd.core.acceptance import Weights
from adaptive_dd.core.domain import OFF
from adaptive_dd.core.learned import Arm
from adaptive_dd.core.outlook import Outlooks
from adaptive_dd.core.trials import BARRED, NEW, PROVEN, Standing, Trial

# Beyond this many standard errors an improvement is not worth reckoning: it is below what is worth a trial.
HOPELESS = 2.5
# Share of the baseline's cost that an arm promises at least whose cycles are believed to take hardly longer than the
# baseline's; what lesser ones cost would be saved for them.
PROMISING = 0.1
# Standard error of a cost (log) that only a jump or a shift of the machine brings: what it is now is anybody's guess.
WIDE_OPEN = 0.4
# An arm that no answer was heard of may cost at least this factor more than the baseline's price says of it by the
# usual shape of machines. Through one depth any line fits: cycles of 6 ms were believed where they took 61.
UNHEARD = 1.2
BASELINE = 0  # its index


class Candidate(NamedTuple):
    """What is expected of an arm: ms per token by text (level,) and on average, sd of its log, standing.

    bound   ms per token by text (level,) if its cycles took as long as the baseline's, where they should take no longer
    floor   ms per token by text (level,) that it may cost at least, where no answer tells
    """

    arm: Arm
    cost: NDArray[np.float64]
    mean: float
    sd: float
    standing: Standing
    bound: NDArray[np.float64] | None = None
    floor: NDArray[np.float64] | None = None


class Field(NamedTuple):
    """All arms of a cell, the baseline first, as arrays and lists (arm,): few of them are looked at one by one.

    cost       ms per token by text (arm, level)
    mean       the same on average          sd       of its log
    trials     what is held of arms, by name
    fit        indices of the arms that may be played beside the baseline, and `proven`: of those that are proven
    hope       share of its mean that each costs if it is HOPELESS standard errors better than expected
    bound      ms per token by text (arm, level) if each arm's cycles took as long as the baseline's
    within     indices of the arms that draft no deeper than the baseline and stop no later
    floor      ms per token by text (arm, level) that an arm may cost at least as long as none of its answers was heard
    heard      names of arms of which one was
    """

    arms: tuple[Arm, ...]
    cost: NDArray[np.float64]
    mean: list[float]
    sd: list[float]
    trials: Mapping[str, Trial]
    fit: list[int]
    proven: list[int]
    hope: list[float]
    bound: NDArray[np.float64]
    within: list[int]
    floor: NDArray[np.float64]
    heard: Container[str]

    def candidate(self, at: int) -> Candidate:
        """One of the arms."""
        arm, mean = self.arms[at], self.mean
        standing = self.trials.get(arm.name, NEW).standing
        promising = mean[at] < (1.0 - PROMISING) * mean[BASELINE] and at in self.within
        bound = self.bound[at] if promising and standing is not Standing.CREDITED else None
        # What not drafting costs after a jump is an open question with a bound of its own.
        told = standing is Standing.CREDITED or arm.name in self.heard or is_open(arm, self.sd[at])
        floor = None if told else self.floor[at]
        return Candidate(arm, self.cost[at], mean[at], self.sd[at], standing, bound, floor)


class Anchor(NamedTuple):
    """What is known of the baseline: its price, ms per token by text (level,), its cycle time, ms by text (level,),
    and the depth it drafts to (`server`: as seen)."""

    price: Weights
    bare: Weights
    depth: float


def field_of(
    arms: tuple[Arm, ...],
    outlooks: Outlooks,
    trials: Mapping[str, Trial],
    anchor: Anchor,
    heard: Container[str],
) -> Field:
    """The arms of a cell with what is expected and held of them, still without means."""
    cost, sd, cycles, middling = outlooks
    barred = {name for name, trial in trials.items() if trial.standing in BARRED}
    proven = {name for name, trial in trials.items() if trial.standing in PROVEN}
    fit = [at for at, arm in enumerate(arms) if at != BASELINE and arm.name not in barred]
    known = [at for at in fit if arms[at].name in proven]
    p_min = arms[BASELINE].p_min
    within = [at for at in fit if 0.0 < arms[at].depth <= anchor.depth and arms[at].p_min >= p_min]
    hope, bound = np.exp(-HOPELESS * sd).tolist(), cycles * np.array(anchor.bare)
    floor = UNHEARD * middling * (np.array(anchor.price) / middling[BASELINE])
    return Field(arms, cost, [], sd.tolist(), trials, fit, known, hope, bound, within, floor, heard)


def is_open(arm: Arm, sd: float) -> bool:
    """Whether what not drafting costs is an open question: it has a bound of its own, the baseline's cycle."""
    return arm.setting == OFF and sd >= WIDE_OPEN
