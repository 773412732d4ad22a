"""What is known, as values: cycle time by node, texts, conversations, and how arms see them.

`core.estimator` says where each comes from and what is expected because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from adaptive_dd.core.acceptance import LEVELS, Weights
from adaptive_dd.core.domain import OFF, SERVER, Setting, Timings
from adaptive_dd.core.regression import TIME_SD, Cycle, Fit, Vector

# Comparisons at which a lift is half believed (answers differ by some .4 logits, lifts by .2), and its limit.
LIFT_LEAN, LIFT_KEEP, LARGEST_LIFT = 4.0, 0.998, 1.5
# What one comparison counts for at most (logits): where a drafter breaks, or the work changes, the text itself jumped.
LARGEST_COMPARED = 0.6
# What is kept of the baseline's drafting by text with each of its answers, and the spread of texts (logits squared,
# summed over answers) at which a slope is half believed.
DRAFTING_KEEP, DRAFTING_LEAN = 0.98, 1.0


@dataclass(frozen=True, slots=True)
class Tally:
    """A running mean and the (forgetting) weight of what it was made from."""

    mean: float = 0.0
    weight: float = 0.0

    def moved(self, error: float, weight: float, *, lean: float, cap: float) -> Tally:
        """After an answer that was `error` off a prediction which included this mean."""
        gain = weight / (self.weight + weight + lean)
        return Tally(self.mean + gain * error, min(cap, self.weight + weight))

    def shrunk(self, lean: float) -> float:
        """The mean, drawn towards zero as if that had been seen `lean` times."""
        return self.mean * self.weight / (self.weight + lean)


NOTHING = Tally()
Residuals = Mapping[str, Tally]  # by the arm's name: strings keep their hash


@dataclass(frozen=True, slots=True)
class Arm:
    """A setting with what is asked of it all the time. depth: its n_max, -1 for `server`, whose depth is observed."""

    setting: Setting
    name: str
    depth: float
    p_min: float

    def __hash__(self) -> int:
        """That of the name, which says it all: a string keeps its hash."""
        return hash(self.name)


def arm_of(setting: Setting) -> Arm:
    """The arm of a setting."""
    depth = -1.0 if setting.n_max is None else float(setting.n_max)
    return Arm(setting, str(setting), depth, setting.p_min or 0.0)


SERVER_NAME, OFF_NAME = str(SERVER), str(OFF)


@dataclass(frozen=True, slots=True)
class Node:
    """Cycle time in one bucket at one load: the line (ms) and each arm's residual."""

    fit: Fit = field(default_factory=Fit)
    rho: Residuals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """Cycle time at one load in units of T(0), over all buckets."""

    fit: Fit = field(default_factory=Fit)
    rho: Residuals = field(default_factory=dict)


NO_SHAPE, NO_NODE = Shape(), Node()


@dataclass(frozen=True, slots=True)
class Text:
    """A distribution of texts (level,), unnormalised: its sum is the evidence in answers.

    bias   by arm, mean log of observed over tabled cycles per token
    """

    weights: Weights
    bias: Residuals = field(default_factory=dict)


