"""The guard: what may be played, so that the total never falls far below the fixed baseline.

The unit is decode time. A request of G tokens that took t, where the baseline would have needed tau0 for each token:

    saved = G tau0 - t      ref = G tau0      B = sum saved      Ref = sum ref

tau0 is the baseline's *own price*: the cycle time of its own recent answers, with the text of this very answer (a
draft of any depth tells how the baseline's depth would have fared). No other arm's slow answer can raise it; a fast
answer of another arm lowers it at once. The budget rule is that of conservative bandits (Wu, Shariff, Lattimore and
Szepesvari 2016; Kazerouni et al. 2017): an arm that is not proven is tried only while

    B - slack - reserved - worst(arm) >= -alpha Ref - c0

where `reserved` is the worst case of all requests still on their way, and `slack` what B may be off. Each bucket keeps
the same account for itself.

What is held of single arms stands in `core.trials`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adaptive_dd.core.acceptance import Weights
from adaptive_dd.core.domain import Cell
from adaptive_dd.core.learned import NOTHING, Reading, Tally, node_of
from adaptive_dd.core.regression import Vector, line
from adaptive_dd.core.trials import Signal, Trial, lost

# --- the baseline's price ------------------------------------------------------------------------------------

# Noise of one baseline answer's cycle time, what no number of answers removes, and what each request since adds.
PRICE_SD, PRICE_FLOOR, PRICE_AGING = 0.03, 0.006, 0.00008
# Shares of a surprise that the whole machine's price takes, and one node's (at least).
DRIFT_GAIN, NODE_GAIN = 0.4, 0.2
# What one answer may be off without surprise (log), at least.
USUAL_ERROR = 0.08
# Noise of an answer's cycle time (log) up to which prices move as fast as that.
QUIET_SD = 0.045
# The mean absolute error of a price (log) before any was seen.
STEADY = Tally(0.02, 2.0)
# Slow answers in a row after which the next one is believed.
CONFIRMED = 2
# Answers behind a price from which a surprise is the machine's and not the price's.
SETTLED = 2.0
# Answers of the baseline in a node before anything else is played there: two, of forty cycles or so. The first sets the
# price, whatever it says, and one slow answer would make everything else look cheap for as long as that is played.
PRICED = 1.2


@dataclass(frozen=True, slots=True)
class Price:
    """The baseline's cycle time in a node, by its own answers.

    level    log of ms per cycle, without the deployment's `drift`
    drawn    features of its mean cycle (see `estimator`)
    weight   answers behind it              number   of the last one
    noise    mean absolute error of the price (log): where texts move it, their coming and going is no surprise
    rise     log by which the last `rises` answers were slower at least, where that is not believed yet
    """

    level: float
    drawn: Vector
    weight: float
    number: int
    noise: Tally = STEADY
    rise: float = 0.0
    rises: int = 0

    def sd(self, number: int, noise: float = 0.0) -> float:
        """What the price may be off (log). noise: of one answer's cycle time."""
        age = PRICE_AGING * max(0, number - self.number)
        return math.sqrt(max(PRICE_SD, noise) ** 2 / max(self.weight, 0.5) + PRICE_FLOOR**2 + age * age)


# --- the account ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """The realised budget, in ms. doubt: what wrong prices may add up to; square: sum of squared noise."""

    saved_ms: float = 0.0
    ref_ms: float = 0.0
    doubt_ms: float = 0.0
    square: float = 0.0

    def plus(self, other: Account) -> Account:
        """Both together."""
        return Account(
            self.saved_ms + other.saved_ms,
            self.ref_ms + other.ref_ms,
            self.doubt_ms + other.doubt_ms,
            self.square + other.square,
        )

    def slack_ms(self, quantile: float) -> float:
        """What `saved_ms` may be too high by; quantile: of the standard normal."""
        return quantile * (0.5 * self.doubt_ms + math.sqrt(self.square))


@dataclass(frozen=True, slots=True)
class Alarm:
    """A surprise.

    shift     log of observed over expected cycle time, and the name of the arm that showed it
    node      where; only the baseline's answer there can explain it
    lowered   by how much the baseline's price was lowered at once
    due       the baseline was not asked yet
    rise      log by which its first answer was slower, where a second one has to show it too
    """

    shift: float
    name: str
    node: int
    lowered: float = 0.0
    due: bool = True
    rise: float | None = None

    def due_at(self, cell: Cell) -> bool:
        """Whether the baseline still has to be asked, and a request of this cell may do it."""
        return self.due and self.node == node_of(cell.bucket, cell.load)


