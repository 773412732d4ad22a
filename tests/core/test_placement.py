"""Plans adjusted to where a conversation's prompt cache lives: what answers, what is paid, what stays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.domain import OFF, Context, Setting
from adaptive_dd.core.placement import home_of, may_refresh, placed, price_ms
from adaptive_dd.core.policy import Option, Plan, chances, draw

N2, N4, N8 = Setting(2), Setting(4), Setting(8)
ARMS = (OFF, N2, N4, N8)

BASELINE = Option(OFF, "guard", 1.0, -math.inf, 50.0)
LEARNED = Option(N4, "learned", 1.0, 0.0, 40.0)
TRIAL = Option(N8, "explore", 1.0, 900.0, 38.0)
OTHER = Option(N2, "explore", 1.0, 100.0, 45.0)
REFRESH = Option(OFF, "refresh", 0.01, -math.inf)
PLAN = Plan((REFRESH, Option(N8, "explore", 0.1, 900.0)), LEARNED, LEARNED, BASELINE, (LEARNED, TRIAL, OTHER))
ROOM = 5000.0


def at(
    arm: Setting | None, *, tokens: int = 4000, turns: int = 3, ms: float = 2.0, **more: object
) -> Context:
    """A conversation of 4000 tokens (8 s to process again) that lives at one arm; None: a new one."""
    lives = () if arm is None else tuple((other, tokens) for other in ARMS if other != arm)
    base: dict[str, object] = {
        "conversation": "c",
        "arms": ARMS,
        "reprocess": lives,
        "prompt_ms_per_token": ms,
    }
    return Context(tokens, turns=0 if arm is None else turns, **{**base, **more})  # type: ignore[arg-type]


def test_with_nothing_known_of_places_the_plan_comes_back_as_it_is() -> None:
    assert placed(PLAN, Context(4000, conversation="c"), ROOM) is PLAN


def test_at_the_beginning_of_a_conversation_everything_is_as_planned() -> None:
    plan = placed(PLAN, at(None, ms=0.0011), ROOM)
    assert (plan.best, plan.proven, plan.tries) == (LEARNED, LEARNED, PLAN.tries)
    assert plan.fallback.arm == OFF


def test_a_conversation_stays_where_it_lives_unless_the_gain_pays() -> None:
    plan = placed(PLAN, at(OFF), ROOM)
    # 10 ms on 4 answers of 200 tokens are 8 s; the switch costs as much.
    assert (plan.best.arm, plan.best.reason) == (OFF, "stays")
    assert placed(PLAN, at(OFF, turns=9), 99_000.0).best.arm == N4


def test_a_switch_that_would_pay_is_not_made_on_credit() -> None:
    assert placed(PLAN, at(OFF, turns=99), ROOM).best.arm == OFF
    assert placed(PLAN, at(OFF, turns=99), 8000.0).best.arm == N4


def test_in_the_middle_of_a_conversation_nothing_is_tried_and_the_baseline_is_not_refreshed_elsewhere() -> (
    None
):
    assert placed(PLAN, at(N4), 1e9).tries == ()


def test_trying_reckons_with_the_way_back() -> None:
    dear = at(None, ms=2.0)
    assert price_ms(dear, TRIAL) == 900.0 + 2 * 8000.0
    assert price_ms(dear, LEARNED) == 0.0
    assert price_ms(dear, replace(LEARNED, reason="frontier")) == 2 * 8000.0, "a frontier may lie"
    assert [o.reason for o in placed(PLAN, dear, ROOM).tries] == ["refresh"]
    assert [o.reason for o in placed(PLAN, dear, 17_000.0).tries] == ["refresh", "explore"]


def test_a_price_of_leaving_that_nobody_knows_is_too_high() -> None:
    assert price_ms(at(None, ms=0.0), TRIAL) == math.inf
    assert price_ms(at(None, ms=0.0, tokens=30), TRIAL) == 900.0
    assert price_ms(at(None, ms=0.0), LEARNED) == 0.0


def test_nobody_pays_a_switch_for_an_unproven_arm() -> None:
    eager = replace(PLAN, best=TRIAL)
    assert placed(eager, at(OFF, turns=99), 1e9).best.arm == N4, "proven, and worth the switch"
    assert placed(eager, at(None, ms=0.001), ROOM).best.arm == N8


def test_without_a_conversation_there_is_no_way_back_to_pay() -> None:
    assert price_ms(at(None, conversation=""), TRIAL) == 900.0


def test_staying_at_an_unproven_arm_costs_its_worst_case_over_the_answers_ahead() -> None:
    assert price_ms(at(N8), TRIAL) == 4 * 900.0
    plan = placed(PLAN, at(N8), ROOM)
    assert (plan.best.arm, plan.best.reason) == (N8, "explore")


def test_when_nothing_is_affordable_the_cheapest_way_out_is_taken() -> None:
    plan = placed(PLAN, at(N8), -1000.0)
    assert plan.best.arm == plan.fallback.arm == N8  # 3.6 s at worst, against 8 s back to the baseline
    assert draw(plan, 0.5, -1000.0).arm == N8
    assert placed(PLAN, at(N8, turns=9), -1000.0).best.arm == OFF  # 9 s by now


def test_what_does_not_answer_is_never_drawn() -> None:
    context = at(None, arms=(OFF, N2), ms=0.001)
    plan = placed(PLAN, context, ROOM)
    for uniform in (0.0, 0.005, 0.05, 0.5, 0.99):
        assert draw(plan, uniform, ROOM).arm in (OFF, N2)


def test_a_proven_arm_that_does_not_answer_gives_way_to_what_is_expected_to_be_fastest() -> None:
    assert placed(PLAN, at(None, arms=(OFF, N2), ms=0.001), ROOM).best.arm == N2
    assert placed(PLAN, at(None, arms=(OFF, N2), ms=0.001), ROOM).proven.arm == OFF


def test_an_answer_without_timings_gets_proven_arms_and_no_trials() -> None:
    best = Plan(PLAN.tries, TRIAL, LEARNED, BASELINE, PLAN.others)
    plan = placed(best, Context(4000, blind=True), ROOM)
    assert (plan.best.arm, plan.tries) == (N4, ())
    assert placed(best, at(None, ms=0.001, blind=True), ROOM).best.arm == N4


@given(
    st.sampled_from([None, *ARMS]),
    st.sets(st.sampled_from(ARMS), min_size=1),
    st.floats(-1e4, 1e6),
    st.integers(0, 30),
    st.booleans(),
)
def test_chances_sum_to_one_over_arms_that_answer(
    lives: Setting | None, answering: set[Setting], room: float, turns: int, blind: bool
) -> None:
    arms = tuple(arm for arm in ARMS if arm in answering | {OFF})
    plan = placed(PLAN, at(lives, arms=arms, turns=turns, blind=blind), room)
    found = chances(plan, room)
    assert sum(found.values()) == pytest.approx(1.0)
    assert set(found) <= set(arms)


def test_a_refresh_may_take_a_small_share_of_the_headroom_only() -> None:
    assert may_refresh(at(OFF), OFF, -1.0)
    assert not may_refresh(at(N8), OFF, 79_000.0)
    assert may_refresh(at(N8), OFF, 81_000.0)
    assert not may_refresh(at(None, arms=(N8,)), OFF, 1e9)


def test_home_is_where_the_conversation_lives_and_answers() -> None:
    assert home_of(at(N8), ARMS) == N8
    assert home_of(at(N8, arms=(OFF, N2)), ARMS) == OFF
    assert home_of(at(None), ARMS) == OFF
