from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import pytest

from adaptive_dd.core import policy
from adaptive_dd.core.acceptance import LEVELS
from adaptive_dd.core.domain import OFF, SERVER, Setting
from adaptive_dd.core.field import UNHEARD, WIDE_OPEN, Anchor, Candidate, field_of
from adaptive_dd.core.learned import arm_of
from adaptive_dd.core.outlook import Outlooks
from adaptive_dd.core.policy import Stakes
from adaptive_dd.core.trials import Standing, Trial

N2, N4, N8 = Setting(2, 0.0), Setting(4, 0.0), Setting(8, 0.0)
FLAT = (1.0 / len(LEVELS),) * len(LEVELS)


def candidate(
    arm: Setting, mean: float, sd: float = 0.02, standing: Standing = Standing.CANDIDATE
) -> Candidate:
    return Candidate(arm_of(arm), np.full(len(LEVELS), mean), mean, sd, standing)


def planned(
    ready: list[Candidate],
    under: Stakes,
    *,
    stay: Setting | None,
    bare: tuple[float, ...] = (10.0,) * len(LEVELS),
    depth: float = 0.0,
    heard: Collection[str] | None = None,
    middling: float = 1.0,
    saved: Mapping[Setting, tuple[float, float]] | None = None,
) -> policy.Plan:
    """A plan of these arms; heard: those that were (all), middling: cost of the others on the usual machine, saved:
    weight and mean log saving of their answers."""
    arms, costs, means, sds, *_ = zip(*ready, strict=True)
    trials = {c.arm.name: Trial(c.standing, *(saved or {}).get(c.arm.setting, (0.0, 0.0))) for c in ready}
    ones = np.ones((len(ready), len(LEVELS)))
    usual = np.concatenate((ones[:1], middling * ones[1:]))
    ahead = Outlooks(np.array(costs), np.array(sds), ones, usual)
    anchor = Anchor(under.price, bare, depth)
    known = [arm.name for arm in arms] if heard is None else heard
    field = field_of(arms, ahead, trials, anchor, known)
    return policy.plan(field._replace(mean=list(means)), under, stay=stay)


def stakes(**changes: object) -> Stakes:
    given = {
        "price": (10.0,) * len(LEVELS),
        "text": FLAT,
        "tokens": 200.0,
        "stretch": 1.3,
        "margin": 0.02,
        "may_try": True,
        **changes,
    }
    return Stakes(**given)  # type: ignore[arg-type]


def test_a_gain_below_the_margin_leaves_the_baseline() -> None:
    plan = planned([candidate(N2, 10.0), candidate(N4, 9.85)], stakes(), stay=None)
    assert plan.best.arm == N2


def test_the_arm_before_stays_for_a_hairs_breadth() -> None:
    proven = Standing.PROMOTED
    ready = [candidate(N2, 10.0), candidate(N4, 8.0, standing=proven), candidate(N8, 7.98, standing=proven)]
    assert planned(ready, stakes(), stay=N4).best.arm == N4
    assert planned(ready, stakes(), stay=None).best.arm == N8


@pytest.mark.parametrize("standing", [Standing.DEMOTED, Standing.QUARANTINED])
def test_a_barred_arm_is_neither_played_nor_tried(standing: Standing) -> None:
    plan = planned([candidate(N2, 10.0), candidate(N4, 5.0, 0.5, standing)], stakes(), stay=None)
    assert policy.chances(plan, 1e9) == {N2: 1.0}


def test_an_unproven_arm_needs_the_budget_and_a_proven_one_only_some_headroom() -> None:
    plan = planned([candidate(N2, 10.0), candidate(N4, 9.0, 0.2)], stakes(), stay=None)
    assert plan.best.worst_ms > 0.0
    assert policy.draw(plan, 0.9, plan.best.worst_ms + 1.0).arm == N4
    assert policy.draw(plan, 0.9, plan.best.worst_ms - 1.0).arm == N2
    proven = planned([candidate(N2, 10.0), candidate(N4, 9.0, 0.2, Standing.PROMOTED)], stakes(), stay=None)
    assert policy.draw(proven, 0.9, 0.0).arm == N4
    assert policy.draw(proven, 0.9, -1.0).arm == N2


