"""What is expected of the baseline by text, where nobody said that a p_min ends its drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from adaptive_dd.core import arena, controller, estimator, planning
from adaptive_dd.core.acceptance import LEVELS
from adaptive_dd.core.arena import ControllerPolicy, Terms
from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import SERVER, Kind, Setting, Timings
from adaptive_dd.core.learned import NO_DRAFTING, Answer, Drafting, Learned, arm_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.sim import World, linear_shape, machine
from adaptive_dd.core.state import State
from adaptive_dd.core.texts import baseline_rows, depth_of, texts_of
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


def test_a_baseline_is_never_believed_to_draft_deeper_than_it_is_asked_to_or_in_cycles_of_no_token() -> None:
    """Heard on hard and middling text alone: a straight line would draft 13 tokens of 8 on the easiest, and nothing in
    every cycle of the hardest."""
    known = drafting([(0.0, 1.3), (1.5, 7.8)])
    assert known.at(4.8)[1] > 12.0
    baseline = arm_of(Setting(8, 0.4))
    rows = baseline_rows(Learned(drafting=known), baseline)
    assert all(0.0 <= drafts <= 1.0 and drafts <= drafted <= 8.0 for drafts, drafted, _, _ in rows)
    assert all(rejected <= drafts for drafts, _, rejected, _ in rows)
    assert rows[-1][1] == 8.0


def test_an_answer_without_drafts_is_expected_to_have_no_rejections_either() -> None:
    """Where rejections are dear, expecting them made every such answer a surprise and the noise twice what it is."""
    baseline, learned = arm_of(SERVER), Learned()
    for number in range(90):
        broken = number >= 60
        depth = 0 if broken else 2 + 2 * (number % 3)
        kept = 0 if broken else 100
        ms = (200 - kept) * (20.0 if broken else 20.0 + 3.0 * depth + 30.0 * 0.5)
        timings = Timings(100, 1.0, 201, ms, draft_n=max(depth * (200 - kept), 0), draft_n_accepted=kept)
        heard = Answer(baseline, 0, 0, "k", "", timings, baseline=True)
        reading = estimator.read(learned, heard)
        learned = estimator.learn(learned, heard, reading)
        assert reading.seen.drawn[3] <= reading.seen.drawn[1]
        assert reading.typical[3] <= reading.typical[1]
    assert abs(reading.time_error) < 0.15


@pytest.mark.parametrize("drafts", [0, 12], ids=["never", "once a day"])
def test_a_baseline_that_does_not_draft_says_nothing_of_texts(drafts: int) -> None:
    learned = Learned()
    for number in range(60):
        drafted = drafts if number == 20 else 0
        timings = Timings(100, 1.0, 121, 2400.0, draft_n=60 * drafted, draft_n_accepted=5 * drafted)
        heard = Answer(arm_of(SERVER), 0, 0, "k", "", timings, baseline=True)
        learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    level = sum(z * w for z, w in zip(LEVELS, texts_of(learned, "k", 0), strict=True))
    assert level > 0.5


def test_one_copied_answer_of_an_ngram_drafter_is_not_what_it_always_drafts() -> None:
    learned, depths = Learned(), []
    for number in range(160):
        drafted = 48 if number == 60 else 2
        timings = Timings(100, 1.0, 121, 2400.0, draft_n=60 * drafted, draft_n_accepted=60)
        heard = Answer(arm_of(SERVER), 0, 0, "k", "", timings, baseline=True)
        learned = estimator.learn(learned, heard, estimator.read(learned, heard))
        depths.append(depth_of(learned, arm_of(SERVER)))
    assert max(depths) <= 4.0
    assert depths[59] == 2.0
