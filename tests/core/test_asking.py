from __future__ import annotations

import math
from dataclasses import replace

import pytest

from adaptive_dd.core.asking import edges_that_matter, may_change
from adaptive_dd.core.controller import State, apply, initial
from adaptive_dd.core.domain import (
    Context,
    Deployment,
    Frontier,
    FrontierRow,
    Listens,
    Mode,
    PolicySettings,
    ServerFacts,
    parse_setting,
)
from adaptive_dd.core.events import Began, FactsFound, FreezeSet
from adaptive_dd.core.ledger import Prediction, Remembered

UNKNOWN = Context(None)


def state(*settings: str, mode: Mode = Mode.STATIC) -> State:
    """Measured at 1000, 4000, 16000, ... tokens, where these settings beat the baseline."""
    rows = []
    for number, setting in enumerate(settings):
        rows.append(FrontierRow(1000 * 4**number, parse_setting(setting), 150.0))
        rows.append(FrontierRow(1000 * 4**number, parse_setting("server"), 100.0))
    return initial(Began(0.0, Deployment("x"), PolicySettings(mode=mode), Frontier(tuple(rows))))


def bounds(low: float, high: float) -> Prediction:
    return Prediction((low + min(high, 1e9)) / 2, low, high, True, Remembered("", "", 0, b""))


def test_only_edges_at_which_the_ladder_changes_matter() -> None:
    assert edges_that_matter(state("n4", "n4", "n2", "n2"), UNKNOWN) == (8000,)
    assert edges_that_matter(state("n4", "n8", "n2"), UNKNOWN) == (2000, 8000)
    assert edges_that_matter(state("n4", "n4"), UNKNOWN) == ()


def test_while_learning_every_edge_matters_and_frozen_only_those_of_the_policy() -> None:
    learning = state("n4", "n4", "n4", mode=Mode.ADAPTIVE)
    assert edges_that_matter(learning, UNKNOWN) == learning.edges
    assert len(edges_that_matter(apply(learning, FreezeSet(0.0, True)), UNKNOWN) or ()) < 2


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE])
def test_where_nothing_is_chosen_no_length_matters(mode: Mode) -> None:
    assert edges_that_matter(state("n4", "n8", mode=mode), UNKNOWN) is None
    deaf = apply(state("n4", "n8"), FactsFound(0.0, ServerFacts(Listens.IGNORES)))
    assert edges_that_matter(deaf, UNKNOWN) is None
    chosen = state("n4", "n8")
    assert edges_that_matter(chosen, replace(UNKNOWN, override=parse_setting("n5"))) is None
    assert edges_that_matter(chosen, replace(UNKNOWN, untouchable="multimodal")) is None


def test_bounds_leave_the_bucket_open_only_where_an_edge_lies_between_them() -> None:
    edges = (2000, 8000)
    assert not may_change(edges, bounds(10, 1999.9))
    assert may_change(edges, bounds(10, 2000))
    assert not may_change(edges, bounds(1999.5, 2000.4))  # whole tokens: it can only be 2000
    assert not may_change(edges, bounds(2000, 7999))
    assert may_change(edges, bounds(1990, 9000))
    assert not may_change((), bounds(0, 1e9))


def test_without_an_upper_bound_only_the_last_bucket_is_certain() -> None:
    assert may_change((2000, 8000), bounds(10, math.inf))
    assert may_change((2000, 8000), bounds(7999, math.inf))
    assert not may_change((2000, 8000), bounds(8000, math.inf))
    assert not may_change((), bounds(0, math.inf))
