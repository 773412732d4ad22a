"""The design of a calibration: what to measure next, and when to stop.

Pure: the next block is a function of the plan and of the record so far, so an interrupted run continues as if nothing
had happened. Nothing here knows a server or a clock.

The design. At each *place* (a prompt length and a kind of request) settings are measured in *blocks*: all settings of a
block decode the same text, in random order, the baseline always among them; the next block has another text. Block 0
is a warm-up that is thrown away (cold pages after a load), but tells what an answer costs. Block 1 is the wide grid, as
wide as the budget allows, because speed is not unimodal in depth. From then on a setting is dropped once it is clearly
behind the best one (successive elimination; Even-Dar, Mannor and Mansour, "Action Elimination and Stopping Conditions
for the Multi-Armed Bandit", 2006), and each block may take no more than a share of the answers left, so that the last
ones are compared many times. A place is settled when no setting left can beat the best by more than a quarter of the
margin, and the best is either proven faster than the baseline or cannot be faster by the margin.

What it promises. A winner is *named* only when the lower end of its paired interval (99.5% a side) lies above the
baseline. Where it misleads: the record is looked at after every block, which raises the chance of a wrong word above
that of a single look; the level is set so high for that reason, and the trial in `docs/calibration.md` counts what
comes out. Machines that heat up under deep drafts are measured at the mean heat of all settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adaptive_dd.core.domain import OFF, FrontierRow, Setting
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.standing import CLAIM_BLOCKS, Place, Sample, Standing, rows_of, standing

P_LEVELS = (0.0, 0.3, 0.6)
# Before a spread is known: so far behind in one block that the noise of a short answer does not explain it.
HOPELESS = 0.6
# The wide grid may take one part in so many of a place's answers; the rest decides among its best.
GRID_SHARE = 6
SMALLEST_GRID = 5
# Later blocks likewise: pace.
PACE = 8
# Settings within this share of the margin are as good as tied: nothing is spent on telling them apart.
TIE_SHARE = 0.25
# Answers over which the reading of a prompt is spread when the cost of one more is guessed.
USUAL_BLOCK = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured.

    settings   in order of interest: where the budget is small only the first are measured; the baseline is added
    budget_ms  time for all places together, None for no limit
    answers    answers for each place, None for no limit
    margin     differences below it are not worth telling apart (0.02 = 2%)
    """

    places: tuple[Place, ...]
    settings: tuple[Setting, ...]
    baseline: Setting
    budget_ms: float | None = None
    answers: int | None = None
    margin: float = 0.02
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Settings to measure on one text, in this order."""

    place: Place
    number: int
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """All that was begun and measured, in order."""

    blocks: tuple[Block, ...] = ()
    samples: tuple[Sample, ...] = ()

    def at(self, place: Place) -> list[Sample]:
        """The samples of one place."""
        return [s for s in self.samples if s.place == place]

    def last_block(self, place: Place) -> Block | None:
        """The newest block of a place."""
        return next((b for b in reversed(self.blocks) if b.place == place), None)

    @property
    def spent_ms(self) -> float:
        """Time spent on all of it."""
        return sum(s.wall_ms for s in self.samples)


# --- the grid ------------------------------------------------------------------------------------------------


def depths(cap: int) -> tuple[int, ...]:
    """Draft depths from 1 to the cap: doublings and the cap, then what lies between and beside them."""
    doublings = [*(d for d in (1 << i for i in range(11)) if d < cap), cap]
    between = [(3 * n) // 2 for n in doublings if n > 1 and (3 * n) // 2 < cap]
    beside = [d for n in doublings for d in (n - 1, n + 1) if 0 < d < cap]
    return tuple(dict.fromkeys([*doublings, *between, *beside]))


def wide_grid(cap: int, p_levels: Sequence[float | None] = P_LEVELS) -> tuple[Setting, ...]:
    """Settings in order of interest: off and the doublings, then those with p_min, then the depths between.

    p_levels: from the lowest on; `(None,)` leaves p_min to the server, for one that only takes n_max.
    """
    if cap < 1:
        return (OFF,)
    ordered = depths(cap)
    doublings = [d for d in ordered if d == cap or d & (d - 1) == 0]
    rest = [d for d in ordered if d not in doublings]
    first = [Setting(d, p_levels[0]) for d in doublings]
    sure = [Setting(d, p) for p in reversed(p_levels[1:]) for d in reversed(doublings)]
    more = [Setting(d, p) for p in p_levels for d in rest]
    return (OFF, *first, *sure, *more)


# --- dropping and stopping -----------------------------------------------------------------------------------


def rivals(now: Standing, margin: float) -> list[Setting]:
    """Settings in the race that may be better than the best by more than a tie, the fastest first."""
    tied = 1.0 + margin * TIE_SHARE
    others = (s for s in now.active if s not in (now.best, now.baseline))
    alive = [s for s in others if now.chance(s).gain > HOPELESS and now.chance(s).high > tied]
    return sorted(alive, key=lambda s: (-now.gains[s].gain, s.order))


def settled(now: Standing, margin: float) -> bool:
    """Whether more measuring could not change what is played by more than the margin."""
    if rivals(now, margin) or now.gains[now.baseline].blocks < CLAIM_BLOCKS:
        return False
    if now.best == now.baseline or now.proven(now.best):
        return True
    return now.claim(now.best).high < 1.0 + margin


# --- what to measure next ------------------------------------------------------------------------------------


def next_block(plan: Plan, record: Record) -> Block | None:
    """The unfinished block, or a new one; None when all is settled or the budget is spent."""
    if (
        record.blocks
        and missing(record.blocks[-1], record)
        and not spent(plan, record, record.blocks[-1].place)
    ):
        return record.blocks[-1]
    for place in sorted(plan.places, key=lambda place: _progress(record.at(place))):
        block = _new_block(plan, record, place)
        if block is not None:
            return block
    return None


def missing(block: Block, record: Record) -> tuple[Setting, ...]:
    """The settings of a block that are still to be measured, in order."""
    done = {s.setting for s in record.samples if (s.place, s.block) == (block.place, block.number)}
    return tuple(s for s in block.settings if s not in done)


def spent(plan: Plan, record: Record, place: Place) -> bool:
    """Whether the budget has no room for one more answer here."""
    own = record.at(place)
    if plan.answers is not None and sum(1 for s in own if s.block > 0) >= plan.answers:
        return True
    if plan.budget_ms is None or not own:
        return False
    return record.spent_ms + _decode_ms(own) / 2.0 > plan.budget_ms


def place_standing(plan: Plan, record: Record, place: Place) -> Standing | None:
    """How the settings of a place stand now."""
    last = record.last_block(place)
    return standing(record.at(place), plan.baseline, last.settings if last else ())


def rows(plan: Plan, record: Record) -> tuple[FrontierRow, ...]:
    """The rows that the record proves, of every place."""
    found: list[FrontierRow] = []
    for place in plan.places:
        now = place_standing(plan, record, place)
        if now is not None:
            found.extend(rows_of(now, record.at(place)))
    return tuple(sorted(found, key=lambda r: (r.context_tokens, r.kind, r.setting.order)))


def _new_block(plan: Plan, record: Record, place: Place) -> Block | None:
    last = record.last_block(place)
    number = 0 if last is None else last.number + 1
    left = math.inf if number == 0 else answers_left(plan, record, place)
    if number > 0 and (spent(plan, record, place) or not _affordable(plan, record, place)):
        return None
    if number == 0:
        chosen: tuple[Setting, ...] = (plan.baseline,)
    elif number == 1:
        chosen = first_grid(plan, left)
    else:
        now = place_standing(plan, record, place)
        if now is None or settled(now, plan.margin):
            return None
        always = tuple(dict.fromkeys((plan.baseline, now.best)))
        room = max(3.0, left / PACE) - len(always)
        racing = rivals(now, plan.margin)
        chosen = (*always, *(racing if room >= len(racing) else racing[: int(room)]))
    return Block(place, number, shuffled(chosen, plan.seed, place, number))


def _affordable(plan: Plan, record: Record, place: Place) -> bool:
    """Whether the time left pays for reading another prompt here and comparing at least two settings on it."""
    if plan.budget_ms is None:
        return True
    own = record.at(place)
    return record.spent_ms + _reading_ms(own) + 2.0 * _decode_ms(own) < plan.budget_ms


def first_grid(plan: Plan, left: float) -> tuple[Setting, ...]:
    """As much of the plan's grid as a sixth of the answers left can pay for, the baseline first."""
    every = tuple(dict.fromkeys((plan.baseline, *plan.settings)))
    return every if math.isinf(left) else every[: max(SMALLEST_GRID, int(left / GRID_SHARE))]


