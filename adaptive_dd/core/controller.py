"""The one entry point to everything learned: `initial`, `decide`, `apply`, `fold`.

The order in which a decision is made: what may not be touched, what the user or the client ordered, what the server
can hear at all, and only then what is fastest. `decide` reads a state and changes nothing: it looks up a plan that
`apply` worked out when the cell's last answer came. `apply` is the only function that changes anything; a state is the
fold of `apply` over the journal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from adaptive_dd.core import learning, policy
from adaptive_dd.core.cost import ANSWER_TOKENS, stays, switch_ms
from adaptive_dd.core.domain import SERVER, Cell, Context, Decision, Listens, Mode, Setting, Status
from adaptive_dd.core.events import (
    Abandoned,
    Began,
    Charged,
    Decided,
    Event,
    FactsFound,
    FreezeSet,
    ModeSet,
    Observed,
)
from adaptive_dd.core.frontier import bucket_edges, measured_ms_per_token
from adaptive_dd.core.guard import Account, is_priced, without_credit
from adaptive_dd.core.learned import node_of
from adaptive_dd.core.placement import STAYS, home_of, may_refresh, placed
from adaptive_dd.core.planning import PLANS, planned
from adaptive_dd.core.policy import Option, Plan
from adaptive_dd.core.rng import Rng
from adaptive_dd.core.seeding import seeded
from adaptive_dd.core.state import (
    State,
    baseline_of,
    cap_of,
    cell_of,
    credits_for,
    foreign,
    load_level,
    rooms,
    rung_of,
    sort_of,
    with_settings,
)
from adaptive_dd.core.trials import NEW, Standing, Trial

__all__ = [
    "State",
    "apply",
    "baseline_of",
    "cap_of",
    "cell_of",
    "decide",
    "fold",
    "initial",
    "load_level",
    "rung_of",
]

# Servers that cannot be told a setting: what to say instead of choosing one.
UNHEARD: Mapping[Listens, str] = {
    Listens.IGNORES: "not-honoured",
    Listens.NO_DRAFTING: "no-drafting",
    Listens.DRAFTLESS: "draftless",
}


def initial(began: Began) -> State:
    """The state that a deployment starts from."""
    edges = bucket_edges(began.frontier)
    state = _prepared(State(began.deployment, began.settings, began.frontier, edges))
    other = bool(foreign(began.frontier, began.deployment))
    return replace(state, learned=seeded(state.learned, began.frontier, edges, foreign=other))


# --- deciding ------------------------------------------------------------------------------------------------


def decide(state: State, context: Context, rng: Rng) -> Decision:
    """Choose for one request. Reads; changes nothing."""
    cell = cell_of(state, context)
    settled = _settled(state, context)
    if settled is not None:
        arm, reason = settled
        return Decision(arm, reason, 1.0, cell)
    if state.settings.mode is not Mode.ADAPTIVE:
        return _by_the_ladder(state, context, cell)
    option = _drawn(state, context, cell, rng)
    return Decision(option.arm, option.reason, option.share, cell)


def _by_the_ladder(state: State, context: Context, cell: Cell) -> Decision:
    """What the frontier's ladder plays; a conversation stays where its prompt cache lives until what the frontier
    measured pays for leaving."""
    arm, baseline = rung_of(state, cell), state.arms[0].setting
    if context.arms is not None and arm not in context.arms:
        arm = baseline
    if switch_ms(context, arm) > 0.0:
        steps = {baseline, *state.rungs.get("", ()), *state.rungs.get(cell.kind, ())}
        homes = [a.setting for a in state.arms if a.setting in steps and a.setting in (context.arms or steps)]
        measured = measured_ms_per_token(state.frontier, cell.bucket, edges=state.edges, kind=cell.kind)
        home = stays(context, arm, homes, measured)
        if home != arm:
            return Decision(home, STAYS, 1.0, cell)
    reason = "frozen" if state.settings.mode is Mode.FROZEN or state.frozen else "frontier"
    return Decision(arm, reason if arm != baseline else "baseline", 1.0, cell)


def _settled(state: State, context: Context) -> tuple[Setting, str] | None:
    """What is sent, and why, where there is nothing to choose; in order of precedence."""
    settings, unheard = state.settings, UNHEARD.get(state.facts.listens)
    if context.untouchable:
        return SERVER, context.untouchable
    if settings.mode is Mode.OFF:
        return SERVER, "off"
    if context.override is not None and not settings.force:
        return context.override, "request-override"
    if unheard is not None:
        return SERVER, unheard
    if settings.mode is Mode.OBSERVE:
        return SERVER, "observe"
    if context.prompt_tokens is None:
        return baseline_of(state), "no-count"
    return None


def _drawn(state: State, context: Context, cell: Cell, rng: Rng) -> Option:
    """What the adaptive policy draws."""
    plan, baseline = _plan_for(state, context, cell), state.arms[0].setting
    room = min(state.headroom_ms, state.tight.get(cell.bucket, math.inf))
    if plan is None:
        if may_refresh(context, baseline, room):
            return _certain(baseline, "refresh")
        return _certain(home_of(context, [arm.setting for arm in state.arms]), STAYS)
    length = state.lengths.get(cell.kind)
    tokens = ANSWER_TOKENS if length is None else length.mean
    if state.frozen:
        return replace(
            placed(plan, context, math.inf, answer_tokens=tokens).proven, reason="frozen", share=1.0
        )
    alarm = state.guard.alarm
    due = alarm is not None and alarm.due_at(cell) and plan.best.arm != plan.fallback.arm
    if due and may_refresh(context, baseline, room):
        return _certain(baseline, "refresh")
    room = plan.eased(room, context.max_tokens)
    return policy.draw(placed(plan, context, room, answer_tokens=tokens), rng.random(), room)


def _certain(arm: Setting, reason: str) -> Option:
    return Option(arm, reason, 1.0, -math.inf)


def _plan_for(state: State, context: Context, cell: Cell) -> Plan | None:
    """The plan that a request falls under; None where the baseline's price was not heard well enough in its node."""
    sort = sort_of(state, context.conversation)
    plans = state.plans.get(cell)
    plan = None if plans is None else plans[sort]
    if plan is None and is_priced(state.guard, node_of(cell.bucket, cell.load)):
        # A cell's first request: nobody could work it out before.
        plan = planned(state, state.learned, state.guard, cell, (sort,))[sort]
    return plan


