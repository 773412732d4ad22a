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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import mul

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
)
from adaptive_dd.core.domain import OFF, SERVER, Setting, Timings

Vector = tuple[float, float, float, float]
Sums = tuple[float, ...]
NO_SUMS: Sums = (0.0,) * 14

# Relative noise of one answer's cycle time that the regression assumes: 1-3% in public repeats.
TIME_SD = 0.03
# Shape of T(n)/T(0) before anything is known (share that drafts, per drafted token, per rejection), and how far from
# it real machines are: public fits run from .11 to 1.05 per drafted token.
SHAPE_PRIOR: Vector = (1.0, 0.02, 0.2, 0.03)
SHAPE_SD: Vector = (0.0, 0.15, 0.15, 0.12)
# How far one node's shape is from its load's.
NODE_SD: Vector = (0.0, 0.05, 0.04, 0.04)
NODE_KEEP, SHAPE_KEEP, TEXT_KEEP = 0.93, 0.97, 0.98
# Answers of one conversation differ by this much (logits); an answer's own precision is added.
MOOD_SD = 0.35
TALK_KEEP = 0.85
TALKS = 256
# Pseudo-answers by which a text leans on its kind, and a kind on everything.
LEAN = 3.0
# Evidence (answers) at which a residual is half believed, and its cap, which keeps it able to move.
RHO_LEAN, RHO_CAP = 0.6, 14.0
BIAS_LEAN, BIAS_LEAN_P, BIAS_CAP = 40.0, 12.0, 100.0
# Weight from which an arm's answers are expected to be what was predicted, the error that one of them may teach then
# (an outlier is not a trend), and the share of it that is put down to the whole machine.
FAMILIAR, LARGEST_SURPRISE, COMMON_GAIN = 1.5, 0.12, 0.03
# Before an arm was played: sd of the log of its cycle time around the line, and of its cycles per token.
UNTRIED_SD, UNTRIED_P_SD, BIAS_SD, BIAS_P_SD = 0.10, 0.05, 0.03, 0.06
ANSWER_SD = 0.20  # of log cycles per token around what text and conversation say


@dataclass(frozen=True, slots=True)
class Tally:
    """A running mean and the (forgetting) weight of what it was made from."""

    mean: float = 0.0
    weight: float = 0.0

    def moved(self, error: float, weight: float, *, lean: float, cap: float) -> Tally:
        """After an answer that was `error` off a prediction which included this mean."""
        gain = weight / (self.weight + weight + lean)
        return Tally(self.mean + gain * error, min(cap, self.weight + weight))


NOTHING = Tally()
Residuals = Mapping[str, Tally]  # by the arm's name: strings keep their hash


@dataclass(frozen=True, slots=True)
class Arm:
    """A setting with what is asked of it all the time. depth: its n_max, -1 for `server`, whose depth is observed."""

    setting: Setting
    name: str
    depth: float
    p_min: float


def arm_of(setting: Setting) -> Arm:
    """The arm of a setting."""
    depth = -1.0 if setting.n_max is None else float(setting.n_max)
    return Arm(setting, str(setting), depth, setting.p_min or 0.0)


SERVER_NAME, OFF_NAME = str(SERVER), str(OFF)


@dataclass(frozen=True, slots=True)
class Fit:
    """A ridge regression of cycle time: its solution, and its sums, in total and by arm.

    Sums are x x' (upper triangle by rows, 10) and x y (4). Each arm forgets by its own answers only: what an arm that
    is no longer played once showed keeps its place in the line (directional forgetting, Kulhavy 1987).
    """

    coef: Vector = SHAPE_PRIOR
    total: Sums = NO_SUMS
    by_arm: Mapping[str, Sums] = field(default_factory=dict)


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
    """A distribution of texts (level,), unnormalised: its sum is the evidence in answers."""

    weights: Weights
    bias: Residuals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation's earlier answers say: log likelihood (level,), and the mean level it puts it at."""

    log_likelihood: Weights
    level: float


