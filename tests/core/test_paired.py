"""Two settings on the same texts: the ratio of sums, its spread, and an interval that keeps its word."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adaptive_dd.core.paired import Cost, Ratio, compare, interval, typical_variance


def costs(*ms: float, tokens: int = 100, sorts: str = "") -> dict[int, Cost]:
    return {i: Cost(tokens, m, sorts[i] if sorts else "") for i, m in enumerate(ms)}


def test_the_gain_is_a_ratio_of_sums_so_that_short_fast_answers_do_not_hide_long_slow_ones() -> None:
    base = {0: Cost(100, 1000.0), 1: Cost(100, 1000.0)}
    uneven = {0: Cost(10, 20.0), 1: Cost(190, 3800.0)}
    found = compare(uneven, base)
    assert found is not None
    assert found.gain == pytest.approx(10.0 / (3820.0 / 200.0))


def test_only_blocks_that_both_have_are_compared() -> None:
    found = compare({1: Cost(100, 500.0), 2: Cost(100, 500.0)}, {1: Cost(100, 1000.0), 3: Cost(100, 9.0)})
    assert found == Ratio(2.0, None, 0, 1)
    assert compare(costs(1.0), {7: Cost(1, 1.0)}) is None


def test_what_all_settings_of_a_block_share_cancels() -> None:
    moods = (1.0, 3.0, 0.5, 2.0)
    found = compare(costs(*(80.0 * m for m in moods)), costs(*(100.0 * m for m in moods)))
    assert found is not None
    assert (found.gain, found.variance) == (pytest.approx(1.25), pytest.approx(0.0, abs=1e-12))


def test_differences_between_sorts_of_text_are_no_spread_once_each_came_round_often_enough() -> None:
    ms = [50.0, 150.0] * 4
    apart = compare(costs(*ms, sorts="ab" * 4), costs(*([100.0] * 8)))
    mixed = compare(costs(*ms), costs(*([100.0] * 8)))
    few = compare(costs(*ms[:4], sorts="abab"), costs(*([100.0] * 4)))
    assert apart is not None
    assert mixed is not None
    assert few is not None
    assert apart.variance == pytest.approx(0.0, abs=1e-12)
    assert apart.freedom == 6
    assert mixed.variance is not None
    assert mixed.variance > 0.1
    assert few.variance is not None
    assert few.variance > 0.1


def test_a_single_block_alone_says_nothing_of_its_spread() -> None:
    alone = interval(Ratio(1.5, None, 0, 1), None, confidence=0.99)
    assert (alone.low, alone.high) == (0.0, math.inf)
    helped = interval(Ratio(1.5, None, 0, 1), 0.01, confidence=0.99)
    assert 1.0 < helped.low < 1.5 < helped.high < 2.3


def test_typical_variance_is_the_median_of_those_known() -> None:
    assert typical_variance([Ratio(1.0, v, 3, 4) for v in (1.0, 2.0, 9.0)]) == 2.0
    assert typical_variance([Ratio(1.0, None, 0, 1)]) is None


def test_what_more_blocks_do_not_average_away_stays_in_the_interval() -> None:
    sure = interval(Ratio(1.1, 1e-6, 99, 100), None, confidence=0.99)
    unsure = interval(Ratio(1.1, 1e-6, 99, 100, shared=0.01), None, confidence=0.99)
    assert sure.high / sure.low < 1.01 < unsure.high / unsure.low


@pytest.mark.parametrize(("blocks", "most"), [(5, 0.02), (12, 0.0145), (40, 0.0145)])
def test_an_interval_misses_the_truth_about_as_often_as_it_says(blocks: int, most: float) -> None:
    # A ratio of sums over five texts of uneven weight has a little more than its share of misses.
    rng = np.random.default_rng(blocks)
    missed, rounds, truth = 0, 3000, 1.2
    for _ in range(rounds):
        text = rng.lognormal(0.0, 0.4, blocks)
        base = costs(*(100.0 * text * rng.lognormal(0.0, 0.06, blocks)))
        mine = costs(*(100.0 / truth * text * rng.lognormal(0.0, 0.06, blocks)))
        ratio = compare(mine, base)
        assert ratio is not None
        missed += interval(ratio, None, confidence=0.99).low > truth
    assert missed / rounds < most
