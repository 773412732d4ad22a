"""Presets: the list grammar, the launch flags, the INI that llama-server's parser accepts, and the command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from adaptive_dd.cli import app
from adaptive_dd.core.aliases import read_alias
from adaptive_dd.core.domain import OFF, SERVER, Setting
from adaptive_dd.errors import AdaptiveDDError, UsageError
from adaptive_dd.presets import (
    MARK,
    SPEC_TYPES,
    check_draft,
    draft_flags,
    llama_args,
    parse_settings_list,
    presets_ini,
)

FIVE = (OFF, Setting(2), Setting(8), Setting(8, 0.6), Setting(16, 0.0, 2))


@pytest.mark.parametrize(
    "texts",
    [
        ["off,n2,n8,n8,p0.6,n16,p0.0,m2"],
        ["off;n2;n8;n8,p0.6;n16,p0.0,m2"],
        ["off n2 n8 n8,p0.6 n16,p0.0,m2"],
        ["off", "n2,n8", "n8,p0.6", "n16,m2,p0.0"],
        [" n0 , n2,\tn8;; n8 p0.6, n16 p0 m2 "],
    ],
)
def test_a_p_or_m_belongs_to_the_n_before_it_however_the_list_is_separated(texts: list[str]) -> None:
    assert parse_settings_list(texts) == FIVE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "none given"),
        ("p0.5,n2", "'p0.5' has no n before it"),
        ("n2,n2", "n2 stands twice"),
        ("off,n0", "n0 stands twice"),
        ("n2,p1.5", "'n2,p1.5' is none"),
        ("off,p0.5", "'off,p0.5' is none"),
        ("n0,p0.5", "'n0,p0.5' is no launch setting"),
        ("server", "'server' is no launch setting"),
        ("n2,p0.1,p0.2", "'n2,p0.1,p0.2' is none"),
        ("x4", "'x4' is none"),
        ("n2,m4", "'n2,m4' is none"),
    ],
)
def test_a_wrong_list_is_one_line_that_names_the_fault(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        parse_settings_list([text])
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


@given(st.text(alphabet="nopmf0123.,; sr", max_size=30))
def test_any_text_is_a_list_or_a_usage_error(text: str) -> None:
    try:
        settings = parse_settings_list([text])
    except UsageError:
        return
    assert parse_settings_list([",".join("off" if s == OFF else str(s) for s in settings)]) == settings


def test_flags_say_only_what_the_setting_says() -> None:
    assert draft_flags(OFF, "draft-mtp") == {"spec-type": "none"}
    assert draft_flags(Setting(8), "draft-mtp") == {"spec-type": "draft-mtp", "spec-draft-n-max": "8"}
    assert draft_flags(Setting(8, 0.0, 1), "draft-simple") == {
        "spec-type": "draft-simple",
        "spec-draft-n-max": "8",
        "spec-draft-n-min": "1",
        "spec-draft-p-min": "0",
    }
    assert draft_flags(Setting(8, None, 2), "ngram-mod")["spec-ngram-mod-n-min"] == "2"


@pytest.mark.parametrize(
    ("setting", "spec_type"),
    [(Setting(8, 0.5), "ngram-mod"), (Setting(8, None, 1), "ngram-simple"), (Setting(8), "mtp")],
)
def test_what_a_way_of_drafting_cannot_be_told_is_refused(setting: Setting, spec_type: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        draft_flags(setting, spec_type)


@pytest.mark.parametrize(
    ("spec_type", "draft"), [("draft-simple", ""), ("draft-eagle3", ""), ("ngram-mod", "d.gguf")]
)
def test_a_draft_model_is_asked_for_where_it_is_needed_and_only_there(spec_type: str, draft: str) -> None:
    with pytest.raises(UsageError, match="draft"):
        check_draft(spec_type, draft)


def test_every_way_of_drafting_can_be_written() -> None:
    for spec_type, kind in SPEC_TYPES.items():
        draft = "" if kind.draft == "none" else "d.gguf"
        text = ini((OFF, Setting(4)), draft=draft, spec_type=spec_type)
        assert f"{kind.n_flag} = 4" in text


def ini(settings: tuple[Setting, ...] = FIVE, **changed: object) -> str:
    given: dict[str, object] = {
        "model": "/m/t.gguf",
        "public": "gemma",
        "baseline": settings[0],
        "draft": "/m/d.gguf",
    }
    return presets_ini(settings, **{**given, **changed})  # type: ignore[arg-type]


def sections(text: str) -> dict[str, dict[str, str]]:
    """Read as preset.cpp does: no quotes, a value ends at ; or #, keys before any section are the default's."""
    found: dict[str, dict[str, str]] = {"default": {}}
    name = "default"
    for line in text.splitlines():
        line = re.split(r"[;#]", line)[0].strip()
        if header := re.fullmatch(r"\[\s*([^\]]+?)\s*\]", line):
            name = header.group(1)
            found[name] = {}
        elif line:
            key, _, value = line.partition("=")
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.-]*", key.strip())
            found[name][key.strip()] = value.strip()
    return found


