"""Taking the luck of acceptance out of a measured speed, without taking the truth with it."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_dd.core.domain import OFF, SERVER, Context, Setting
from adaptive_dd.core.sim import Content, SimRequest, World, linear_shape, machine, noise_for
from adaptive_dd.core.surface import Answer, smoothed

WORLD = World(((0.0, 20.0), (100_000.0, 20.0)), linear_shape(1.0, 0.15, cliffs={5: 0.8}))
GRID = (OFF, *(Setting(n, p) for n in (1, 2, 3, 4, 6, 8) for p in (0.0, 0.6)))


def answers(seed: int, blocks: int, contents: tuple[Content, ...], tokens: int = 200) -> list[Answer]:
    made = machine(WORLD)
    found = []
    for block in range(blocks):
        content = contents[block % len(contents)]
        for i, setting in enumerate(GRID):
            request = SimRequest(i, Context(1000), content, tokens)
            t = made.generate(request, setting, noise_for(seed, 1000 * block + i))
            sort = str(block % len(contents))
            found.append(Answer(setting, block, sort, t.decode_tokens, t.cycles, t.draft_n, t.predicted_ms))
    return found


def errors(seed: int, blocks: int, *, smooth: bool, contents: tuple[Content, ...]) -> float:
    """Root mean square error of log gains over the mean of all settings."""
    made, given = machine(WORLD), answers(seed, blocks, contents)
    prices = smoothed(given).ms_per_token if smooth else np.array([a.ms / a.tokens for a in given])
    measured = [np.log(sum(p for p, a in zip(prices, given, strict=True) if a.setting == s)) for s in GRID]
    request = [SimRequest(0, Context(1000), c, 200) for c in contents]
    truth = [np.log(sum(made.expected_ms(r, s) for r in request)) for s in GRID]
    off = np.array(measured) - np.array(truth)
    return float(np.sqrt(((off - off.mean()) ** 2).mean()))


MIXED = (Content(0.93, 0.6, 0.2), Content(0.7, 0.4, 0.3))


def test_gains_come_out_closer_to_the_truth_than_as_they_were_measured() -> None:
    plain = np.mean([errors(seed, 2, smooth=False, contents=MIXED) for seed in range(12)])
    smooth = np.mean([errors(seed, 2, smooth=True, contents=MIXED) for seed in range(12)])
    assert smooth < 0.8 * plain


def test_with_many_answers_the_evidence_of_each_setting_wins() -> None:
    plain = np.mean([errors(seed, 24, smooth=False, contents=MIXED) for seed in range(2)])
    smooth = np.mean([errors(seed, 24, smooth=True, contents=MIXED) for seed in range(2)])
    assert smooth < 1.1 * plain
    assert smooth < 0.02


def test_a_jump_in_cycle_time_is_not_smoothed_away() -> None:
    given = answers(1, 4, MIXED)
    prices = smoothed(given).ms_per_token
    by = {s: np.mean([p for p, a in zip(prices, given, strict=True) if a.setting == s]) for s in GRID}
    assert by[Setting(6, 0.0)] > 1.15 * by[Setting(4, 0.0)]


def test_an_answer_without_drafts_has_no_luck_to_take_out() -> None:
    given = answers(1, 2, MIXED)
    prices = smoothed(given).ms_per_token
    for price, answer in zip(prices, given, strict=True):
        if answer.setting == OFF:
            assert price == pytest.approx(answer.ms / answer.tokens, rel=1e-6)


def test_where_a_cycle_costs_the_same_whatever_is_accepted_luck_is_paid_back_in_full() -> None:
    given = answers(2, 12, MIXED)
    found = smoothed(given)
    slopes = {a.setting.p_min: s for a, s in zip(given, found.slope, strict=True) if a.setting.n_max}
    assert slopes[0.0] == pytest.approx(-1.0, abs=0.1)
    assert -1.0 < slopes[0.6] < -0.3


def test_a_setting_that_leaves_the_depth_to_the_server_is_placed_by_what_it_drafts() -> None:
    given = [a for a in answers(3, 2, MIXED) if a.setting in (OFF, Setting(4, 0.0))]
    as_server = [Answer(SERVER if a.setting.n_max else OFF, *(getattr(a, f) for f in
                 ("block", "sort", "tokens", "cycles", "drafted", "ms"))) for a in given]  # fmt: skip
    assert smoothed(as_server).ms_per_token == pytest.approx(smoothed(given).ms_per_token, rel=0.01)


def test_the_covariance_says_how_unsure_the_surface_is_and_shrinks_with_answers() -> None:
    few, many = smoothed(answers(1, 1, MIXED)), smoothed(answers(1, 6, MIXED))
    at = GRID.index(Setting(8, 0.0))
    assert 0.0 < many.covariance[at, at] < few.covariance[at, at] < 0.05
