"""What is expected of the baseline by text, where nobody said that a p_min ends its drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from adaptive_dd.core import arena, controller, planning
from adaptive_dd.core.acceptance import LEVELS
from adaptive_dd.core.arena import ControllerPolicy, Terms
from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import SERVER, Kind, Setting
from adaptive_dd.core.learned import NO_DRAFTING, Drafting
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.sim import World, linear_shape, machine
from adaptive_dd.core.state import State
from adaptive_dd.core.texts import depth_of, texts_of
from adaptive_dd.core.traffic import NO_FRONTIER, Phase, Scenario, Workload

EASY, HARD = Kind(sampling="greedy"), Kind(sampling="sampled")


def drafting(pairs: list[tuple[float, float]]) -> Drafting:
    """What answers at these levels with so many drafted tokens showed."""
    known = NO_DRAFTING
    for level, drafted in pairs * 20:
        known = known.heard(level, min(1.0, drafted), drafted, 1.0)
    return known


def test_drafts_that_get_shorter_with_the_text_are_expected_to() -> None:
    known = drafting([(-1.0, 2.0), (0.0, 3.0), (1.0, 4.0), (2.0, 5.0)])
    assert known.at(0.5)[1] == pytest.approx(3.5, abs=0.1)
    assert known.at(2.0)[1] - known.at(-1.0)[1] == pytest.approx(3.0, abs=0.2)


def test_one_sort_of_text_tells_nothing_of_others() -> None:
    known = drafting([(1.0, 4.0)])
    assert known.at(-3.0) == known.at(3.0) == pytest.approx((1.0, 4.0))


def test_no_text_drafts_less_than_nothing_or_in_more_than_every_cycle() -> None:
    known = drafting([(0.0, 0.5), (1.0, 3.0)])
    assert known.at(-4.0) == (0.0, 0.0)
    assert known.at(5.0)[0] == 1.0


def test_what_it_drafts_is_heard_anew_where_that_changes() -> None:
    known = drafting([(0.0, 4.0), (1.0, 4.0)])
    for _ in range(100):
        known = known.heard(0.0, 1.0, 1.0, 1.0).heard(1.0, 1.0, 2.0, 1.0)
    assert known.at(0.5)[1] == pytest.approx(1.5, abs=0.3)


SERVER_WORLD = World(((0.0, 20.0),), linear_shape(1.0, 0.3), launch=Setting(8, 0.4, 0))
LOADS = (
    Workload("easy", Content(0.92), EASY, answer_tokens=200.0, context=(200.0, 400.0)),
    Workload("hard", Content(0.45), HARD, answer_tokens=200.0, context=(200.0, 400.0)),
)
SURE = Scenario("p", "a launch p", (), (Phase(1, SERVER_WORLD, LOADS, ((1, 1.0),)),), NO_FRONTIER, SERVER)


@cache
def learned_from_it() -> State:
    """The state after 150 requests to a server whose launch p ends its drafts early on hard text."""
    policies: list[ControllerPolicy] = []

    def make(terms: Terms) -> ControllerPolicy:
        policies.append(ControllerPolicy(terms))
        return policies[-1]

    arena.run(SURE, make, 1, 150)
    return policies[-1].state


@pytest.mark.parametrize("kind", [EASY, HARD], ids=["easy", "hard"])
def test_the_price_knows_how_short_a_launch_p_makes_the_cycles_of_hard_text(kind: Kind) -> None:
    state, box = learned_from_it(), machine(SERVER_WORLD)
    request = next(one for one in arena.asked(SURE, 1, 150) if one.context.kind == kind and one.skill < 0.3)
    request = replace(request, skill=0.0)
    cell = controller.cell_of(state, request.context)
    known = planning.prices_by_text(state, state.learned, state.guard, cell)
    assert known is not None
    text = texts_of(state.learned, str(kind), cell.bucket)
    cycle_ms = sum(c * w for c, w in zip(known[1], text, strict=True))
    cycles = box.cycles(request, SERVER).mean_cycles(request.answer_tokens - 1)
    assert cycle_ms == pytest.approx(box.expected_ms(request, SERVER) / cycles, rel=0.1)


def test_the_estimator_expects_of_the_baseline_what_its_price_says() -> None:
    state = learned_from_it()
    cell = next(iter(state.plans))
    cost = outlooks(state.learned, Place(cell.bucket, cell.load, cell.kind), state.arms).cost[0]
    known = planning.prices_by_text(state, state.learned, state.guard, cell)
    assert known is not None
    ratios = [c / p for c, p in zip(cost, known[0], strict=True)]
    assert max(ratios[2:10]) < 1.05 * min(ratios[2:10])
    assert len(ratios) == len(LEVELS)


def test_the_depth_of_server_is_the_most_that_it_drafts_and_not_what_a_p_leaves_of_it() -> None:
    state = learned_from_it()
    launch = SERVER_WORLD.launch.n_max or 0
    assert depth_of(state.learned, state.arms[0]) == pytest.approx(launch, abs=1.0)
