"""`inspect`, run as a user runs it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.core.domain import Deployment, Listens, PolicySettings, ServerFacts, Setting
from adaptive_dd.engine import Engine
from adaptive_dd.reader import Reader
from tests.journals import HERE, ROWS, WORLD, journal_in, play, traffic
from tests.support.cli import run_here


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    with journal_in(folder) as journal:
        engine = Engine(journal, Deployment("http://other", "m", "b0"))
        traffic(engine, 3)
        engine = Engine(journal, HERE, settings=PolicySettings(baseline=Setting(2, 0.0), cap=8))
        engine.found(ServerFacts(Listens.HONOURS, cap=8))
        traffic(engine, 60)
    return folder


def inspected(folder: Path, *flags: str) -> Any:
    done = run_here("inspect", "--state-dir", str(folder), "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_shows_what_was_chosen_why_how_often_and_what_was_seen(state_dir: Path) -> None:
    done = run_here("inspect", "--state-dir", str(state_dir))
    assert done.returncode == 0, done.stderr
    assert "http://up  model  b1" in done.stdout
    assert "60 decisions kept" in done.stdout
    assert "baseline n2,p0.0" in done.stdout
    for heading in ("setting", "why", "requests", "tok/s", "ms/token", "acceptance", "decide us"):
        assert heading in done.stdout
    assert "other deployments in this journal: 1" in done.stdout
    assert "deciding took p50" in done.stdout


def test_the_json_adds_up(state_dir: Path) -> None:
    found = inspected(state_dir)
    assert sum(one["requests"] for one in found["usage"]) == found["journal"]["decisions"] == 60
    assert found["deployment"]["number"] == 2
    assert found["deployment"]["build"] == "b1"
    assert found["statuses"] == {"ok": 60}
    assert found["policy"]["listens"] == "honours"
    for one in found["usage"]:
        assert sum(one["reasons"].values()) == one["requests"]
        assert one["tokens_per_s"] > 0


def test_one_cell_one_deployment_or_the_last_few_can_be_asked_for(state_dir: Path) -> None:
    cell = inspected(state_dir)["usage"][0]
    name = f"b{cell['bucket']}.l{cell['load']}.{cell['kind']}"
    only = inspected(state_dir, "--cell", name)["usage"]
    assert {(one["bucket"], one["load"], one["kind"]) for one in only} == {
        (cell["bucket"], cell["load"], cell["kind"])
    }
    assert inspected(state_dir, "--deployment", "1")["journal"]["decisions"] == 3
    assert inspected(state_dir, "--last", "10")["journal"]["counted"] == 10


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--deployment", "7"), "--deployment 7: not in"),
        (("--cell", "b9.l9.none"), "--cell b9.l9.none: no decision there"),
    ],
)
def test_what_is_not_there_is_one_clear_line(state_dir: Path, flags: tuple[str, ...], part: str) -> None:
    done = run_here("inspect", "--state-dir", str(state_dir), *flags)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_folder_without_a_journal_is_one_clear_line(tmp_path: Path) -> None:
    done = run_here("inspect", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"adaptive-dd: {tmp_path}: no journal there")


def test_a_frontier_is_shown_as_ladder_and_comparison() -> None:
    done = run_here("inspect", "--frontier", "0:n4,p0.25;49152:n4,p0.0")
    assert done.returncode == 0, done.stderr
    assert "49,152" in done.stdout
    assert "n4,p0.25" in done.stdout


def test_it_looks_while_a_proxy_writes(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        traffic(Engine(journal, HERE), 5)
        journal.flush()
        assert inspected(tmp_path)["journal"]["decisions"] == 5


@pytest.fixture(scope="module")
def learned_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    with journal_in(folder) as journal:
        engine = Engine(journal, HERE, settings=WORLD, frontier=ROWS)
        engine.found(ServerFacts(Listens.HONOURS, cap=8))
        play(engine, 400)
    return folder


def test_the_learned_policy_is_shown_with_its_reasons_evidence_and_budget(learned_dir: Path) -> None:
    done = run_here("inspect", "--state-dir", str(learned_dir))
    assert done.returncode == 0, done.stderr
    for part in (
        "promise: never behind the baseline by more than 1.0% + 5 s, with probability 95%",
        "gain: +",
        "left for trials",
        "expected ms/token",
        "the fastest that is allowed",
        "slower than the baseline",
        "promoted",
        "Changes over time",
    ):
        assert part in " ".join(done.stdout.split()), part  # a narrow column may wrap it
    found = inspected(learned_dir, "--cell", "b1.l0.greedy.free.chat")["policy"]
    assert [cell["name"] for cell in found["cells"]] == ["b1.l0.greedy.free.chat"]
    assert found["cells"][0]["arms"][0]["setting"] == found["cells"][0]["playing"]
    assert found["budget"]["gain"] > 0.0


def test_one_past_decision_is_explained_as_it_stood_then(learned_dir: Path) -> None:
    explored = next(
        row for row in _decisions(learned_dir) if row["reason"] == "explore" and row["number"] > 50
    )
    number = str(explored["number"])
    found = inspected(learned_dir, "--explain", number)
    sent = next(arm for arm in found["cell"]["arms"] if arm["setting"] == explored["setting"])
    assert sent["chance"] == pytest.approx(explored["propensity"])
    text = run_here("inspect", "--state-dir", str(learned_dir), "--explain", number).stdout
    assert f"request {number}" in text
    assert "As it stood before this decision" in text
    assert "a trial that the guard's budget pays for" in text


def _decisions(folder: Path) -> list[dict[str, Any]]:
    with closing(Reader(folder)) as reader:
        return reader.decisions(1, last=1000)


def test_a_decision_that_is_not_there_is_one_clear_line(learned_dir: Path) -> None:
    done = run_here("inspect", "--state-dir", str(learned_dir), "--explain", "99999")
    assert done.returncode == 2
    assert done.stderr.startswith("adaptive-dd: --explain 99999: not in")


def test_nothing_is_cut_short_where_there_is_no_terminal(learned_dir: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "adaptive_dd", "inspect", "--state-dir", str(learned_dir)]
    shown = subprocess.run(
        command, capture_output=True, text=True, env=environ, timeout=60, check=True
    ).stdout
    assert "expected ms/token" in shown
    assert "\u2026" not in shown


@pytest.mark.parametrize("flags", [(), ("--explain", "60")])
def test_a_terminal_of_80_columns_cuts_no_word(learned_dir: Path, flags: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "adaptive_dd", "inspect", "--state-dir", str(learned_dir), *flags]
    asked = subprocess.Popen(command, stdout=theirs, env={**environ, "TERM": "dumb"})
    os.close(theirs)
    parts = []
    with contextlib.suppress(OSError):  # Linux says EIO where the other side is closed
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    assert asked.wait(60) == 0
    lines = b"".join(parts).decode().splitlines()
    words = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    assert "\u2026" not in words
    assert "expected ms/token" in words
    assert "the baseline" in words
