"""Plans where arms are places (presets, replicas): only what answers now, and no switch that does not pay.

A plan is worked out per cell, off the request's path; where this conversation's prompt cache lives is known only when
its request comes. So the plan is adjusted here, option by option:

    playable   what does not answer now is left out
    price      what the budget must be able to pay: the option's worst case (where the conversation lives: over the
               answers ahead), the switch to it, and for an unproven arm that the conversation would enter anew, the
               switch back out of it
    stays      the best and the proven option give way to one that the conversation can have without processing its
               prompt again, unless their gain over the answers ahead pays for the switch (`core.cost`)
    fallback   where nothing is affordable, the cheapest way out: going back to the baseline may cost more than staying

Trials are made where they cost no prompt time, which is at the beginning of a conversation. An answer that will bring
neither timings nor arrivals that tell them teaches nothing and cannot be booked, so it gets proven arms only. With
nothing known of places the plan comes back as it is.

Where it misleads: a server that serves one endless conversation learns nothing more until the next one begins; and
where prompts are long and processing them is slow, trials are out of the budget's reach for a long time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from adaptive_dd.core.cost import (
    ANSWER_TOKENS,
    FEWEST_TOKENS,
    answers_ahead,
    cheapest,
    free_to_try,
    stays,
    switch_ms,
)
from adaptive_dd.core.domain import Context, Setting
from adaptive_dd.core.policy import Option, Plan

STAYS = "stays"
# Not proven by answers of its own: it may turn out slower, and then the conversation has to leave again.
ON_CREDIT = ("explore", "frontier")
# Most of the headroom that moving a conversation only to hear the baseline may take.
REFRESH_SHARE = 0.1


def placed(plan: Plan, context: Context, headroom_ms: float, *, answer_tokens: float = ANSWER_TOKENS) -> Plan:
    """The plan as it can be played for this request. answer_tokens: what an answer of this kind is long."""
    if context.arms is None and not context.reprocess and not context.blind:
        return plan
    options = [o for o in (plan.fallback, *plan.others) if _answers(context, o)] or [plan.fallback]
    fallback = min(options, key=lambda option: price_ms(context, option))
    paid = [o for o in options if price_ms(context, o) <= headroom_ms] or [fallback]
    known = [o for o in paid if o.reason != "explore"] or [fallback]
    proven = _staying(context, plan.proven, known, answer_tokens)
    sure = [o for o in paid if o.reason != "explore" or free_to_try(context, o.arm)] or [fallback]
    best = proven if context.blind else _staying(context, plan.best, sure, answer_tokens)
    tries = [o for o in plan.tries if _may_be_tried(context, o) and price_ms(context, o) <= headroom_ms]
    return replace(
        plan,
        tries=() if context.blind else tuple(tries),
        best=best,
        proven=proven,
        fallback=_instead(context, fallback, plan.fallback.arm),
    )


def price_ms(context: Context, option: Option) -> float:
    """What the budget must be able to pay for an option: time that it may lose here and by being entered."""
    switch = switch_ms(context, option.arm)
    lives_here = context.turns > 0 and switch == 0.0
    enters = bool(context.conversation) and option.reason in ON_CREDIT and not lives_here
    back_ms = _back_ms(context) if enters else 0.0
    # Who stays, stays for the answers ahead: cheap steps must not add up to more than leaving would have cost.
    answers = answers_ahead(context) if lives_here else 1.0
    return answers * max(0.0, option.worst_ms) + switch + back_ms


def _back_ms(context: Context) -> float:
    """What an arm may cost that turns out slow: leaving it, and as much again until leaving is worth it (who rents
    skis until he has paid for a pair pays at most twice). A price that nobody knows yet is too high.
    """
    tokens = context.prompt_tokens or 0
    unknown = context.prompt_ms_per_token <= 0.0 and tokens >= FEWEST_TOKENS
    return math.inf if unknown else 2.0 * tokens * context.prompt_ms_per_token


def may_refresh(context: Context, baseline: Setting, headroom_ms: float) -> bool:
    """Whether the baseline's price may be refreshed with this request: it answers, and a small share pays for it."""
    switch = switch_ms(context, baseline)
    answers = context.arms is None or baseline in context.arms
    return answers and (switch == 0.0 or switch <= REFRESH_SHARE * headroom_ms)


def home_of(context: Context, arms: Sequence[Setting]) -> Setting:
    """The arm that this conversation reaches most cheaply; among equals the first."""
    playable = [arm for arm in arms if context.arms is None or arm in context.arms] or list(arms)
    return min(playable, key=lambda arm: switch_ms(context, arm))


def _answers(context: Context, option: Option) -> bool:
    return context.arms is None or option.arm in context.arms


def _may_be_tried(context: Context, option: Option) -> bool:
    return _answers(context, option) and free_to_try(context, option.arm)


def _staying(context: Context, chosen: Option, usable: Sequence[Option], answer_tokens: float) -> Option:
    """The option to play in place of `chosen`: itself where it is usable and pays, else what costs least in total."""
    by_arm = {option.arm: option for option in reversed(usable)}
    means = {option.arm: option.ms_per_token for option in usable if option.ms_per_token > 0.0}
    if chosen.arm in by_arm:
        arm = stays(context, chosen.arm, by_arm, means, answer_tokens=answer_tokens)
    else:
        arm = cheapest(context, means, answer_tokens=answer_tokens) if means else usable[0].arm
    return chosen if arm == chosen.arm else _instead(context, by_arm[arm], chosen.arm)


def _instead(context: Context, option: Option, chosen: Setting) -> Option:
    """An option that is played in place of the chosen one; the budget was asked already."""
    stays_here = option.arm != chosen and switch_ms(context, option.arm) == 0.0
    reason = STAYS if stays_here and option.reason != "explore" else option.reason
    return replace(option, reason=reason, worst_ms=min(option.worst_ms, 0.0))