# --- applying ------------------------------------------------------------------------------------------------


def apply(state: State, event: Event) -> State:
    """The state after an event: the only function that changes anything."""
    match event:
        case Began():
            return _began_again(state, event)
        case FactsFound():
            return _prepared(replace(state, facts=event.facts))
        case ModeSet():
            return replace(state, settings=replace(state.settings, mode=event.mode), plans={})
        case FreezeSet():
            return replace(state, frozen=event.frozen)
        case Decided():
            return _decided(state, event)
        case Observed():
            return _asked_in_vain(state, _observed(state, event), event.number)
        case Abandoned():
            return _asked_in_vain(state, _closed(state, event.number), event.number)
        case Charged():
            return _charged(state, event.ms)


def _charged(state: State, ms: float) -> State:
    """The state after the account has paid for something that the baseline would not have needed."""
    if state.frozen or ms <= 0.0:
        return state
    kept = replace(state.guard, total=state.guard.total.plus(Account(saved_ms=-ms)))
    return replace(state, guard=kept, headroom_ms=state.headroom_ms - ms)


def fold(began: Began, events: Iterable[Event]) -> State:
    """The state after a journal."""
    state = initial(began)
    for event in events:
        state = apply(state, event)
    return state


def _began_again(state: State, event: Began) -> State:
    """A restart: the same deployment keeps what was learned; requests then on their way are lost.

    Other buckets or another baseline are other questions: nothing learned answers them.
    """
    fresh = initial(event)
    if event.deployment != state.deployment:
        return fresh
    if fresh.edges != state.edges or event.settings.baseline != state.settings.baseline:
        return _prepared(
            replace(fresh, facts=state.facts, frozen=state.frozen, next_number=state.next_number)
        )
    kept = replace(state.guard, reserved={})
    again = _prepared(replace(state, settings=event.settings, frontier=event.frontier, open={}, guard=kept))
    return again if event.frontier == state.frontier else _of_another_frontier(again)


def _of_another_frontier(state: State) -> State:
    """The state under a frontier that came with a restart: what the old one was credited with or caught at says
    nothing about it. What answers proved or disproved stays; its rows are not taken as answers any more."""
    kept = replace(without_credit(state.guard, state.next_number), lies=0.0, caught=False)
    state = replace(state, guard=kept)
    trials = {cell: _credited_anew(own, credits_for(state, cell)) for cell, own in kept.trials.items()}
    return replace(state, guard=replace(kept, trials=trials))