EMPTY = Account()


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard's memory.

    total, buckets   the accounts
    trials           standings by cell and name of arm
    prices, drift    the baseline's price by node, and the log factor of the whole machine on all of them
    reserved         worst case in ms of each request on its way, by number
    since_ms         ref of other arms' answers since the baseline was last heard
    up, down         detectors of other arms' cycle times rising and falling (standard errors)
    recent           running mean of other arms' cycle time errors (log): how large a surprise is
    alarm            a surprise that is not explained yet, or None
    calm             number until which no further surprise is raised
    usual            mean of what the baseline needs for an answer (ms)
    lies, caught     log of the e-detector for "what the frontier is credited with loses", over all cells, and whether
                     it rang: then its rows get no credit any more, in no cell
    """

    total: Account = EMPTY
    buckets: Mapping[int, Account] = field(default_factory=dict)
    trials: Mapping[Cell, Mapping[str, Trial]] = field(default_factory=dict)
    prices: Mapping[int, Price] = field(default_factory=dict)
    drift: float = 0.0
    reserved: Mapping[int, float] = field(default_factory=dict)
    since_ms: float = 0.0
    up: float = 0.0
    down: float = 0.0
    recent: float = 0.0
    alarm: Alarm | None = None
    calm: int = 0
    usual: Tally = NOTHING
    lies: float = 0.0
    caught: bool = False


def is_priced(kept: Guard, node: int) -> bool:
    """Whether the baseline was heard often enough in a node for others to be played there."""
    price = kept.prices.get(node)
    return price is not None and price.weight >= PRICED


def credited(kept: Guard, saving: float, weight: float, *, number: int, delta: float, doubt: float) -> Guard:
    """After an answer that a row of the frontier was played for on credit, and that saved `saving` (log).

    One row's lie is seldom alone: the same sweep measured them all, and what it got wrong would cost a loss in every
    cell and for every arm before each is proven slower by itself. So they are tested together, too.
    """
    kept = replace(kept, lies=lost(kept.lies, saving, weight, doubt=doubt))
    if kept.lies <= math.log(1.0 / delta):
        return kept
    return replace(without_credit(kept, number), caught=True)


def without_credit(kept: Guard, number: int) -> Guard:
    """The guard after every row that is played on credit became a candidate."""
    trials = {
        cell: {name: trial.moved(Signal.LIED, number) for name, trial in own.items()}
        for cell, own in kept.trials.items()
    }
    return replace(kept, trials=trials)


# --- alarms --------------------------------------------------------------------------------------------------

# Standard errors: what a detector lets pass, where it rings, and the most that one answer adds (a far outlier rings).
ALLOWANCE, ALARM, LARGEST = 1.0, 6.0, 7.0
# The noise that alarms are tuned for at least, and the smallest shift of a whole machine worth the name (log).
LEAST_ALARM_SD, LEAST_SHIFT = 0.025, 0.08
# Requests after an explained alarm during which residuals move fast and no other alarm is raised.
CALM = 12
# Share of the newest error in the running mean.
RECENT = 0.5


def listened(kept: Guard, heard: tuple[str, int], error: float, *, sd: float, number: int) -> Guard:
    """After another arm's cycle time was `error` (log) off: a surprise makes an anchoring baseline request due.

    heard: the arm's name and the node.

    Cumulative sums both ways (Page 1954). A fall lowers the baseline's price before it is asked: the machine may have
    become faster for everybody.
    """
    z = min(max(error / max(sd, LEAST_ALARM_SD), -LARGEST), LARGEST)
    up, down = max(0.0, kept.up + z - ALLOWANCE), max(0.0, kept.down - z - ALLOWANCE)
    recent = kept.recent + RECENT * (error - kept.recent)
    if max(up, down) < ALARM or number < kept.calm or kept.alarm is not None:
        return replace(kept, up=min(up, ALARM), down=min(down, ALARM), recent=recent)
    shift = error if abs(error) > abs(recent) else recent
    lowered = min(0.0, shift) if down >= ALARM else 0.0
    alarm = Alarm(shift, heard[0], heard[1], lowered)
    return replace(kept, up=0.0, down=0.0, recent=recent, drift=kept.drift + lowered, alarm=alarm)


def explained(kept: Guard, error: float, *, sd: float, number: int) -> tuple[Guard, float]:
    """After the baseline answered an alarm, `error` (log) off what was expected of it: the shift of the whole machine.

    What both the baseline and the arm show is the machine's; what the arm shows alone is its own. A rise has to be
    shown twice: the alarm stays, and the baseline is asked again. One slow answer of it is a hiccup, and believing it
    would raise the prices of all nodes, each of which would have to be heard to find out.
    """
    assert kept.alarm is not None
    shift, shared = kept.alarm.shift, 0.0
    if abs(error) > max(3.0 * sd, LEAST_SHIFT) and abs(shift) > LEAST_SHIFT and error * shift > 0.0:
        shared = math.copysign(min(abs(error), abs(shift)), shift)
    if shared > 0.0:
        if kept.alarm.rise is None:
            return replace(kept, alarm=replace(kept.alarm, rise=error, due=True)), 0.0
        shared = min(shared, kept.alarm.rise)
    drift = kept.drift + shared - kept.alarm.lowered
    return replace(kept, alarm=None, recent=0.0, up=0.0, down=0.0, calm=number + CALM, drift=drift), shared


def priced(
    kept: Guard, node: int, reading: Reading, coef: Vector, number: int, *, sd: float
) -> tuple[Guard, float]:
    """After an answer of the baseline: its price here, the drift of all prices, and the account set right; and the
    shift (log) where the machine is believed to have moved.

    One slow answer may be a hiccup, and believing it would make every other arm look cheap: a rise beyond the usual
    counts when the next ones show it too. A fall counts at once. sd: of a familiar arm's cycle time (log).

    Where the baseline turns out faster than its price, the difference on everything booked since it was last heard is
    taken back: half of what may have crept in, for the price fell somewhere in between, and all of a sudden fall, which
    may have come right after the last time.
    """
    price, weight, drawn = kept.prices.get(node), reading.seen.weight, reading.seen.drawn
    if price is None:
        level = math.log(reading.seen.cycle_ms) - kept.drift
        first = Price(level, drawn, weight, number)
        return replace(kept, prices={**kept.prices, node: first}, since_ms=0.0), 0.0
    ratio = line(coef, drawn) / line(coef, price.drawn)
    seen = math.log(reading.seen.cycle_ms / ratio) - price.level - kept.drift
    usual = max(USUAL_ERROR, 3.0 * sd, 3.75 * price.noise.mean)
    noise = min(abs(seen), 4.0 * price.noise.mean + USUAL_ERROR)
    error = min(seen, max(usual, price.rise if price.rises >= CONFIRMED else 0.0))
    unbelieved = seen > error
    sudden = min(0.0, error + usual)
    error -= sudden
    # Where answers are noisy, a lively price is luck half of the time, and luck is what others would be played on.
    lively = min(1.0, QUIET_SD / max(sd, 1e-9))
    # Falls are shared as rises are: a drift that only ever rose would carry every other node's price along.
    shared = DRIFT_GAIN * sudden
    step = DRIFT_GAIN * lively * weight * error
    gain = max(weight / (price.weight + weight), NODE_GAIN * lively * weight)
    mixed = [old + gain * (new - old) for old, new in zip(price.drawn, drawn, strict=True)]
    after = Price(
        price.level + sudden - shared + gain * (error - step),
        (mixed[0], mixed[1], mixed[2], mixed[3]),
        min(8.0 / lively, price.weight + weight),
        number,
        rise=min(seen, price.rise or seen) if unbelieved else 0.0,
        rises=price.rises + 1 if unbelieved else 0,
        noise=price.noise.moved(noise - price.noise.mean, weight, lean=0.0, cap=20.0),
    )
    back = Account(saved_ms=(0.5 * min(0.0, error) + sudden) * kept.since_ms)
    kept = replace(
        kept,
        prices={**kept.prices, node: after},
        drift=kept.drift + step + shared,
        total=kept.total.plus(back),
        since_ms=0.0,
    )
    return kept, error + sudden if abs(error + sudden) > usual and price.weight > SETTLED else 0.0


# --- the rule ------------------------------------------------------------------------------------------------


# Share of c0 that trials may spend: the last one may cost more than was reckoned. It is lent with the baseline's first
# answers, because a worst case in a machine that was hardly heard is a guess.
LENT, HEARD = 0.5, 6.0
# Share of a usual answer's time by which one answer may exceed its worst case. What the rest of c0 does not cover of
# that is kept back: where answers take a minute, c0 is no reserve.
MISJUDGED = 0.7


def headroom_ms(kept: Guard, *, alpha: float, c0_ms: float, quantile: float) -> float:
    """What may still be lost: B - slack - reserved + alpha Ref + what is lent of c0, less what is kept back."""
    total, heard = kept.total, sum([price.weight for price in kept.prices.values()])
    lent_ms = LENT * c0_ms * min(1.0, heard / HEARD)
    reserved_ms = sum(kept.reserved.values()) + max(0.0, MISJUDGED * kept.usual.mean - (1.0 - LENT) * c0_ms)
    return total.saved_ms - total.slack_ms(quantile) - reserved_ms + alpha * total.ref_ms + lent_ms


def bucket_headroom_ms(kept: Guard, bucket: int, *, alpha: float, c0_ms: float) -> float:
    """The same for one bucket's own account, to which half of what was saved anywhere is lent.

    Without slack: the deployment's account carries it.
    """
    account = kept.buckets.get(bucket, EMPTY)
    return account.saved_ms + alpha * account.ref_ms + c0_ms + 0.5 * max(0.0, kept.total.saved_ms)


# Share of texts, the worst ones, that a worst case is the mean of.
TAIL = 0.2


def worst_ms(
    cost: list[float], price: Weights, text: Weights, *, stretch: float, tokens: float, tail: float = TAIL
) -> float:
    """What an unproven arm may lose on a request, in ms: its expected shortfall over the worst texts (a share of
    `tail`), with its cost at the upper end of its interval; text on which it would gain counts for nothing."""
    each = zip(cost, price, text, strict=True)
    losses = [(loss, w) for c, p, w in each if (loss := stretch * c - p) > 0.0]
    left, lost = tail, 0.0
    for loss, weight in sorted(losses, reverse=True):
        if left <= 0.0:
            break
        part = min(weight, left)
        lost, left = lost + loss * part, left - part
    return tokens * lost / tail
