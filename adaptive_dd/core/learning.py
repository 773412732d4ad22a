"""What one answer changes: the baseline's price or the account, the alarms, the estimator, the plans of its cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from adaptive_dd.core import estimator, guard
from adaptive_dd.core.domain import SERVER, UNTOUCHABLE, Cell, Mode, Outcome, Status, Timings
from adaptive_dd.core.events import Decided
from adaptive_dd.core.guard import Account, Guard
from adaptive_dd.core.learned import (
    NOTHING,
    SERVER_NAME,
    Answer,
    Arm,
    Learned,
    Reading,
    Tally,
    arm_of,
    node_of,
)
from adaptive_dd.core.planning import PLANS, SPREAD_GUESS, TOKENS_GUESS, planned, price_by_text
from adaptive_dd.core.policy import Plan
from adaptive_dd.core.state import State, cell_at, credits_for, rooms, sort_of, with_settings
from adaptive_dd.core.trials import NEW, Signal, Standing, waited

# Answers of fewer cycles than this say nothing about a cycle.
SHORTEST = 4
# Relative noise of one answer's saving that the account's slack allows for.
SAVING_NOISE = 0.05
# What a price may be off (log) because the model of text and time that carries it from the baseline's answers to this
# one is not settled yet: with one baseline answer behind it, realised savings were up to 20% too high in simulation.
MODEL_DOUBT, SETTLING = 0.4, 1.5
# An answer is credited for no more than this many times the kind's mean answer.
LONGEST_CREDITED = 20.0
# Answers over which the usual time of one is remembered, and its length; and those that a guess of how far they spread
# counts for.
USUAL_ANSWERS, SPREAD_LEAN = 50.0, 4.0
# Gain on residuals after an alarm was explained; none before.
ALARMED = 3.0
# Shift of all of the baseline's prices (log) beyond which no plan is what it was.
MOVED = 0.05


def observed(state: State, decided: Decided, outcome: Outcome) -> State:
    """The state after an answer to a request that is no longer open."""
    setting = decided.decision.arm
    if outcome.status is Status.REFUSED:
        state = refused(state, decided)
        setting = SERVER  # the original bytes were sent again, and served
    elif outcome.status in (Status.ERROR, Status.CUT):
        return _failed(state, decided, outcome)
    arm, timings = arm_of(setting), outcome.timings
    if timings is None or not _teaches(state, decided, arm, timings) or (outcome.inferred and arm.depth < 0):
        return state
    # It was not blind after all, so it teaches its own cell.
    context = decided.context
    tokens = timings.prompt_tokens or context.prompt_tokens or 0
    cell = cell_at(state, context.kind, tokens, outcome.mean_in_flight)
    answer = Answer(
        arm,
        cell.bucket,
        cell.load,
        cell.kind,
        context.conversation,
        timings,
        inferred=outcome.inferred,
        baseline=arm == state.arms[0],
    )
    return _learned_from(state, cell, answer, decided.number)


def _teaches(state: State, decided: Decided, arm: Arm, timings: Timings) -> bool:
    """Whether an answer says anything about an arm of ours."""
    long_enough = timings.cycles >= SHORTEST and timings.predicted_ms > 0.0
    known = arm.name == SERVER_NAME or any(arm.name == ours.name for ours in state.arms)
    return long_enough and known and decided.decision.reason not in UNTOUCHABLE


def refused(state: State, decided: Decided) -> State:
    """The server refused a setting: nothing as deep is sent again."""
    depth = decided.decision.arm.n_max
    if not depth:
        return state
    lowest = depth if state.refused is None else min(depth, state.refused)
    return with_settings(replace(state, refused=lowest))


def _failed(state: State, decided: Decided, outcome: Outcome) -> State:
    """An error counts against the arm that was sent; not what the client or a loading server did."""
    cell, name = decided.decision.cell, str(decided.decision.arm)
    ours = any(arm.name == name for arm in state.arms[1:]) and decided.decision.reason != "request-override"
    if not ours or (outcome.status is Status.ERROR and outcome.http_status not in (200, 500, 502)):
        return state
    trials = state.guard.trials.get(cell) or credits_for(state, cell)
    moved = trials.get(name, NEW).moved(Signal.REFUSED, state.next_number)
    kept = replace(state.guard, trials={**state.guard.trials, cell: {**trials, name: moved}})
    return _replanned(state, kept, cell, "")


def _learned_from(state: State, cell: Cell, answer: Answer, number: int) -> State:
    learned, reading = state.learned, estimator.read(state.learned, answer)
    if answer.arm == state.arms[0]:
        learned, reading, kept = _heard_baseline(state, answer, reading, number)
    else:
        kept = _heard_other(state, cell, answer, reading, number)
    trust = ALARMED if number < kept.calm else 1.0
    if kept.alarm is not None and kept.alarm.node == node_of(cell.bucket, cell.load):
        trust = 0.0
    learned = estimator.learn(learned, answer, reading, trust=trust)
    state = _lengths_heard(state, cell.kind, answer.timings.decode_tokens)
    name, heard = answer.arm.name, state.heard
    heard = heard if name in heard else {**heard, name: number}
    return _replanned(replace(state, learned=learned, heard=heard), kept, cell, answer.conversation)


def _lengths_heard(state: State, kind: str, tokens: int) -> State:
    """The state after an answer of a kind had this many decode tokens."""
    length = state.lengths.get(kind, NOTHING)
    moved = length.moved(tokens - length.mean, 1.0, lean=0.0, cap=USUAL_ANSWERS)
    spread = state.spreads.get(kind) or Tally(SPREAD_GUESS * moved.mean, SPREAD_LEAN)
    apart = abs(tokens - (length.mean if length.weight else moved.mean))
    spread = spread.moved(apart - spread.mean, 1.0, lean=0.0, cap=USUAL_ANSWERS)
    lengths, spreads = {**state.lengths, kind: moved}, {**state.spreads, kind: spread}
    return replace(state, lengths=lengths, spreads=spreads)


def _heard_baseline(
    state: State, answer: Answer, reading: Reading, number: int
) -> tuple[Learned, Reading, Guard]:
    """The baseline's answer sets its price, and tells whether an alarm was the whole machine's."""
    learned, kept = state.learned, state.guard
    node = node_of(answer.bucket, answer.load)
    if kept.alarm is not None and kept.alarm.node == node:
        name, surprise = kept.alarm.name, kept.alarm.shift
        error = reading.time_error if reading.familiar else 0.0
        kept, shift = guard.explained(kept, error, sd=learned.time_sd, number=number)
        if shift:
            learned = estimator.shifted(learned, shift, (answer.arm.name, name))
            reading = replace(reading, time_error=reading.time_error - shift)
        # Nothing was learned from the surprise while it might have been the machine's.
        if kept.alarm is None and surprise > shift:
            learned = estimator.doubted(learned, name, surprise - shift)
    coef = estimator.node_coef(learned, answer.bucket, answer.load)
    kept, moved = guard.priced(kept, node, reading, coef, number, sd=learned.time_sd)
    if moved < 0.0 or (moved and kept.calm <= number):
        learned = estimator.shifted(learned, moved, (answer.arm.name,))
        reading = replace(reading, time_error=reading.time_error - moved)
        kept = replace(kept, calm=number + guard.CALM)
    ref_ms = answer.timings.predicted_ms * _credited(state, answer.kind, answer.timings.decode_tokens)
    return learned, reading, _booked(kept, answer.bucket, Account(ref_ms=ref_ms))


def _heard_other(state: State, cell: Cell, answer: Answer, reading: Reading, number: int) -> Guard:
    """Another arm's answer: booked against the baseline's price, and listened to for a change of the machine."""
    kept, name = state.guard, answer.arm.name
    if reading.familiar and name not in state.learned.unsure:
        where = (name, node_of(cell.bucket, cell.load))
        # Where p_min ends a draft differs from text to text, and cycle time with it.
        sd = state.learned.time_sd * (1.0 if answer.arm.p_min == 0.0 else 3.0)
        kept = guard.listened(kept, where, reading.time_error, sd=sd, number=number)
    price = price_by_text(state, state.learned, kept, cell)
    if price is None:
        return kept
    per_token = sum([p * w for p, w in zip(price, reading.posterior, strict=True)])
    took_ms = answer.timings.predicted_ms
    ref_ms = per_token * answer.timings.decode_tokens
    node = node_of(cell.bucket, cell.load)
    doubt = kept.prices[node].sd(number, state.learned.time_sd)
    off = math.hypot(doubt, MODEL_DOUBT / (1.0 + kept.prices[node].weight) ** SETTLING)
    saved_ms, share = ref_ms - took_ms, _credited(state, cell.kind, answer.timings.decode_tokens)
    entry = Account(
        saved_ms * share if saved_ms > 0.0 else saved_ms,
        ref_ms * share,
        off * ref_ms * share,
        (SAVING_NOISE * ref_ms * share) ** 2,
    )
    trials, delta = kept.trials.get(cell) or credits_for(state, cell), state.settings.delta
    saving, weight, before = math.log(ref_ms / took_ms), reading.seen.weight, trials.get(name, NEW)
    heard = before.heard(saving, weight, number=number, delta=delta, doubt=doubt)
    known = {**kept.trials, cell: {**trials, name: heard}}
    kept = _booked(kept, answer.bucket, entry, trials=known, since_ms=kept.since_ms + ref_ms)
    if before.standing is Standing.CREDITED:
        kept = guard.credited(kept, saving, weight, number=number, delta=delta, doubt=doubt)
    return kept


def _credited(state: State, kind: str, tokens: int) -> float:
    """The share of an answer that the account believes: no single one pays for days of trials, however long it says
    that it was."""
    length = state.lengths.get(kind)
    most = LONGEST_CREDITED * (TOKENS_GUESS if length is None else length.mean)
    return min(1.0, most / max(1, tokens))


def _booked(kept: Guard, bucket: int, entry: Account, **more: Any) -> Guard:
    """The guard with one entry in its accounts. more: what else of it changes, since making a new one takes long."""
    account = kept.buckets.get(bucket, guard.EMPTY)
    return replace(
        kept,
        total=kept.total.plus(entry),
        buckets={**kept.buckets, bucket: account.plus(entry)},
        usual=kept.usual.moved(entry.ref_ms - kept.usual.mean, 1.0, lean=0.0, cap=USUAL_ANSWERS),
        **more,
    )


def _still_true(state: State, kept: Guard, cell: Cell) -> Mapping[Cell, tuple[Plan | None, ...]]:
    """The plans that an answer leaves as good as they were.

    Where the machine moved or the frontier was caught, none: every cell would have to lose a request to find out.
    Where an arm's standing moved, none of its cell: a setting proven slower with one sort of text is barred for all.
    What is missing is worked out when it is asked for.
    """
    before = state.guard
    if abs(kept.drift - before.drift) > MOVED or (kept.alarm is None) != (before.alarm is None):
        return {}
    if kept.caught != before.caught:
        return {}
    old, new = before.trials.get(cell, {}), kept.trials.get(cell, {})
    if all(trial.standing is old.get(name, NEW).standing for name, trial in new.items()):
        return state.plans
    return {other: plans for other, plans in state.plans.items() if other != cell}


def _replanned(state: State, kept: Guard, cell: Cell, conversation: str) -> State:
    """The state with the plans of one cell worked out again, where the baseline's price is known there."""
    trials = waited(kept.trials.get(cell, {}), state.next_number)
    if trials is not kept.trials.get(cell) and trials:
        kept = replace(kept, trials={**kept.trials, cell: trials})
    plans = _still_true(state, kept, cell)
    node = node_of(cell.bucket, cell.load)
    if state.settings.mode is Mode.ADAPTIVE and guard.is_priced(kept, node):
        known = plans.get(cell, ())
        sorts = {0, sort_of(state, conversation)} if any(known) else range(PLANS)
        plans = {**plans, cell: planned(state, state.learned, kept, cell, sorts)}
    elif node in kept.prices and cell not in plans:
        # Heard, but nothing draws from a plan here yet; `decide` works out what is missing.
        plans = {**plans, cell: (None,) * PLANS}
    room, tight = rooms(state, kept)
    return replace(state, guard=kept, plans=plans, headroom_ms=room, tight=tight)
