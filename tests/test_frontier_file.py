"""Frontier files and ladder strings: what is read, and each fault in one line with file, row, field and expectation."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.domain import OFF, SERVER, Frontier, FrontierRow, Setting, parse_setting
from adaptive_dd.core.frontier import ladder, ladder_text
from adaptive_dd.errors import InputFileError
from adaptive_dd.frontier_file import (
    FORMAT,
    dump_frontier,
    load_frontier,
    parse_ladder,
    read_frontier,
    shipped_names,
)

EXAMPLE = {
    "format": FORMAT,
    "model": "a model",
    "server": {"build": "b1", "cap": 8},
    "baseline": "n2,p0.0",
    "generated_tokens": 2048,
    "rows": [
        {"context_tokens": 3946, "setting": "n2,p0.0", "tok_s": 120.8},
        {
            "context_tokens": 3946,
            "setting": "n4,p0.25",
            "tok_s": 141.77,
            "acceptance": 0.71,
            "samples": 5,
            "sd": 1.9,
        },
    ],
}


def written(tmp_path: Path, value: object) -> str:
    path = tmp_path / "f.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def faults(text: str) -> list[str]:
    return read_frontier(text, "f.json")[1].faults


def row_faults(**fields: object) -> list[str]:
    row = {"context_tokens": 100, "setting": "n4", "tok_s": 10.0, **fields}
    return faults(json.dumps({**EXAMPLE, "rows": [{k: v for k, v in row.items() if v != "absent"}]}))


# --- what is read


def test_the_example_of_the_format_is_read(tmp_path: Path) -> None:
    assert load_frontier(written(tmp_path, EXAMPLE)) == Frontier(
        rows=(
            FrontierRow(3946, Setting(2, 0.0), 120.8),
            FrontierRow(3946, Setting(4, 0.25), 141.77, acceptance=0.71, samples=5, sd=1.9),
        ),
        baseline=Setting(2, 0.0),
        model="a model",
        build="b1",
        cap=8,
        generated_tokens=2048,
    )


def test_rows_are_sorted_by_context_then_setting(tmp_path: Path) -> None:
    frontier = load_frontier(written(tmp_path, {**EXAMPLE, "rows": EXAMPLE["rows"][::-1]}))  # type: ignore[index]
    assert [str(row.setting) for row in frontier.rows] == ["n2,p0.0", "n4,p0.25"]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(EXAMPLE).encode())
    assert load_frontier(str(path)).model == "a model"


def test_a_shipped_example_is_found_by_its_name() -> None:
    assert "qwen3.6-35b-rocmfp4" in shipped_names()
    assert load_frontier("qwen3.6-35b-rocmfp4").baseline == Setting(2, 0.0)
    assert load_frontier("qwen3.6-35b-rocmfp4.json") == load_frontier("qwen3.6-35b-rocmfp4")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_example_is_without_fault_or_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_frontier(name).rows
    assert caplog.records == []


def test_unknown_fields_are_warned_of_and_left_unread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"context_tokens": 1, "setting": "n2,p0.0", "tok_s": 1.0, "colour": "red"}]
    with caplog.at_level(logging.WARNING):
        load_frontier(written(tmp_path, {**EXAMPLE, "rows": rows, "shape": 1}))
    assert any('top level: unknown field "shape"' in message for message in caplog.messages)
    assert any('row 1: unknown field "colour"' in message for message in caplog.messages)


def test_a_file_without_rows_of_its_baseline_is_warned_of() -> None:
    _, reading = read_frontier(json.dumps({**EXAMPLE, "baseline": "n3"}), "f.json")
    assert reading.faults == []
    assert reading.warnings == ["f.json: baseline: no row measures n3, so no row can be proven to beat it"]


# --- faults


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("context_tokens", "absent", "context_tokens: is missing"),
        ("context_tokens", "3946", "expected a whole number from 1"),
        ("context_tokens", 3946.0, "expected a whole number from 1"),
        ("context_tokens", True, "expected a whole number from 1"),
        ("context_tokens", 0, "expected a whole number from 1"),
        ("context_tokens", 10**400, "expected a whole number from 1"),
        ("setting", "absent", "setting: is missing"),
        ("setting", 4, "expected a setting: n4,p0.25"),
        ("setting", None, "expected a setting: n4,p0.25"),
        ("setting", "4", "is not one of n4,p0.25"),
        ("setting", "n4,p1.5", "is out of range"),
        ("tok_s", "absent", "tok_s: is missing"),
        ("tok_s", 0, "expected a number above 0 (tokens per second)"),
        ("tok_s", -3, "expected a number above 0 (tokens per second)"),
        ("tok_s", "fast", "expected a number above 0 (tokens per second)"),
        ("tok_s", [1], "expected a number above 0 (tokens per second)"),
        ("tok_s", False, "expected a number above 0 (tokens per second)"),
        ("tok_s", 10**400, "expected a number above 0 (tokens per second)"),
        ("acceptance", 1.01, "expected a number from 0 to 1"),
        ("acceptance", 71, "expected a number from 0 to 1"),
        ("samples", 0, "expected a whole number from 1"),
        ("samples", 2.5, "expected a whole number from 1"),
        ("sd", -0.1, "expected a number of at least 0"),
        ("kind", 7, "expected a text"),
        ("gain", 0, "expected a number above 0"),
        ("cycle_ms", "1", "expected a number above 0 (milliseconds)"),
    ],
)
def test_a_bad_field_is_one_line_naming_file_row_field_and_expectation(
    field: str, value: object, expected: str
) -> None:
    found = row_faults(**{field: value})
    assert len(found) == 1
    assert found[0].startswith(f"f.json: row 1: {field}: ")
    assert expected in found[0]
    assert "\n" not in found[0]
    assert len(found[0]) < 300


def test_every_fault_is_found_at_once(tmp_path: Path) -> None:
    rows = [{"context_tokens": -1, "setting": "x", "tok_s": None}, "row", {"setting": "n2"}]
    with pytest.raises(InputFileError) as caught:
        load_frontier(written(tmp_path, {**EXAMPLE, "rows": rows, "model": 1, "edges": [3, 2]}))
    lines = str(caught.value).splitlines()
    assert len(lines) == 7
    assert all(line.startswith(f"{tmp_path}/f.json: ") for line in lines)


def test_a_file_of_a_thousand_faults_prints_a_page_not_a_book(tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as caught:
        load_frontier(written(tmp_path, {**EXAMPLE, "rows": [0] * 1000}))
    assert str(caught.value).splitlines()[-1].endswith("and 980 faults more")


def test_an_interval_that_does_not_hold_its_mean_is_a_fault() -> None:
    assert (
        "gain: is 1.1, expected a number between gain_low and gain_high"
        in row_faults(gain=1.1, gain_low=1.2, gain_high=1.3)[0]
    )
    assert row_faults(gain=1.1, gain_low=1.0, gain_high=1.3) == []


def test_the_same_setting_twice_at_one_context_is_a_fault_that_names_both_rows() -> None:
    rows = [{"context_tokens": 1, "setting": s, "tok_s": 1.0} for s in ("n2,p0.0", "n4", "p0,n2")]
    assert faults(json.dumps({**EXAMPLE, "rows": rows})) == [
        "f.json: row 3: n2,p0.0 at 1 tokens stands in row 1 already; "
        "expected each setting once per context and kind"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: is not JSON"),
        ("{", "line 1: is not JSON"),
        ('{"format": "x"}\n}', "line 2: is not JSON"),
        ("[]", "expected an object with the fields format, baseline and rows"),
        ("null", "expected an object with the fields format, baseline and rows"),
        ("{}", 'format: is missing, expected "adaptive-dd/frontier@1"'),
        ('{"format": "adaptive-dd/frontier@2"}', 'format: is "adaptive-dd/frontier@2", expected'),
        ('{"format": ["adaptive-dd/frontier@1"]}', "expected"),
        ('{"format": NaN}', "NaN is no number that JSON knows"),
        ('{"format": -Infinity}', "-Infinity is no number that JSON knows"),
        ('{"rows": [], "rows": []}', 'field "rows" stands twice in one object'),
        ("[" * 100_000, "nested too deeply"),
        ('{"format": ' + "9" * 5000 + "}", "f.json: "),
    ],
)
def test_what_is_not_a_frontier_is_said_in_one_line(text: str, expected: str) -> None:
    found = faults(text)
    assert len(found) == 1
    assert expected in found[0]
    assert "\n" not in found[0]
    assert len(found[0]) < 300


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("baseline", "fast", "f.json: baseline: setting 'fast' is not one of"),
        ("server", [], "f.json: server: is [], expected an object"),
        ("server", {"cap": -1}, "f.json: server: cap: is -1, expected a whole number from 0 to 1024"),
        ("server", {"build": 9}, "f.json: server: build: is 9, expected a text"),
        ("rows", {}, "f.json: rows: is {}, expected a list of objects"),
        ("edges", [100, 100], "f.json: edges: is [100, 100], expected whole numbers of tokens, each above"),
        ("edges", [0], "f.json: edges: is [0], expected whole numbers of tokens"),
        ("edges", "no", 'f.json: edges: is "no", expected whole numbers'),
        ("generated_tokens", 1.5, "f.json: generated_tokens: is 1.5, expected a whole number"),
        ("about", 3, "f.json: about: is 3, expected an object"),
        ("rules", [], "f.json: rules: is [], expected a list"),
        ("rules", [{"min_tokens": 0}], "f.json: rule 1: is"),
    ],
)
def test_a_bad_field_at_the_top_is_one_line(field: str, value: object, expected: str) -> None:
    found = faults(json.dumps({**EXAMPLE, field: value}))
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_missing_rows_are_a_fault() -> None:
    assert faults(json.dumps({"format": FORMAT})) == [
        "f.json: rows: is missing, expected a list of measured rows"
    ]


@pytest.mark.parametrize("make", ["absent", "folder", "binary", "name"])
def test_a_file_that_cannot_be_read_is_said_in_one_line(make: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    if make == "folder":
        path.mkdir()
    if make == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    source = "no-such-frontier" if make == "name" else str(path)
    with pytest.raises(InputFileError, match=r"cannot be read|not UTF-8|no shipped frontier") as caught:
        load_frontier(source)
    assert "\n" not in str(caught.value)
    assert source in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from([*EXAMPLE, "rules", "edges", "about", "setting", "tok_s", "context_tokens", "x"]), inner
    ),
))  # fmt: skip
def test_no_json_value_whatever_makes_the_reader_raise(value: object) -> None:
    body = {**value, "format": FORMAT} if isinstance(value, dict) else value
    _, reading = read_frontier(json.dumps(body), "f.json")
    assert all("\n" not in fault for fault in reading.faults)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_text_whatever_makes_the_reader_raise(text: str) -> None:
    read_frontier(text, "f.json")


# --- round trip

SETTINGS = st.sampled_from([SERVER, OFF, *(Setting(n, p) for n in (1, 4, 16) for p in (None, 0.0, 0.25))])
OPTIONAL = {
    "acceptance": st.none() | st.floats(0, 1),
    "samples": st.none() | st.integers(1, 1000),
    "sd": st.none() | st.floats(0, 1000),
    "kind": st.sampled_from(["", "greedy", "sampled"]),
    "cycle_ms": st.none() | st.floats(0.01, 1000),
    "mark": st.sampled_from(["", "too-noisy"]),
}
ROWS = st.lists(
    st.builds(FrontierRow, st.integers(1, 10**6), SETTINGS, st.floats(0.01, 1000), **OPTIONAL),
    unique_by=lambda r: (r.context_tokens, r.setting, r.kind),
    max_size=8,
)


@settings(deadline=None)
@given(
    ROWS,
    SETTINGS,
    st.none() | st.integers(0, 1024),
    st.text(),
    st.sets(st.integers(1, 10**6)) | st.none(),
    st.dictionaries(st.text(), st.text()),
)
def test_what_is_written_reads_back_the_same(
    rows: list[FrontierRow],
    baseline: Setting,
    cap: int | None,
    model: str,
    edges: set[int] | None,
    about: dict[str, str],
) -> None:
    frontier = Frontier(
        rows=tuple(sorted(rows, key=lambda r: (r.context_tokens, r.kind, r.setting.order))),
        baseline=baseline,
        edges=None if edges is None else tuple(sorted(edges)),
        model=model,
        cap=cap,
        about=tuple(about.items()),
    )
    read, reading = read_frontier(dump_frontier(frontier), "f.json")
    assert reading.faults == []
    assert read == frontier


def test_rules_written_to_a_file_read_back_the_same() -> None:
    frontier = parse_ladder("0:n4,p0.25;49152:n0")
    assert read_frontier(dump_frontier(frontier), "f.json")[0] == frontier


# --- ladder strings


def test_a_ladder_string_is_read_where_a_file_is_expected() -> None:
    frontier = load_frontier("0:n4,p0.25;49152:n4,p0.0")
    assert frontier.rules == ((0, Setting(4, 0.25)), (49152, Setting(4, 0.0)))
    assert ladder_text(ladder(frontier)) == "0:n4,p0.25;49152:n4,p0.0"


def test_blanks_and_a_final_semicolon_are_taken() -> None:
    assert parse_ladder(" 0 : n4 , p0.25 ; 10:n0 ; ").rules == ((0, Setting(4, 0.25)), (10, OFF))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:n4;x:n2", 'ladder: rule 2: is "x:n2", expected MIN:SETTING such as 49152:n4,p0.0'),
        ("0:n4;12", 'ladder: rule 2: is "12", expected MIN:SETTING'),
        ("0:4", "ladder: rule 1: setting '4' is not one of n4,p0.25"),
        ("0:n4;0:n2", "ladder: rule 2: starts at 0 tokens, expected more than the 0 of the rule before"),
        ("9:n4;3:n2", "ladder: rule 2: starts at 3 tokens, expected more than the 9 of the rule before"),
        ("-1:n4", 'ladder: rule 1: is "-1:n4", expected MIN:SETTING'),
        ("99999999999:n4", "ladder: rule 1: is"),
        (";", "ladder: is empty, expected rules such as"),
    ],
)
def test_a_bad_rule_is_one_line_naming_it_and_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(InputFileError) as caught:
        parse_ladder(text)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="0123456789:;np,.m servr"))
def test_no_ladder_text_raises_anything_but_an_input_error(text: str) -> None:
    try:
        frontier = parse_ladder(text)
    except InputFileError:
        return
    assert parse_ladder(ladder_text(ladder(frontier))).rules


def test_settings_in_a_file_are_those_of_the_grammar() -> None:
    assert parse_setting("n4,p0.00001") == Setting(4, 0.0)
    assert parse_setting(str(parse_setting("n4,p0.00012"))) == Setting(4, 0.0001)


# --- the docs


DOC = (Path(__file__).parents[1] / "docs" / "frontier-file.md").read_text()


def test_the_example_in_the_docs_is_read_without_a_word() -> None:
    example = DOC.split("```json\n")[1].split("```")[0]
    frontier, reading = read_frontier(example, "docs")
    assert (reading.faults, reading.warnings) == ([], [])
    assert [str(rung.setting) for rung in ladder(frontier)] == ["n4,p0.3"]


def test_the_docs_name_every_field_of_a_row() -> None:
    for name in FrontierRow.__dataclass_fields__:
        assert f"`{name}`" in DOC
