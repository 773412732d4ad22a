"""Mutants: code broken on purpose must be caught by a check that names what broke (`docs/mutants.md`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from adaptive_dd.core import controller, estimator, learning, planning, policy, state
from adaptive_dd.core.guard import Account
from tests.core import test_learner as checks

Patch = Callable[[pytest.MonkeyPatch], None]


def guard_off(patch: pytest.MonkeyPatch) -> None:
    """Everything is always affordable."""
    patch.setattr(state, "rooms", lambda *_: (1e12, {}))
    patch.setattr(learning, "rooms", lambda *_: (1e12, {}))
    patch.setattr(controller, "rooms", lambda *_: (1e12, {}))
    patch.setattr(planning, "THRIFT", 1e9)


def sign_flipped(patch: pytest.MonkeyPatch) -> None:
    """A loss is booked as a saving."""
    plus = Account.plus
    patch.setattr(Account, "plus", lambda own, other: plus(own, replace(other, saved_ms=-other.saved_ms)))


def choice_flipped(patch: pytest.MonkeyPatch) -> None:
    """The slowest arm is taken for the best."""
    best = policy._best
    patch.setattr(
        policy,
        "_best",
        lambda field, others, margin, stay: (
            max(others, key=lambda at: field.mean[at]) if others else best(field, others, margin, stay)
        ),
    )


def forgetting_off(patch: pytest.MonkeyPatch) -> None:
    """Every answer counts for ever."""
    patch.setattr(estimator, "RHO_CAP", 1e9)
    patch.setattr(estimator, "NODE_KEEP", 1.0)
    patch.setattr(estimator, "SHAPE_KEEP", 1.0)
    patch.setattr(estimator, "AGEING", 1.0)
    patch.setattr(estimator, "COMMON_GAIN", 0.0)


def propensity_wrong(patch: pytest.MonkeyPatch) -> None:
    """Half of the probability with which an arm was drawn is logged."""
    draw = policy.draw

    def halved(*args: object) -> policy.Option:
        option = draw(*args)  # type: ignore[arg-type]
        return replace(option, share=option.share / 2.0)

    patch.setattr(policy, "draw", halved)


def cap_ignored(patch: pytest.MonkeyPatch) -> None:
    """The cap is not looked at."""
    patch.setattr(state, "cap_of", lambda _: None)


def reserve_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Requests on their way keep nothing in reserve."""
    patch.setattr(controller, "_worst_ms", lambda *_: 0.0)


def proof_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Unproven arms are played whether or not there is a budget."""
    make = policy.plan
    patch.setattr(
        policy,
        "plan",
        lambda field, stakes, *, stay: make(field, replace(stakes, may_try=True), stay=stay),
    )
    guard_off(patch)


MUTANTS: dict[str, tuple[Patch, Callable[[], None], str]] = {
    "guard off": (guard_off, checks.check_the_promise_is_kept, "promise broken"),
    "sign flipped": (sign_flipped, checks.check_the_promise_is_kept, "promise broken"),
    "choice flipped": (choice_flipped, checks.check_a_gain_is_found, "gain not found"),
    "forgetting off": (forgetting_off, checks.check_what_changed_is_relearned, "not forgotten"),
    "propensity wrong": (propensity_wrong, checks.check_propensities_are_what_is_drawn, "propensit"),
    "cap ignored": (cap_ignored, checks.check_the_cap_holds, "cap ignored"),
    "reserve forgotten": (
        reserve_forgotten,
        checks.check_worst_cases_on_their_way_are_reserved,
        "no worst case was reserved",
    ),
    "proof not asked for": (
        proof_not_asked,
        checks.check_without_a_budget_nothing_unproven_is_played,
        "without a budget",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_the_check_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check, says = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        check()