def shuffled(settings: Sequence[Setting], seed: int, place: Place, block: int) -> tuple[Setting, ...]:
    """A random order that depends on nothing but its arguments."""
    number = block + 1000 * sum(ord(c) for c in place.kind) + 1_000_000 * place.context_tokens
    rng = rng_for(seed, number)
    keyed = [(rng.random(), s.order, s) for s in sorted(settings, key=lambda s: s.order)]
    return tuple(s for *_, s in sorted(keyed))


def answers_left(plan: Plan, record: Record, place: Place) -> float:
    """How many more answers the budget pays for here; time left is shared with the places that have had less."""
    own = record.at(place)
    left = math.inf
    if plan.answers is not None:
        left = plan.answers - sum(1 for s in own if s.block > 0)
    if plan.budget_ms is not None and own:
        time_left = plan.budget_ms - record.spent_ms
        left = min(left, time_left / len(plan.places) / _answer_ms(own))
    return max(0.0, left)


def _answer_ms(own: Sequence[Sample]) -> float:
    """What one more answer costs here: its decoding, and its part of reading a prompt."""
    return max(1.0, _decode_ms(own) + _reading_ms(own) / USUAL_BLOCK)


def _decode_ms(own: Sequence[Sample]) -> float:
    return sum(s.timings.predicted_ms for s in own) / len(own)


def _reading_ms(own: Sequence[Sample]) -> float:
    waited = sum(s.wall_ms - s.timings.predicted_ms for s in own)
    return max(0.0, waited) / len({s.block for s in own})


def _progress(own: Sequence[Sample]) -> float:
    """How far a place has come: answers and time count alike, so that long contexts neither starve nor eat all."""
    return math.sqrt(len(own) * sum(s.wall_ms for s in own))
