"""What the learner promises, as checks that `test_mutants.py` also turns against broken code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_dd.core import controller, estimator, learning, policy
from adaptive_dd.core.codec import state_from_json, state_to_json
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
    Context,
    Decision,
    Frontier,
    FrontierRow,
    Mode,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Began, Decided, FreezeSet, ModeSet, Observed
from adaptive_dd.core.learned import Answer, Learned, arm_of
from adaptive_dd.core.learning import LONGEST_CREDITED
from adaptive_dd.core.outlook import Place, outlooks
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.texts import texts_of
from adaptive_dd.core.trials import Standing
from tests.core.worlds import N2, Play, World

SEEDS = range(3)
# Every setting but the baseline is twice as slow as any line through what was measured would have it.
TRAP = World(slow={Setting(n, p): 2.5 for n in range(1, 17) for p in (0.0, 0.3, 0.6)} | {OFF: 2.5})


# Every draft costs more than it brings, and the baseline drafts least: nearly every trial is a loss.
COSTLY = World(per_token=0.3, chance=0.6)


def check_a_gain_is_found() -> None:
    for seed in SEEDS:
        deep = World(per_token=0.05, chance=0.9)
        play = Play(deep, PolicySettings(baseline=N2, cap=8, seed=seed)).requests(120)
        best = min(deep.per_token_ms(Setting(n, 0.0)) for n in range(1, 9))
        late = [deep.per_token_ms(d.arm) for d in play.decisions[60:]]
        gain = (deep.per_token_ms(N2) - sum(late) / len(late)) / (deep.per_token_ms(N2) - best)
        assert gain > 0.985, f"gain not found: captured {gain:.2f} of it"


def check_the_promise_is_kept() -> None:
    for seed in SEEDS:
        for world, alpha in ((TRAP, 0.01), (COSTLY, 0.05)):
            settings = PolicySettings(baseline=N2, cap=16, seed=seed, alpha=alpha, c0_ms=1500.0)
            play = Play(world, settings).requests(150)
            assert play.worst_ms <= 0.0, f"promise broken by {play.worst_ms:.0f} ms"


def check_a_slow_arm_is_left() -> None:
    for seed in SEEDS:
        world = World(per_token=0.05, chance=0.9)
        play = Play(world, PolicySettings(baseline=N2, cap=8, seed=seed)).requests(150)
        worn = {d.arm for d in play.decisions[100:]} - {N2}
        world.slow = dict.fromkeys(worn, 3.0)
        play.requests(60)
        late = [d.arm in worn for d in play.decisions[-30:]]
        assert sum(late) < 12, f"a slow arm is still played, {sum(late)} of 30 times: nothing was forgotten"


def check_what_changed_is_relearned() -> None:
    world, learned, arm = World(), Learned(), arm_of(Setting(4, 0.0))
    for number in range(200):
        world.slow = {arm.setting: 1.3} if number >= 160 else {}
        timings = world.answer(arm.setting, rng_for(1, number))
        answer = Answer(arm, 0, 0, "k", "", timings)
        learned = estimator.learn(learned, answer, estimator.read(learned, answer))
    cost = outlooks(learned, Place(0, 0, "k"), (arm,)).cost[0]
    expected = float(cost @ texts_of(learned, "k", 0))
    off = expected / world.per_token_ms(arm.setting) - 1.0
    assert abs(off) < 0.08, f"the old world is not forgotten: expected cost is {off:+.0%} off"


def check_propensities_are_what_is_drawn() -> None:
    play = Play(World(per_token=0.1, chance=0.85)).requests(40)
    seen: dict[Setting, int] = {}
    claimed: dict[Setting, float] = {}
    draws = 4000
    for number in range(draws):
        decision = controller.decide(play.state, play.context, rng_for(77, number))
        seen[decision.arm] = seen.get(decision.arm, 0) + 1
        claimed[decision.arm] = decision.propensity
    assert sum(claimed.values()) == pytest.approx(1.0, abs=0.02), "propensities do not sum to 1"
    for arm, count in seen.items():
        assert count / draws == pytest.approx(claimed[arm], abs=0.025), f"propensity of {arm} is wrong"


def check_the_cap_holds() -> None:
    rows = tuple(FrontierRow(300, Setting(n, 0.0), 100.0 + n, samples=9, sd=0.5) for n in (2, 4, 8, 16))
    settings = PolicySettings(baseline=N2, cap=3)
    play = Play(World(per_token=0.01, chance=0.95), settings, Frontier(rows, N2)).requests(60)
    deepest = max(d.arm.n_max or 0 for d in play.decisions)
    assert deepest <= 3, f"cap ignored: sent n{deepest} above 3"


def check_without_a_budget_nothing_unproven_is_played() -> None:
    settings = PolicySettings(baseline=N2, cap=8, alpha=0.0, c0_ms=0.0)
    rows = (
        FrontierRow(300, N2, 80.0, samples=9, sd=0.5),
        FrontierRow(300, Setting(4, 0.0), 90.0, samples=9, sd=0.5),
    )
    play = Play(World(chance=0.9), settings, Frontier(rows, N2)).requests(60)
    played = {d.arm for d in play.decisions}
    assert played <= {N2, Setting(4, 0.0)}, f"unproven arms were played without a budget: {played}"
    assert Setting(4, 0.0) in played, "a frontier row that beats the baseline was not played"


def check_worst_cases_on_their_way_are_reserved() -> None:
    play = Play(World(), PolicySettings(baseline=N2, cap=8)).requests(12)
    state = replace(play.state, headroom_ms=9000.0)
    first = state.next_number
    for number in range(first, first + 200):
        decision = controller.decide(state, play.context, rng_for(5, number))
        state = controller.apply(state, Decided(0.0, number, play.context, decision, 1.0))
    reserved = sum(state.guard.reserved.values())
    assert reserved > 0.0, "no worst case was reserved"
    assert state.headroom_ms == pytest.approx(9000.0 - reserved), "reserved worst cases do not count"
    assert reserved <= 9000.0, "more was risked than the budget has"


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_the_learner_keeps_its_promises(check: object) -> None:
    assert callable(check)
    check()


# --- invariants ------------------------------------------------------------------------------------------------


def test_the_state_is_the_fold_of_its_events_and_survives_the_codec() -> None:
    play = Play(World(chance=0.9)).requests(60)
    assert controller.fold(play.began, play.events) == play.state
    assert state_from_json(state_to_json(play.state)) == play.state


def test_deciding_twice_gives_the_same_and_changes_nothing() -> None:
    play = Play(World(chance=0.9)).requests(30)
    before = state_to_json(play.state)
    for number in range(40):
        first = controller.decide(play.state, play.context, rng_for(3, number))
        assert controller.decide(play.state, play.context, rng_for(3, number)) == first
    assert state_to_json(play.state) == before


def test_the_baseline_is_always_permitted_and_only_permitted_arms_are_drawn() -> None:
    play = Play(World(chance=0.9)).requests(80)
    for plans in play.state.plans.values():
        for plan in plans:
            if plan is None:
                continue
            for room in (-1e9, 0.0, 500.0, 1e9):
                chances = policy.chances(plan, room)
                assert sum(chances.values()) == pytest.approx(1.0)
                worst = {o.arm: o.worst_ms for o in (*plan.tries, plan.best, plan.proven, plan.fallback)}
                assert all(worst[arm] <= room for arm in chances if arm != plan.fallback.arm)
            assert policy.chances(plan, -1e9) == {plan.fallback.arm: pytest.approx(1.0)}


def test_a_restart_keeps_what_was_learned_and_another_deployment_does_not() -> None:
    play = Play(World(chance=0.9)).requests(60)
    again = controller.apply(play.state, play.began)
    assert again.learned == play.state.learned
    assert again.guard.total == play.state.guard.total
    other = replace(play.began, deployment=replace(play.began.deployment, build="b2"))
    assert controller.apply(play.state, other).learned == controller.initial(other).learned


def test_frozen_learns_nothing_and_tries_nothing() -> None:
    play = Play(World(per_token=0.05, chance=0.9)).requests(80)
    play.tell(FreezeSet(0.0, frozen=True))
    before = play.state
    play.requests(20)
    assert {d.reason for d in play.decisions[-20:]} == {"frozen"}
    assert replace(play.state, next_number=before.next_number) == before


def test_frozen_learns_nothing_but_does_not_go_on_sending_what_is_refused() -> None:
    """Each would be sent twice, which is slower than no proxy."""
    play = Play(World(per_token=0.02, chance=0.9)).requests(120)
    play.tell(FreezeSet(0.0, frozen=True))
    decision, number = controller.decide(play.state, play.context, rng_for(1, 1)), play.state.next_number
    depth = decision.arm.n_max or 0
    assert depth > 2
    before = play.state
    play.tell(Decided(0.0, number, play.context, decision, 1.0))
    play.tell(Observed(0.0, number, Outcome(Status.REFUSED, play.world.answer(SERVER, rng_for(1, 1)))))
    assert (controller.decide(play.state, play.context, rng_for(1, 2)).arm.n_max or 0) < depth
    assert play.state.learned == before.learned
    assert play.state.guard == before.guard
    planned = {cell: all(plans) for cell, plans in play.state.plans.items()}
    assert planned == {controller.cell_of(play.state, play.context): True}, (
        "no request has to work out a plan"
    )


def test_a_refused_setting_lowers_the_cap() -> None:
    play = Play(World(chance=0.9)).requests(20)
    decision = replace(play.decisions[0], arm=Setting(6, 0.0), reason="explore")
    number = play.state.next_number
    play.tell(Decided(0.0, number, play.context, decision, 1.0))
    play.tell(Observed(0.0, number, Outcome(Status.REFUSED, play.world.answer(N2, rng_for(0, 1)))))
    assert controller.cap_of(play.state) == 5
    assert max(d.arm.n_max or 0 for d in play.requests(40).decisions[-40:]) <= 5


def test_a_baseline_that_the_server_refuses_is_what_the_server_does_by_itself() -> None:
    deep = Setting(8, 0.0)
    play = Play(World(launch=deep), PolicySettings(baseline=deep, cap=8))
    decision = play.request(1)
    assert decision.arm == deep
    number, cell = play.state.next_number, controller.cell_of(play.state, play.context)
    play.tell(Decided(0.0, number, play.context, Decision(deep, "baseline", 1.0, cell), 1.0))
    served = play.world.answer(SERVER, rng_for(1, number))
    play.tell(Observed(0.0, number, Outcome(Status.REFUSED, served)))
    assert play.state.arms[0].setting == SERVER, "a fixed baseline would be served like this"
    assert controller.baseline_of(play.state) == SERVER
    assert max(arm.setting.n_max or 0 for arm in play.state.arms) == 7


@pytest.mark.parametrize("mode", [Mode.STATIC, Mode.FROZEN])
def test_the_ladder_too_sends_nothing_as_deep_as_what_was_refused(mode: Mode) -> None:
    rows = (
        FrontierRow(300, N2, 80.0),
        FrontierRow(300, Setting(4, 0.0), 90.0),
        FrontierRow(300, Setting(8, 0.0), 120.0),
    )
    play = Play(World(), PolicySettings(baseline=N2, cap=8), Frontier(rows, N2))
    play.tell(ModeSet(0.0, mode))
    decision = controller.decide(play.state, play.context, rng_for(1, 1))
    assert decision.arm == Setting(8, 0.0)
    play.tell(Decided(0.0, 1, play.context, decision, 1.0))
    play.tell(Observed(0.0, 1, Outcome(Status.REFUSED, play.world.answer(SERVER, rng_for(1, 1)))))
    assert controller.decide(play.state, play.context, rng_for(1, 2)).arm == Setting(4, 0.0)


def test_a_failing_setting_is_quarantined_where_it_failed() -> None:
    play = Play(World(per_token=0.05, chance=0.9)).requests(80)
    liked = next(d for d in reversed(play.decisions) if d.arm != N2)
    number = play.state.next_number
    play.tell(Decided(0.0, number, play.context, liked, 1.0))
    play.tell(Observed(0.0, number, Outcome(Status.ERROR, http_status=500)))
    assert liked.arm not in {d.arm for d in play.requests(40).decisions[-40:]}


def test_lost_requests_free_what_they_reserved() -> None:
    play = Play(World()).requests(10)
    state = controller.apply(play.state, play.began)
    assert state.guard.reserved == {}
    assert isinstance(play.began, Began)


def test_an_unknown_conversation_and_kind_are_answered_at_once() -> None:
    play = Play(World()).requests(10)
    other = Context(300, conversation="never seen")
    assert controller.decide(play.state, other, rng_for(0, 1)).arm is not None


@pytest.mark.parametrize("arm", [Setting(4, 0.0), N2])
def test_one_absurd_answer_does_not_pay_for_days_of_trials(arm: Setting) -> None:
    play = Play(World(per_token=0.05, chance=0.9)).requests(80)
    decision = Decision(arm, "learned", 1.0, controller.cell_of(play.state, play.context))
    number, before = play.state.next_number, play.state.headroom_ms
    play.tell(Decided(0.0, number, play.context, decision, 1.0))
    absurd = Timings(prompt_n=300, prompt_ms=9.0, predicted_n=5_000_000, predicted_ms=6e7)
    play.tell(Observed(0.0, number, Outcome(Status.OK, absurd)))
    mean_ms = play.baseline_ms / len(play.decisions)
    assert play.state.headroom_ms - before < LONGEST_CREDITED * mean_ms


def test_a_setting_proven_slower_is_in_no_plan_of_its_cell_any_more() -> None:
    world = World(per_token=0.05, chance=0.9)
    play = Play(world, PolicySettings(baseline=N2, cap=8)).requests(80)
    cell = controller.cell_of(play.state, play.context)
    while True:
        world.slow = dict.fromkeys({d.arm for d in play.decisions[-10:]} - {N2}, 4.0)
        play.requests(1)
        trials = play.state.guard.trials[cell]
        demoted = {name for name, trial in trials.items() if trial.standing is Standing.DEMOTED}
        if demoted:
            break
    plans = [plan for plan in play.state.plans[cell] if plan is not None]
    played = {str(option.arm) for plan in plans for option in (plan.best, plan.proven, *plan.tries)}
    assert not played & demoted


def test_a_frontiers_row_on_its_way_is_reserved_like_a_trial() -> None:
    rows = (FrontierRow(300, N2, 100.0), FrontierRow(300, Setting(8, 0.0), 102.5))
    play = Play(World(), PolicySettings(baseline=N2, cap=8), Frontier(rows, N2)).requests(12)
    state, cell = play.state, controller.cell_of(play.state, play.context)
    plan = state.plans[cell][0]
    assert plan is not None
    risky = replace(plan, best=replace(plan.best, arm=Setting(8, 0.0), reason="frontier", worst_ms=700.0))
    state = replace(state, plans={cell: (risky, *state.plans[cell][1:])}, headroom_ms=9000.0)
    decision = Decision(Setting(8, 0.0), "frontier", 1.0, cell)
    after = controller.apply(state, Decided(0.0, state.next_number, play.context, decision, 1.0))
    assert after.headroom_ms == pytest.approx(8300.0)


def test_mode_static_plans_nothing_neither_on_the_requests_path_nor_after_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (FrontierRow(300, N2, 100.0), FrontierRow(300, Setting(8, 0.0), 120.0))
    play = Play(World(), PolicySettings(baseline=N2, cap=8), Frontier(rows, N2)).requests(12)
    play.tell(ModeSet(0.0, Mode.STATIC))

    def planned(*_: object) -> None:
        raise AssertionError("a plan was worked out that nobody draws from")

    monkeypatch.setattr(controller, "planned", planned)
    monkeypatch.setattr(learning, "planned", planned)
    assert {play.request(number).reason for number in range(13, 20)} == {"frontier"}
