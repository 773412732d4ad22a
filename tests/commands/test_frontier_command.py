"""`adaptive-dd frontier show|merge|diff|ladder|check` as a user meets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adaptive_dd import cli
from adaptive_dd.core.domain import SERVER, Frontier, FrontierRow, Setting, parse_setting
from adaptive_dd.errors import AdaptiveDDError
from adaptive_dd.frontier_file import dump_frontier, load_frontier

BASE = Setting(2, 0.0)
NOTE = "qwen3.6-35b-rocmfp4"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["frontier", *words])


def said(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str) -> str:
    result = run(*words)
    assert isinstance(result.exception, AdaptiveDDError), result.output
    return str(result.exception)


def row(context: int, setting: str, tok_s: float, **more: Any) -> FrontierRow:
    return FrontierRow(context, parse_setting(setting), tok_s, **more)


def write(path: Path, *rows: FrontierRow, **more: Any) -> str:
    path.write_text(dump_frontier(Frontier(rows, **{"baseline": BASE, "model": "m", "build": "b1", **more})))
    return str(path)


# --- show


def test_show_reproduces_the_research_notes_table() -> None:
    text = said("show", NOTE)
    for gain in ("+17.4%", "+17.5%"):
        assert gain in text
    assert text.count("tie: the baseline stands") == 3


def test_show_against_another_baseline_and_under_a_cap() -> None:
    assert "no context of 5 has a proven winner" in said("show", NOTE, "--cap", "3")
    assert "the baseline was not measured here" in said("show", NOTE, "--baseline", "n3")


def test_show_prints_every_cell_when_asked() -> None:
    assert "n4,p0.25" in said("show", NOTE, "--grid").split("Beyond")[1]


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_show_draws_to_a_file(ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"f.{ending}"
    said("show", NOTE, "--plot", str(out))
    assert out.stat().st_size > 5000
    assert out.read_bytes()[:4] in (b"<?xm", b"\x89PNG")


def test_the_same_frontier_gives_the_same_drawing(tmp_path: Path) -> None:
    drawn = []
    for name in ("a.svg", "b.svg"):
        said("show", NOTE, "--plot", str(tmp_path / name))
        # The drawing library names its clip paths after memory addresses; a name is no part of the drawing.
        drawn.append(re.sub(r"p[0-9a-f]{10}", "clip", (tmp_path / name).read_text(encoding="utf-8")))
    assert drawn[0] == drawn[1]


def test_a_whole_grid_with_kinds_spreads_and_launch_values_can_be_drawn(tmp_path: Path) -> None:
    rows = [
        row(c, s, 10.0 + i, kind=k, samples=6, sd=1.0, acceptance=0.5)
        for c in (100, 1000, 8000, 64000)
        for k in ("greedy", "sampled")
        for i, s in enumerate(("server", "n0", "n1", "n2,p0.0", "n4,p0.0", "n4,p0.6", "n8,p0.0"))
    ]
    rows.append(row(200_000, "n2", 3.0))
    said("show", write(tmp_path / "f.json", *rows, baseline=SERVER), "--plot", str(tmp_path / "f.png"))


def test_what_cannot_be_drawn_is_refused_before_anything_is_printed(tmp_path: Path) -> None:
    assert "expected a name that ends in .svg, .png, .pdf" in refused(
        "show", NOTE, "--plot", str(tmp_path / "f.txt")
    )
    assert "cannot be written" in refused("show", NOTE, "--plot", str(tmp_path / "no" / "f.svg"))
    assert "a ladder without measurements" in refused("show", "0:n2", "--plot", str(tmp_path / "f.svg"))


# --- ladder


def test_ladder_prints_the_lab_servers_policy_string() -> None:
    assert said("ladder", NOTE) == "0:n4,p0.25;16081:n4,p0.0;92682:n2,p0.0\n"
    assert said("ladder", "0:n4,p0.25;49152:n4,p0.0") == "0:n4,p0.25;49152:n4,p0.0\n"


def test_a_ladder_that_only_we_understand_is_not_printed_as_if_it_were_one() -> None:
    assert "expected --baseline with a setting" in refused("ladder", NOTE, "--baseline", "server")


# --- merge


def test_merge_joins_runs_of_one_launch_setting_each(tmp_path: Path) -> None:
    slow = write(tmp_path / "a.json", row(100, "n2,p0.0", 10.0, samples=9, sd=0.1), cap=2)
    fast = write(
        tmp_path / "b.json", row(100, "n4,p0.0", 12.0, samples=9, sd=0.1), baseline=Setting(4, 0.0), cap=4
    )
    out = tmp_path / "c.json"
    text = said("merge", slow, fast, "--out", str(out), "--baseline", "n2,p0.0")
    assert "+20.0%" in text
    joined = load_frontier(str(out))
    assert (joined.baseline, joined.cap, len(joined.rows)) == (BASE, 4, 2)


def test_merge_takes_the_later_of_two_measurements_of_a_cell(tmp_path: Path) -> None:
    old = write(tmp_path / "a.json", row(100, "n2,p0.0", 10.0), row(100, "n4,p0.0", 9.0))
    new = write(tmp_path / "b.json", row(100, "n4,p0.0", 12.0))
    said("merge", old, new, "--out", str(tmp_path / "c.json"))
    assert [r.tok_s for r in load_frontier(str(tmp_path / "c.json")).rows] == [10.0, 12.0]


def test_merge_drops_gains_that_were_measured_against_another_baseline(tmp_path: Path) -> None:
    rows = (row(100, "n2,p0.0", 10.0), row(100, "n4,p0.0", 9.0, gain=0.9, gain_low=0.8, gain_high=1.0))
    said(
        "merge", write(tmp_path / "a.json", *rows), "--out", str(tmp_path / "b.json"), "--baseline", "n4,p0.0"
    )
    assert all(r.gain is None for r in load_frontier(str(tmp_path / "b.json")).rows)


def test_merge_refuses_what_cannot_be_compared(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", row(100, "n2,p0.0", 10.0))
    other_model = write(tmp_path / "b.json", row(100, "n4", 10.0), model="another")
    other_base = write(tmp_path / "c.json", row(100, "n4", 10.0), baseline=Setting(4))
    out = ("--out", str(tmp_path / "d.json"))
    assert "model is 'another', expected 'm'" in refused("merge", a, other_model, *out)
    assert "different baselines (n2,p0.0, n4); expected --baseline" in refused("merge", a, other_base, *out)
    assert "is a ladder without measurements" in refused("merge", a, "0:n2", *out)
    assert "cannot be written" in refused("merge", a, "--out", str(tmp_path / "no" / "d.json"))


# --- diff


def test_diff_says_what_changed_between_two_builds(tmp_path: Path) -> None:
    old = write(
        tmp_path / "a.json",
        row(100, "n2,p0.0", 10.0, samples=9, sd=0.1),
        row(100, "n4", 12.0, samples=9, sd=0.1),
    )
    new = write(
        tmp_path / "b.json",
        row(100, "n2,p0.0", 10.05, samples=9, sd=0.1),
        row(100, "n4", 9.0, samples=9, sd=0.1),
        build="b2",
    )  # fmt: skip
    text = said("diff", old, new)
    assert "build: b1 -> b2" in text
    lines = {tuple(line.split()[2:3]): line for line in text.splitlines() if line.strip().startswith("100")}
    assert "+0.5%" in text
    assert "within the noise" in text
    assert "-25.0%  slower" in text
    assert "n4 +20.0%" in text
    assert "n2,p0.0 (tie)" in text
    assert "changed" in text
    assert lines


def test_diff_of_files_without_a_common_cell_says_so(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json", row(1, "n2", 1.0)), write(tmp_path / "b.json", row(2, "n2", 1.0))
    assert "No cell is in both files." in said("diff", a, b)


# --- check


def test_check_lets_a_careful_file_pass_without_a_doubt(tmp_path: Path) -> None:
    rows = (row(1000, "n2,p0.0", 10.0, samples=9, sd=0.1), row(1000, "n4,p0.0", 9.0, samples=9, sd=0.1))
    assert said("check", write(tmp_path / "a.json", *rows)).startswith(
        f"{tmp_path}/a.json: no faults, 2 rows"
    )


def test_check_names_what_a_careful_reader_would_doubt(tmp_path: Path) -> None:
    rows = (
        row(100, "n2,p0.0", 10.0, samples=2, sd=0.1),
        row(100, "n4,p0.0", 10.1, samples=2, sd=3.0),
        row(64_000, "n16,p0.0", 50.0),
    )
    text = said("check", write(tmp_path / "a.json", *rows, cap=8, model="", build=""))
    for doubt in (
        "at 100 tokens: a row is faster on average, but not beyond its noise",
        "at 64,000 tokens: the baseline was not measured",
        "some rows are means of fewer than 3 samples",
        "nothing is measured between 100 and 64,000 tokens",
        "1 rows are above the cap 8 and are not used",
        "model is not given",
    ):
        assert f"doubt: {doubt}" in text


def test_check_of_a_faulty_file_lists_every_fault_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"format": "adaptive-dd/frontier@1", "rows": [{"setting": "n4"}, 7]}')
    lines = refused("check", str(path)).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(str(path)) for line in lines)


def test_check_of_a_ladder_says_that_there_is_nothing_to_judge() -> None:
    assert "nothing in it can be judged" in said("check", "0:n4;100:n2")