@dataclass(frozen=True, slots=True)
class Learned:
    """Everything that predictions are made from.

    nodes       by node number (`node_of`)        shapes   by load
    texts       by kind and bucket (`text_key`), by kind, and "" for all
    talks       by conversation, the least recently heard first
    common      log factor of the whole machine now against what the nodes were learned at
    server      drafted tokens per cycle of requests that went out as they came
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
    noise: Tally = Tally(TIME_SD, 10.0)
    unsure: Mapping[str, float] = field(default_factory=dict)
    apart: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_sd(self) -> float:
        """Standard error of a familiar arm's cycle time (log)."""
        return 1.25 * self.noise.mean


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, as the estimator hears of it."""

    arm: Arm
    bucket: int
    load: int
    kind: str
    conversation: str
    timings: Timings


@dataclass(frozen=True, slots=True)
class Cycle:
    """A mean cycle. drawn: 1, share that drafts, drafted tokens, share with a rejection; weight: 0 .. 1."""

    drawn: Vector
    cycle_ms: float
    weight: float


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer understood, before anything was learned from it.

    seen        its mean cycle
    typical     features that the tables give its arm for such a text: what a prediction would have used
    expected    the text it was expected to be (level,)
    posterior   the text it turned out to be (level,)
    likelihood  the same without expectations, widened by what moves between answers (level,)
    time_error, text_error   log of observed over predicted: cycle time, cycles per token
    familiar    the arm was played before at this load, so that an error is a surprise
    """

    seen: Cycle
    typical: Vector
    expected: Weights
    posterior: Weights
    likelihood: Weights
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
    return draft_table(depth_of(learned, arm), arm.p_min)


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
            return shape.fit.coef
    return SHAPE_PRIOR


