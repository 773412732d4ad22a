"""`freeze`, run as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptive_dd.core.domain import Listens, ServerFacts
from adaptive_dd.core.frontier import setting_at
from adaptive_dd.engine import Engine
from adaptive_dd.frontier_file import load_frontier
from tests.journals import HERE, ROWS, WORLD, journal_in, play
from tests.support.cli import run_here


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    with journal_in(folder) as journal:
        engine = Engine(journal, HERE, settings=WORLD, frontier=ROWS)
        engine.found(ServerFacts(Listens.HONOURS, cap=8))
        play(engine, 500)
    return folder


def test_the_file_is_a_frontier_with_evidence_and_what_was_proven_is_told(
    state_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "policy.json"
    done = run_here("freeze", "--state-dir", str(state_dir), "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "frozen after 500 requests" in done.stderr
    assert f"written: {out}" in done.stderr
    policy = load_frontier(str(out))
    assert policy.baseline == WORLD.baseline
    assert dict(policy.about)["origin"] == "learned"
    assert any(row.samples and row.samples >= 20 and not row.mark for row in policy.rows if row.kind)
    assert "greedy.free.chat: n" in done.stderr
    assert "note: " in done.stderr, "what is not proven is said"


def test_it_can_go_to_the_terminal_and_the_talk_stays_out_of_it(state_dir: Path) -> None:
    done = run_here("freeze", "--state-dir", str(state_dir), "--out", "-")
    assert json.loads(done.stdout)["format"] == "adaptive-dd/frontier@1"


def test_a_ladder_string_for_the_labs_own_server_is_safe_for_every_kind_or_made_for_one(
    state_dir: Path,
) -> None:
    flags = ("freeze", "--state-dir", str(state_dir), "--out", "-", "--format", "dd-policy")
    every = run_here(*flags).stdout.strip()
    greedy = run_here(*flags, "--kind", "greedy.free.chat").stdout.strip()
    assert every == "0:n2,p0.0"
    assert greedy.startswith("0:n")
    depth = setting_at(tuple(_rungs(greedy)), 9000).n_max
    assert depth is not None
    assert depth >= 5


def test_flags_for_a_server_that_cannot_be_told_are_those_of_the_best_fixed_setting(state_dir: Path) -> None:
    done = run_here("freeze", "--state-dir", str(state_dir), "--out", "-", "--format", "llama-args")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("--model-draft DRAFT.gguf --spec-type draft-simple --spec-draft-n-max ")
    assert done.stdout.count("\n") == 1
    mtp = ("--format", "llama-args", "--spec-type", "draft-mtp")
    assert run_here("freeze", "--state-dir", str(state_dir), "--out", "-", *mtp).stdout.startswith(
        "--spec-type draft-mtp"
    )


def test_presets_hold_every_setting_that_is_played_the_baseline_and_off(
    state_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "presets.ini"
    flags = ("--format", "presets", "--model", "/m/gemma.gguf", "--draft", "/m/d.gguf")
    done = run_here("freeze", "--state-dir", str(state_dir), "--out", str(out), *flags)
    assert done.returncode == 0, done.stderr
    sections = [line for line in out.read_text().splitlines() if line.startswith("[gemma@")]
    assert sections[:2] == ["[gemma@n2-p0.0]", "[gemma@off]"]
    assert len(sections) >= 3
    refused = run_here("freeze", "--state-dir", str(state_dir), "--out", "-", "--format", "presets")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--model" in refused.stderr


def _rungs(text: str):  # type: ignore[no-untyped-def]
    from adaptive_dd.core.frontier import ladder
    from adaptive_dd.frontier_file import parse_ladder

    return ladder(parse_ladder(text))


def test_an_immature_policy_says_so_and_keeps_the_baseline(tmp_path: Path) -> None:
    with journal_in(tmp_path / "state") as journal:
        play(Engine(journal, HERE, settings=WORLD, frontier=ROWS), 3)
    flags = ("--state-dir", str(tmp_path / "state"), "--format", "dd-policy", "--out", "-")
    done = run_here("freeze", *flags)
    assert done.stdout.strip() == "0:n2,p0.0"
    assert "0 cells with a setting proven faster" in done.stderr


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--out", "{tmp}/no/such/folder.json"), "cannot be written"),
        (
            ("--out", "-", "--format", "dd-policy", "--kind", "martian"),
            "--kind martian: not among what was learned",
        ),
        (("--out", "-", "--kind", "greedy.free.chat"), "--kind: a frontier file holds every kind"),
        (("--out", "-", "--deployment", "9"), "--deployment 9: not in"),
    ],
)
def test_a_fault_is_one_clear_line(
    state_dir: Path, tmp_path: Path, flags: tuple[str, ...], part: str
) -> None:
    done = run_here(
        "freeze", "--state-dir", str(state_dir), *[f.replace("{tmp}", str(tmp_path)) for f in flags]
    )
    assert done.returncode in (1, 2)
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
