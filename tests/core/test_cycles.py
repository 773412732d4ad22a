"""The table of one cycle: what is drafted, what is accepted, and what it costs beyond a bare cycle."""

from __future__ import annotations

import pytest

from adaptive_dd.core.cycles import Content, Cycles, tabulate
from adaptive_dd.core.domain import OFF, Setting
from adaptive_dd.core.sim import linear_shape

CODE = Content(0.9)
SHAPE = linear_shape(1.0, 0.2)


def table(arm: Setting, content: Content = CODE) -> Cycles:
    return tabulate(content, 0.0, arm, SHAPE, 0.05)


def test_without_drafting_a_cycle_emits_one_token_and_costs_nothing_more() -> None:
    bare = table(OFF)
    assert (bare.mean_emitted, bare.mean_drafted, bare.mean_cost) == (1.0, 0.0, 0.0)
    assert bare.mean_cycles(7) == 7.0


@pytest.mark.parametrize("arm", [Setting(1, 0.0), Setting(5, 0.3), Setting(16, 0.6, 3)])
def test_probabilities_sum_to_one_and_nothing_is_accepted_that_was_not_drafted(arm: Setting) -> None:
    cycles = table(arm, Content(0.8, 0.3, 0.4, sureness=2.0))
    assert cycles.cumulative[-1] == 1.0
    assert (cycles.emitted - 1 <= cycles.drafted).all()
    assert (cycles.drafted <= (arm.n_max or 0)).all()


def test_a_broken_drafter_has_every_draft_rejected() -> None:
    broken = tabulate(CODE, -20.0, Setting(4, 0.0), SHAPE, 0.05)
    assert broken.mean_emitted == pytest.approx(1.0, abs=0.001)
    assert broken.mean_rejected == pytest.approx(1.0, abs=0.001)
    assert broken.mean_lost == pytest.approx(4.0, abs=0.001)


def test_tokens_per_cycle_of_a_geometric_text_are_the_textbook_sum() -> None:
    assert table(Setting(3, 0.0)).mean_emitted == pytest.approx(1 + 0.9 + 0.81 + 0.729)


def test_p_min_raises_acceptance_by_drafting_less() -> None:
    mixed = Content(0.95, 0.3, 0.4, sureness=1.5)
    free, sure = table(Setting(8, 0.0), mixed), table(Setting(8, 0.6), mixed)
    assert sure.mean_drafted < free.mean_drafted
    assert sure.mean_emitted < free.mean_emitted
    assert (sure.mean_emitted - 1) / sure.mean_drafted > 1.2 * (free.mean_emitted - 1) / free.mean_drafted


def test_without_insight_p_min_cuts_easy_drafts_too() -> None:
    mixed = [Content(0.95, 0.3, 0.4, sureness=12.0, insight=insight) for insight in (0.0, 1.0)]
    blind, wise = (table(Setting(8, 0.6), content) for content in mixed)
    assert wise.mean_emitted > 1.5 * blind.mean_emitted
    assert (wise.mean_emitted - 1) / wise.mean_drafted > (blind.mean_emitted - 1) / blind.mean_drafted


def test_a_boasting_drafter_makes_p_min_act_like_a_lower_one() -> None:
    honest, boasting = (table(Setting(8, p), Content(0.7, boast=b)) for p, b in ((0.36, 1.0), (0.6, 2.0)))
    assert honest.mean_drafted == pytest.approx(boasting.mean_drafted)


def test_drafts_below_n_min_are_thrown_away_but_paid() -> None:
    unsure = Content(0.5, sureness=0.5)
    kept, thrown = table(Setting(4, 0.6, 0), unsure), table(Setting(4, 0.6, 4), unsure)
    assert thrown.mean_drafted < kept.mean_drafted
    assert set(thrown.drafted.tolist()) == {0, 4}
    assert thrown.cost[thrown.drafted == 0].min() > 0.0
