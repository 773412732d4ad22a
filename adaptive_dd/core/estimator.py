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

Text is `core.texts`; the values of both are `core.learned`.

All sums forget: a node over some seventy answers, a text over fifty.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from adaptive_dd.core.learned import (
    NO_NODE,
    NO_SHAPE,
    NOTHING,
    OFF_NAME,
    SERVER_NAME,
    Answer,
    Arm,
    Learned,
    Node,
    Reading,
    Shape,
    Tally,
    node_of,
)
from adaptive_dd.core.regression import (
    SHAPE_PRIOR,
    SHAPE_SD,
    Cycle,
    Vector,
    fitted,
    line,
    off_line,
)
from adaptive_dd.core.texts import expected_text, heard_of, learn_text

# How far one node's shape is from its load's.
NODE_SD: Vector = (0.0, 0.05, 0.04, 0.04)
NODE_KEEP, SHAPE_KEEP = 0.93, 0.97
# Evidence (answers) at which a residual is half believed, and its cap, which keeps it able to move.
RHO_LEAN, RHO_CAP = 0.6, 14.0
# What is kept of the evidence for each arm with every answer of another: what was not played for long is asked again.
AGEING = 0.997
# Weight on the line of an answer that does not tell how much a p_min let through: the tables may be off by half, and
# what the line would learn of drafted tokens is their error. The arm's own residual learns all the same.
UNTOLD = 0.2
# Weight from which an arm's answers are expected to be what was predicted, the error that one of them may teach then
# (an outlier is not a trend), and the share of it that is put down to the whole machine.
FAMILIAR, LARGEST_SURPRISE, COMMON_GAIN = 1.5, 0.12, 0.02
# Cycle time may differ by this much from one bucket to the next (log). A larger jump may not concern arms that were not
# played there (memory that spills slows drafts only): their sd grows by this share of it.
USUAL_JUMP, JUMP_DOUBT = 0.35, 0.8
# How far the depth of `server` follows an answer that drafted more, one that drafted less, and one that drafted less
# than half: where a p_min ends drafts most are shorter than what it asks for, which is where a text's levels end. And
# the cap of its evidence.
DEEPER, SHALLOWER, HALVED, SERVER_CAP = 0.5, 0.002, 0.01, 30.0
# Share of a shift that is in doubt for arms that draft as those do which showed it: memory that spills slows them all.
ALIKE = 0.3


# --- predicting ----------------------------------------------------------------------------------------------


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


# --- learning ------------------------------------------------------------------------------------------------


def read(learned: Learned, answer: Answer) -> Reading:
    """Understand one answer with at least one cycle."""
    timings, cycles = answer.timings, answer.timings.cycles
    expected = expected_text(learned, answer.kind, answer.bucket, answer.conversation)
    heard = heard_of(learned, answer, expected)
    drafted = timings.draft_n / cycles
    share = min(1.0, drafted)
    drawn = heard.typical if answer.inferred else (1.0, share, drafted, min(share, heard.rejected))
    seen = Cycle(drawn, timings.predicted_ms / cycles, cycles / (cycles + 5.0))
    time_error, familiar = _time_error(learned, answer, seen, heard.typical)
    return Reading(
        seen,
        heard.typical,
        expected,
        heard.posterior,
        heard.likelihood,
        heard.shown,
        time_error,
        heard.text_error,
        familiar,
    )


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
    return learn_text(learned, answer, reading)


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
        server = _depth_seen(server, seen.drawn[2], weight)
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
        learned.drafting,
    )


def _depth_seen(server: Tally, drafted: float, weight: float) -> Tally:
    """How deep `server` drafts, after an answer that drafted this many tokens a cycle."""
    if not server.weight:
        return Tally(drafted, weight)
    # One copied answer of an n-gram drafter is not what it always drafts.
    seen = min(drafted, 2.0 * server.mean + 1.0)
    gain = DEEPER if seen > server.mean else HALVED if seen < 0.5 * server.mean else SHALLOWER
    return Tally(server.mean + weight * gain * (seen - server.mean), min(SERVER_CAP, server.weight + weight))


def _untold(answer: Answer) -> bool:
    """Whether nobody said how much was drafted: a p_min ended drafts, or the server's own may have."""
    return answer.inferred and answer.arm.depth > 0.0 and answer.arm.setting.p_min != 0.0


def _shape_prior(learned: Learned, load: int) -> Vector:
    return SHAPE_PRIOR if load == 0 else shape_coef(learned, load - 1)


def doubted(learned: Learned, name: str, shift: float) -> Learned:
    """After an arm alone was slower by `shift` (log) than it should be: half of it is believed, and the next answer of
    the arm is believed whatever it says."""
    half = 0.5 * shift
    apart = {**learned.apart, name: learned.apart.get(name, 0.0) + half}
    return replace(
        learned, apart=apart, unsure={**learned.unsure, name: learned.unsure.get(name, 0.0) + half}
    )


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
