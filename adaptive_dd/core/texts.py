"""Texts: what is expected of the next answer's, and what an answer says about them.

For each kind of request in a bucket a distribution over the levels of `core.acceptance`, learned as the mean posterior
of answers (one step of EM for each; Laird 1978, the nonparametric maximum likelihood mixture), shrunk towards the
kind's and everything's. A conversation adds the likelihood of its own earlier answers. A bias per arm (log cycles per
token) lets direct evidence overrule the geometric tables; the baseline has none, for texts are told by it.

Where it misleads: an arm that sees texts differently than the baseline does moves them until enough answers of one
conversation were compared (`Lift`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import lru_cache
from operator import mul
from typing import NamedTuple, cast

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
from adaptive_dd.core.learned import (
    LIFT_LEAN,
    NO_LIFT,
    NO_TEXT,
    NOTHING,
    Answer,
    Arm,
    Drafting,
    Learned,
    Lift,
    Reading,
    Talk,
    Tally,
    Text,
    text_key,
)
from adaptive_dd.core.regression import Vector

TEXT_KEEP = 0.98
# Answers of one conversation differ by this much (logits); an answer's own precision is added.
MOOD_SD = 0.25
LEAST_SD = 0.25  # half of the grid's step or so: a sharper likelihood would fall between levels
# Cycles of one text differ (easy and hard ones alternate), so that an answer tells less than that many draws would.
OVERDISPERSED = 1.5
TALK_KEEP = 0.9
TALKS = 256
# Pseudo-answers by which a text leans on its kind, and a kind on everything.
LEAN = 3.0
# Answers at which a bias is half believed, and its cap. (Arms with a p have slants instead.)
BIAS_LEAN, BIAS_CAP = 30.0, 40.0
# Answers at which a slant is half believed, and its cap.
SLANT_LEAN, SLANT_CAP = 4.0, 25.0
# What the lift of a p level may be before any comparison (logits): drafters are more or less sure than they should be.
UNHEARD_P_SD = 0.6


# --- how arms see texts ----------------------------------------------------------------------------------------


def table_of(learned: Learned, arm: Arm) -> DraftTable:
    """What an arm drafts. `server` drafts as deep as it was seen to."""
    return draft_table(depth_of(learned, arm), arm.p_min, shift_of(learned, arm))


Rows = tuple[tuple[float, float, float, float], ...]  # see `DraftTable`


def baseline_rows(learned: Learned, baseline: Arm) -> Rows:
    """The rows of the baseline's table, with what its own answers showed of how much it drafts by text."""
    depth, shift = depth_of(learned, baseline), shift_of(learned, baseline)
    return _rows_as_shown(learned.drafting, depth, baseline.p_min, shift)


@lru_cache(maxsize=64)
def _rows_as_shown(drafting: Drafting, depth: float, p_min: float, shift: float) -> Rows:
    rows = draft_table(depth, p_min, shift).rows
    if not drafting.weight:
        return rows
    shown = [
        (*drawn_at(drafting, z, depth), rejected, k)
        for z, (_, _, rejected, k) in zip(LEVELS, rows, strict=True)
    ]
    return tuple([(drafts, drafted, min(rejected, drafts), k) for drafts, drafted, rejected, k in shown])


def drawn_at(drafting: Drafting, level: float, depth: float) -> tuple[float, float]:
    """Share of cycles that draft, and drafted tokens, of the baseline for a text at this level.

    A straight line ends where drafts do: no deeper than they are asked to be, and at least one token each. Cycles are
    priced by both, and one without the other may have a negative price.
    """
    drafts, drafted = drafting.at(level)
    drafted = min(drafted, depth)
    return min(drafts, drafted), drafted


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


# --- what is expected --------------------------------------------------------------------------------------------

FLAT: Weights = (1.0,) * len(LEVELS)
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


