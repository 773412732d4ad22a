"""What a frontier's rows are worth: when they are played on credit, and when not any more."""

from __future__ import annotations

from dataclasses import asdict, replace

from adaptive_dd.core import controller, estimator, learning
from adaptive_dd.core.domain import Cell, Frontier, FrontierRow, Kind, Mode, PolicySettings, Setting
from adaptive_dd.core.explain import budget
from adaptive_dd.core.learned import Answer, arm_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.state import State, credits_for
from adaptive_dd.core.texts import texts_of
from adaptive_dd.core.trials import Standing
from adaptive_dd.report import budget_lines
from tests.core.worlds import N2, Play, World

LYING = Frontier(
    tuple(
        FrontierRow(300, Setting(n, 0.0), tok_s, samples=5, sd=0.5)
        for n, tok_s in ((2, 80.0), (6, 120.0), (8, 130.0))
    ),
    N2,
    build="b1",
)


def credited_in(state: State) -> set[str]:
    return {name for name, trial in credits_for(state, Cell(0, 0, "greedy.free.chat")).items() if trial.claim}


def test_a_frontier_of_this_build_or_of_no_known_one_is_credited_and_one_of_another_build_is_not() -> None:
    for measured, met, believed in (
        ("b1", "b1", True),
        ("", "b1", True),
        ("b1", "", True),
        ("b1", "b2", False),
    ):
        began = Play(World(), frontier=replace(LYING, build=measured)).began
        state = controller.initial(replace(began, deployment=replace(began.deployment, build=met)))
        assert bool(credited_in(state)) is believed, (measured, met)


def test_another_model_is_told_by_its_file_name_wherever_it_lies() -> None:
    for measured, believed in (("here/a.gguf", True), ("there/a.gguf", True), ("there/b.gguf", False)):
        began = Play(World(), frontier=replace(LYING, model=measured)).began
        state = controller.initial(replace(began, deployment=replace(began.deployment, model="here/a.gguf")))
        assert bool(credited_in(state)) is believed, measured


def test_rows_of_another_build_are_a_hint_that_the_first_answers_outweigh() -> None:
    slow, arm = World(per_token=0.6), arm_of(Setting(8, 0.0))
    truth, after = slow.per_token_ms(arm.setting), []
    for build in ("b1", "b2"):
        began = Play(World(), frontier=LYING).began
        learned = controller.initial(
            replace(began, deployment=replace(began.deployment, build=build))
        ).learned
        for number in range(2):
            heard = Answer(arm, 0, 0, "k", "", slow.answer(arm.setting, rng_for(5, number)))
            learned = estimator.learn(learned, heard, estimator.read(learned, heard))
        cost = outlooks(learned, Place(0, 0, "k"), (arm,)).cost[0]
        after.append(abs(float(cost @ texts_of(learned, "k", 0)) / truth - 1.0))
    assert after[1] < after[0], "the rows of this build hold out longer"


SLOW = World(slow={Setting(6, 0.0): 1.6, Setting(8, 0.0): 1.6})


def caught(frontier: Frontier = LYING) -> Play:
    """A play in which the frontier was caught in one kind of request, while another had been heard before."""
    play = Play(SLOW, PolicySettings(baseline=N2, cap=8, c0_ms=60000.0), frontier)
    other = replace(play.context, kind=Kind("greedy"))
    play.context, usual = other, play.context
    play.requests(3).context = usual
    while not play.state.guard.caught and play.state.next_number < 120:
        play.requests(1)
    play.context = other
    return play


def reasons(play: Play, state: State) -> set[str]:
    return {controller.decide(state, play.context, rng_for(seed, 1)).reason for seed in range(30)}


def test_a_frontier_that_lies_is_found_out_and_played_on_credit_in_no_cell_from_then_on() -> None:
    play = caught()
    assert play.state.guard.caught
    assert credited_in(play.state) == set()
    assert "frontier" not in reasons(play, play.state), "also where it was not caught"
    assert budget(play.state).frontier.startswith("it claimed more")
    assert "frontier: it claimed more" in "\n".join(budget_lines(asdict(budget(play.state))))


def test_no_plan_of_any_cell_outlives_the_catch() -> None:
    play = Play(World(), frontier=LYING).requests(10)
    (cell,) = play.state.plans
    elsewhere = replace(cell, kind="greedy.free.chat")
    state = replace(play.state, plans={**play.state.plans, elsewhere: play.state.plans[cell]})
    assert set(learning._still_true(state, state.guard, cell)) == {cell, elsewhere}
    assert learning._still_true(state, replace(state.guard, caught=True), cell) == {}


def test_what_was_caught_stays_caught_over_a_restart_with_another_delta() -> None:
    play = caught()
    for delta in (0.001, 0.05, 0.3):
        again = controller.apply(
            play.state, replace(play.began, settings=replace(play.began.settings, delta=delta))
        )
        assert "frontier" not in reasons(play, again)
        assert budget(again).frontier


def test_a_frontier_that_was_measured_anew_is_believed_again_also_in_cells_that_were_heard() -> None:
    play = caught()
    again = controller.apply(
        play.state, replace(play.began, frontier=replace(LYING, about=(("date", "later"),)))
    )
    assert not again.guard.caught
    assert "frontier" in reasons(play, again)
    none = controller.apply(again, replace(play.began, frontier=Frontier()))
    assert not any(
        t.standing is Standing.CREDITED for own in none.guard.trials.values() for t in own.values()
    )


def test_a_ladder_of_rules_that_was_caught_is_named_too() -> None:
    state = Play(SLOW, frontier=Frontier(rules=((0, Setting(8, 0.0)),), baseline=N2)).state
    assert budget(state).frontier == ""
    assert budget(replace(state, guard=replace(state.guard, caught=True))).frontier.startswith("it claimed")


def test_inspect_says_why_rows_of_another_build_get_no_credit() -> None:
    began = Play(World(), frontier=LYING).began
    state = controller.initial(replace(began, deployment=replace(began.deployment, build="b2")))
    assert budget(state).frontier == "measured on build 'b1', this server runs 'b2': its rows get no credit"


def test_where_the_ladder_is_played_as_it_is_inspect_does_not_speak_of_credit() -> None:
    began = Play(World(), frontier=LYING).began
    settings = replace(began.settings, mode=Mode.STATIC)
    began = replace(began, deployment=replace(began.deployment, build="b2"), settings=settings)
    assert budget(controller.initial(began)).frontier.endswith(
        "this server runs 'b2', and is played as it is"
    )
