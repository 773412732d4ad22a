"""`advise`: from a journal or a calibration to a command line, and a frontier as launch arguments or presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_dd.advise import best_fixed, llama_args, presets_ini, prompt_lengths, samples_of
from adaptive_dd.cli import app
from adaptive_dd.core.domain import (
    OFF,
    Cell,
    Context,
    Decision,
    Deployment,
    Frontier,
    FrontierRow,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Began, Decided, Observed
from adaptive_dd.errors import AdaptiveDDError, UsageError
from adaptive_dd.frontier_file import dump_frontier
from adaptive_dd.store import FILE_NAME, Store, event_row
from tests.core.test_advice import frontier

N2, N4, N8 = Setting(2), Setting(4), Setting(8)


def write_journal(folder: Path, arms: dict[Setting, float], *, cap: int | None = 2, count: int = 30) -> None:
    """A journal whose answers have 101 tokens at the given ms per token, some a little more and some a little less."""
    where = Deployment("http://up", "m", "b", cap)
    store = Store(folder / FILE_NAME)
    events = [Began(0.0, where, PolicySettings(), Frontier())]
    number = 0
    for arm, rate in arms.items():
        for turn in range(count):
            number += 1
            ms = 100.0 * rate * (1.0 + 0.02 * (turn % 5 - 2))
            cell = Cell(0, 0, "sampled.free.chat")
            events.append(Decided(1.0, number, Context(500), Decision(arm, "explore", 0.1, cell), 1.0))
            events.append(Observed(2.0, number, Outcome(Status.OK, Timings(400, 50.0, 101, ms, 100))))
    store.write({1: where}, [event_row(1, event) for event in events], [])
    store.close()


def run(*args: str) -> object:
    return CliRunner().invoke(app, ["advise", *args])


def test_the_journal_s_traffic_gets_a_command_line_with_a_gain_and_an_interval(tmp_path: Path) -> None:
    write_journal(tmp_path, {Setting(): 20.0, N4: 16.0, OFF: 25.0})
    done = run("--state-dir", str(tmp_path), "--draft", "d.gguf")
    assert done.exit_code == 0, done.output
    assert "baseline n2" in done.output
    assert "Launch with n4: 20.0% less decode time than n2 (90% interval 1" in done.output
    assert (
        "llama-server -m MODEL.gguf --model-draft d.gguf --spec-type draft-simple --spec-draft-n-max 4"
        in done.output
    )
    assert [line.split()[0] for line in done.output.splitlines() if line.startswith("  n")] == ["n4", "n0"]


def test_where_only_one_setting_was_met_the_way_to_more_is_said(tmp_path: Path) -> None:
    write_journal(tmp_path, {Setting(): 20.0})
    done = run("--state-dir", str(tmp_path))
    assert "Nothing can be compared with n2" in done.output
    assert "adaptive-dd calibrate" in done.output


def test_launching_with_other_flags_is_compared_although_each_was_its_own_deployment(tmp_path: Path) -> None:
    write_journal(tmp_path, {Setting(): 20.0}, cap=4)
    write_journal(tmp_path, {Setting(): 15.0}, cap=8)
    found = json.loads(run("--state-dir", str(tmp_path), "--baseline", "n4", "--json").output)
    assert (found["baseline"], found["best"]) == ("n4", "n8")
    assert found["compared"][0]["gain"] == pytest.approx(0.25, abs=0.01)


def test_a_calibration_is_read_and_weighed_by_the_journal_s_prompts(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    rows = frontier((500, N2, 50.0), (500, N4, 80.0), (60000, N2, 40.0), (60000, N4, 10.0))
    file.write_text(dump_frontier(rows))
    assert "Keep n2" in run("--frontier", str(file), "--state-dir", str(tmp_path)).output
    write_journal(tmp_path, {Setting(): 20.0})
    assert "Launch with n4" in run("--frontier", str(file), "--state-dir", str(tmp_path)).output


@pytest.mark.parametrize(
    "args",
    [
        ("--state-dir", "nowhere"),
        ("--baseline", "4"),
        ("--spec-type", "magic"),
        ("--frontier", "nowhere.json"),
        ("--frontier", "0:n4,p0.25"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...]) -> None:
    done = run(*args)
    assert isinstance(done.exception, AdaptiveDDError)
    assert "\n" not in str(done.exception)


def test_answers_without_believable_timings_or_with_one_token_are_left_out() -> None:
    row = {
        "bucket": 0,
        "load": 0,
        "kind": "k",
        "setting": "n4",
        "status": "ok",
        "predicted_n": 11,
        "predicted_ms": 9.0,
    }
    bad = [
        {**row, "status": "rejected"},
        {**row, "predicted_n": 1},
        {**row, "predicted_n": None, "predicted_ms": None},
    ]
    (only,) = samples_of([row, *bad])
    assert (only.arm, only.tokens, only.ms) == (N4, 10, 9.0)
    assert samples_of([{**row, "setting": "server"}], N8)[0].arm == N8


def test_prompt_lengths_count_what_was_cached_too() -> None:
    assert prompt_lengths([{"prompt_n": 5, "cache_n": 95, "predicted_n": 7}, {"prompt_n": None}]) == {
        100: 7.0
    }


def test_a_frontier_is_launched_with_its_best_fixed_setting() -> None:
    found = frontier((1000, N2, 50.0), (1000, N4, 80.0), (60000, N2, 40.0), (60000, N4, 42.0))
    assert best_fixed(found) == N4
    assert llama_args(found, spec_type="draft-mtp") == "--spec-type draft-mtp --spec-draft-n-max 4"


def test_a_frontier_s_presets_are_what_its_ladder_plays_its_baseline_and_off() -> None:
    found = frontier((1000, N2, 50.0), (1000, N4, 80.0), (60000, N2, 40.0), (60000, N8, 60.0))
    text = presets_ini(found, model="/m.gguf", public="m", draft="/d.gguf")
    assert [line for line in text.splitlines() if line.startswith("[m@")] == [
        "[m@n2]",
        "[m@off]",
        "[m@n4]",
        "[m@n8]",
    ]
    assert text.index("alias = m") < text.index("[m@off]")
    with pytest.raises(UsageError, match="draft"):
        presets_ini(found, model="/m.gguf", public="m")


def test_a_frontier_without_a_named_baseline_gets_one_that_can_be_launched() -> None:
    rows = (FrontierRow(1000, N4, 80.0, samples=9, sd=1.0),)
    assert "[m@off]\nalias = m" in presets_ini(Frontier(rows), model="/m", public="m", draft="/d")
