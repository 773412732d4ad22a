"""`replay`, run as a user runs it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.core.domain import Listens, PolicySettings, ServerFacts, Setting
from adaptive_dd.engine import Engine
from adaptive_dd.store import FILE_NAME
from tests.journals import HERE, journal_in, traffic
from tests.support.cli import run_here


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    with journal_in(tmp_path, snapshot_events=50) as journal:
        engine = Engine(journal, HERE, settings=PolicySettings(baseline=Setting(2, 0.0), cap=8))
        engine.found(ServerFacts(Listens.HONOURS, cap=8))
        for start in range(0, 80, 20):
            traffic(engine, 20, start=start)
            journal.flush()
    return tmp_path


def change(folder: Path, sql: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.execute(sql)


def replayed(folder: Path, *flags: str, code: int = 0) -> Any:
    done = run_here("replay", str(folder), "--json", *flags)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_sound_journal_gives_every_decision_and_the_live_state_again(state_dir: Path) -> None:
    verified = replayed(state_dir)["verified"]
    assert verified["same"]
    assert verified["live_state_same"]
    assert (verified["decisions"], verified["different"], verified["skipped"]) == (80, 0, 0)
    text = run_here("replay", str(state_dir / FILE_NAME)).stdout
    assert "80 decisions made again, 0 differ" in text
    assert "the same, bit for bit" in text


def test_a_decision_that_was_changed_is_named_and_the_exit_code_says_so(state_dir: Path) -> None:
    change(
        state_dir,
        "update events set body = replace(body, '\"propensity\":1.0', '\"propensity\":0.5') "
        "where id = (select id from events where type = 'Decided' and number = 33)",
    )
    verified = replayed(state_dir, code=1)["verified"]
    assert verified["different"] == 1
    assert verified["differences"][0]["number"] == 33


def test_an_outcome_that_was_changed_shows_in_the_live_state(state_dir: Path) -> None:
    change(
        state_dir,
        "update events set body = replace(body, '\"predicted_ms\":', '\"predicted_ms\":9') "
        "where type = 'Observed' and number = 70",
    )
    assert replayed(state_dir, code=1)["verified"]["live_state_same"] is False


def test_after_retention_it_starts_from_the_snapshot_that_is_left(tmp_path: Path) -> None:
    with journal_in(tmp_path, snapshot_events=10, keep_events=40) as journal:
        engine = Engine(journal, HERE)
        for start in range(0, 120, 5):
            traffic(engine, 5, start=start)
            journal.flush()
    verified = replayed(tmp_path)["verified"]
    assert verified["from"].startswith("a snapshot at row")
    assert verified["same"]
    assert verified["events"] < 240


@pytest.mark.parametrize("policy", ["n4,p0.0", "server", "0:n4,p0.25;4096:n2,p0.0"])
def test_another_policy_is_valued_with_an_interval_and_a_warning_where_nothing_is_known(
    state_dir: Path, policy: str
) -> None:
    valued = replayed(state_dir, "--policy", policy)["valued"]
    assert valued["answers"] == 80
    assert valued["robust"]["low"] <= valued["robust"]["ms_per_token"] <= valued["robust"]["high"]
    assert valued["warnings"]
    text = run_here("replay", str(state_dir), "--policy", policy).stdout
    assert "doubly robust" in text
    assert "warning: " in text


def test_the_learner_with_its_own_alpha_is_worth_what_was_recorded(state_dir: Path) -> None:
    valued = replayed(state_dir, "--alpha", "0.01")["valued"]
    assert valued["robust"]["gain_low"] - 0.01 <= 0.0 <= valued["robust"]["gain_high"] + 0.01
    assert valued["robust"]["ms_per_token"] == pytest.approx(valued["recorded_ms_per_token"], rel=0.05)


def test_policy_and_alpha_together_are_refused_in_one_line(state_dir: Path) -> None:
    done = run_here("replay", str(state_dir), "--policy", "n4", "--alpha", "0.1")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "adaptive-dd: --policy and --alpha: expected one of the two, as a policy that is given has no alpha"
    ]


def test_what_is_no_journal_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    done = run_here("replay", str(tmp_path / "x"))
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
