"""Standings: what moves them, how seldom they are wrong, and how soon they are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.trials import BARRED, NEW, TRANSITIONS, Signal, Standing, diagram, waited


@pytest.mark.parametrize(("start", "signal"), TRANSITIONS)
def test_every_row_of_the_table_is_what_a_signal_does(start: Standing, signal: Signal) -> None:
    moved = replace(NEW, standing=start).moved(signal, 10)
    assert moved.standing is TRANSITIONS[start, signal]
    assert (moved.until > 10) is (moved.standing in BARRED)


def test_a_signal_without_a_row_changes_nothing() -> None:
    promoted = replace(NEW, standing=Standing.PROMOTED)
    assert promoted.moved(Signal.WAITED, 5) == promoted


def test_the_diagram_shows_every_row() -> None:
    drawn = diagram()
    assert drawn.startswith("stateDiagram-v2")
    assert all(f"{a} --> {b}: {s}" in drawn for (a, s), b in TRANSITIONS.items())


def promoted_within(mean: float, answers: int, seed: int) -> bool:
    trial, rng = NEW, rng_for(seed, 1)
    for number in range(answers):
        trial = trial.heard(mean + 0.15 * rng.normal(), 1.0, number=number, delta=0.05, doubt=0.0)
        if trial.standing is Standing.PROMOTED:
            return True
    return False


def test_an_arm_that_gains_nothing_is_seldom_promoted_however_often_one_looks() -> None:
    assert sum(promoted_within(0.0, 300, seed) for seed in range(200)) <= 0.06 * 200


def test_an_arm_that_gains_much_is_promoted_soon() -> None:
    assert sum(promoted_within(0.2, 25, seed) for seed in range(100)) >= 90


def test_an_arm_that_loses_is_demoted_and_waits_longer_each_time() -> None:
    trial, waits = replace(NEW, standing=Standing.PROMOTED), []
    for _ in range(2):
        number = 0
        while trial.standing not in BARRED:
            trial, number = trial.heard(-0.25, 1.0, number=number, delta=0.05, doubt=0.01), number + 1
        assert number <= 25
        waits.append(trial.until - number)
        trial = waited({"a": trial}, trial.until)["a"]
        assert trial.standing is Standing.CANDIDATE
    assert waits[1] > 1.5 * waits[0]
