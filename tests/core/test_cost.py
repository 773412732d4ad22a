"""Switching costs: a learned price of prompt tokens, against what a switch gains over the answers ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.cost import PromptSpeed, cheapest, free_to_try, stays, switch_ms, tokens_ahead
from adaptive_dd.core.domain import OFF, Context, Setting

N2, N8 = Setting(2), Setting(8)


def context(**fields: object) -> Context:
    base = {"prompt_tokens": 4000, "reprocess": ((N8, 4000), (N2, 100)), "prompt_ms_per_token": 2.0}
    return Context(**{**base, **fields})  # type: ignore[arg-type]


def test_the_price_of_a_prompt_token_is_learned_from_long_prompts_only() -> None:
    speed = PromptSpeed().learned(10, 500.0).learned(1000, 2000.0).learned(1000, 0.0)
    assert speed.ms_per_token == pytest.approx(2.0)
    assert PromptSpeed().ms_per_token == 0.0


def test_a_new_speed_of_the_machine_replaces_the_old_one() -> None:
    speed = PromptSpeed()
    for _ in range(100):
        speed = speed.learned(5000, 5000.0)
    for _ in range(40):
        speed = speed.learned(5000, 15000.0)
    assert speed.ms_per_token == pytest.approx(3.0, rel=0.1)


def test_a_switch_costs_its_tokens_and_an_arm_that_is_not_named_nothing() -> None:
    assert switch_ms(context(), N8) == 8000.0
    assert switch_ms(context(), OFF) == 0.0
    assert not free_to_try(context(), N8)
    assert free_to_try(context(), OFF)


def test_a_switch_that_does_not_pay_is_not_made() -> None:
    # 200 tokens ahead at 10 ms saved each are 2 s; the switch costs 8 s.
    assert stays(context(), N8, [OFF, N8], {OFF: 50.0, N8: 40.0}) == OFF


def test_the_same_gain_pays_once_there_are_answers_enough_ahead() -> None:
    assert stays(context(turns=4), N8, [OFF, N8], {OFF: 50.0, N8: 40.0}) == N8


def test_the_client_s_own_limit_bounds_what_a_switch_can_gain() -> None:
    assert tokens_ahead(context(max_tokens=10, turns=3)) == 40.0
    assert stays(context(max_tokens=10, turns=4), N8, [OFF, N8], {OFF: 50.0, N8: 40.0}) == OFF


def test_an_arm_without_a_prediction_is_not_worth_a_switch() -> None:
    assert stays(context(turns=99), N8, [OFF, N8], {OFF: 50.0}) == OFF


def test_home_is_only_where_the_guard_permits_to_be() -> None:
    assert stays(context(), N8, [N2, N8], {N2: 50.0, N8: 45.0}) == N2
    assert stays(context(), N8, [N8], {OFF: 50.0, N8: 45.0}) == N8


def test_the_cheapest_arm_weighs_decoding_and_switching_together() -> None:
    assert cheapest(context(), {OFF: 50.0, N2: 45.0, N8: 10.0}) == N2
    assert cheapest(context(turns=9), {OFF: 50.0, N2: 45.0, N8: 10.0}) == N8


@given(
    st.sampled_from([OFF, N2, N8]),
    st.dictionaries(st.sampled_from([OFF, N2, N8]), st.floats(0.1, 1e4), max_size=3),
    st.integers(0, 50),
)
def test_where_nothing_must_be_processed_again_the_choice_is_left_alone(
    chosen: Setting, predicted: dict[Setting, float], turns: int
) -> None:
    plain = context(reprocess=(), turns=turns)
    assert stays(plain, chosen, [OFF, N2, N8], predicted) == chosen
    assert all(free_to_try(plain, arm) for arm in (OFF, N2, N8))


@given(st.sampled_from([OFF, N2, N8]), st.floats(0.0, 20.0))
def test_where_no_speed_is_known_the_choice_is_left_alone(chosen: Setting, gain: float) -> None:
    unknown = context(prompt_ms_per_token=0.0)
    assert stays(unknown, chosen, [OFF, N2, N8], {OFF: 50.0, N8: 50.0 - gain}) == chosen
