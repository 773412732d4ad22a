"""What is known about cycle time and about text, and what every arm is expected to cost because of it.

Time per token is T/E: cycle time over tokens per cycle. The two are learned apart, because they differ in what moves
them. T belongs to the machine and hardly moves from text to text, so that a few answers settle it; E belongs to the
text and moves by tens of percent.

Cycle time. For each *node* (context bucket x load) a ridge regression of ms per cycle on

    1, share of cycles that draft, drafted tokens, share of cycles with a rejection

whose prior is the load's *shape* (the same regression in units of T(0), over all buckets), whose own prior is a
common figure of public measurements: drafting a token costs a fifth of T(0). On top of it a residual per arm (log
scale, for the load and for the node), so that kernel cliffs and valleys in n are seen wherever an arm was played, and
one *common* factor for the machine as a whole. Where it misleads: an arm that was never played is only as good as the
line through its neighbours.

Text. For each kind of request in a bucket a distribution over the levels of `core.acceptance`, learned as the mean
posterior of answers (one step of EM for each; Laird 1978, the nonparametric maximum likelihood mixture), shrunk
towards the kind's and everything's. A conversation adds the likelihood of its own earlier answers. A bias per arm
(log cycles per token) lets direct evidence overrule the geometric tables.

All sums forget: a node over some seventy answers, a text over fifty.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import mul
from typing import cast

from adaptive_dd.core.acceptance import (
    CHANCES,
    LEVELS,
    DraftTable,
    Weights,
    at_level,
    blurred,
    draft_table,
    level_of,
    likelihood,
    normalised,
    product,
    reach_of,
)
from adaptive_dd.core.domain import OFF, SERVER, Setting, Timings
from adaptive_dd.core.regression import (
    SHAPE_PRIOR,
    SHAPE_SD,
    TIME_SD,
    Cycle,
    Fit,
    Vector,
    fitted,
    line,
    off_line,
)

# How far one node's shape is from its load's.
NODE_SD: Vector = (0.0, 0.05, 0.04, 0.04)
NODE_KEEP, SHAPE_KEEP, TEXT_KEEP = 0.93, 0.97, 0.98
# Answers of one conversation differ by this much (logits); an answer's own precision is added.
MOOD_SD = 0.25
LEAST_SD = 0.25  # half of the grid's step or so: a sharper likelihood would fall between levels
# Cycles of one text differ (easy and hard ones alternate), so that an answer tells less than that many draws would.
OVERDISPERSED = 1.5
TALK_KEEP = 0.9
TALKS = 256
# Pseudo-answers by which a text leans on its kind, and a kind on everything.
LEAN = 3.0
# Evidence (answers) at which a residual is half believed, and its cap, which keeps it able to move.
RHO_LEAN, RHO_CAP = 0.6, 14.0
# What is kept of the evidence for each arm with every answer of another: what was not played for long is asked again.
AGEING = 0.997
BIAS_LEAN, BIAS_LEAN_P, BIAS_CAP = 30.0, 10.0, 40.0
# Weight on the line of an answer that does not tell how much a p_min let through: the tables may be off by half, and
# what the line would learn of drafted tokens is their error. The arm's own residual learns all the same.
UNTOLD = 0.2
# Answers at which a slant is half believed, and its cap.
SLANT_LEAN, SLANT_CAP = 4.0, 25.0
# Comparisons at which a lift is half believed (answers differ by some .4 logits, lifts by .2), and its limit.
LIFT_LEAN, LIFT_KEEP, LARGEST_LIFT = 4.0, 0.998, 1.5
# What the lift of a p level may be before any comparison (logits): drafters are more or less sure than they should be.
UNHEARD_P_SD = 0.6
# Weight from which an arm's answers are expected to be what was predicted, the error that one of them may teach then
# (an outlier is not a trend), and the share of it that is put down to the whole machine.
FAMILIAR, LARGEST_SURPRISE, COMMON_GAIN = 1.5, 0.12, 0.02
# Cycle time may differ by this much from one bucket to the next (log). A larger jump may not concern arms that were not
# played there (memory that spills slows drafts only): their sd grows by this share of it.
USUAL_JUMP, JUMP_DOUBT = 0.35, 0.8
# Share of a shift that is in doubt for arms that draft as those do which showed it: memory that spills slows them all.
ALIKE = 0.3


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
        squares = LIFT_KEEP * self.squares + weight * difference * difference
        moved = self.logits + weight * difference * error / (squares + LIFT_LEAN)
        return Lift(squares, min(max(moved, -LARGEST_LIFT), LARGEST_LIFT))


NO_LIFT = Lift()


@dataclass(frozen=True, slots=True)
class Learned:
    """Everything that predictions are made from.

    nodes       by node number (`node_of`)        shapes   by load
    texts       by kind and bucket (`text_key`), by kind, and "" for all
    talks       by conversation, the least recently heard first
    common      log factor of the whole machine now against what the nodes were learned at
    server      drafted tokens per cycle of requests that went out as they came
    lifts       by trait of an arm (`traits_of`), how it sees the same text
    slants      by arm with a p and band of text (`band_of`), mean log of observed over expected cost: how drafting
                stops differs from text to text in ways that no table knows
    noise       mean absolute error of cycle times of familiar arms (log)
    unsure      by arm, the shift of the whole machine since it was last played: perhaps it does not concern it
    apart       by arm, how much of such shifts turned out not to concern it (log)
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

    @property
    def time_sd(self) -> float:
        """Standard error of a familiar arm's cycle time (log)."""
        return 1.25 * self.noise.mean


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as the estimator hears of it.

    inferred   its drafted tokens are not known (`Outcome.inferred`)
    biased     its arm may have a bias; not the baseline, by which texts are told, and not the rows of a frontier
    """

    arm: Arm
    bucket: int
    load: int
    kind: str
    conversation: str
    timings: Timings
    inferred: bool = False
    biased: bool = False


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


# --- predicting ----------------------------------------------------------------------------------------------


def table_of(learned: Learned, arm: Arm) -> DraftTable:
    """What an arm drafts. `server` drafts as deep as it was seen to."""
    return draft_table(depth_of(learned, arm), arm.p_min, shift_of(learned, arm))


def shift_of(learned: Learned, arm: Arm) -> float:
    """Logits by which an arm finds a text easier than a draft of two tokens does, in steps that tables are kept for."""
    traits = traits_of(depth_of(learned, arm), arm.p_min)
    shift = sum([x * learned.lifts.get(name, NO_LIFT).logits for name, x in traits.items()])
    return round(20.0 * shift) / 20.0


def lift_sd(learned: Learned, arm: Arm) -> float:
    """What an arm's p level may be off in how it sees a text (logits): less with every comparison."""
    if arm.p_min == 0.0:
        return 0.0
    return UNHEARD_P_SD / math.sqrt(1.0 + learned.lifts.get(f"p{arm.p_min}", NO_LIFT).squares / LIFT_LEAN)


