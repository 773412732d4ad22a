"""Advice: settings compared on the same sort of requests, with intervals that hold, and no false promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from adaptive_dd.core.advice import (
    Sample,
    from_frontier,
    from_samples,
    prices_of,
    tokens_by_context,
)
from adaptive_dd.core.domain import OFF, Frontier, FrontierRow, Setting

N2, N4 = Setting(2), Setting(4)


def answers(
    stratum: str, arm: Setting, rate: float, count: int, *, seed: int = 1, spread: float = 0.1
) -> list[Sample]:
    rng = random.Random(f"{stratum}{arm}{seed}")
    made = []
    for _ in range(count):
        tokens = rng.randint(50, 400)
        made.append(Sample(stratum, arm, tokens, tokens * rate * (1.0 + spread * rng.gauss(0.0, 1.0))))
    return made


def test_a_price_is_time_over_tokens_with_the_spread_of_its_mean() -> None:
    price = prices_of(answers("a", N2, 20.0, 400))[N2]["a"]
    assert price.ms_per_token == pytest.approx(20.0, rel=0.02)
    assert price.sd == pytest.approx(20.0 * 0.1 / 400**0.5, rel=0.3)


def test_too_few_answers_give_no_price() -> None:
    assert prices_of(answers("a", N2, 20.0, 2)) == {}
    assert prices_of([Sample("a", N2, 0, 5.0)] * 9) == {}


def test_the_faster_setting_is_recommended_with_its_gain() -> None:
    advice = from_samples(answers("a", N2, 20.0, 100) + answers("a", N4, 16.0, 100), N2)
    assert advice.best == N4
    (found,) = advice.compared
    assert found.low < 0.2 < found.high
    assert found.gain == pytest.approx(0.2, abs=0.03)
    assert found.sure > 0.999
    assert found.coverage == 1.0


def test_a_setting_that_met_the_easy_requests_is_not_taken_for_a_fast_one() -> None:
    samples = answers("easy", N2, 10.0, 20) + answers("hard", N2, 40.0, 180)
    samples += answers("easy", N4, 10.0, 180) + answers("hard", N4, 40.0, 20)
    (found,) = from_samples(samples, N2).compared
    assert abs(found.gain) < 0.08  # pooled, it would look like 54%
    assert from_samples(samples, N2).best == N2


def test_strata_that_a_setting_has_not_met_are_left_out_and_said() -> None:
    samples = answers("a", N2, 20.0, 50) + answers("b", N2, 20.0, 150) + answers("a", N4, 10.0, 10)
    (found,) = from_samples(samples, N2).compared
    assert found.gain == pytest.approx(0.5, abs=0.05)
    assert found.coverage < 0.5
    assert from_samples(samples, N2).best == N2, "half of the traffic is too little to go by"


def test_a_setting_that_shares_nothing_with_the_baseline_is_not_compared() -> None:
    assert from_samples(answers("a", N2, 20.0, 9) + answers("b", N4, 9.0, 9), N2).compared == ()


def test_a_difference_within_the_noise_keeps_the_baseline() -> None:
    advice = from_samples(answers("a", N2, 20.0, 8, spread=0.3) + answers("a", N4, 19.5, 8, spread=0.3), N2)
    assert advice.best == N2


def test_intervals_hold_the_truth_as_often_as_they_say_and_false_promises_are_rare() -> None:
    inside = wrong = 0
    for seed in range(200):
        samples = [s for arm in (N2, N4, OFF) for s in answers("a", arm, 20.0, 40, seed=seed)]
        advice = from_samples(samples, N2)
        inside += sum(one.low <= 0.0 <= one.high for one in advice.compared)
        wrong += advice.best != N2
    assert inside >= 0.9 * 400
    assert wrong <= 0.08 * 200


def frontier(*rows: tuple[int, Setting, float], samples: int | None = 9, sd: float | None = 1.0) -> Frontier:
    return Frontier(
        tuple(FrontierRow(at, arm, speed, samples=samples, sd=sd) for at, arm, speed in rows), baseline=N2
    )


def test_a_calibration_is_weighed_by_the_traffic() -> None:
    found = frontier((1000, N2, 50.0), (1000, N4, 80.0), (60000, N2, 40.0), (60000, N4, 25.0))
    assert from_frontier(found, N2, {1000: 9.0, 60000: 1.0}).best == N4
    assert from_frontier(found, N2, {1000: 1.0, 60000: 9.0}).best == N2


def test_a_calibration_without_spread_is_taken_at_its_word() -> None:
    advice = from_frontier(frontier((1000, N2, 50.0), (1000, N4, 51.0), samples=None, sd=None), N2)
    assert (advice.best, advice.compared[0].sure) == (N4, 1.0)


def test_a_row_that_makes_no_claim_makes_none_here() -> None:
    found = frontier((1000, N2, 50.0), (1000, N4, 80.0))
    marked = replace(found, rows=(found.rows[0], replace(found.rows[1], mark="too-noisy")))
    assert (from_frontier(found, N2).best, from_frontier(marked, N2).best) == (N4, N2)


def test_each_prompt_length_counts_for_the_measured_context_of_its_bucket() -> None:
    assert tokens_by_context([4000, 64000], (16000,), {100: 1.0, 15999: 2.0, 16000: 4.0}) == {
        4000: 3.0,
        64000: 4.0,
    }
