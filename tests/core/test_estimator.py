from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adaptive_dd.core import acceptance, estimator, regression
from adaptive_dd.core.domain import OFF, Setting, Timings
from adaptive_dd.core.learned import Answer, Arm, Learned, arm_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.texts import texts_of
from tests.core.worlds import World

N0, N2, N4, N8 = arm_of(OFF), arm_of(Setting(2, 0.0)), arm_of(Setting(4, 0.0)), arm_of(Setting(8, 0.0))


PLACE = Place(0, 0, "k")
ARMS = (arm_of(Setting(0)), N2, N8)


def alike(arm: Arm = N2, ms: float = 30.0, onto: Learned | None = None) -> Learned:
    """Some answers of one arm, all alike."""
    learned = onto or Learned()
    for _ in range(12):
        timings = Timings(100, 1.0, 121, 60.0 * ms, draft_n=round(60 * arm.depth), draft_n_accepted=60)
        answer = Answer(arm, 0, 0, "k", "", timings)
        learned = estimator.learn(learned, answer, estimator.read(learned, answer))
    return learned


def answer(world: World, arm: Arm, number: int, conversation: str = "") -> Answer:
    return Answer(arm, 0, 0, "k", conversation, world.answer(arm.setting, rng_for(9, number)))


def taught(learned: Learned, world: World, *arms: Arm, first: int = 0) -> Learned:
    for number, arm in enumerate(arms, first):
        heard = answer(world, arm, number)
        learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    return learned


def expected_ms(learned: Learned, arm: Arm) -> float:
    text = texts_of(learned, "k", 0)
    return float(outlooks(learned, Place(0, 0, "k"), (arm,)).cost[0] @ text)


def test_two_depths_tell_the_others_by_the_prefix_property_and_the_line() -> None:
    world = World(per_token=0.3, chance=0.75)
    learned = taught(Learned(), world, *[N2, N8] * 12)
    for arm in (N4, arm_of(Setting(6, 0.0))):
        assert expected_ms(learned, arm) == pytest.approx(world.per_token_ms(arm.setting), rel=0.08)


def test_a_cliff_is_learned_by_its_own_arm_and_not_by_its_neighbours() -> None:
    world = World(slow={N8.setting: 1.6})
    learned = taught(Learned(), World(), *[N2, N4] * 8)
    before = expected_ms(learned, N4)
    learned = taught(learned, world, *[N8] * 6, first=50)
    assert expected_ms(learned, N8) == pytest.approx(world.per_token_ms(N8.setting), rel=0.13)
    assert expected_ms(learned, N4) == pytest.approx(before, rel=0.08)


def test_one_outlier_hardly_moves_what_is_known() -> None:
    learned = taught(Learned(), World(), *[N4] * 20)
    before = expected_ms(learned, N4)
    learned = taught(learned, World(everything=3.0), N4, first=90)
    assert expected_ms(learned, N4) == pytest.approx(before, rel=0.04)


def test_an_arm_that_is_no_longer_played_keeps_its_place() -> None:
    world = World()
    learned = taught(Learned(), world, *[N0, N2] * 6)
    learned = taught(learned, world, *[N4] * 150, first=100)
    assert expected_ms(learned, N0) == pytest.approx(world.per_token_ms(OFF), rel=0.05)


def test_a_shift_of_the_machine_is_a_question_for_arms_not_heard_since() -> None:
    learned = taught(Learned(), World(), *[N0, N2, N4] * 5)
    moved = estimator.shifted(learned, 0.9, (N2.name, N4.name))
    assert set(moved.unsure) == {N0.name}
    assert expected_ms(moved, N0) > 2.0 * expected_ms(learned, N0)
    still = taught(moved, World(), N0, first=60)
    assert expected_ms(still, N0) == pytest.approx(expected_ms(learned, N0), rel=0.1)
    assert still.unsure == {}