def test_the_file_says_what_it_must_and_reads_back() -> None:
    read = sections(ini(options={"ctx-size": "8192"}))
    assert read["default"] == {"version": "1"}
    assert read["*"] == {"model": "/m/t.gguf", "ctx-size": "8192"}
    arms = {name: flags for name, flags in read.items() if name not in ("default", "*")}
    assert [read_alias(name) for name in arms] == [("gemma", setting) for setting in FIVE]
    assert arms["gemma@off"] == {"alias": "gemma", "spec-type": "none", "load-on-startup": "true"}
    assert arms["gemma@n8-p0.6"] == {
        "model-draft": "/m/d.gguf",
        "spec-type": "draft-simple",
        "spec-draft-n-max": "8",
        "spec-draft-p-min": "0.6",
        "load-on-startup": "true",
    }


def test_the_bare_name_leads_to_the_baseline_and_to_nothing_else() -> None:
    read = sections(ini(baseline=Setting(2)))
    assert [name for name, flags in read.items() if flags.get("alias") == "gemma"] == ["gemma@n2"]


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "/m/a;b.gguf"},
        {"model": "/m/a#b.gguf"},
        {"model": "/m/a\nspec-type = x"},
        {"model": " /m/a"},
        {"public": "a,b"},
        {"public": "a@b"},
        {"public": "a:latest"},
        {"public": ""},
        {"baseline": Setting(3)},
        {"options": {"ctx size": "1"}},
        {"options": {"ctx-size": ""}},
        {"settings": (Setting(2, 0.00001),), "baseline": Setting(2, 0.00001)},
    ],
)
def test_what_would_be_read_as_something_else_is_refused(changed: dict[str, object]) -> None:
    settings = changed.pop("settings", FIVE)
    with pytest.raises(UsageError, match="expected"):
        ini(settings, **changed)  # type: ignore[arg-type]


def test_a_command_line_names_the_draft_where_one_is_needed() -> None:
    assert llama_args(OFF) == "--spec-type none"
    assert llama_args(Setting(4, 0.25)) == (
        "--model-draft DRAFT.gguf --spec-type draft-simple --spec-draft-n-max 4 --spec-draft-p-min 0.25"
    )
    assert llama_args(Setting(4), draft="/m/it's.gguf").startswith("--model-draft '/m/it'\\''s.gguf' ")
    assert llama_args(Setting(4), spec_type="draft-mtp") == "--spec-type draft-mtp --spec-draft-n-max 4"
    assert llama_args(SERVER, spec_type="draft-mtp") == "--spec-type draft-mtp"


# --- the command ---------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "gemma-270m.gguf").write_bytes(b"GGUF")
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    return tmp_path


def run(folder: Path, *extra: str, out: str = "presets.ini", settings: str = "off,n2,n8,n8,p0.6") -> object:
    base = ["presets", "--model", str(folder / "gemma-270m.gguf"), "--draft", str(folder / "draft.gguf")]
    return CliRunner().invoke(
        app, [*base, "--settings", settings, "--out", str(folder / out) if out != "-" else "-", *extra]
    )


def test_the_command_writes_the_file_and_says_what_comes_next(files: Path) -> None:
    done = run(files)
    assert done.exit_code == 0, done.output
    text = (files / "presets.ini").read_text()
    assert text.startswith(MARK)
    assert "[gemma-270m@n8-p0.6]" in text
    assert "--models-max 4" in done.output
    assert run(files).exit_code == 0  # its own file may be written again


def test_the_command_prints_to_a_dash(files: Path) -> None:
    assert run(files, "--name", "g", "--baseline", "n2", out="-").output.startswith(MARK)


@pytest.mark.parametrize(
    ("extra", "out"),
    [
        (("--spec-type", "mtp"), "presets.ini"),
        (("--baseline", "n5"), "presets.ini"),
        (("--option", "ctx-size"), "presets.ini"),
        (("--option", "a=1", "--option", "a=2"), "presets.ini"),
        ((), "nowhere/presets.ini"),
        ((), "draft.gguf"),
        ((), "."),
    ],
)
def test_the_command_refuses_in_one_line_and_writes_nothing(
    files: Path, extra: tuple[str, ...], out: str
) -> None:
    done = run(files, *extra, out=out)
    assert isinstance(done.exception, AdaptiveDDError)
    assert "expected" in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (files / "presets.ini").exists()
    assert (files / "draft.gguf").read_bytes() == b"GGUF"


def test_a_model_that_is_not_there_is_said(files: Path) -> None:
    (files / "draft.gguf").unlink()
    assert "draft.gguf is no file" in str(run(files).exception)