def test_a_settled_cell_only_refreshes() -> None:
    ready = [candidate(N2, 10.0), candidate(N4, 7.0, 0.01, Standing.PROMOTED), candidate(N8, 9.0, 0.01)]
    plan = planned(ready, stakes(), stay=None)
    assert policy.chances(plan, 1e9) == {N4: pytest.approx(0.99), N2: policy.REFRESH}


def test_trials_go_where_most_may_be_found_and_take_a_bounded_share() -> None:
    ready = [candidate(N2, 10.0), candidate(N4, 10.2, 0.3), candidate(N8, 10.2, 0.05)]
    chances = policy.chances(planned(ready, stakes(), stay=None), 1e9)
    assert chances[N4] > chances.get(N8, 0.0)
    assert 1.0 - chances[N2] <= policy.MOST_TRIALS + 1e-9


def test_once_trials_have_cost_what_they_may_little_is_tried() -> None:
    ready = [candidate(N2, 10.0), candidate(N4, 9.9, 0.05)]
    chances = policy.chances(planned(ready, stakes(spare_ms=-1.0), stay=None), 1e9)
    assert chances[N2] >= 1.0 - policy.SPENT_TRIALS - 1e-9
    assert chances[N2] < 1.0


def test_an_arm_whose_own_answers_saved_time_is_played_all_the_same() -> None:
    ready = [candidate(N2, 10.0), candidate(N4, 8.0)]
    for record, played in (
        ((1.0, 0.1), True),
        ((0.5, 0.1), False),
        ((3.0, -0.01), False),
        ((0.0, 0.0), False),
    ):
        plan = planned(ready, stakes(spare_ms=-1.0), stay=None, saved={N4: record})
        chance = policy.chances(plan, 1e9)[N4]
        assert chance == (pytest.approx(1.0 - policy.REFRESH) if played else policy.DOUBTED)
        assert policy.chances(plan, plan.best.worst_ms - 1.0).get(N4, 0.0) == 0.0 or not played


def test_a_great_open_question_is_not_put_off_for_thrift_but_still_needs_the_budget() -> None:
    ready = [candidate(N2, 10.0), candidate(OFF, 13.0, 0.6)]
    plan = planned(ready, stakes(spare_ms=-1.0, bare=(18.0,) * len(LEVELS)), stay=None)
    assert 0.0 < policy.chances(plan, 1e9)[OFF] <= policy.GREAT_TRIALS + 1e-9
    assert plan.tries[0].worst_ms == pytest.approx(policy.BOUNDED * 200.0 * 8.0), (
        "no more than the baseline's cycle"
    )
    assert OFF not in policy.chances(plan, plan.tries[0].worst_ms - 1.0)


def test_expected_improvement_is_that_of_a_normal() -> None:
    assert policy.expected_improvement(0.0, 1.0) == pytest.approx(1.0 / math.sqrt(2.0 * math.pi))
    assert policy.expected_improvement(0.5, 0.0) == 0.5
    assert policy.expected_improvement(-9.0, 1.0) == pytest.approx(0.0, abs=1e-9)


# --- what an arm that drafts no more than the baseline may cost ------------------------------------------------

SURE_OF_LITTLE = 0.4  # standard error at which a worst case is far above what is expected


def worst_of(
    arm: Setting,
    mean: float,
    *,
    depth: float,
    standing: Standing = Standing.CANDIDATE,
    baseline: Setting = SERVER,
) -> float:
    """Worst case of an arm beside a baseline that drafts `depth` tokens at 10 ms a token."""
    ready = [candidate(baseline, 10.0), candidate(arm, mean, SURE_OF_LITTLE, standing)]
    plan = planned(ready, stakes(), stay=None, bare=(8.0,) * len(LEVELS), depth=depth)
    return next(option.worst_ms for option in (plan.best, *plan.tries) if option.arm == arm)


def test_a_cycle_that_drafts_no_more_than_the_baselines_is_expected_to_take_hardly_longer() -> None:
    bound, free = worst_of(N4, 7.0, depth=6.0), worst_of(N4, 7.0, depth=3.0)
    assert bound == pytest.approx(0.0), (
        "1.2 times the baseline's 8 ms for a token's cycles is below its price"
    )
    assert free > 300.0


