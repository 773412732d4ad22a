from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.context import (
    FEATURES,
    LONGEST_HINT,
    MOST_HINTS,
    OTHER_HINT,
    SamplingDefaults,
    bounded_hint,
    clean_hint,
    constraint_of,
    features_of,
    header,
    sampling_of,
)
from adaptive_dd.core.domain import Kind

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, "sampled"),
        ({"temperature": 0}, "greedy"),
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": -1}, "greedy"),
        ({"temperature": 0.1}, "sampled"),
        ({"temperature": None}, "sampled"),
        ({"temperature": "0"}, "sampled"),
        ({"temperature": False}, "sampled"),
        ({"top_k": 1}, "greedy"),
        ({"top_k": 1, "temperature": 1.5}, "greedy"),
        ({"top_k": 0}, "sampled"),
        ({"top_k": 1, "mirostat": 2}, "sampled"),
        ({"temperature": 0, "samplers": ["top_k", "min_p"]}, "sampled"),
        ({"temperature": 0, "samplers": ["top_k", "temperature"]}, "greedy"),
        ({"top_k": 1, "samplers": "mt"}, "sampled"),
        ({"top_k": 1, "samplers": "kmt"}, "greedy"),
    ],
)
def test_greedy_is_what_the_server_would_do_greedily(fields: dict[str, Any], sampling: str) -> None:
    assert sampling_of(fields) == sampling


def test_where_the_request_says_nothing_the_servers_launch_flags_hold() -> None:
    assert sampling_of({}, SamplingDefaults(temperature=0.0)) == "greedy"
    assert sampling_of({"temperature": 1.0}, SamplingDefaults(temperature=0.0)) == "sampled"
    assert sampling_of({}, SamplingDefaults(top_k=1)) == "greedy"


TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({}, "free"),
        ({"grammar": ""}, "free"),
        ({"grammar": 'root ::= "x"'}, "schema"),
        ({"json_schema": {}}, "schema"),
        ({"json_schema": None}, "free"),
        ({"response_format": {"type": "text"}}, "free"),
        ({"response_format": {"type": "json_object"}}, "schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "schema"),
        ({"text": {"format": {"type": "text"}}}, "free"),
        ({"tools": []}, "free"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"tools": [TOOL], "tool_choice": "none"}, "free"),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "free"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "schema"),
    ],
)
def test_what_binds_the_answer_is_named(fields: dict[str, Any], constraint: str) -> None:
    assert constraint_of(fields) == constraint


def test_every_feature_of_a_kind_is_described() -> None:
    assert set(Kind.__slots__) <= set(FEATURES)


@pytest.mark.parametrize(
    ("endpoint", "fields", "limit"),
    [
        ("chat", {}, None),
        ("chat", {"max_tokens": 9}, 9),
        ("chat", {"max_tokens": 9, "max_completion_tokens": 8}, 8),
        ("completion", {"max_tokens": 9, "max_completion_tokens": 8, "n_predict": 7}, 7),
        ("completion", {"n_predict": -1, "max_tokens": 9}, None),
        ("responses", {"max_output_tokens": 6, "max_tokens": 9}, 6),
        ("messages", {"max_tokens": 5}, 5),
        ("chat", {"max_tokens": True}, None),
        ("chat", {"max_tokens": "9"}, None),
        ("audio", {"max_tokens": 9}, None),
    ],
)
def test_the_limit_is_the_one_that_the_server_takes(
    endpoint: str, fields: dict[str, Any], limit: int | None
) -> None:
    assert features_of(endpoint, fields).max_tokens == limit


def test_all_turns_of_a_conversation_share_a_name_and_others_have_another() -> None:
    turns = [
        *CHAT["messages"],
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "More"},
    ]
    first, second = features_of("chat", CHAT), features_of("chat", {"messages": turns, "temperature": 0})
    assert first.conversation == second.conversation
    assert len(first.conversation) == 16
    other = {"messages": [CHAT["messages"][0], {"role": "user", "content": "Ho"}]}
    assert features_of("chat", other).conversation != first.conversation
    assert features_of("chat", {}).conversation == ""


def test_a_salt_makes_the_names_of_conversations_an_installations_own() -> None:
    plain = features_of("chat", CHAT).conversation
    assert features_of("chat", CHAT, salt=b"one").conversation != plain
    assert (
        features_of("chat", CHAT, salt=b"one").conversation
        != features_of("chat", CHAT, salt=b"two").conversation
    )


@pytest.mark.parametrize(
    ("given_", "hint"),
    [
        ("code", "code"),
        ("  Code-Review_2 ", "code-review_2"),
        ("", ""),
        ("a b", ""),
        ("x" * 25, ""),
        ('c"}\n', ""),
        ("größe", ""),
    ],
)
def test_a_hint_is_a_short_plain_word_or_none(given_: str, hint: str) -> None:
    assert clean_hint(given_) == hint


@given(st.text(max_size=40))
def test_no_hint_can_break_a_label(text: str) -> None:
    hint = clean_hint(text)
    assert len(hint) <= LONGEST_HINT
    assert set(hint) <= set(string.ascii_lowercase + string.digits + "-_")


def test_clients_cannot_make_kinds_without_end() -> None:
    known: set[str] = set()
    for number in range(100):
        known.add(bounded_hint(f"id-{number}", known))
    assert len(known) == MOST_HINTS + 1
    assert bounded_hint("id-3", known) == "id-3"
    assert bounded_hint("id-99", known) == OTHER_HINT
    assert bounded_hint("", known) == ""


def test_a_header_is_found_whatever_its_case() -> None:
    headers = [(b"Accept", b"*/*"), (b"X-DD-Workload", b"code"), (b"x-dd-workload", b"other")]
    assert header(headers, b"x-dd-workload") == "code"
    assert header(headers, b"missing") == ""


def test_the_features_of_a_request_come_together() -> None:
    features = features_of("chat", {**CHAT, "temperature": 0, "tools": [TOOL], "max_tokens": 3}, hint="code")
    assert features.kind == Kind("greedy", "tools", "chat", "code")
    assert features.max_tokens == 3
    assert features.prompt.messages == 2
