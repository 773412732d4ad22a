"""Freezing: proven settings become claims, all else keeps the baseline, and the frozen policy plays just that."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from adaptive_dd.core.controller import State, decide, initial
from adaptive_dd.core.domain import (
    Cell,
    Context,
    Frontier,
    FrontierRow,
    Kind,
    Listens,
    Mode,
    ServerFacts,
    Setting,
)
from adaptive_dd.core.events import Began
from adaptive_dd.core.freezing import for_every_kind, frozen_frontier
from adaptive_dd.core.frontier import ladder
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.trials import Standing, Trial
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.frontier_file import dump_frontier, read_frontier
from tests.journals import HERE, ROWS, WORLD, play


def learned_state(requests: int, frontier: Frontier = ROWS) -> State:
    engine = Engine(MemoryJournal(), HERE, settings=WORLD, frontier=frontier)
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    play(engine, requests)
    return engine.state


@pytest.fixture(scope="module")
def learned() -> State:
    return learned_state(500)


def played(frontier: Frontier, sampling: str, tokens: int) -> tuple[Setting, str]:
    """What `serve --mode frozen` sends."""
    state = initial(Began(0.0, HERE, replace(WORLD, mode=Mode.FROZEN), frontier))
    context = Context(tokens, "counted", kind=Kind(sampling))
    decision = decide(state, context, rng_for(0, 1))
    return decision.arm, decision.reason


def test_a_frozen_policy_plays_what_was_proven_and_the_baseline_elsewhere(learned: State) -> None:
    frozen = frozen_frontier(learned)
    assert frozen.proven >= 1
    setting, reason = played(frozen.frontier, "greedy", 9000)
    assert reason == "frozen"
    assert (setting.n_max or 0) >= 5
    assert played(frozen.frontier, "sampled", 9000) == (WORLD.baseline, "baseline")


def test_the_file_says_the_same_after_writing_and_reading(learned: State) -> None:
    frontier = frozen_frontier(learned).frontier
    again, reading = read_frontier(dump_frontier(frontier), "policy.json")
    assert (reading.faults, reading.warnings) == ([], [])
    assert again == frontier
    for sampling in ("greedy", "sampled"):
        for tokens in (10, 900, 9000, 10**6):
            assert played(again, sampling, tokens) == played(frontier, sampling, tokens)


def test_a_claim_is_proven_by_the_guard_on_enough_answers_with_an_interval_above_the_baseline(
    learned: State,
) -> None:
    for row in frozen_frontier(learned, min_evidence=30).frontier.rows:
        if row.kind and row.setting != WORLD.baseline and not row.mark:
            assert row.samples is not None
            assert row.samples >= 30
            assert row.gain_low is not None
            trial = next(
                trials[str(row.setting)]
                for cell, trials in learned.guard.trials.items()
                if cell.kind == row.kind
                and trials.get(str(row.setting))
                and trials[str(row.setting)].weight >= 29.5
            )
            assert trial.standing.value in ("promoted", "credited")


@pytest.mark.parametrize(
    ("standing", "mark"),
    [
        (Standing.CANDIDATE, "unproven"),
        (Standing.DEMOTED, "demoted"),
        (Standing.PROMOTED, ""),
        (Standing.CREDITED, ""),
    ],
)
def test_good_answers_alone_are_no_claim_where_the_guard_does_not_hold_the_arm_proven(
    learned: State, standing: Standing, mark: str
) -> None:
    cell, arm = Cell(1, 0, "sampled.free.chat"), Setting(4, 0.0)
    trial = Trial(standing, weight=50.0, mean=0.3, square=0.01)
    guard = replace(learned.guard, trials={**learned.guard.trials, cell: {str(arm): trial}})
    rows = frozen_frontier(replace(learned, guard=guard)).frontier.rows
    row = next(r for r in rows if (r.kind, r.setting) == (cell.kind, arm) and r.context_tokens > 4000)
    assert row.mark == mark
    assert row.gain_low is not None
    assert row.gain_low > 1.0


def test_asking_for_more_evidence_leaves_fewer_claims_and_says_so(learned: State) -> None:
    some, none = frozen_frontier(learned, min_evidence=1), frozen_frontier(learned, min_evidence=10_000)
    assert some.proven > none.proven == 0
    assert none.unproven == some.proven + some.unproven
    assert "are not proven" in none.notes[0]
    for sampling in ("greedy", "sampled"):
        assert played(none.frontier, sampling, 9000)[0] == WORLD.baseline


def test_a_policy_of_nothing_says_that_it_is_immature() -> None:
    frozen = frozen_frontier(learned_state(0))
    assert frozen.notes == (
        "immature: no setting but the baseline was tried yet; the baseline is kept everywhere",
    )
    assert frozen.frontier.rows == ROWS.rows


def test_rows_of_the_frontier_stay_where_nothing_was_learned_and_go_where_something_was() -> None:
    fast = FrontierRow(1000, Setting(4, 0.25), 80.0)
    frozen = frozen_frontier(learned_state(300, replace(ROWS, rows=(*ROWS.rows, fast))), min_evidence=10_000)
    assert fast in frozen.frontier.rows
    assert played(frozen.frontier, "greedy", 900)[0] == WORLD.baseline, "learned about, and not proven"
    other = initial(Began(0.0, HERE, replace(WORLD, mode=Mode.FROZEN), frozen.frontier))
    unseen = Context(900, "counted", kind=Kind("greedy", "tools"))
    assert decide(other, unseen, rng_for(0, 1)).arm == fast.setting
    every = ladder(for_every_kind(frozen.frontier))
    assert every[0].setting == WORLD.baseline


def test_a_row_of_the_very_kind_that_was_learned_about_goes() -> None:
    kind = "greedy.free.chat"
    boast = FrontierRow(16000, Setting(4, 0.25), 400.0, kind=kind)
    measured = (*ROWS.rows, boast, FrontierRow(16000, WORLD.baseline, 40.0, kind=kind))
    frozen = frozen_frontier(learned_state(300, replace(ROWS, rows=measured)), min_evidence=10_000)
    assert boast not in frozen.frontier.rows
    assert played(frozen.frontier, "greedy", 9000)[0] == WORLD.baseline


def test_another_load_is_told_because_a_policy_file_knows_none() -> None:
    ticks = itertools.count(0, 10**9)
    engine = Engine(MemoryJournal(), HERE, settings=WORLD, frontier=ROWS, ticks_ns=lambda: next(ticks))
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    for _ in range(4):
        engine.begin(Context(900, "counted", in_flight=4))
    play(engine, 200)
    assert any("knows no load" in note for note in frozen_frontier(engine.state).notes)