@pytest.mark.parametrize(
    ("arm", "mean", "standing"),
    [
        (N4, 9.5, Standing.CANDIDATE),  # promises too little
        (N4, 7.0, Standing.CREDITED),  # has worst cases of its own
        (OFF, 7.0, Standing.CANDIDATE),  # drafts nothing, so that a cycle says nothing about tokens
    ],
)
def test_the_bound_is_for_promising_drafts_without_credit(
    arm: Setting, mean: float, standing: Standing
) -> None:
    assert worst_of(arm, mean, depth=6.0, standing=standing) == worst_of(
        arm, mean, depth=3.0, standing=standing
    )


def test_the_bound_is_not_for_drafts_that_stop_later_than_the_baselines() -> None:
    stopping = Setting(6, 0.3)
    free = worst_of(N4, 7.0, depth=3.0, baseline=stopping)
    assert worst_of(N4, 7.0, depth=6.0, baseline=stopping) == free
    assert worst_of(Setting(4, 0.6), 7.0, depth=6.0, baseline=stopping) < free


# --- what nobody heard ----------------------------------------------------------------------------------------


def test_an_arm_that_was_never_heard_may_cost_what_the_usual_machine_makes_of_the_baseline() -> None:
    ready = [candidate(N2, 10.0), candidate(N8, 4.0)]
    heard = planned(ready, stakes(), stay=None, middling=1.5)
    unheard = planned(ready, stakes(), stay=None, middling=1.5, heard=())
    assert heard.best.arm == unheard.best.arm == N8
    assert heard.best.worst_ms == 0.0, "half more than 4 ms is less than the baseline's 10"
    assert unheard.best.worst_ms == pytest.approx(200.0 * (UNHEARD * 1.5 * 10.0 - 10.0))


def test_the_usual_machine_says_nothing_against_a_measured_row_or_a_dearer_belief() -> None:
    credited = [candidate(N2, 10.0), candidate(N8, 4.0, standing=Standing.CREDITED)]
    assert planned(credited, stakes(), stay=None, middling=1.5, heard=()).best.worst_ms == 0.0
    dear = [candidate(N2, 10.0), candidate(N8, 9.0, 0.5)]
    worst = [planned(dear, stakes(), stay=None, middling=1.0, heard=h).best.worst_ms for h in ((), None)]
    assert worst[0] == worst[1] > 0.0


def test_what_not_drafting_costs_after_a_jump_has_a_bound_of_its_own() -> None:
    under = stakes(bare=(100.0,) * len(LEVELS))
    for sd, told in ((WIDE_OPEN, True), (0.9 * WIDE_OPEN, False)):
        jumped = [candidate(N2, 10.0), candidate(OFF, 4.0, sd)]
        worst = [
            planned(jumped, under, stay=None, middling=90.0, heard=heard).best.worst_ms
            for heard in ((), None)
        ]
        assert (worst[0] == worst[1]) == told


@pytest.mark.parametrize(
    ("max_tokens", "share"), [(None, 1.0), (500, 1.0), (200, 1.0), (50, 0.25), (0, 0.005)]
)
def test_a_client_that_allows_few_tokens_can_lose_little(max_tokens: int | None, share: float) -> None:
    plan = planned([candidate(N2, 10.0), candidate(N4, 9.0, 0.2)], stakes(), stay=None)
    assert plan.share_of(max_tokens) == pytest.approx(share)
    assert plan.eased(30.0, max_tokens) == pytest.approx(30.0 / share)
    assert plan.eased(-30.0, max_tokens) == -30.0


def test_a_plan_refreshes_as_often_as_it_is_told() -> None:
    ready = [candidate(N2, 10.0), candidate(N4, 7.0, standing=Standing.PROMOTED)]
    assert policy.chances(planned(ready, stakes(), stay=None), 1e9)[N2] == policy.REFRESH
    overdue = stakes(refresh=policy.OVERDUE)
    assert policy.chances(planned(ready, overdue, stay=None), 1e9)[N2] == policy.OVERDUE