NO_TEXT = Text((0.0,) * len(LEVELS))


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation's earlier answers say.

    log_likelihood   of its text (level,)            level   the mean level that this puts it at
    traits           running means of the traits of the arms that showed it
    weight           answers in those means
    """

    log_likelihood: Weights
    level: float
    traits: Mapping[str, float]
    weight: float


@dataclass(frozen=True, slots=True)
class Lift:
    """How much easier arms with a trait find the same text than others do: logits for a unit of it, by ridge."""

    squares: float = 0.0
    logits: float = 0.0

    def heard(self, difference: float, error: float, weight: float) -> Lift:
        """After an answer whose trait was `difference` from its conversation's mean, and its level `error` off what
        was expected of it. (Off what was *seen* before would be another thing: deep settings are chosen after lucky
        answers, and the next one is less lucky whatever it is answered with.)"""
        error = min(max(error, -LARGEST_COMPARED), LARGEST_COMPARED)
        squares = LIFT_KEEP * self.squares + weight * difference * difference
        moved = self.logits + weight * difference * error / (squares + LIFT_LEAN)
        return Lift(squares, min(max(moved, -LARGEST_LIFT), LARGEST_LIFT))


NO_LIFT = Lift()


@dataclass(frozen=True, slots=True)
class Drafting:
    """How much the baseline drafts by text: where a p_min ends its drafts, less on hard text.

    A regression of the share of cycles that draft and of drafted tokens on the text's level, by its own answers.

    weight                        answers behind it
    level, drafts, drafted        their means
    squares, by_drafts, by_drafted  sums of squares of levels, and of their products with the others
    """

    weight: float = 0.0
    level: float = 0.0
    drafts: float = 0.0
    drafted: float = 0.0
    squares: float = 0.0
    by_drafts: float = 0.0
    by_drafted: float = 0.0

    def heard(self, level: float, drafts: float, drafted: float, weight: float) -> Drafting:
        """After an answer of the baseline."""
        total = DRAFTING_KEEP * self.weight + weight
        off, share = level - self.level, weight / total
        mean, of_drafts = self.level + share * off, self.drafts + share * (drafts - self.drafts)
        of_drafted = self.drafted + share * (drafted - self.drafted)
        return Drafting(
            total,
            mean,
            of_drafts,
            of_drafted,
            DRAFTING_KEEP * self.squares + weight * off * (level - mean),
            DRAFTING_KEEP * self.by_drafts + weight * off * (drafts - of_drafts),
            DRAFTING_KEEP * self.by_drafted + weight * off * (drafted - of_drafted),
        )

    def at(self, level: float) -> tuple[float, float]:
        """Share of cycles that draft, and drafted tokens, of a text at this level."""
        off = (level - self.level) / (self.squares + DRAFTING_LEAN)
        drafts = self.drafts + self.by_drafts * off
        return min(1.0, max(0.0, drafts)), max(0.0, self.drafted + self.by_drafted * off)


NO_DRAFTING = Drafting()


@dataclass(frozen=True, slots=True)
class Learned:
    """Everything that predictions are made from.

    nodes       by node number (`node_of`)        shapes   by load
    texts       by kind and bucket (`text_key`), by kind, and "" for all
    talks       by conversation, the least recently heard first
    common      log factor of the whole machine now against what the nodes were learned at
    server      drafted tokens per cycle of requests that went out as they came: the most that they draft, or nearly
    lifts       by trait of an arm (`traits_of`), how it sees the same text
    slants      by arm with a p and band of text (`band_of`), mean log of observed over expected cost: how drafting
                stops differs from text to text in ways that no table knows
    noise       mean absolute error of cycle times of familiar arms (log)
    unsure      by arm, the shift of the whole machine since it was last played: perhaps it does not concern it
    apart       by arm, how much of such shifts turned out not to concern it (log)
    drafting    how much the baseline drafts by text
    """

    nodes: Mapping[int, Node] = field(default_factory=dict)
    shapes: Mapping[int, Shape] = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)
    talks: Mapping[str, Talk] = field(default_factory=dict)
    common: float = 0.0
    server: Tally = NOTHING
    lifts: Mapping[str, Lift] = field(default_factory=dict)
    slants: Mapping[str, tuple[Tally, ...]] = field(default_factory=dict)
    noise: Tally = Tally(TIME_SD, 10.0)
    unsure: Mapping[str, float] = field(default_factory=dict)
    apart: Mapping[str, float] = field(default_factory=dict)
    drafting: Drafting = NO_DRAFTING

    @property
    def time_sd(self) -> float:
        """Standard error of a familiar arm's cycle time (log)."""
        return 1.25 * self.noise.mean


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as the estimator hears of it.

    inferred   its drafted tokens are not known (`Outcome.inferred`)
    baseline   it is the baseline's, by which texts are told: what it shows is right whatever the tables say
    """

    arm: Arm
    bucket: int
    load: int
    kind: str
    conversation: str
    timings: Timings
    inferred: bool = False
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer understood, before anything was learned from it.

    seen        its mean cycle; where its drafted tokens are not known, with the typical features
    typical     features that the tables give its arm for such a text: what a prediction would have used
    expected    the text it was expected to be (level,)
    posterior   the text it turned out to be (level,)
    likelihood  the same without expectations, widened by what moves between answers (level,)
    shown       the level that the answer shows, and how much it says; None where nothing was drafted
    time_error, text_error   log of observed over predicted: cycle time, cycles per token
    familiar    the arm was played before in this node, so that an error is a surprise
    """

    seen: Cycle
    typical: Vector
    expected: Weights
    posterior: Weights
    likelihood: Weights
    shown: tuple[float, float] | None
    time_error: float
    text_error: float
    familiar: bool


def node_of(bucket: int, load: int) -> int:
    """The number of a node."""
    return 8 * bucket + load


def text_key(kind: str, bucket: int) -> str:
    """The name of a kind's texts in a bucket."""
    return f"{bucket}|{kind}"
