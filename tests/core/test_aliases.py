"""Aliases: the grammar both ways, what the router shows of presets, and keeping them out of clients' sight."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.aliases import (
    Family,
    Preset,
    Renamer,
    alias_of,
    as_public,
    families_of,
    one_model,
    read_alias,
)
from adaptive_dd.core.domain import OFF, Setting

SETTINGS = st.one_of(
    st.just(OFF),
    st.builds(
        Setting,
        st.integers(1, 64),
        st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.6, 1.0])),
        st.one_of(st.none(), st.just(0), st.just(1)),
    ),
)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,20}", fullmatch=True), SETTINGS)
def test_an_alias_reads_back_as_what_it_was_made_of(public: str, setting: Setting) -> None:
    assert read_alias(alias_of(public, setting)) == (public, setting)


def test_an_alias_holds_no_comma_because_the_server_splits_aliases_there() -> None:
    assert alias_of("gemma", Setting(8, 0.6, 2)) == "gemma@n8-p0.6-m2"


@pytest.mark.parametrize(
    "name", ["gemma", "@n8", "gemma@", "gemma@fast", "gemma@server", "gemma@p0.5", "gemma@n8-p2"]
)
def test_other_names_are_no_aliases(name: str) -> None:
    assert read_alias(name) is None


def entry(alias: str, *args: str, value: str = "loaded", aliases: tuple[str, ...] = ()) -> dict[str, object]:
    return {
        "id": alias,
        "aliases": list(aliases),
        "object": "model",
        "status": {"value": value, "args": ["llama-server", *args, "--alias", alias]},
    }


MODELS = {
    "data": [
        entry("gemma@off", "--spec-type", "none", aliases=("gemma",)),
        entry("gemma@n8", "--spec-type", "draft-simple", "--spec-draft-n-max", "8"),
        entry("gemma@n8-p0.6", "--spec-draft-n-max", "8", "--draft-p-min", "0.6", value="unloaded"),
        entry("other"),
    ],
    "object": "list",
}


def test_the_router_s_list_is_read_into_families_with_what_is_loaded() -> None:
    (family,) = families_of(MODELS)
    assert (family.public, family.home) == ("gemma", "gemma@off")
    assert [(str(p.setting), p.resident, p.fault) for p in family.presets] == [
        ("n0", True, ""),
        ("n8", True, ""),
        ("n8,p0.6", False, ""),
    ]
    assert [p.spec_type for p in family.presets] == ["none", "draft-simple", ""]


@pytest.mark.parametrize(
    ("alias", "args", "fault"),
    [
        ("m@off", ("--spec-type", "draft-simple"), "it drafts (draft-simple)"),
        ("m@n8", ("--spec-type", "none"), "its spec-type is none"),
        ("m@n8", ("--spec-draft-n-max", "4"), "its n_max is 4"),
        ("m@n8-p0.6", ("--draft-p-min", "0.0"), "its p_min is 0.0"),
        ("m@n8-p0.6", ("--draft-p-min", "0.60"), ""),
    ],
)
def test_a_preset_whose_flags_contradict_its_name_is_no_arm(
    alias: str, args: tuple[str, ...], fault: str
) -> None:
    (family,) = families_of({"data": [entry(alias, *args)]})
    assert family.presets[0].fault == fault


@pytest.mark.parametrize(
    "models", [None, [], {"data": 3}, {"data": [1, {"id": 2}, {}]}, {"data": [{"id": "a@n1"}]}]
)
def test_anything_else_than_a_list_of_models_is_no_family_or_none_that_is_loaded(models: object) -> None:
    assert not any(preset.resident for family in families_of(models) for preset in family.presets)


# --- renaming ------------------------------------------------------------------------------------------------

NAMES = ("gemma@n8", "gemma@n8-p0.6", "gemma@off")
STREAM = (
    b'data: {"id":"1","model":"gemma@n8","choices":[{"delta":{"content":"say \\"model\\":\\"gemma@n8\\""}}]}\n\n'
    b'data: {"model" : "gemma@n8-p0.6","x":"gemma@n8","model":"gemma@n8-p0","k\\"model":"gemma@off"}\r\n\r\n'
    b'data: {"message":{"model":\t"gemma@off"},"models":"gemma@off","mod":1,"model":3}\n\n'
)
RENAMED = (
    b'data: {"id":"1","model":"gemma","choices":[{"delta":{"content":"say \\"model\\":\\"gemma@n8\\""}}]}\n\n'
    b'data: {"model" : "gemma","x":"gemma@n8","model":"gemma@n8-p0","k\\"model":"gemma@off"}\r\n\r\n'
    b'data: {"message":{"model":\t"gemma"},"models":"gemma@off","mod":1,"model":3}\n\n'
)


def test_only_whole_model_members_are_renamed_and_every_other_byte_stays() -> None:
    renamer = Renamer(NAMES, "gemma")
    assert renamer.feed(STREAM) + renamer.end() == RENAMED


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_at_any_byte_comes_out_the_same(cut: int) -> None:
    renamer = Renamer(NAMES, "gemma")
    assert renamer.feed(STREAM[:cut]) + renamer.feed(STREAM[cut:]) + renamer.end() == RENAMED


def test_a_stream_in_single_bytes_comes_out_the_same() -> None:
    renamer = Renamer(NAMES, "gemma")
    parts = [renamer.feed(bytes([byte])) for byte in STREAM]
    assert b"".join(parts) + renamer.end() == RENAMED


@given(
    st.lists(
        st.sampled_from([b'"', b'"model"', b":", b" ", b'"gemma@n8"', b"\\", b'"mod', b"el", b"x"]),
        max_size=30,
    )
)
def test_where_the_pieces_are_cut_never_matters(pieces: list[bytes]) -> None:
    whole, cut = Renamer(NAMES, "gemma"), Renamer(NAMES, "gemma")
    expected = whole.feed(b"".join(pieces)) + whole.end()
    assert b"".join([cut.feed(piece) for piece in pieces]) + cut.end() == expected


def test_what_is_held_back_is_bounded_and_whole_events_are_not_held() -> None:
    renamer = Renamer(NAMES, "gemma")
    out = renamer.feed(b'"model"' + b" " * 100_000)
    assert len(out) > 99_000
    assert renamer.feed(b'data: {"model":"gemma@off"}\n\n').endswith(b"\n\n")


def test_a_name_with_quotes_and_backslashes_is_written_as_json() -> None:
    renamer = Renamer(('a"b\\@off',), 'a"b\\')
    text = json.dumps({"model": 'a"b\\@off'}, separators=(",", ":")).encode()
    assert json.loads(renamer.feed(text) + renamer.end()) == {"model": 'a"b\\'}


def test_without_aliases_nothing_is_touched() -> None:
    assert Renamer((), "gemma").feed(STREAM) == STREAM


# --- lists and documents -------------------------------------------------------------------------------------

FAMILY = Family("gemma", tuple(Preset(name, OFF, True) for name in NAMES), "gemma@off")


def test_clients_see_one_entry_of_the_family_under_its_public_name_and_other_models_as_they_are() -> None:
    document = json.dumps(MODELS).encode()
    shown = json.loads(one_model(document, FAMILY, "gemma@off"))
    assert [model["id"] for model in shown["data"]] == ["gemma", "other"]
    assert b"@" not in one_model(document, FAMILY, "gemma@off")
    assert shown["data"][1] == MODELS["data"][3]
    assert shown["object"] == "list"


@pytest.mark.parametrize(
    "document", [b"", b"no json", b"[]", b'{"data":3}', b'{"data":[]}', b'{"data":[],"data":[]}']
)
def test_what_is_no_list_of_models_comes_back_as_it_is(document: bytes) -> None:
    assert one_model(document, FAMILY, "gemma@off") == document


def test_spans_are_counted_in_bytes_where_names_are_not_ascii() -> None:
    document = (
        '{"é":1, "data" : [ {"id":"gemma@n8"} , {"id":"ü","x":"é"},{"id":"gemma@off"}], "z":"ö"}'.encode()
    )
    shown = json.loads(one_model(document, FAMILY, "gemma@off"))
    assert shown == {"é": 1, "data": [{"id": "ü", "x": "é"}, {"id": "gemma"}], "z": "ö"}


def test_a_longer_alias_is_not_taken_for_a_shorter_one() -> None:
    assert (
        as_public(b"gemma@n8-p0.6 gemma@n8, x.gemma@n8", "gemma@n8", "gemma")
        == b"gemma@n8-p0.6 gemma, x.gemma@n8"
    )
