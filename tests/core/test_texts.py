"""Texts: what is expected of the next answer's, and that the baseline tells them."""

from __future__ import annotations

from dataclasses import replace
from operator import mul

import pytest

from adaptive_dd.core import acceptance, estimator
from adaptive_dd.core.domain import SERVER, Setting, Timings
from adaptive_dd.core.learned import Answer, Learned, Lift, arm_of
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.texts import baseline_rows, expected_text
from tests.core.test_estimator import N2, N4, N8, answer, taught
from tests.core.worlds import World

SERVER_ARM = arm_of(SERVER)


def test_a_conversation_is_expected_to_go_on_as_it_began() -> None:
    easy, hard, learned = World(chance=0.92), World(chance=0.4), Learned()
    for number in range(30):
        world, name = (easy, "easy") if number % 2 else (hard, "hard")
        heard = answer(world, N4, number, name)
        learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    level = {
        name: sum(map(mul, acceptance.LEVELS, expected_text(learned, "k", 0, name)))
        for name in ("easy", "hard", "")
    }
    assert level["hard"] < level[""] < level["easy"]
    assert level["easy"] - level["hard"] > 1.5


def test_a_p_level_that_was_never_compared_tells_little_about_a_text_and_a_compared_one_more() -> None:
    arm = arm_of(Setting(6, 0.6))
    heard = Answer(arm, 0, 0, "k", "", Timings(100, 1.0, 121, 3000.0, draft_n=70, draft_n_accepted=30))
    known = taught(Learned(), World(chance=0.85), *[N2] * 20)
    compared = replace(known, lifts={"p0.6": Lift(squares=40.0)})
    moved = []
    for learned in (known, compared):
        reading = estimator.read(learned, heard)
        before, after = (sum(map(mul, acceptance.LEVELS, w)) for w in (reading.expected, reading.posterior))
        moved.append(abs(after - before))
    assert 0.0 < moved[0] < 0.8 * moved[1]


def test_the_baseline_has_no_bias_for_texts_are_told_by_it() -> None:
    learned = Learned()
    for number in range(30):
        timings = World().answer(N4.setting, rng_for(3, number))
        for baseline in (False, True):
            heard = Answer(N2 if baseline else N4, 0, 0, "k", "", timings, baseline=baseline)
            learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    assert {name for text in learned.texts.values() for name in text.bias} == {N4.name}


def test_deep_settings_chosen_after_lucky_answers_are_hardly_held_to_find_texts_harder() -> None:
    """Conversations of two answers, all alike: they differ by luck, and that of the first chooses the next depth."""
    world, learned, lucky = World(chance=0.75, tokens=60), Learned(), False
    for number in range(900):
        arm = N8 if number % 2 and lucky else N2
        heard = answer(world, arm, number, f"c{number // 2}")
        reading = estimator.read(learned, heard)
        assert reading.shown is not None
        lucky = reading.shown[0] > 1.1
        learned = estimator.learn(learned, heard, reading)
    assert abs(learned.lifts["reach"].logits) < 0.12, "against what was seen before it would be -0.19"


def test_what_the_baseline_shows_is_believed_also_where_it_has_a_p_that_nothing_was_compared_with() -> None:
    arm, known = arm_of(Setting(6, 0.6)), taught(Learned(), World(chance=0.85), *[N2] * 20)
    heard = Answer(arm, 0, 0, "k", "", Timings(100, 1.0, 121, 3000.0, draft_n=70, draft_n_accepted=30))
    posteriors = [
        estimator.read(known, replace(heard, baseline=baseline)).posterior for baseline in (True, False)
    ]
    expected = estimator.read(known, heard).expected
    moved = [sum(abs(a - b) for a, b in zip(p, expected, strict=True)) for p in posteriors]
    assert moved[0] > moved[1]
    learned = estimator.learn(known, replace(heard, baseline=True), estimator.read(known, heard))
    assert learned.slants == {}


def test_a_drafter_that_breaks_and_mends_does_not_make_a_p_level_find_all_texts_easier() -> None:
    """An arm with a p is heard in conversations that begin before the drafter mends, and go on after."""
    arm, learned = arm_of(Setting(6, 0.3)), taught(Learned(), World(chance=0.7), *[N2] * 20)
    for number in range(12):
        broken, mended = Timings(100, 1.0, 121, 2400.0, draft_n=230, draft_n_accepted=3), World(chance=0.7)
        for heard in (
            Answer(N2, 0, 0, "k", f"c{number}", broken, baseline=True),
            Answer(arm, 0, 0, "k", f"c{number}", mended.answer(arm.setting, rng_for(9, number))),
        ):
            learned = estimator.learn(learned, heard, estimator.read(learned, heard))
    assert abs(learned.lifts["p0.3"].logits) < 0.8


def test_a_launch_p_that_lets_nothing_through_says_that_the_text_is_hopeless_and_its_cycles_are_short() -> (
    None
):
    """A broken drafter under a p_min drafts nothing at all; an arm without a p that drafts nothing was not heard."""
    nothing = Timings(100, 1.0, 121, 120 * 20.0, draft_n=0, draft_n_accepted=0)
    for arm, baseline, told in (
        (SERVER_ARM, True, True),
        (arm_of(Setting(6, 0.3)), False, True),
        (N4, False, False),
    ):
        learned = Learned()
        for number in range(20):
            for timings, name in ((World().answer(N4.setting, rng_for(5, number)), "k"), (nothing, "broken")):
                played = arm if name == "broken" else N4 if not baseline else SERVER_ARM
                heard = Answer(played, 0, 0, name, "", timings, baseline=baseline)
                learned = estimator.learn(learned, heard, estimator.read(learned, heard))
        level = sum(map(mul, acceptance.LEVELS, expected_text(learned, "broken", 0, "")))
        assert (level < -0.5) == told
        if baseline:
            rows = baseline_rows(learned, SERVER_ARM)
            assert rows[0][:3] == pytest.approx((0.0, 0.0, 0.0), abs=0.4)
            assert rows[9][1] > 3.0
            assert all(rejected <= drafts for drafts, _, rejected, _ in rows)
