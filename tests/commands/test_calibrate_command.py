"""`adaptive-dd calibrate` as a user meets it: what its options take, and what a run prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_dd import cli
from adaptive_dd.commands.calibrate import parse_budget, parse_contexts, parse_kinds, parse_settings
from adaptive_dd.core.domain import OFF, Setting
from adaptive_dd.errors import AdaptiveDDError, UsageError
from tests.timed_llama import TimedLlama


def test_contexts_are_tokens_with_k_for_1024() -> None:
    assert parse_contexts("256,1k, 64K") == (256, 1024, 65536)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4k,1k", "--contexts: 1024 comes after 4096; expected each larger than the one before"),
        ("1k,1k", "--contexts: 1024 comes after 1024; expected each larger"),
        ("", "--contexts: '' is no prompt length; expected tokens such as 1k,4k,16k"),
        ("1k,,2k", "--contexts: '' is no prompt length"),
        ("0", "--contexts: '0' is no prompt length"),
        ("15", "--contexts: '15' is no prompt length; expected tokens such as 1k,4k,16k, at least 16"),
        ("4m", "--contexts: '4m' is no prompt length"),
        ("-1", "--contexts: '-1' is no prompt length"),
    ],
)
def test_bad_contexts_are_one_line(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_contexts(text)
    assert str(caught.value).startswith(expected)


def test_budgets_have_a_unit() -> None:
    assert [parse_budget(text) for text in ("90s", "10m", "1.5h")] == [90.0, 600.0, 5400.0]
    for bad in ("10", "m", "0s", "-5m", "1d"):
        with pytest.raises(UsageError, match=r"--budget: .* is no time; expected such as 90s, 10m or 8h"):
            parse_budget(bad)


def test_settings_stand_between_semicolons_or_blanks() -> None:
    assert parse_settings("n0; n2,p0.0 n4,p0.25;n0", "--settings") == (OFF, Setting(2, 0.0), Setting(4, 0.25))
    for bad in ("", "n4,q1", ";"):
        with pytest.raises(UsageError, match="--settings: "):
            parse_settings(bad, "--settings")


def test_kinds_are_known_ones() -> None:
    assert parse_kinds("greedy,sampled") == ("greedy", "sampled")
    assert parse_kinds("") == ("",)
    with pytest.raises(
        UsageError, match="--kinds: 'hot' is not known; expected greedy, sampled or greedy,sampled"
    ):
        parse_kinds("greedy,hot")


def test_a_run_logs_its_progress_and_prints_the_report(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    words = ["--contexts", "64,256", "--settings", "n0;n2,p0.0;n8,p0.0", "--baseline", "n2,p0.0", "--answers", "30",
             "--tokens", "48", "--out", str(out)]  # fmt: skip
    with TimedLlama().serving() as url:
        result = CliRunner().invoke(cli.app, ["calibrate", "--upstream", url, *words])
    assert result.exit_code == 0, result.output
    assert "asking the server what it does" in result.output
    assert "64 tokens: " in result.output
    assert "left" in result.output
    assert "Verdict: 2 of 2 contexts have a proven winner" in result.output
    assert f"Written to {out}" in result.output
    assert out.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--contexts", "4k,1k"), "--contexts"),
        (("--prompts", "/no/such/folder"), "prompts /no/such/folder: cannot be read"),
        (("--launch-setting", "n2;n4"), "names 2 settings; expected one"),
        (("--baseline", "fast"), "--baseline: setting 'fast' is not one of"),
    ],
)
def test_bad_options_are_one_line_before_any_request(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    llama = TimedLlama()
    with llama.serving() as url:
        result = CliRunner().invoke(
            cli.app, ["calibrate", "--upstream", url, "--out", str(tmp_path / "f"), *words]
        )
    assert isinstance(result.exception, AdaptiveDDError)
    assert expected in str(result.exception)
    assert "\n" not in str(result.exception)
    assert llama.asked == []
