"""Headers across a proxy: one framing, nothing of one hop, all else in its order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.headers import Header, to_client, to_upstream, unknown_coding, value_of, wants_websocket

NAMES = [
    b"Content-Length",
    b"transfer-encoding",
    b"Connection",
    b"X-A",
    b"x-b",
    b"Host",
    b"TE",
    b"Authorization",
    b"close",
]
VALUES = [b"5", b"chunked", b"close", b"X-A, keep-alive", b" padded ", b""]
pairs = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8)


@settings(deadline=None)
@given(pairs, st.none() | st.integers(0, 10), st.booleans())
def test_a_request_goes_up_with_at_most_one_framing_and_no_host(
    given_: list[Header], size: int | None, streams: bool
) -> None:
    out = to_upstream(given_, body_bytes=size, streams=streams)
    names = [name.lower() for name, _ in out]
    framings = names.count(b"content-length") + names.count(b"transfer-encoding")
    assert framings == (1 if size is not None or streams else 0)
    assert not {b"host", b"connection", b"te", b"keep-alive"} & set(names)
    assert all(value == value.strip() for _, value in out)


@settings(deadline=None)
@given(pairs)
def test_what_is_kept_keeps_its_order(given_: list[Header]) -> None:
    kept = [(name, value.strip()) for name, value in given_ if name in (b"Authorization", b"x-b")]
    out = [
        pair
        for pair in to_upstream(given_, body_bytes=None, streams=False)
        if pair[0] in (b"Authorization", b"x-b")
    ]
    assert out == kept


@pytest.mark.parametrize("status", [200, 204, 304])
def test_an_answer_in_chunks_or_without_a_body_has_no_length(status: int) -> None:
    given_ = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")][: 2 if status == 200 else 1]
    assert to_client(given_, status=status, event_stream=False) == []


def test_what_connection_names_ends_here() -> None:
    given_ = [(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"X-Other", b"2")]
    assert to_client(given_, status=200, event_stream=False) == [(b"X-Other", b"2")]
    assert to_upstream(given_, body_bytes=None, streams=False) == [(b"X-Other", b"2")]


def test_a_value_is_found_whatever_the_case_and_spaces() -> None:
    assert value_of([(b"X-A", b"\t 1 ")], b"x-a") == b"1"
    assert value_of([], b"x-a") is None


@pytest.mark.parametrize(
    ("upgrade", "connection", "wants"),
    [
        (b"websocket", b"Upgrade", True),
        (b"WebSocket", b"keep-alive, upgrade", True),
        (b"h2c", b"Upgrade", False),
        (b"websocket", b"close", False),
    ],
)
def test_a_wish_for_a_websocket_takes_two_headers(upgrade: bytes, connection: bytes, wants: bool) -> None:
    assert wants_websocket([(b"Upgrade", upgrade), (b"connection", connection)]) is wants


@pytest.mark.parametrize(
    ("coding", "unknown"), [(b"chunked", False), (b"Chunked ", False), (b"gzip, chunked", True)]
)
def test_chunks_are_the_only_coding(coding: bytes, unknown: bool) -> None:
    assert unknown_coding([(b"Transfer-Encoding", coding)]) is unknown
    assert not unknown_coding([])
