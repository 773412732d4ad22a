"""The policy as it stands, for people: cells, arms with reasons, and the budget.

Reads a state and changes nothing. Two different things are told of an arm, and kept apart: what is *expected* of it
(the estimator's prediction, pooled over arms and cells), and what is *proven* of it (the guard's own account of its
answers in this cell against the baseline's price, with a confidence sequence that may be looked at at any time).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul
from statistics import NormalDist

import numpy as np

from adaptive_dd.core import controller, planning, policy
from adaptive_dd.core.domain import Cell, Context, Mode, Setting
from adaptive_dd.core.guard import is_priced
from adaptive_dd.core.learned import node_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.policy import Plan
from adaptive_dd.core.state import State, credits_for, foreign, sort_of
from adaptive_dd.core.texts import texts_of
from adaptive_dd.core.trials import BARRED, NEW, PROVEN, Standing, Trial

Z = 1.96  # 95%, two-sided, of a normal


@dataclass(frozen=True, slots=True)
class ArmView:
    """An arm in a cell.

    expected_ms, low, high   decode ms a token as predicted, with its 95% interval
    expected_gain            predicted share of the baseline's time that it saves (0.1 = 10%)
    answers                  answers of it in this cell (weighed by length)
    saved, low and high      share of the baseline's price saved by these, with an anytime-valid interval; None without
    chance                   probability with which the next request of the cell plays it
    why                      why it is played, or why not
    """

    setting: Setting
    standing: str
    expected_ms: float
    expected_ms_low: float
    expected_ms_high: float
    expected_gain: float
    answers: float
    saved: float | None
    saved_low: float | None
    saved_high: float | None
    chance: float
    why: str


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell: what is played, and every arm, the likeliest and then the fastest first.

    baseline_ms   the baseline's own price, decode ms a token; None where it was never heard
    tokens        mean decoded tokens of an answer, None before the first
    """

    cell: Cell
    playing: Setting
    reason: str
    baseline_ms: float | None
    tokens: float | None
    arms: tuple[ArmView, ...]


@dataclass(frozen=True, slots=True)
class BudgetView:
    """The guard's account, in milliseconds of decode time.

    saved_ms      against the baseline's price, on `ref_ms` of it     slack_ms    what `saved_ms` may be off
    reserved_ms   worst case of requests on their way                 headroom_ms what trials may still lose
    gain          saved_ms / ref_ms, with the slack both ways as its interval; None before anything was measured
    alarm         a surprise that is not explained yet, in words, or empty
    frontier      what speaks against the frontier's rows, in words, or empty
    tight         headroom of the buckets whose own account allows less
    """

    saved_ms: float
    ref_ms: float
    slack_ms: float
    reserved_ms: float
    headroom_ms: float
    alpha: float
    c0_ms: float
    delta: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    alarm: str
    frontier: str
    tight: Mapping[int, float]


def budget(state: State) -> BudgetView:
    """The account of the whole deployment."""
    settings, kept = state.settings, state.guard
    total, alarm = kept.total, kept.alarm
    slack = total.slack_ms(NormalDist().inv_cdf(1.0 - settings.delta))

    def gain(off_ms: float) -> float | None:
        return (total.saved_ms + off_ms) / total.ref_ms if total.ref_ms else None

    return BudgetView(
        total.saved_ms,
        total.ref_ms,
        slack,
        sum(kept.reserved.values()),
        state.headroom_ms,
        settings.alpha,
        settings.c0_ms,
        settings.delta,
        gain(0.0),
        gain(-slack),
        gain(slack),
        alarm=""
        if alarm is None
        else f"{alarm.name} came {math.expm1(alarm.shift):+.0%} off; asking the baseline",
        frontier=_no_credit(state),
        tight=dict(state.tight),
    )


def _no_credit(state: State) -> str:
    """What speaks against the frontier's rows; empty where nothing does, or where there are none."""
    if not (state.frontier.rows or state.frontier.rules):
        return ""
    other = foreign(state.frontier, state.deployment)
    if other:
        adaptive = state.settings.mode is Mode.ADAPTIVE
        return f"{other}: its rows get no credit" if adaptive else f"{other}, and is played as it is"
    if not state.guard.caught:
        return ""
    return "it claimed more than its settings gain: its rows get no credit any more"


def cells(state: State) -> tuple[CellView, ...]:
    """Every cell that was ever planned or tried, by bucket, load and kind."""
    known = {*state.plans, *state.guard.trials}
    ordered = sorted(known, key=lambda cell: (cell.bucket, cell.load, cell.kind))
    return tuple(cell_view(state, cell) for cell in ordered)


def decision_view(state: State, context: Context) -> CellView:
    """The cell as it stood for one request, with the sort of text that its conversation promised."""
    sort = sort_of(state, context.conversation)
    return cell_view(state, controller.cell_of(state, context), sort, context.max_tokens)