@lru_cache(maxsize=1024)
def traits_of(depth: float, p_min: float) -> Mapping[str, float]:
    """What may make an arm see a text differently: how deep it drafts, in doublings beyond two tokens, and its p.

    Geometric acceptance and a calibrated drafter would make every lift zero. Mixed text has a heavier tail than that,
    so deep drafts find it easier; a drafter that is more or less sure than it should be moves what p_min lets through.
    Only answers of one conversation are compared, since deep settings are played on easy texts: what the answers
    share cancels.
    """
    if depth <= 0.0:
        return {}
    reach = {"reach": reach_of(depth, p_min)}
    return reach if p_min == 0.0 else {**reach, f"p{p_min}": 1.0}


def depth_of(learned: Learned, arm: Arm) -> float:
    """Drafted tokens per cycle that an arm asks for."""
    if arm.depth >= 0.0:
        return arm.depth
    return round(4.0 * learned.server.mean) / 4.0 if learned.server.weight else 2.0


def node_coef(learned: Learned, bucket: int, load: int) -> Vector:
    """ms per cycle of a node's line; of a node never seen, its load's shape at the nearest known T(0)."""
    node = learned.nodes.get(node_of(bucket, load))
    if node is not None:
        return node.fit.coef
    shape = shape_coef(learned, load)
    base_ms = _nearest_base_ms(learned, bucket, load)
    return (base_ms, shape[1] * base_ms, shape[2] * base_ms, shape[3] * base_ms)


