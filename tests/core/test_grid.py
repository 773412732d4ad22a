from __future__ import annotations

from adaptive_dd.core.domain import OFF, SERVER, Frontier, FrontierRow, Setting
from adaptive_dd.core.grid import arms_of

N2 = Setting(2, 0.0)


def test_arms_are_the_grid_within_the_cap_and_the_baseline_is_first() -> None:
    arms = [arm.setting for arm in arms_of(Frontier(), SERVER, cap=3, only_n=False)]
    assert arms[0] == SERVER
    assert {OFF, Setting(1, 0.0), Setting(3, 0.6)} <= set(arms)
    assert max(a.n_max or 0 for a in arms) == 3


def test_a_server_that_takes_only_n_gets_arms_without_p() -> None:
    arms = arms_of(Frontier(), SERVER, cap=4, only_n=True)
    assert all(arm.setting.p_min is None for arm in arms)


def test_rows_of_the_frontier_are_arms_unless_they_are_above_the_cap() -> None:
    rows = (FrontierRow(100, Setting(4, 0.25), 1.0), FrontierRow(100, Setting(9, 0.25), 1.0))
    arms = {arm.setting for arm in arms_of(Frontier(rows, N2), N2, cap=8, only_n=False)}
    assert Setting(4, 0.25) in arms
    assert Setting(9, 0.25) not in arms