def _nearest_base_ms(learned: Learned, bucket: int, load: int) -> float:
    best, found = math.inf, 1.0
    for key, node in learned.nodes.items():
        distance = 2 * abs(key // 8 - bucket) + abs(key % 8 - load)
        if distance < best:
            best, found = distance, node.fit.coef[0]
    return found


def rho_of(learned: Learned, bucket: int, load: int, name: str) -> float:
    """An arm's residual: log factor on the line."""
    shape, node = learned.shapes.get(load), learned.nodes.get(node_of(bucket, load))
    total = 0.0 if shape is None else shape.rho.get(name, NOTHING).mean
    return total if node is None else total + node.rho.get(name, NOTHING).mean


def bias_of(learned: Learned, key: str, name: str) -> float:
    """An arm's bias: log factor on the tables' cycles per token."""
    text, everything = learned.texts.get(key), learned.texts.get("")
    total = 0.0 if everything is None else everything.bias.get(name, NOTHING).mean
    return total if text is None else total + text.bias.get(name, NOTHING).mean


FLAT: Weights = (1.0,) * len(LEVELS)
# Before any answer: texts from hopeless to copied, most of them in between.
_UNKNOWN_TEXT = normalised(tuple(math.exp(-0.5 * ((z - 1.2) / 1.4) ** 2) for z in LEVELS))


def texts_of(learned: Learned, kind: str, bucket: int) -> Weights:
    """The distribution of texts to expect from a kind in a bucket, without a conversation (sum 1)."""
    expected = _UNKNOWN_TEXT
    for key in ("", kind, text_key(kind, bucket)):
        text = learned.texts.get(key)
        if text is not None:
            expected = normalised(tuple([LEAN * e + w for e, w in zip(expected, text.weights, strict=True)]))
    return expected


def expected_text(learned: Learned, kind: str, bucket: int, conversation: str) -> Weights:
    """The distribution of texts to expect from the next answer (sum 1)."""
    prior = texts_of(learned, kind, bucket)
    talk = learned.talks.get(conversation) if conversation else None
    if talk is None:
        return prior
    top = max(talk.log_likelihood)
    return product(prior, tuple([math.exp(x - top) for x in talk.log_likelihood]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prediction is asked for: bucket, load and kind of request."""

    bucket: int
    load: int
    kind: str


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of an arm somewhere.

    cost   ms per token by text (level,)
    sd     standard error of the log of that, apart from what all arms share
    """

    cost: list[float]
    sd: float


def outlooks(learned: Learned, place: Place, arms: tuple[Arm, ...]) -> list[Outlook]:
    """What is expected of each arm at a place: one pass over all of them, for speed."""
    bucket, load = place.bucket, place.load
    t0, t1, t2, t3 = node_coef(learned, bucket, load)
    shape, node = learned.shapes.get(load, NO_SHAPE), learned.nodes.get(node_of(bucket, load))
    load_rho, node_rho = shape.rho, {} if node is None else node.rho
    text, everything = learned.texts.get(text_key(place.kind, bucket)), learned.texts.get("")
    bias, all_bias = {} if text is None else text.bias, {} if everything is None else everything.bias
    common, apart = learned.common, learned.apart
    away = _distances(learned, shape.rho, arms)
    found = []
    for arm in arms:
        name, depth = arm.name, depth_of(learned, arm)
        at_load, at_node = load_rho.get(name, NOTHING), node_rho.get(name, NOTHING)
        heard, heard_all = bias.get(name, NOTHING), all_bias.get(name, NOTHING)
        factor = math.exp(
            common + apart.get(name, 0.0) + at_load.mean + at_node.mean + heard.mean + heard_all.mean
        )
        u0, u1, u2, u3 = t0 * factor, t1 * factor, t2 * factor, t3 * factor
        cost = [
            (u0 + u1 * drafts + u2 * drafted + u3 * rejected) * per_token
            for drafts, drafted, rejected, per_token in draft_table(depth, arm.p_min).rows
        ]
        prior = away(depth, arm.p_min)
        variance = 1.0 / (1.0 / (prior * prior) + at_load.weight * _AT_LOAD + at_node.weight * _AT_NODE)
        variance += learned.unsure.get(name, 0.0) ** 2
        if depth > 0.0:
            bias_sd = BIAS_SD if arm.p_min == 0.0 else BIAS_P_SD
            variance += 1.0 / (1.0 / (bias_sd * bias_sd) + heard.weight * _AT_TEXT)
        found.append(Outlook(cost, math.sqrt(variance)))
    return found


_AT_LOAD, _AT_NODE, _AT_TEXT = 1.0 / 0.05**2, 1.0 / 0.035**2, 1.0 / ANSWER_SD**2


def _distances(learned: Learned, rho: Residuals, arms: tuple[Arm, ...]) -> Callable[[float, float], float]:
    """sd of the log of an arm's cycle time before it is played, by depth and p: how far from what was played it is."""
    played = [(depth_of(learned, a), a.p_min) for a in arms if a.name in rho and rho[a.name].weight > 0.3]
    depths = [math.log2(1.0 + depth) for depth, _ in played]
    levels = {p for depth, p in played if depth > 0.0}
    known: dict[float, float] = {}

    def away(depth: float, p_min: float) -> float:
        base = known.get(depth)
        if base is None:
            own = math.log2(1.0 + depth)
            base = UNTRIED_SD * (0.6 + 0.5 * min([abs(own - d) for d in depths], default=1.0))
            known[depth] = base
        if p_min == 0.0:
            return base
        return base if p_min in levels else base + UNTRIED_P_SD

    return away


# --- learning ------------------------------------------------------------------------------------------------


def read(learned: Learned, answer: Answer) -> Reading:
    """Understand one answer with at least one cycle."""
    timings, arm = answer.timings, answer.arm
    cycles, tokens = timings.cycles, timings.decode_tokens
    table, key = table_of(learned, arm), text_key(answer.kind, answer.bucket)
    expected = expected_text(learned, answer.kind, answer.bucket, answer.conversation)
    bias = bias_of(learned, key, arm.name)
    drafted = timings.draft_n / cycles
    typical: Vector = (1.0, 0.0, 0.0, 0.0)
    rejected, text_error, posterior, heard = 0.0, 0.0, expected, FLAT
    if drafted > 0.0 and table.accepted[-1] > 0.0:
        level = level_of(table, tokens / cycles * math.exp(bias) - 1.0)
        chance, rejected = at_level(CHANCES, level), at_level(table.rejected, level)
        typical = (1.0, at_level(table.drafts, level), at_level(table.drafted, level), rejected)
        trials = timings.draft_n_accepted + cycles * rejected
        own_sd = 1.0 / math.sqrt(trials * chance * (1.0 - chance) + 0.3)
        posterior = product(expected, likelihood(level, max(own_sd, 0.3)))
        heard = likelihood(level, math.sqrt(own_sd * own_sd + MOOD_SD * MOOD_SD))
        predicted = sum(map(mul, expected, table.cycles_per_token))
        text_error = math.log(cycles / tokens) - math.log(predicted) - bias
    seen = Cycle(
        (1.0, min(1.0, drafted), drafted, rejected), timings.predicted_ms / cycles, cycles / (cycles + 5.0)
    )
    time_error, familiar = _time_error(learned, answer, seen, typical)
    return Reading(seen, typical, expected, posterior, heard, time_error, text_error, familiar)


def _time_error(learned: Learned, answer: Answer, seen: Cycle, typical: Vector) -> tuple[float, bool]:
    """Log of observed over predicted cycle time, and whether the arm was played before at this load."""
    if node_of(answer.bucket, answer.load) not in learned.nodes:
        return 0.0, False
    coef, name = node_coef(learned, answer.bucket, answer.load), answer.arm.name
    rho = rho_of(learned, answer.bucket, answer.load, name)
    error = (
        math.log(seen.cycle_ms / line(coef, typical)) - rho - learned.common - learned.apart.get(name, 0.0)
    )
    return error, learned.shapes.get(answer.load, NO_SHAPE).rho.get(name, NOTHING).weight > FAMILIAR


def line(coef: Vector, drawn: Vector) -> float:
    """ms of a cycle with these features."""
    return coef[0] * drawn[0] + coef[1] * drawn[1] + coef[2] * drawn[2] + coef[3] * drawn[3]


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
        noise = noise.moved(seen_noise - noise.mean, weight, lean=0.0, cap=60.0)
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
    # One answer is believed only so far; the line hears it without what the whole machine explains.
    ms = reading.seen.cycle_ms * math.exp(error - reading.time_error - common - apart.get(name, 0.0))
    seen, prior = Cycle(reading.seen.drawn, ms, weight), shape_coef(learned, load)
    sd = NODE_SD if shape.fit.by_arm else SHAPE_SD
    fit = fitted(node.fit, name, seen, keep=NODE_KEEP, prior=prior, sd=sd)
    scaled = Cycle(seen.drawn, ms / fit.coef[0], weight)
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
    shapes = {**learned.shapes, load: Shape(shape_fit, {**shape.rho, name: load_after})}
    return Learned(nodes, shapes, learned.texts, learned.talks, common, server, noise, unsure, apart)


def _shape_prior(learned: Learned, load: int) -> Vector:
    return SHAPE_PRIOR if load == 0 else shape_coef(learned, load - 1)


def fitted(fit: Fit, name: str, seen: Cycle, *, keep: float, prior: Vector, sd: Vector) -> Fit:
    """The regression after one answer of an arm, weighted so that equal relative errors count alike."""
    x0, x1, x2, x3 = seen.drawn
    y = seen.cycle_ms
    unit = seen.weight / (y * y * TIME_SD * TIME_SD)
    u = unit * y
    w1, w2 = unit * x1, unit * x2
    new = (unit * x0, w1, w2, unit * x3, w1 * x1, w1 * x2, w1 * x3, w2 * x2, w2 * x3, unit * x3 * x3) + (
        u * x0,
        u * x1,
        u * x2,
        u * x3,
    )
    old = fit.by_arm.get(name)
    if old is None:
        own, total = new, tuple([t + n for t, n in zip(fit.total, new, strict=True)])
    else:
        own = tuple([keep * o + n for o, n in zip(old, new, strict=True)])
        total = tuple([t - o + n for t, o, n in zip(fit.total, old, own, strict=True)])
    return Fit(_solved(total, prior, sd), total, {**fit.by_arm, name: own})


def _solved(total: Sums, prior: Vector, sd: Vector) -> Vector:
    """Ridge solution around scale x prior, with non-negative costs; the scale itself has no prior.

    The scale is that of the data on the prior's shape: s = m'xy / m'xx m.
    """
    a, b, c, d, e, f, g, h, i, j, y0, y1, y2, y3 = total
    _, m1, m2, m3 = prior
    v0 = a + b * m1 + c * m2 + d * m3
    v1 = b + e * m1 + f * m2 + g * m3
    v2 = c + f * m1 + h * m2 + i * m3
    v3 = d + g * m1 + i * m2 + j * m3
    scale = (y0 + m1 * y1 + m2 * y2 + m3 * y3) / (v0 + m1 * v1 + m2 * v2 + m3 * v3)
    p1, p2, p3 = (1.0 / (s * s * scale * scale) for s in sd[1:])
    k1, k2, k3 = m1 * scale, m2 * scale, m3 * scale
    first = _solve4(
        (a, b, c, d, e + p1, f, g, h + p2, i, j + p3),
        (y0, y1 + p1 * k1, y2 + p2 * k2, y3 + p3 * k3),
    )
    s, k, per_token, per_rejection = first
    s = max(s, 0.2 * scale)
    return (s, max(k, -0.6 * s), max(per_token, 0.01 * s), max(per_rejection, 0.0))


def _solve4(xx: tuple[float, ...], xy: Vector) -> Vector:
    """Solve a symmetric positive 4 x 4 system by elimination."""
    a, b, c, d, e, f, g, h, i, j = xx
    y0, y1, y2, y3 = xy
    r = b / a
    e, f, g, y1 = e - r * b, f - r * c, g - r * d, y1 - r * y0
    q = c / a
    h, i, y2 = h - q * c, i - q * d, y2 - q * y0
    p = d / a
    j, y3 = j - p * d, y3 - p * y0
    r = f / e
    h, i, y2 = h - r * f, i - r * g, y2 - r * y1
    q = g / e
    j, y3 = j - q * g, y3 - q * y1
    r = i / h
    j, y3 = j - r * i, y3 - r * y2
    z3 = y3 / j
    z2 = (y2 - i * z3) / h
    z1 = (y1 - f * z2 - g * z3) / e
    return ((y0 - b * z1 - c * z2 - d * z3) / a, z1, z2, z3)


def shifted(learned: Learned, shift: float, heard: Collection[str]) -> Learned:
    """After the whole machine moved by `shift` (log): a question again for every arm but those heard since."""
    names = {name for shape in learned.shapes.values() for name in shape.rho} - set(heard)
    unsure = {name: learned.unsure.get(name, 0.0) + shift for name in names}
    return replace(learned, common=learned.common + shift, unsure={**learned.unsure, **unsure})


def _learn_text(learned: Learned, answer: Answer, reading: Reading) -> Learned:
    if answer.timings.draft_n == 0:
        return learned
    weight = min(2.0, answer.timings.decode_tokens / 200.0) * reading.seen.weight
    error = min(max(reading.text_error, -0.8), 0.8)
    texts, spread = dict(learned.texts), blurred(reading.posterior)
    for key in ("", answer.kind, text_key(answer.kind, answer.bucket)):
        text = texts.get(key)
        old = (0.0,) * len(LEVELS) if text is None else text.weights
        weights = tuple([TEXT_KEEP * w + weight * p for w, p in zip(old, spread, strict=True)])
        bias: Residuals = {} if text is None else text.bias
        if key != answer.kind:
            tally = bias.get(answer.arm.name, NOTHING)
            lean = BIAS_LEAN if answer.arm.p_min == 0.0 else BIAS_LEAN_P
            moved = tally.moved(error, reading.seen.weight, lean=lean, cap=BIAS_CAP)
            error -= moved.mean - tally.mean
            bias = {**bias, answer.arm.name: moved}
        texts[key] = Text(weights, bias)
    talks = _heard(learned.talks, answer.conversation, reading)
    return replace(learned, texts=texts, talks=talks)


def _heard(talks: Mapping[str, Talk], conversation: str, reading: Reading) -> Mapping[str, Talk]:
    if not conversation:
        return talks
    kept = dict(talks)
    old = kept.pop(conversation, None)
    before = (0.0,) * len(LEVELS) if old is None else old.log_likelihood
    after = tuple([TALK_KEEP * b + math.log(w) for b, w in zip(before, reading.likelihood, strict=True)])
    level = sum([z * p for z, p in zip(LEVELS, reading.posterior, strict=True)])
    kept[conversation] = Talk(after, level)
    if len(kept) > TALKS:
        del kept[next(iter(kept))]
    return kept
