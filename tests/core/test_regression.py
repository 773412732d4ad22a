"""The regression of cycle time: it finds a line, keeps to its bounds, and forgets by arm."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import pytest

from adaptive_dd.core.regression import (
    DEAREST,
    SHAPE_PRIOR,
    SHAPE_SD,
    STEEPEST,
    Cycle,
    Fit,
    Vector,
    fitted,
    line,
    off_line,
    uncertainty,
)

TRUE: Vector = (20.0, 1.0, 5.0, 3.0)
PLAYED: dict[str, Vector] = {
    "n0": (1.0, 0.0, 0.0, 0.0),
    "n2": (1.0, 1.0, 2.0, 0.5),
    "n4": (1.0, 1.0, 4.0, 0.4),
    "n8": (1.0, 1.0, 8.0, 0.9),
}


def heard(fit: Fit, name: str, ms: float, *, answers: int = 1, keep: float = 0.97) -> Fit:
    for cycle in repeat(Cycle(PLAYED[name], ms, 1.0), answers):
        fit = fitted(fit, name, cycle, keep=keep, prior=SHAPE_PRIOR, sd=SHAPE_SD)
    return fit


def played(coef: Vector = TRUE, names: tuple[str, ...] = tuple(PLAYED)) -> Fit:
    fit = Fit()
    for name in names * 20:
        fit = heard(fit, name, line(coef, PLAYED[name]))
    return fit


def test_depths_that_lie_apart_give_the_line_that_made_them() -> None:
    coef = played().coef
    for drawn in (*PLAYED.values(), (1.0, 1.0, 6.0, 0.7)):
        assert line(coef, drawn) == pytest.approx(line(TRUE, drawn), rel=0.01)


def test_one_answer_sets_the_scale_and_leaves_the_shape_to_the_prior() -> None:
    coef = heard(Fit(), "n2", 30.0).coef
    assert line(coef, PLAYED["n2"]) == pytest.approx(30.0)
    assert [c / coef[0] for c in coef] == pytest.approx(SHAPE_PRIOR)


@pytest.mark.parametrize("names", [("n2",), ("n0", "n8"), tuple(PLAYED)])
def test_the_uncertainty_of_the_line_is_the_inverse_of_its_precision(names: tuple[str, ...]) -> None:
    fit = played(names=names)
    precision = np.zeros((4, 4))
    precision[np.triu_indices(4)] = fit.total[:10]
    precision += np.triu(precision, 1).T + np.diag(
        [0.0, *[1.0 / (sd * fit.coef[0]) ** 2 for sd in SHAPE_SD[1:]]]
    )
    rows, weights = uncertainty(fit)
    for drawn in PLAYED.values():
        variance = np.array(weights) @ (np.array(rows) @ drawn) ** 2
        assert variance == pytest.approx(np.array(drawn) @ np.linalg.inv(precision) @ drawn, rel=1e-6)


@pytest.mark.parametrize("steep", [(10.0, 0.0, 40.0, 0.0), (10.0, 0.0, 0.0, 90.0), (30.0, 0.0, -2.0, 0.0)])
def test_costs_stay_within_what_machines_show(steep: Vector) -> None:
    base, _, token, rejection = played(steep).coef
    assert 0.01 - 1e-9 <= token / base <= STEEPEST + 1e-9
    assert 0.0 <= rejection / base <= DEAREST + 1e-9


def test_an_arm_forgets_by_its_own_answers_only() -> None:
    fit = played()
    more = heard(fit, "n8", line(TRUE, PLAYED["n8"]), answers=200)
    assert more.by_arm["n0"] == fit.by_arm["n0"]
    slower = heard(fit, "n8", 2.0 * line(TRUE, PLAYED["n8"]), answers=200)
    assert slower.by_arm["n0"] == fit.by_arm["n0"]
    assert off_line(slower.coef, slower.by_arm["n8"]) < 0.3 < off_line(fit.coef, slower.by_arm["n8"])