def test_a_surprise_of_one_arm_is_half_believed_until_its_next_answer_tells() -> None:
    learned = taught(Learned(), World(), *[N0, N2, N4] * 5)
    doubted = estimator.doubted(learned, N4.name, 1.0)
    place = Place(0, 0, "k")
    assert expected_ms(doubted, N4) == pytest.approx(math.exp(0.5) * expected_ms(learned, N4))
    assert expected_ms(doubted, N2) == pytest.approx(expected_ms(learned, N2))
    before, after = (outlooks(one, place, (N2, N4)).sd for one in (learned, doubted))
    assert after[1] > 0.5 > before[1]
    assert after[0] == pytest.approx(before[0])
    hiccup = taught(doubted, World(), N4, first=60)
    assert expected_ms(hiccup, N4) == pytest.approx(expected_ms(learned, N4), rel=0.1)
    slow = taught(doubted, World(slow={N4.setting: math.e}), N4, first=60)
    assert expected_ms(slow, N4) > 1.7 * expected_ms(learned, N4)
    assert hiccup.unsure == slow.unsure == {}


def test_an_untried_arm_is_less_certain_the_further_it_is() -> None:
    learned = taught(Learned(), World(), *[N2] * 10)
    near, far, _ = outlooks(learned, Place(0, 0, "k"), (arm_of(Setting(3, 0.0)), N8, N2)).sd
    assert near < far


def test_nothing_in_a_prediction_is_negative_or_infinite_whatever_was_heard() -> None:
    learned = Learned()
    odd = [
        Timings(10, 1.0, 50, 1e-3, draft_n=48, draft_n_accepted=44),
        Timings(10, 1.0, 50, 1e9, draft_n=0),
        Timings(10, 1.0, 6, 5.0, draft_n=400, draft_n_accepted=1),
    ]
    for timings in odd * 5:
        for arm in (N2, N8, N0):
            heard = Answer(arm, 0, 0, "k", "c", timings)
            learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    for arm in (N0, N2, N4, N8):
        assert 0.0 < expected_ms(learned, arm) < 1e12


def test_tables_are_the_geometric_sums_and_turn_around() -> None:
    table = acceptance.draft_table(4.0, 0.0)
    for level, chance, accepted in zip(acceptance.LEVELS, acceptance.CHANCES, table.accepted, strict=True):
        assert accepted == pytest.approx(sum(chance**k for k in range(1, 5)))
        assert acceptance.level_of(table, accepted) == pytest.approx(level)


def test_after_the_machine_slowed_down_not_drafting_is_an_open_question_and_deeper_drafts_hardly() -> None:
    learned = alike()
    before = outlooks(learned, PLACE, ARMS).sd
    after = outlooks(estimator.shifted(learned, 0.9, ("n2,p0.0",)), PLACE, ARMS).sd
    assert after[0] > before[0] + 0.5, "memory that spills slows drafts only: nobody knows what n0 costs now"
    assert after[2] < before[2] + 0.3


def test_what_a_slow_spell_did_not_concern_its_end_does_not_either() -> None:
    learned = estimator.shifted(alike(), 0.9, ("n2,p0.0",))
    learned = replace(
        learned, apart={**learned.apart, "n0": -0.9}, unsure={}
    )  # it was played, and as fast as ever
    during = outlooks(learned, PLACE, ARMS).cost[0]
    after = outlooks(estimator.shifted(learned, -0.9, ("n2,p0.0",)), PLACE, ARMS).cost[0]
    assert after == pytest.approx(during)


def test_a_line_through_one_depth_says_little_about_no_drafting_and_never_that_it_is_free() -> None:
    learned = alike(N2, ms=30.0)
    assert outlooks(learned, PLACE, ARMS).sd[0] > 0.2
    learned = alike(arm_of(Setting(3, 0.0)), ms=60.0, onto=learned)
    bare, _, per_token, per_rejection = estimator.node_coef(learned, 0, 0)
    assert per_token <= regression.STEEPEST * bare + 1e-9
    assert per_rejection <= regression.DEAREST * bare