# --- what an answer says -----------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """What an answer says about its text; see `Reading`. rejected: share of its cycles with a rejection."""

    typical: Vector
    rejected: float
    posterior: Weights
    likelihood: Weights
    shown: tuple[float, float] | None
    text_error: float


def heard_of(learned: Learned, answer: Answer, expected: Weights) -> Heard:
    """Understand the text of an answer with at least one cycle. expected: the text it was expected to be (level,)."""
    timings, arm = answer.timings, answer.arm
    cycles, tokens = timings.cycles, timings.decode_tokens
    table = table_of(learned, arm)
    # A p_min, or a launch's own, that lets nothing through says that the text is hopeless; else nobody drafts here.
    seen_to_draft = answer.baseline and learned.drafting.drafted > 0.0
    told = timings.draft_n > 0 or arm.p_min > 0.0 or seen_to_draft
    drafts = arm.depth > 0.0 if answer.inferred else told
    if not drafts or table.accepted[-1] <= 0.0:
        return Heard((1.0, 0.0, 0.0, 0.0), 0.0, expected, FLAT, None, 0.0)
    level = level_of(table, tokens / cycles - 1.0)
    chance, rejected = at_level(CHANCES, level), at_level(table.rejected, level)
    typical = (1.0, at_level(table.drafts, level), at_level(table.drafted, level), rejected)
    if answer.baseline and learned.drafting.weight:
        share, drafted = drawn_at(learned.drafting, level, depth_of(learned, arm))
        typical = (1.0, share, drafted, min(share, rejected))
    trials = timings.draft_n_accepted + cycles * rejected
    own_sd = OVERDISPERSED / math.sqrt(trials * chance * (1.0 - chance) + 0.3)
    if not answer.baseline:
        own_sd = math.hypot(own_sd, lift_sd(learned, arm))
    posterior = product(expected, likelihood(level, max(own_sd, LEAST_SD)))
    widened = likelihood(level, math.sqrt(own_sd * own_sd + MOOD_SD * MOOD_SD))
    predicted = sum(map(mul, expected, table.cycles_per_token))
    error = math.log(cycles / tokens) - math.log(predicted)
    return Heard(typical, rejected, posterior, widened, (level, min(1.0, trials / 30.0)), error)


def learn_text(learned: Learned, answer: Answer, reading: Reading) -> Learned:
    """Learn from what an answer said about its text."""
    if reading.shown is None:
        return learned
    name, seen = answer.arm.name, reading.seen.weight
    weight = min(2.0, answer.timings.decode_tokens / 200.0) * seen
    error = min(max(reading.text_error, -0.8), 0.8)
    slants = (
        _slants(learned, name, reading) if answer.arm.p_min > 0.0 and not answer.baseline else learned.slants
    )
    texts, spread = dict(learned.texts), blurred(reading.posterior)
    for key in ("", answer.kind, text_key(answer.kind, answer.bucket)):
        text = texts.get(key, NO_TEXT)
        weights = tuple([TEXT_KEEP * w + weight * p for w, p in zip(text.weights, spread, strict=True)])
        bias = text.bias
        if key != answer.kind and answer.arm.p_min == 0.0 and not answer.baseline:
            old = bias.get(name, NOTHING)
            bias = {**bias, name: old.moved(error - old.mean, seen, lean=0.0, cap=BIAS_CAP)}
            error -= bias[name].shrunk(BIAS_LEAN)
        texts[key] = Text(weights, bias)
    drafting = learned.drafting
    if answer.baseline and not answer.inferred:
        level, told = reading.shown
        _, drafts, drafted, _ = reading.seen.drawn
        drafting = drafting.heard(level, drafts, drafted, told * seen)
    if not answer.conversation:
        return replace(learned, texts=texts, slants=slants, drafting=drafting)
    talks, lifts = _talked(learned, answer, reading, reading.shown)
    return replace(learned, texts=texts, talks=talks, lifts=lifts, slants=slants, drafting=drafting)


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