def cell_view(state: State, cell: Cell, sort: int = 0, max_tokens: int | None = None) -> CellView:
    """One cell; sort: of the conversation (0 for none); max_tokens: what the client allows, None for any length."""
    plan = _plan(state, cell, sort)
    room = min(state.headroom_ms, state.tight.get(cell.bucket, state.headroom_ms))
    eased = room if plan is None else plan.eased(room, max_tokens)
    share = 1.0 if plan is None else plan.share_of(max_tokens)
    chances = {state.arms[0].setting: 1.0} if plan is None else policy.chances(plan, eased)
    likeliest = max(chances, key=lambda setting: chances[setting])
    texts = texts_of(state.learned, cell.kind, cell.bucket)
    ahead = outlooks(state.learned, Place(cell.bucket, cell.load, cell.kind), state.arms)
    means = (ahead.cost @ np.array(texts)).tolist()
    trials = state.guard.trials.get(cell) or credits_for(state, cell)
    arms = []
    for index, (arm, sd, mean) in enumerate(zip(state.arms, ahead.sd.tolist(), means, strict=True)):
        trial, gain, chance = trials.get(arm.name, NEW), 1.0 - mean / means[0], chances.get(arm.setting, 0.0)
        spread = math.exp(Z * sd)
        arms.append(
            ArmView(
                arm.setting,
                "baseline" if index == 0 else trial.standing.value,
                mean,
                mean / spread,
                mean * spread,
                gain,
                trial.weight,
                *_saved(trial, state.settings.delta),
                chance,
                _why_baseline(plan, chance)
                if index == 0
                else _why(state, plan, arm.setting, trial, gain=gain, chance=chance, room=room, share=share),
            )
        )
    price = planning.price_by_text(state, state.learned, state.guard, cell)
    length = state.lengths.get(cell.kind)
    return CellView(
        cell,
        likeliest,
        _reason(plan, likeliest, eased),
        None if price is None else sum(map(mul, price, texts)),
        None if length is None else length.mean,
        tuple(sorted(arms, key=lambda view: (-view.chance, view.expected_ms))),
    )


def _saved(trial: Trial, delta: float) -> tuple[float | None, float | None, float | None]:
    """Share of the baseline's time that an arm's answers saved, with its interval where there is one worth the name."""
    if trial.weight <= 0.0:
        return None, None, None
    mean, radius = trial.mean, trial.radius(delta)
    low = -math.expm1(radius - mean)
    return -math.expm1(-mean), low if low > -1.0 else None, -math.expm1(-radius - mean)


def _plan(state: State, cell: Cell, sort: int) -> Plan | None:
    plans = state.plans.get(cell)
    if plans is not None and plans[sort] is not None:
        return plans[sort]
    if not is_priced(state.guard, node_of(cell.bucket, cell.load)):
        return None
    return planning.planned(state, state.learned, state.guard, cell, (sort,))[sort]


def _reason(plan: Plan | None, likeliest: Setting, room: float) -> str:
    if plan is None:
        return "refresh"
    drawn = policy.draw(plan, 1.0, room)
    return drawn.reason if drawn.arm == likeliest else "explore"


def _why_baseline(plan: Plan | None, chance: float) -> str:
    if plan is None:
        return "it was not heard often enough here yet"
    if chance >= 0.5:
        return (
            "nothing else is allowed now"
            if plan.best.arm != plan.fallback.arm
            else "nothing is expected to beat it"
        )
    return f"{plan.best.arm} is played; the baseline to keep its price fresh"


def _why(  # noqa: PLR0911 - an order of precedence
    state: State,
    plan: Plan | None,
    arm: Setting,
    trial: Trial,
    *,
    gain: float,
    chance: float,
    room: float,
    share: float,
) -> str:
    """Why an arm is played, or why it is not. share: of its worst case that this request can cost."""
    if plan is None:
        return "the baseline is asked first"
    if chance >= 0.5:
        return "the fastest that is allowed"
    if chance > 0.0:
        return "tried now and then: it may be faster"
    if trial.standing in BARRED:
        word = (
            "proven slower here" if trial.standing is Standing.DEMOTED else "the server failed or refused it"
        )
        return f"{word}; a candidate again at request {trial.until}"
    if gain <= 0.0:
        return f"expected {-gain:.0%} slower than the baseline"
    if gain < state.settings.margin:
        return f"expected gain {gain:.1%} is below the margin of {state.settings.margin:.0%}"
    if trial.standing in PROVEN:
        return f"proven, but {plan.best.arm} is expected to be faster"
    worst = [share * option.worst_ms for option in (*plan.tries, plan.best) if option.arm == arm]
    if worst and worst[0] > room:
        return f"unproven: a trial may cost {worst[0]:,.0f} ms, the budget has {max(0.0, room):,.0f} ms"
    return "unproven, and others promise more"
