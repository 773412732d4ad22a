"""The design of a calibration: grids, blocks, dropping, stopping, budgets, and what is named a winner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.domain import OFF, SERVER, Setting, Timings
from adaptive_dd.core.measure import (
    Block,
    Plan,
    Record,
    depths,
    first_grid,
    missing,
    next_block,
    place_standing,
    rows,
    shuffled,
    spent,
    wide_grid,
)
from adaptive_dd.core.standing import CLAIM_BLOCKS, Place, Sample, rows_of, standing

HERE = Place(1000)
BASE = Setting(2, 0.0)
SETTINGS = (OFF, Setting(1, 0.0), Setting(4, 0.0), Setting(8, 0.0))


def timings(setting: Setting, cycle_ms: float, cycles: int = 40) -> Timings:
    """An answer in which every draft is accepted, so that its time says all."""
    n = setting.n_max or 0
    return Timings(1, 1.0, cycles * (n + 1) + 1, cycles * cycle_ms, 999, cycles * n, cycles * n)


def play(
    plan: Plan, cost: dict[Setting, float], *, wall_ms: float | dict[Place, float] = 100.0, stop: int = 10_000
) -> Record:
    """Run a plan against fixed cycle times (with a small ripple) until it ends or `stop` answers were given."""
    record = Record()
    while len(record.samples) < stop and (block := next_block(plan, record)) is not None:
        if not record.blocks or record.blocks[-1] != block:
            record = replace(record, blocks=(*record.blocks, block))
        for setting in missing(block, record):
            if (block.number > 0 and spent(plan, record, block.place)) or len(record.samples) >= stop:
                break
            ripple = 1.0 + 0.004 * ((7 * len(record.samples)) % 5 - 2)
            answer = timings(setting, cost[setting] * ripple)
            wall = wall_ms[block.place] if isinstance(wall_ms, dict) else wall_ms
            sample = Sample(block.place, block.number, setting, answer, wall, "code")
            record = replace(record, samples=(*record.samples, sample))
    return record


COST = {OFF: 10.0, Setting(1, 0.0): 14.0, BASE: 18.0, Setting(4, 0.0): 24.0, Setting(8, 0.0): 70.0}
PLAN = Plan((HERE,), SETTINGS, BASE, answers=100)


# --- the grid


def test_depths_are_doublings_then_what_lies_between_and_beside_them() -> None:
    assert depths(8) == (1, 2, 4, 8, 3, 6, 5, 7)
    assert depths(1) == (1,)
    assert depths(6) == (1, 2, 4, 6, 3, 5)


@given(st.integers(1, 64))
def test_the_wide_grid_reaches_from_off_to_the_cap_and_never_beyond(cap: int) -> None:
    grid = wide_grid(cap)
    assert len(grid) == len(set(grid))
    assert grid[0] == OFF
    assert max(s.n_max or 0 for s in grid) == cap
    assert {s.p_min for s in grid[1:]} == {0.0, 0.3, 0.6}


def test_a_server_that_takes_n_alone_gets_a_grid_of_depths() -> None:
    assert wide_grid(4, (None,)) == (OFF, Setting(1), Setting(2), Setting(4), Setting(3))
    assert wide_grid(0) == (OFF,)


def test_a_small_budget_measures_the_first_settings_of_the_grid_and_the_baseline() -> None:
    plan = Plan((HERE,), wide_grid(16), Setting(3, 0.0))
    assert first_grid(plan, 60)[:3] == (Setting(3, 0.0), OFF, Setting(1, 0.0))
    assert len(first_grid(plan, 60)) == 10
    assert len(first_grid(plan, 1)) == 5
    assert len(first_grid(plan, float("inf"))) == len(set(wide_grid(16)) | {Setting(3, 0.0)})


# --- blocks


def test_every_block_holds_the_baseline_and_no_setting_twice() -> None:
    record = play(PLAN, COST)
    for block in record.blocks:
        assert BASE in block.settings
        assert len(set(block.settings)) == len(block.settings)


def test_the_first_block_is_a_warm_up_that_is_not_counted() -> None:
    record = play(PLAN, COST)
    assert record.blocks[0] == Block(HERE, 0, (BASE,))
    odd = replace(record.samples[0], timings=timings(BASE, 9999.0))
    assert rows(PLAN, replace(record, samples=(odd, *record.samples[1:]))) == rows(PLAN, record)


def test_the_order_within_blocks_is_random_and_depends_on_nothing_but_its_arguments() -> None:
    orders = Counter(shuffled(SETTINGS, 1, HERE, block) for block in range(400))
    assert len(orders) == 24
    assert max(orders.values()) < 40
    assert shuffled(SETTINGS, 1, HERE, 5) == shuffled(SETTINGS[::-1], 1, HERE, 5)
    assert any(shuffled(SETTINGS, 1, HERE, b) != shuffled(SETTINGS, 2, HERE, b) for b in range(5))


def test_a_record_that_was_cut_anywhere_goes_on_as_if_it_had_not_been() -> None:
    whole = play(PLAN, COST)
    for cut in range(0, len(whole.samples), 3):
        kept = whole.samples[:cut]
        begun = sum(
            1
            for block in whole.blocks
            if any((s.place, s.block) == (block.place, block.number) for s in kept)
        )
        part = Record(whole.blocks[: max(begun, 1 if cut else 0)], kept)
        block = next_block(PLAN, part)
        assert block is not None
        following = whole.samples[cut]
        assert (block.place, block.number) == (following.place, following.block)
        assert missing(block, part)[0] == following.setting


# --- dropping and stopping


def test_what_is_clearly_behind_is_dropped_and_the_best_is_measured_on() -> None:
    record = play(PLAN, COST)
    count = Counter(s.setting for s in record.samples if s.block > 0)
    assert count[OFF] <= 3
    assert count[Setting(4, 0.0)] >= CLAIM_BLOCKS
    assert count[BASE] >= CLAIM_BLOCKS


def test_a_place_that_is_settled_costs_nothing_more() -> None:
    record = play(PLAN, COST)
    assert len(record.samples) < 40
    now = place_standing(PLAN, record, HERE)
    assert now is not None
    assert now.winner == Setting(4, 0.0)


def test_settings_that_tie_are_not_told_apart() -> None:
    near = {**COST, Setting(1, 0.0): 12.02, BASE: 18.0, Setting(4, 0.0): 30.0}  # 6.0, 6.0 and 6.01 ms a token
    record = play(replace(PLAN, settings=(Setting(1, 0.0), Setting(4, 0.0)), answers=1000), near)
    assert len(record.samples) < 100
    now = place_standing(PLAN, record, HERE)
    assert now is not None
    assert now.winner == BASE


def test_the_answers_of_a_place_are_never_exceeded() -> None:
    noisy = replace(PLAN, margin=0.0001, answers=37, places=(HERE, Place(4000)))
    record = play(noisy, {**COST, Setting(4, 0.0): 30.0})
    counted = Counter(s.place for s in record.samples if s.block > 0)
    assert all(count <= 37 for count in counted.values())


def test_a_time_budget_ends_within_a_tenth() -> None:
    plan = replace(PLAN, answers=None, budget_ms=20_000.0, margin=0.0001, places=(HERE, Place(4000)))
    record = play(plan, {**COST, Setting(4, 0.0): 30.0}, wall_ms=700.0)
    assert record.spent_ms == pytest.approx(20_000.0, rel=0.1)


def test_places_come_forward_together_and_the_dear_one_does_not_eat_all() -> None:
    far = Place(64_000)
    plan = replace(PLAN, answers=None, budget_ms=60_000.0, margin=0.0001, places=(HERE, far))
    record = play(plan, {**COST, Setting(4, 0.0): 30.0}, wall_ms={HERE: 300.0, far: 1500.0})
    near_ms = sum(s.wall_ms for s in record.at(HERE))
    assert 0.2 < near_ms / record.spent_ms < 0.8
    assert len(record.at(far)) >= 10


# --- what is said


def samples_of(costs: dict[Setting, list[float]]) -> list[Sample]:
    return [
        Sample(HERE, block, setting, timings(setting, ms), 1.0, "code")
        for setting, row in costs.items()
        for block, ms in enumerate(row, start=1)
    ]


def test_no_winner_is_named_on_fewer_than_five_blocks_whatever_they_agree_on() -> None:
    for blocks, named in ((4, BASE), (5, Setting(4, 0.0))):
        own = samples_of({BASE: [18.0, 18.1] * 2 + [18.0] * (blocks - 4), Setting(4, 0.0): [20.0] * blocks})
        now = standing(own, BASE, (BASE, Setting(4, 0.0)))
        assert now is not None
        assert now.winner == named


def test_a_mean_lead_within_the_noise_is_no_winner() -> None:
    own = samples_of({BASE: [18.0] * 6, Setting(4, 0.0): [20.0, 42.0, 20.0, 40.0, 21.0, 25.0]})
    now = standing(own, BASE, (BASE, Setting(4, 0.0)))
    assert now is not None
    assert now.best == Setting(4, 0.0)
    assert now.winner == BASE
    assert [row.mark for row in rows_of(now, own)] == ["", "too-noisy"]


def test_rows_say_what_the_answers_were() -> None:
    own = samples_of({BASE: [18.0, 18.2] * 3, Setting(4, 0.0): [24.0, 24.1] * 3, OFF: [10.0]})
    now = standing(own, BASE, (BASE, Setting(4, 0.0)))
    assert now is not None
    off, base, deep = rows_of(now, own)
    assert (off.setting, off.mark, off.samples) == (OFF, "dropped", 1)
    assert base.tok_s == pytest.approx(3000.0 / 18.1, rel=1e-3)
    assert base.gain is None
    assert deep.tok_s == pytest.approx(5000.0 / 24.05, rel=0.01)
    assert deep.gain == pytest.approx(deep.tok_s / base.tok_s, rel=1e-3)
    assert deep.gain_low is not None
    assert 1.0 < deep.gain_low < deep.gain
    assert (deep.acceptance, deep.cycle_ms, deep.samples) == (1.0, pytest.approx(24.05), 6)


def test_a_place_whose_baseline_was_never_measured_says_nothing() -> None:
    assert standing(samples_of({OFF: [10.0] * 6}), BASE, (OFF,)) is None
    assert rows(PLAN, Record()) == ()


def test_an_answer_that_decoded_nothing_is_left_out() -> None:
    refused = Sample(HERE, 1, OFF, Timings(0, 0.0, 0, 0.0), 1.0, "code")
    now = standing([*samples_of({BASE: [18.0] * 5}), refused], BASE, (BASE, OFF))
    assert now is not None
    assert now.active == (BASE,)


def test_the_baseline_server_stands_beside_the_settings() -> None:
    plan = Plan((HERE,), (Setting(4, 0.0), OFF), SERVER, answers=60)
    record = play(plan, {SERVER: 10.0, OFF: 10.0, Setting(4, 0.0): 24.0})
    found = {row.setting: row for row in rows(plan, record)}
    assert found[SERVER].gain is None
    assert found[Setting(4, 0.0)].gain == pytest.approx(2.08, abs=0.05)
