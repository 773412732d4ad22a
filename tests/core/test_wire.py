"""The dialect: what generates, how an error looks, which timings can be true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.domain import REJECTIONS, Timings
from adaptive_dd.core.wire import ROUTES, error_body, parse_timings, route_of

GOOD: dict[str, Any] = {
    "cache_n": 3,
    "prompt_n": 9,
    "prompt_ms": 20.5,
    "predicted_n": 64,
    "predicted_ms": 800.25,
    "draft_n": 60,
    "draft_n_accepted": 41,
}


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/completion", "completion"),
        ("/completions", "completion"),
        ("/v1/completions", "completion"),
        ("/infill", "infill"),
        ("/chat/completions", "chat"),
        ("/v1/chat/completions", "chat"),
        ("/some/prefix/v1/chat/completions", "chat"),
        ("/responses", "responses"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/audio/transcriptions", "audio"),
        ("/v1/audio/transcriptions", "audio"),
    ],
)
def test_every_generating_route_is_known_under_any_prefix(path: str, endpoint: str) -> None:
    for prefix in ("", "/api", "/a/b"):
        route = route_of("POST", prefix + path)
        assert route is not None
        assert route.endpoint == endpoint
        assert route.takes_fields == (endpoint not in ("messages", "audio"))
    assert route_of("GET", path) is None
    assert route_of("OPTIONS", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/health", "/props", "/slots", "/metrics", "/models", "/v1/models", "/tokenize", "/detokenize",
        "/apply-template", "/embedding", "/v1/embeddings", "/rerank", "/lora-adapters",
        "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens", "/v1/messages/count_tokens", "/", "", "/completionx", "/v1/chat/completions/",
        "/messages",
    ],
)  # fmt: skip
def test_everything_else_generates_nothing(path: str) -> None:
    assert route_of("POST", path) is None


def test_no_route_hides_a_longer_one() -> None:
    endings = [ending for ending, _ in ROUTES]
    for number, ending in enumerate(endings):
        assert not any(later.endswith(ending) for later in endings[number + 1 :])


def test_errors_are_in_the_dialect_of_the_path() -> None:
    ours = json.loads(error_body("/v1/chat/completions", 502, "no server"))
    assert ours == {"error": {"code": 502, "message": "no server", "type": "unavailable_error"}}
    theirs = json.loads(error_body("/v1/messages", 502, "no server"))
    assert theirs == {"type": "error", "error": {"type": "api_error", "message": "no server"}}
    assert (
        json.loads(error_body("/v1/messages/count_tokens", 503, "x"))["error"]["type"] == "overloaded_error"
    )


def test_true_timings_are_taken() -> None:
    assert parse_timings(GOOD) == Timings(9, 20.5, 64, 800.25, 3, 60, 41)


def test_absent_draft_counts_mean_that_nothing_was_drafted() -> None:
    found = parse_timings(
        {"prompt_n": 1, "prompt_ms": 2, "predicted_n": 3, "predicted_ms": 4, "draft_by_depth": []}
    )
    assert found == Timings(1, 2.0, 3, 4.0)


def test_one_token_in_a_microsecond_is_what_servers_report_of_the_first() -> None:
    found = parse_timings({"prompt_n": 26, "prompt_ms": 153.2, "predicted_n": 1, "predicted_ms": 0.001})
    assert isinstance(found, Timings)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"predicted_ms": 0}, "no-time"),
        ({"predicted_ms": None}, "not-a-number"),
        ({"predicted_ms": "800"}, "not-a-number"),
        ({"predicted_n": True}, "not-a-number"),
        ({"predicted_n": 1.5}, "not-a-number"),
        ({"prompt_n": [1]}, "not-a-number"),
        ({"predicted_ms": float("inf")}, "not-finite"),
        ({"predicted_n": float("nan")}, "not-finite"),
        ({"draft_n": float("-inf")}, "not-finite"),
        ({"predicted_ms": -1.0}, "negative"),
        ({"predicted_n": -1}, "negative"),
        ({"cache_n": -1}, "negative"),
        ({"predicted_ms": 1e300}, "too-large"),
        ({"predicted_n": 10**30}, "too-large"),
        ({"prompt_ms": 1e12}, "too-large"),
        ({"draft_n": 3, "draft_n_accepted": 9}, "accepted-above-drafted"),
        ({"draft_n": 300, "draft_n_accepted": 65}, "accepted-above-predicted"),
        ({"predicted_ms": 0.0001}, "too-fast"),
        ({"predicted_n": 3, "draft_n_accepted": 0, "predicted_ms": 3_600_000.0}, "too-slow"),
        ({"predicted_ms": 25 * 3_600_000.0}, "too-large"),
        ({"predicted_n": 100_000_000, "predicted_ms": 6e7}, "too-large"),
    ],
)
def test_timings_that_cannot_be_true_are_rejected_with_a_reason(change: dict[str, Any], why: str) -> None:
    assert parse_timings({**GOOD, **change}) == why
    assert why in REJECTIONS


@pytest.mark.parametrize("name", ["prompt_n", "predicted_n", "predicted_ms"])
def test_timings_without_what_is_needed_are_rejected(name: str) -> None:
    assert parse_timings({key: value for key, value in GOOD.items() if key != name}) == "missing"


@pytest.mark.parametrize("found", [None, [], "timings", 3, True])
def test_timings_that_are_no_object_are_rejected(found: object) -> None:
    assert parse_timings(found) == "not-an-object"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), anything))
def test_no_timings_make_it_raise_and_what_is_taken_is_finite_and_not_negative(
    change: dict[str, Any],
) -> None:
    found = parse_timings({**GOOD, **change})
    if isinstance(found, str):
        assert found in REJECTIONS
        return
    for value in (found.prompt_n, found.prompt_ms, found.predicted_n, found.predicted_ms, found.draft_n):
        assert 0 <= value < float("inf")
    assert found.draft_n_accepted <= found.draft_n


# --- ik_llama.cpp's dialect ----------------------------------------------------------------------------------

IK = {
    "prompt_n": 9,
    "prompt_ms": 20.0,
    "predicted_n": 40,
    "predicted_ms": 500.0,
    "draft_n": 30,
    "draft_n_accepted": 12,
}
ROWS = [
    {"depth": 1, "draft_n": 20, "draft_n_accepted": 10},
    {"depth": 3, "draft_n": 10, "draft_n_accepted": 2},
]


def test_counts_by_position_are_read_where_a_server_tells_them() -> None:
    found = parse_timings({**IK, "draft_by_depth": ROWS})
    assert isinstance(found, Timings)
    assert found.by_depth == ((1, 20, 10), (3, 10, 2))
    plain = parse_timings(IK)
    assert isinstance(plain, Timings)
    assert plain.by_depth == ()


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [1],
        [{"depth": 1}],
        ROWS[::-1],
        ROWS[:1],
        [{**ROWS[0], "draft_n": 20.5}, ROWS[1]],
        [{**ROWS[0], "draft_n_accepted": -1}, ROWS[1]],
        [{**ROWS[0], "depth": 0}, ROWS[1]],
        [{**ROWS[0], "draft_n": 9}, {**ROWS[1], "draft_n": 21}],
        [{**ROWS[0], "depth": True}, ROWS[1]],
    ],
)
def test_counts_by_position_that_cannot_be_true_are_left_out_and_the_totals_stand(rows: object) -> None:
    found = parse_timings({**IK, "draft_by_depth": rows})
    assert isinstance(found, Timings)
    assert (found.by_depth, found.draft_n, found.draft_n_accepted) == ((), 30, 12)
