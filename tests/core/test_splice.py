"""Fields into a body: what is not ours stays byte for byte, and what is doubtful stays whole."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.domain import OFF, SERVER, Setting
from adaptive_dd.core.splice import client_override, replace_value, scan, setting_fields, splice

N4 = {"speculative.n_max": 4}
BOTH = {"speculative.n_max": 4, "speculative.p_min": 0.25}

plain = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
# No lone surrogates: they are no JSON, and have their own test.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(texts.filter(lambda key: not key.startswith("speculative")), values, max_size=6)
spaces = st.text(" \t\r\n", max_size=3)


def written(value: dict[str, Any], *, ascii_only: bool, space: str, indent: int | None) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    return f"{space}{text}{space}".encode()


@settings(deadline=None)
@given(objects, st.booleans(), spaces, st.sampled_from([None, 0, 2]))
def test_any_object_keeps_its_bytes_and_gains_exactly_our_fields(
    value: dict[str, Any], ascii_only: bool, space: str, indent: int | None
) -> None:
    body = written(value, ascii_only=ascii_only, space=space, indent=indent)
    out = splice(body, BOTH)
    close = body.rindex(b"}")
    assert out.startswith(body[:close])
    assert out.endswith(body[close:])
    assert json.loads(out) == {**value, **BOTH}


@settings(deadline=None)
@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_spans_are_those_of_the_values_in_bytes(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    body = written(value, ascii_only=ascii_only, space=" ", indent=indent)
    found = scan(body)
    assert found.untouchable == ""
    assert [member.key for member in found.members] == list(value)
    for member in found.members:
        assert json.loads(body[member.start : member.end]) == value[member.key]
    assert body[found.close : found.close + 1] == b"}"


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_make_it_raise_and_what_is_no_object_comes_back_as_it_was(body: bytes) -> None:
    found = scan(body)
    out = splice(body, N4)
    assert (out == body) == bool(found.untouchable)


@settings(deadline=None)
@given(objects, st.data())
def test_a_body_cut_short_anywhere_is_untouchable(value: dict[str, Any], data: st.DataObject) -> None:
    body = json.dumps(value).encode()
    cut = data.draw(st.integers(0, len(body) - 1))
    assert scan(body[:cut]).untouchable
    assert splice(body[:cut], N4) == body[:cut]


@pytest.mark.parametrize(
    ("body", "spliced"),
    [
        (b"{}", b'{"speculative.n_max":4}'),
        (b"{ }", b'{ "speculative.n_max":4}'),
        (b' {\n"a" : 1\n}\n\n', b' {\n"a" : 1\n,"speculative.n_max":4}\n\n'),
        (b'\xef\xbb\xbf{"a":1}', b'\xef\xbb\xbf{"a":1,"speculative.n_max":4}'),
        ('{"é":"日本","b":"}"}'.encode(), '{"é":"日本","b":"}","speculative.n_max":4}'.encode()),
        (b'{"a":"\\ud83d\\ude00"}', b'{"a":"\\ud83d\\ude00","speculative.n_max":4}'),
        (b'{"a":"\\\\ud800"}', b'{"a":"\\\\ud800","speculative.n_max":4}'),
        (b'{"a":1,"a":2}', b'{"a":1,"a":2,"speculative.n_max":4}'),
        (b'{"speculative.p_min":0.5}', b'{"speculative.p_min":0.5,"speculative.n_max":4}'),
        (b'{"x":{"speculative.n_max":1}}', b'{"x":{"speculative.n_max":1},"speculative.n_max":4}'),
    ],
)
def test_splicing_in_bytes(body: bytes, spliced: bytes) -> None:
    assert splice(body, N4) == spliced


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not-json"),
        (b"   ", "not-json"),
        (b"nul", "not-json"),
        (b'{"a":1', "not-json"),
        (b'{"a":1}}', "not-json"),
        (b'{"a":1} x', "not-json"),
        (b'{"a":1,}', "not-json"),
        (b"{'a':1}", "not-json"),
        (b'{"a":1}\x00', "not-json"),
        (b'{"a":01}', "not-json"),
        (b'{"a":"\n"}', "not-json"),
        (b'{"a":NaN}', "not-json"),
        (b'{"a":[Infinity]}', "not-json"),
        (b'{"a":-Infinity}', "not-json"),
        (b'{"a":"\xff"}', "not-json"),
        (b'{"a":"\xed\xa0\x80"}', "not-json"),
        (b'{"a":"\\ud800"}', "not-json"),
        (b'{"a":{"b":["\\uDC00x"]}}', "not-json"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "not-json"),
        (b'{"a":' + b"9" * 10_000 + b"}", "not-json"),
        ('{"a":1}'.encode("utf-16"), "not-json"),
        (b"{" + b",".join(b'"k%d":1' % i for i in range(1001)) + b"}", "too-large"),
        (b"[1]", "not-object"),
        (b'"text"', "not-object"),
        (b"12", "not-object"),
        (b" null ", "not-object"),
        (b'{"speculative.n_max":1,"speculative.n_max":2}', "duplicate-key"),
        (b'{"speculative\\u002en_max":1}', "duplicate-key"),
        (b'{"sp\\u0065culative.n_max":1}', "duplicate-key"),
        (b'{"speculative":{"n_max":1}}', "duplicate-key"),
    ],
)
def test_what_is_doubtful_goes_out_as_it_came_and_the_reason_is_said(body: bytes, reason: str) -> None:
    assert scan(body).untouchable == reason
    assert splice(body, BOTH) == body


@pytest.mark.parametrize(
    ("body", "override"),
    [
        (b'{"a":1}', None),
        (b'{"speculative.n_max":5}', Setting(5)),
        (b'{"speculative.n_max":5,"speculative.p_min":0.5,"speculative.n_min":1}', Setting(5, 0.5, 1)),
        (b'{"speculative\\u002en_max":5}', Setting(5)),
        (b'{"speculative.n_max":0}', OFF),
        (b'{"speculative.n_max":-3}', OFF),
        (b'{"speculative.n_max":4.0}', Setting(4)),
        (b'{"speculative.n_max":null}', SERVER),
        (b'{"speculative.n_max":"4"}', SERVER),
        (b'{"speculative.n_max":true}', SERVER),
        (b'{"speculative.n_max":1e99}', SERVER),
        (b'{"speculative.p_min":7}', SERVER),
        (b'{"speculative.type":"ngram"}', SERVER),
        (b'{"speculative.n_max":1,"speculative.n_max":2}', Setting(2)),
    ],
)
def test_what_the_client_chose_itself(body: bytes, override: Setting | None) -> None:
    assert client_override(scan(body)) == override


def test_with_force_the_clients_own_values_are_replaced_where_they_stand() -> None:
    body = b'{ "speculative.n_max" : 9 , "x":"\xc3\xa9", "speculative.p_min":null}'
    out = splice(body, {**BOTH, "speculative.n_min": 1}, force=True)
    wanted = b'{ "speculative.n_max" : 4 , "x":"\xc3\xa9", "speculative.p_min":0.25,"speculative.n_min":1}'
    assert out == wanted


def test_with_force_every_copy_of_a_key_says_the_same() -> None:
    body = b'{"speculative.n_max":9,"speculative\\u002en_max":8}'
    assert splice(body, N4, force=True) == b'{"speculative.n_max":4,"speculative\\u002en_max":4}'


def test_force_does_not_touch_what_is_no_object() -> None:
    assert splice(b"[1]", N4, force=True) == b"[1]"
    assert splice(b'{"a":NaN}', N4, force=True) == b'{"a":NaN}'


def test_a_value_that_is_set_already_is_left_alone_without_force() -> None:
    body = b'{"speculative.n_max":9}'
    assert splice(body, N4) == body


def test_nothing_to_say_changes_nothing() -> None:
    assert splice(b'{"a":1}', {}) == b'{"a":1}'


def test_the_value_of_one_member_can_be_replaced() -> None:
    assert replace_value(b'{"model": "a" ,"x":1}', "model", "b\u00e9") == b'{"model": "b\\u00e9" ,"x":1}'
    assert replace_value(b'{"x":1}', "model", "b") == b'{"x":1,"model":"b"}'
    assert replace_value(b"{}", "model", "b") == b'{"model":"b"}'


@pytest.mark.parametrize("body", [b'{"model":"a","model":"b"}', b"[]", b"{"])
def test_a_member_that_is_not_one_is_not_replaced(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"model|body"):
        replace_value(body, "model", "c")


def test_a_setting_names_only_the_fields_that_it_sets() -> None:
    assert setting_fields(SERVER) == {}
    assert setting_fields(OFF) == {"speculative.n_max": 0}
    wanted = {"speculative.n_max": 4, "speculative.n_min": 2, "speculative.p_min": 0.25}
    assert setting_fields(Setting(4, 0.25, 2)) == wanted


@pytest.mark.parametrize("word", ["code = 1\n", "naïve \U0001f600 ", "\\ud83d\\ude00"])
def test_a_body_of_a_hundred_thousand_tokens_takes_milliseconds(word: str) -> None:
    text = word if word.startswith("\\") else json.dumps(word, ensure_ascii=False)[1:-1]
    body = b'{"messages":[{"role":"user","content":"' + text.encode() * (500_000 // len(text)) + b'"}]}'
    start = time.thread_time()
    found = scan(body)
    splice(body, BOTH, scanned=found)
    spent_s = time.thread_time() - start
    assert found.untouchable == ""
    assert spent_s < 0.25  # measured: 3-20 ms; the bound only catches a wrong complexity
