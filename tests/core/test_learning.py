"""What one answer changes: the baseline's price, the account, alarms, what was heard."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adaptive_dd.core import controller, estimator, guard
from adaptive_dd.core.domain import Decision, Kind, Outcome, PolicySettings, Setting, Status, Timings
from adaptive_dd.core.events import Abandoned, Decided, FreezeSet, Observed
from adaptive_dd.core.learned import Answer, Learned, Lift, Reading, Tally, node_of
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.planning import price_by_text
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.texts import table_of
from tests.core.worlds import N2, Play, World, answered


def test_a_baseline_that_was_an_arm_like_others_has_no_bias_any_more() -> None:
    play = Play(World(chance=0.85), PolicySettings(baseline=N2, cap=8)).requests(60)
    texts = {
        key: replace(text, bias={**text.bias, "n2,p0.0": Tally(0.3, 40.0)})
        for key, text in play.state.learned.texts.items()
    }
    state = replace(play.state, learned=replace(play.state.learned, texts=texts))
    place = Place(0, 0, "sampled.free.chat")
    costs = [outlooks(one.learned, place, one.arms).cost[0] for one in (state, play.state)]
    assert costs[0] == pytest.approx(costs[1])


def test_the_baselines_price_is_reckoned_with_the_table_that_its_answers_are_read_with() -> None:
    play = Play(World(chance=0.85), PolicySettings(baseline=Setting(8, 0.0), cap=8)).requests(40)
    lifted = replace(play.state.learned, lifts={"reach": Lift(squares=50.0, logits=0.4)})
    cell = controller.cell_of(play.state, play.context)
    price = price_by_text(play.state, lifted, play.state.guard, cell)
    assert price is not None
    cycles = table_of(lifted, play.state.arms[0]).cycles_per_token
    ratios = [p / c for p, c in zip(price, cycles, strict=True)]
    assert max(ratios[3:9]) < 1.1 * min(ratios[3:9]), (
        "what is left is cycle time, which rejections move a little"
    )


def test_only_the_baselines_answers_tell_texts_without_doubt() -> None:
    heard: list[Answer] = []
    read = estimator.read

    def reading(learned: Learned, answer: Answer) -> Reading:
        heard.append(answer)
        return read(learned, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "read", reading)
        Play(World(per_token=0.05, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    assert {answer.baseline for answer in heard} == {True, False}
    assert all(answer.baseline == (answer.arm.setting == N2) for answer in heard)


def test_slack_shrinks_faster_than_the_baselines_answers_come() -> None:
    """Half the slack that four answers leave is gone well before eight: what is not settled is not noise."""
    shares = []
    for first in (4, 8):
        play = Play(World(noise=0.0), PolicySettings(baseline=N2, cap=8))
        for number in range(1, first + 2):
            arm = N2 if number <= first else Setting(3, 0.0)
            decision = Decision(arm, "explore", 1.0, controller.cell_of(play.state, play.context))
            play.tell(Decided(0.0, number, play.context, decision, 1.0))
            timings = play.world.answer(arm, rng_for(7, 1))
            play.tell(Observed(0.0, number, Outcome(Status.OK, timings)))
        total = play.state.guard.total
        shares.append(total.doubt_ms / play.state.guard.since_ms)
    assert shares[1] < 0.55 * shares[0]


def test_an_arm_that_surprised_alone_is_doubted_once_the_baseline_shows_nothing() -> None:
    play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    best = play.decisions[-1].arm
    assert best != N2
    play.world.slow[best] = 3.0
    while play.state.guard.alarm is None:
        play.request(play.state.next_number)
        assert play.state.next_number < 70
    assert str(best) not in play.state.learned.unsure
    play.request(play.state.next_number)
    assert play.decisions[-1].reason == "refresh"
    assert play.state.guard.alarm is None
    assert play.state.learned.unsure[str(best)] > 0.3


def test_what_was_heard_is_remembered_with_its_number_and_told_to_the_plans() -> None:
    play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    first = {str(d.arm): number for number, d in reversed(list(enumerate(play.decisions, start=1)))}
    assert len(first) > 2
    assert play.state.heard == first


def test_spreads_are_running_means_that_forget() -> None:
    state, kind = answered([20, 380] * 40 + [200] * 100), str(Kind())
    assert state.spreads[kind].mean < 0.2 * answered([20, 380] * 40).spreads[kind].mean


def alarmed() -> Play:
    """A play in which the setting that is played has become three times as slow, and the baseline was just asked."""
    play = Play(World(per_token=0.02, chance=0.9), PolicySettings(baseline=N2, cap=8)).requests(60)
    play.world.slow[play.decisions[-1].arm] = 3.0
    while play.state.guard.alarm is None:
        play.request(play.state.next_number)
        assert play.state.next_number < 70
    number = play.state.next_number
    decision = controller.decide(play.state, play.context, rng_for(1, number))
    assert (decision.arm, decision.reason) == (N2, "refresh")
    play.tell(Decided(0.0, number, play.context, decision, 1.0))
    assert play.state.guard.alarm is not None
    assert not play.state.guard.alarm.due
    return play


SHORT = Timings(100, 10.0, 3, 60.0, draft_n=4, draft_n_accepted=1)


@pytest.mark.parametrize(
    "ended",
    [
        Abandoned(0.0, 0, "client-gone"),
        Observed(0.0, 0, Outcome(Status.NO_TIMINGS)),
        Observed(0.0, 0, Outcome(Status.ERROR, http_status=500)),
        Observed(0.0, 0, Outcome(Status.OK, SHORT)),
    ],
    ids=["left", "no timings", "error", "too short"],
)
def test_a_baseline_that_was_asked_in_vain_is_asked_again(ended: Abandoned | Observed) -> None:
    play = alarmed()
    number = play.state.next_number - 1
    play.tell(replace(ended, number=number))
    alarm = play.state.guard.alarm
    assert alarm is not None
    assert alarm.due
    assert node_of(0, 0) == alarm.node
    again = [controller.decide(play.state, play.context, rng_for(seed, number + 1)) for seed in range(9)]
    assert {(decision.arm, decision.reason) for decision in again} == {(N2, "refresh")}


def test_only_the_request_that_was_asked_makes_it_due_again_and_a_frozen_state_does_not_change() -> None:
    play = alarmed()
    asked = play.state.next_number - 1
    other = Decision(play.decisions[-2].arm, "learned", 1.0, controller.cell_of(play.state, play.context))
    sent = controller.apply(play.state, Decided(0.0, asked + 1, play.context, other, 1.0))
    left = controller.apply(sent, Abandoned(0.0, asked + 1, "client-gone"))
    assert left.guard.alarm == play.state.guard.alarm
    frozen = controller.apply(play.state, FreezeSet(0.0, True))
    assert controller.apply(frozen, Abandoned(0.0, asked, "client-gone")).guard == frozen.guard


@pytest.mark.parametrize(("tokens", "first"), [(200, 2), (8, 3)], ids=["long answers", "very short ones"])
def test_nothing_else_is_played_in_a_node_before_the_baseline_was_heard_well(tokens: int, first: int) -> None:
    play = Play(World(per_token=0.02, chance=0.5, tokens=tokens), PolicySettings(baseline=N2, cap=8))
    play.requests(first)
    assert {decision.arm for decision in play.decisions} == {N2}
    assert {decision.reason for decision in play.decisions} == {"refresh"}
    assert guard.is_priced(play.state.guard, 0)
    play.requests(200)
    assert {decision.arm for decision in play.decisions} != {N2}


def test_one_slow_first_answer_of_the_baseline_is_not_what_others_are_played_on() -> None:
    """Nothing wins here; at three times its price the baseline would look as if everything did."""
    play = Play(World(per_token=0.6, chance=0.3), PolicySettings(baseline=N2, cap=8))
    play.world.everything = 3.0
    play.request(1)
    play.world.everything = 1.0
    play.requests(60)
    assert play.worst_ms <= 0.0
    tried = [decision.arm for decision in play.decisions[1:3]]
    assert tried == [N2, N2]
    price = play.state.guard.prices[0]
    assert price.level + play.state.guard.drift == pytest.approx(math.log(play.world.cycle_ms(N2)), abs=0.1)