def _credited_anew(own: Mapping[str, Trial], credited: Mapping[str, Trial]) -> Mapping[str, Trial]:
    open_ones = [name for name in credited if own.get(name, NEW).standing is Standing.CANDIDATE]
    anew = {
        name: replace(own.get(name, NEW), standing=Standing.CREDITED, claim=credited[name].claim)
        for name in open_ones
    }
    return {**own, **anew}


def _prepared(state: State) -> State:
    """The state with everything worked out that follows from settings, frontier and facts."""
    room, tight = rooms(state, state.guard)
    return replace(with_settings(state), headroom_ms=room, tight=tight)


def _decided(state: State, event: Decided) -> State:
    kept, decision = state.guard, event.decision
    if kept.alarm is not None and kept.alarm.due_at(decision.cell) and decision.arm == state.arms[0].setting:
        kept = replace(kept, alarm=replace(kept.alarm, due=False))
    worst, switch = _worst_ms(state, event), switch_ms(event.context, decision.arm)
    if switch > 0.0 and not state.frozen:  # the baseline alone would never have had to pay for it
        kept = replace(kept, total=kept.total.plus(Account(saved_ms=-switch)))
    if worst > 0.0:
        kept = replace(kept, reserved={**kept.reserved, event.number: worst})
    return replace(
        state,
        open={**state.open, event.number: event},
        guard=kept,
        next_number=max(state.next_number, event.number + 1),
        headroom_ms=state.headroom_ms - worst - (0.0 if state.frozen else switch),
    )


def _worst_ms(state: State, event: Decided) -> float:
    """What a decision keeps in reserve while it is on its way."""
    # Other modes play the frontier without an account, and a plan made for nothing would hold up the request.
    if state.settings.mode is not Mode.ADAPTIVE or event.decision.reason not in ("explore", "frontier"):
        return 0.0
    plan = _plan_for(state, event.context, event.decision.cell)
    if plan is None:
        return 0.0
    options, share = (*plan.tries, plan.best, *plan.others), plan.share_of(event.context.max_tokens)
    return max([0.0, *[share * o.worst_ms for o in options if o.arm == event.decision.arm]])


def _observed(state: State, event: Observed) -> State:
    decided = state.open.get(event.number)
    if decided is None:
        return state
    kept_back = state.guard.reserved.get(event.number, 0.0)
    state = _closed(state, event.number)
    if state.settings.mode is Mode.OFF:
        return state
    if state.frozen or state.settings.mode is Mode.FROZEN:
        # Learns nothing, but does not go on with what is refused.
        return _refused_while_frozen(state, decided) if event.outcome.status is Status.REFUSED else state
    if event.outcome.timings is None and event.outcome.status in (Status.REJECTED, Status.NO_TIMINGS):
        return _charged(state, kept_back)  # nobody can tell what a trial cost: no more than this
    return learning.observed(state, decided, event.outcome)


def _refused_while_frozen(state: State, decided: Decided) -> State:
    """The state without what was refused, and with the plans that it had, made anew: no answer will ever work them out
    again, and every request would have to do it."""
    after = learning.refused(state, decided)
    cells = [cell for cell, plans in state.plans.items() if any(plans)]
    plans = {cell: planned(after, after.learned, after.guard, cell, range(PLANS)) for cell in cells}
    return replace(after, plans=plans)


def _asked_in_vain(before: State, after: State, number: int) -> State:
    """The state after a request that ended: where it was to explain an alarm and told nothing, because the client left
    or the answer was too short, the baseline is due again. Until it tells, nothing is learned in the alarm's node."""
    alarm, decided = after.guard.alarm, before.open.get(number)
    if alarm is None or alarm.due or decided is None or before.frozen:
        return after
    asked = decided.decision
    cell, baseline = asked.cell, before.arms[0].setting
    if (
        alarm is not before.guard.alarm
        or asked.arm != baseline
        or node_of(cell.bucket, cell.load) != alarm.node
    ):
        return after
    return replace(after, guard=replace(after.guard, alarm=replace(alarm, due=True)))


def _closed(state: State, number: int) -> State:
    """The state without an open request, and without what it kept in reserve."""
    kept, still_open = state.guard, dict(state.open)
    if still_open.pop(number, None) is None:
        return state
    if number not in kept.reserved:
        return replace(state, open=still_open)
    reserved = dict(kept.reserved)
    released = reserved.pop(number)
    kept = replace(kept, reserved=reserved)
    return replace(state, open=still_open, guard=kept, headroom_ms=state.headroom_ms + released)
