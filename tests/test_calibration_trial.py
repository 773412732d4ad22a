"""A calibration of simulated servers finds the truly best setting, and names no winner that truly loses.

A small version of `python -m tests.benchmarks.calibration_trial`, whose full table stands in docs/calibration.md.
"""

from __future__ import annotations

import pytest

from tests.benchmarks.calibration_trial import TRIALS, WITHIN, cell

SOME = ("wide-open", "kernel-cliff", "valley", "thermal-step", "baseline-best")


@pytest.mark.parametrize("trial", [t for t in TRIALS if t.name in SOME], ids=lambda t: t.name)
def test_the_setting_that_would_be_played_is_near_the_best_and_better_than_the_naive_choice(
    trial: object,
) -> None:
    found = [cell(trial, 4096, seed) for seed in range(3)]  # type: ignore[arg-type]
    assert all(c.answers <= 201 for c in found)
    assert not any(c.wrong for c in found)
    assert sum(c.loss <= WITHIN for c in found) >= 2
    assert max(c.loss for c in found) < 2 * WITHIN
    assert sum(c.loss for c in found) <= sum(c.naive_loss for c in found) + WITHIN