def shape_coef(learned: Learned, load: int) -> Vector:
    """A load's shape; a load never seen has that of the nearest lower one."""
    for level in range(load, -1, -1):
        shape = learned.shapes.get(level)
        if shape is not None:
            s, k, per_token, per_rejection = shape.fit.coef
            return (1.0, k / s, per_token / s, per_rejection / s)
    return SHAPE_PRIOR


def _nearest_base_ms(learned: Learned, bucket: int, load: int) -> float:
    """T(0) of the nearest other node."""
    best, found = math.inf, 1.0
    for key, node in learned.nodes.items():
        distance = 2 * abs(key // 8 - bucket) + abs(key % 8 - load)
        if 0 < distance < best:
            best, found = distance, node.fit.coef[0]
    return found


def jump_doubt(learned: Learned, bucket: int, load: int) -> float:
    """What a jump of a middling cycle from the nearest bucket may be off for arms that were not played here (log)."""
    best, ratio = math.inf, 1.0
    here = line(learned.nodes[node_of(bucket, load)].fit.coef, _MIDDLING)
    for key, node in learned.nodes.items():
        distance = 2 * abs(key // 8 - bucket) + abs(key % 8 - load)
        if key // 8 != bucket and distance < best:
            best, ratio = distance, here / line(node.fit.coef, _MIDDLING)
    return JUMP_DOUBT * max(0.0, abs(math.log(ratio)) - USUAL_JUMP)


_MIDDLING: Vector = (1.0, 1.0, 3.0, 0.5)


def rho_of(learned: Learned, bucket: int, load: int, arm: Arm) -> float:
    """An arm's residual: log factor on the line."""
    shape, node = learned.shapes.get(load, NO_SHAPE), learned.nodes.get(node_of(bucket, load), NO_NODE)
    return residual(shape, node, arm)


def residual(shape: Shape, node: Node, arm: Arm) -> float:
    """An arm's residual from a load's shape and a node.

    Without a p it is worked out from the arm's own sums, so that it is right for the line as it stands now: a line
    that tilts for another arm's sake must not take along what an arm was seen to cost. With a p the drafted length
    differs from the tables, and the running means against these are kept.
    """
    name = arm.name
    at_load, at_node = shape.rho.get(name, NOTHING), node.rho.get(name, NOTHING)
    if arm.p_min > 0.0:
        return at_load.mean + at_node.mean
    own, here = shape.fit.by_arm.get(name), node.fit.by_arm.get(name)
    total = 0.0
    if own is not None:
        total = off_line(shape.fit.coef, own) * at_load.weight / (at_load.weight + RHO_LEAN)
    if here is not None:
        total += (off_line(node.fit.coef, here) - total) * at_node.weight / (at_node.weight + RHO_LEAN)
    return total


FLAT: Weights = (1.0,) * len(LEVELS)
NO_TEXT = Text((0.0,) * len(LEVELS))
# Before any answer: texts from hopeless to copied, most of them in between.
_UNKNOWN_TEXT = normalised(tuple(math.exp(-0.5 * ((z - 1.2) / 1.4) ** 2) for z in LEVELS))


def texts_of(learned: Learned, kind: str, bucket: int) -> Weights:
    """The distribution of texts to expect from a kind in a bucket, without a conversation (sum 1)."""
    keys = "", kind, text_key(kind, bucket)
    first, second, third = [learned.texts.get(key, NO_TEXT).weights for key in keys]
    # Three times a mean with what was expected before, which counts for LEAN answers; in one go.
    c = 1.0 / (LEAN + sum(third))
    b = c * LEAN / (LEAN + sum(second))
    a = b * LEAN / (LEAN + sum(first))
    unknown = a * LEAN
    parts = zip(_UNKNOWN_TEXT, first, second, third, strict=True)
    return tuple([unknown * u + a * x + b * y + c * z for u, x, y, z in parts])


def expected_text(learned: Learned, kind: str, bucket: int, conversation: str) -> Weights:
    """The distribution of texts to expect from the next answer (sum 1)."""
    prior = texts_of(learned, kind, bucket)
    talk = learned.talks.get(conversation) if conversation else None
    if talk is None:
        return prior
    top = max(talk.log_likelihood)
    return product(prior, tuple([math.exp(x - top) for x in talk.log_likelihood]))


# Bands of text, as indices of LEVELS: (-inf, .25), (.25, 1.3), (1.3, 2.3), above.
BANDS = (5, 7, 8)


def band_of(level: float) -> int:
    """The band of a text's level."""
    return sum([level > LEVELS[edge] + 0.35 for edge in BANDS])


# --- learning ------------------------------------------------------------------------------------------------


def read(learned: Learned, answer: Answer) -> Reading:
    """Understand one answer with at least one cycle."""
    timings, arm = answer.timings, answer.arm
    cycles, tokens = timings.cycles, timings.decode_tokens
    table = table_of(learned, arm)
    expected = expected_text(learned, answer.kind, answer.bucket, answer.conversation)
    drafted = timings.draft_n / cycles
    drafts = arm.depth > 0.0 if answer.inferred else drafted > 0.0
    typical: Vector = (1.0, 0.0, 0.0, 0.0)
    rejected, text_error, posterior, heard, shown = 0.0, 0.0, expected, FLAT, None
    if drafts and table.accepted[-1] > 0.0:
        level = level_of(table, tokens / cycles - 1.0)
        chance, rejected = at_level(CHANCES, level), at_level(table.rejected, level)
        typical = (1.0, at_level(table.drafts, level), at_level(table.drafted, level), rejected)
        trials = timings.draft_n_accepted + cycles * rejected
        own_sd = OVERDISPERSED / math.sqrt(trials * chance * (1.0 - chance) + 0.3)
        own_sd = math.hypot(own_sd, lift_sd(learned, arm))
        posterior = product(expected, likelihood(level, max(own_sd, LEAST_SD)))
        shown = (level, min(1.0, trials / 30.0))
        heard = likelihood(level, math.sqrt(own_sd * own_sd + MOOD_SD * MOOD_SD))
        predicted = sum(map(mul, expected, table.cycles_per_token))
        text_error = math.log(cycles / tokens) - math.log(predicted)
    drawn = typical if answer.inferred else (1.0, min(1.0, drafted), drafted, rejected)
    seen = Cycle(drawn, timings.predicted_ms / cycles, cycles / (cycles + 5.0))
    time_error, familiar = _time_error(learned, answer, seen, typical)
    return Reading(seen, typical, expected, posterior, heard, shown, time_error, text_error, familiar)


def _time_error(learned: Learned, answer: Answer, seen: Cycle, typical: Vector) -> tuple[float, bool]:
    """Log of observed over predicted cycle time, and whether the arm was played before in this node."""
    node, name = learned.nodes.get(node_of(answer.bucket, answer.load)), answer.arm.name
    if node is None:
        return 0.0, False
    rho = rho_of(learned, answer.bucket, answer.load, answer.arm)
    expected = math.log(line(node.fit.coef, typical)) + rho + learned.common + learned.apart.get(name, 0.0)
    return math.log(seen.cycle_ms) - expected, node.rho.get(name, NOTHING).weight > FAMILIAR


def learn(learned: Learned, answer: Answer, reading: Reading, *, trust: float = 1.0) -> Learned:
    """Learn from one answer. trust: gain on arm residuals, raised while an alarm says that the world moved."""
    learned = _learn_time(learned, answer, reading, trust)
    return _learn_text(learned, answer, reading)


def _learn_time(learned: Learned, answer: Answer, reading: Reading, trust: float) -> Learned:
    name, load, weight = answer.arm.name, answer.load, reading.seen.weight
    key = node_of(answer.bucket, load)
    shape, node = learned.shapes.get(load, NO_SHAPE), learned.nodes.get(key, NO_NODE)
    load_rho, node_rho = shape.rho.get(name, NOTHING), node.rho.get(name, NOTHING)
    usual = reading.familiar and name not in learned.unsure
    limit = max(LARGEST_SURPRISE, 3.0 * learned.time_sd) * trust if usual else math.inf
    error = min(max(reading.time_error, -limit), limit)
    noise = learned.noise
    if usual:
        seen_noise = min(abs(reading.time_error), 4.0 * noise.mean)
        noise = noise.moved(seen_noise - noise.mean, weight, lean=0.0, cap=40.0)
    common = learned.common + (COMMON_GAIN * weight * error if usual else 0.0)
    unsure, apart = learned.unsure, learned.apart
    if name in unsure:
        own = (
            -math.copysign(min(abs(error), abs(unsure[name])), unsure[name])
            if error * unsure[name] < 0.0
            else 0.0
        )
        apart = {**apart, name: apart.get(name, 0.0) + own}
        unsure = {n: s for n, s in unsure.items() if n != name}
    # One answer is believed only so far; the line hears it without what the whole machine explains. (Not without the
    # arm's residual: where one arm alone is played, line and residual would then chase each other.)
    ms = reading.seen.cycle_ms * math.exp(error - reading.time_error - common - apart.get(name, 0.0))
    on_line = weight * (UNTOLD if _untold(answer) else 1.0)
    seen, prior = Cycle(reading.seen.drawn, ms, on_line), shape_coef(learned, load)
    sd = NODE_SD if shape.fit.by_arm else SHAPE_SD
    fit = fitted(node.fit, name, seen, keep=NODE_KEEP, prior=prior, sd=sd)
    scaled = Cycle(seen.drawn, ms / fit.coef[0], on_line)
    shape_fit = fitted(
        shape.fit, name, scaled, keep=SHAPE_KEEP, prior=_shape_prior(learned, load), sd=SHAPE_SD
    )
    left = math.log(ms / line(fit.coef, reading.typical)) - load_rho.mean - node_rho.mean
    load_after = load_rho.moved(left, weight * trust, lean=RHO_LEAN, cap=RHO_CAP)
    left -= load_after.mean - load_rho.mean
    node_after = node_rho.moved(left, weight * trust, lean=2.0 * RHO_LEAN, cap=RHO_CAP)
    server = learned.server
    if name == SERVER_NAME:
        server = server.moved(seen.drawn[2] - server.mean, weight, lean=0.0, cap=30.0)
    nodes = {**learned.nodes, key: Node(fit, {**node.rho, name: node_after})}
    aged = {n: Tally(t.mean, AGEING * t.weight) for n, t in shape.rho.items()}
    shapes = {**learned.shapes, load: Shape(shape_fit, {**aged, name: load_after})}
    return Learned(
        nodes,
        shapes,
        learned.texts,
        learned.talks,
        common,
        server,
        learned.lifts,
        learned.slants,
        noise,
        unsure,
        apart,
    )


def _untold(answer: Answer) -> bool:
    """Whether nobody said how much was drafted: a p_min ended drafts, or the server's own may have."""
    return answer.inferred and answer.arm.depth > 0.0 and answer.arm.setting.p_min != 0.0


def _shape_prior(learned: Learned, load: int) -> Vector:
    return SHAPE_PRIOR if load == 0 else shape_coef(learned, load - 1)


def shifted(learned: Learned, shift: float, heard: Collection[str]) -> Learned:
    """After the whole machine moved by `shift` (log): a question again for every arm but those heard since."""
    names = {OFF_NAME, *[name for shape in learned.shapes.values() for name in shape.rho]} - set(heard)
    drafts = OFF_NAME not in heard
    apart, unsure = dict(learned.apart), dict(learned.unsure)
    for name in sorted(names):  # the order stays in the state, and a set has another one in every process
        # What an earlier shift did not concern, its end does not either.
        own = apart.get(name, 0.0)
        ended = math.copysign(min(abs(own), abs(shift)), shift) if own * shift > 0.0 else 0.0
        if ended:
            apart[name] = own - ended
        share = 1.0 if (name == OFF_NAME) == drafts else ALIKE
        unsure[name] = unsure.get(name, 0.0) + share * (shift - ended)
    return replace(learned, common=learned.common + shift, unsure=unsure, apart=apart)


def _learn_text(learned: Learned, answer: Answer, reading: Reading) -> Learned:
    if reading.shown is None:
        return learned
    name, seen = answer.arm.name, reading.seen.weight
    weight = min(2.0, answer.timings.decode_tokens / 200.0) * seen
    error = min(max(reading.text_error, -0.8), 0.8)
    lean = BIAS_LEAN if answer.arm.p_min == 0.0 else BIAS_LEAN_P
    slants = _slants(learned, name, reading) if answer.arm.p_min > 0.0 else learned.slants
    texts, spread = dict(learned.texts), blurred(reading.posterior)
    for key in ("", answer.kind, text_key(answer.kind, answer.bucket)):
        text = texts.get(key, NO_TEXT)
        weights = tuple([TEXT_KEEP * w + weight * p for w, p in zip(text.weights, spread, strict=True)])
        bias = text.bias
        if key != answer.kind and answer.arm.p_min == 0.0 and answer.biased:
            old = bias.get(name, NOTHING)
            bias = {**bias, name: old.moved(error - old.mean, seen, lean=0.0, cap=BIAS_CAP)}
            error -= bias[name].shrunk(lean)
        texts[key] = Text(weights, bias)
    if not answer.conversation:
        return replace(learned, texts=texts, slants=slants)
    talks, lifts = _talked(learned, answer, reading, reading.shown)
    return replace(learned, texts=texts, talks=talks, lifts=lifts, slants=slants)


def _slants(learned: Learned, name: str, reading: Reading) -> Mapping[str, tuple[Tally, ...]]:
    """The slants after an answer of an arm with a p."""
    own = list(learned.slants.get(name, (NOTHING,) * (len(BANDS) + 1)))
    band = band_of(sum(map(mul, LEVELS, reading.expected)))
    time_error = min(max(reading.time_error, -0.3), 0.3) if reading.familiar else 0.0
    error = min(max(reading.text_error + time_error, -0.6), 0.6)
    own[band] = own[band].moved(error - own[band].mean, reading.seen.weight, lean=0.0, cap=SLANT_CAP)
    return {**learned.slants, name: tuple(own)}


def _talked(
    learned: Learned, answer: Answer, reading: Reading, shown: tuple[float, float]
) -> tuple[Mapping[str, Talk], Mapping[str, Lift]]:
    """The conversations and the lifts after an answer of one of them."""
    level, weight = shown
    # A copy of the table as it is; `dict` would put hundreds of conversations in one by one, since some were taken out.
    talks, lifts = cast("dict[str, Talk]", copy(learned.talks)), learned.lifts
    traits = traits_of(depth_of(learned, answer.arm), answer.arm.p_min)
    old = talks.pop(answer.conversation, None) or Talk((0.0,) * len(LEVELS), 0.0, traits, 0.0)
    means, expected = dict(old.traits), sum(map(mul, LEVELS, reading.expected))
    gain = weight / (old.weight + weight)
    share = weight * old.weight / (old.weight + weight)  # the mean has an error of its own
    for name in sorted({*traits, *means}):
        difference = traits.get(name, 0.0) - means.get(name, 0.0)
        if difference and share:
            lifts = {**lifts, name: lifts.get(name, NO_LIFT).heard(difference, level - expected, share)}
        means[name] = means.get(name, 0.0) + gain * difference
    after = [TALK_KEEP * b + math.log(w) for b, w in zip(old.log_likelihood, reading.likelihood, strict=True)]
    mean = sum(map(mul, LEVELS, reading.posterior))
    talks[answer.conversation] = Talk(tuple(after), mean, means, min(6.0, old.weight + weight))
    if len(talks) > TALKS:
        del talks[next(iter(talks))]
    return talks, lifts
