"""The tap: the same account of an answer, wherever it is cut and however its lines end; never more than its bound."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.domain import Timings
from adaptive_dd.core.tap import KEPT_BYTES, TAIL_BYTES, Tap
from tests.fake_upstream import DONE, STREAM, TIMINGS, delta, document, event, last_event

WANTED = Timings(9, 20.5, 64, 800.25, 0, 60, 41)


def tapped(chunks: Iterable[bytes], *, stream: bool = True) -> Tap:
    tap = Tap(stream=stream)
    for chunk in chunks:
        tap.feed(chunk)
    tap.end()
    return tap


ENDINGS = [b"\n", b"\r\n", b"\r"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_cut_position_and_every_line_ending_tell_the_same(ending: bytes) -> None:
    text = STREAM.replace(b"\n", ending)
    for cut in range(len(text) + 1):
        tap = tapped([text[:cut], text[cut:]])
        assert (tap.result(), tap.data_events, tap.done, tap.error) == (WANTED, 4, True, False), cut


@pytest.mark.parametrize("ending", ENDINGS)
def test_byte_by_byte_it_tells_the_same(ending: bytes) -> None:
    text = STREAM.replace(b"\n", ending)
    tap = tapped(text[n : n + 1] for n in range(len(text)))
    assert (tap.result(), tap.data_events, tap.done) == (WANTED, 4, True)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.sampled_from(ENDINGS))
def test_random_cuts_and_several_events_in_a_chunk_tell_the_same(cuts: list[int], ending: bytes) -> None:
    text = STREAM.replace(b"\n", ending)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    tap = tapped(text[a:b] for a, b in itertools.pairwise(places))
    assert (tap.result(), tap.data_events, tap.done) == (WANTED, 4, True)


def test_pings_are_not_data_and_are_never_parsed() -> None:
    tap = Tap(stream=True)
    tap.feed(b":\n\n: ping {\n\n:\r\n\r\n")
    assert not tap.has_data
    assert tap.data_events == 0
    tap.feed(delta("a"))
    assert tap.has_data


def test_a_data_field_of_several_lines_is_one_value() -> None:
    text = json.dumps({"timings": TIMINGS}, indent=1).replace("\n", "\ndata: ")
    assert tapped([f"event: x\nid: 3\ndata: {text}\n\n".encode()]).result() == WANTED


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_event_of_several_lines_is_one_event_wherever_it_is_cut(ending: bytes) -> None:
    text = json.dumps({"timings": TIMINGS}, indent=1).replace("\n", "\ndata: ")
    raw = f": ping\nevent: x\ndata: {text}\n\n".encode().replace(b"\n", ending)
    for cut in range(len(raw) + 1):
        tap = tapped([raw[:cut], raw[cut:]])
        assert (tap.result(), tap.data_events) == (WANTED, 1), cut


def test_a_byte_order_mark_before_the_stream_is_passed_over() -> None:
    text = b"\xef\xbb\xbf" + last_event()
    for cut in range(6):
        assert tapped([text[:cut], text[cut:]]).result() == WANTED


def test_data_without_a_space_behind_the_colon_counts() -> None:
    assert tapped([last_event().replace(b"data: ", b"data:")]).result() == WANTED


def test_the_last_timings_count_when_every_event_has_some() -> None:
    early = {**TIMINGS, "predicted_n": 1, "draft_n": 0, "draft_n_accepted": 0}
    assert tapped([last_event(early), last_event(), DONE]).result() == WANTED


def test_timings_beside_a_response_are_found() -> None:
    text = event({"type": "response.completed", "response": {"error": None, "usage": {}}, "timings": TIMINGS})
    tap = tapped([b"event: response.completed\n" + text])
    assert tap.result() == WANTED
    assert not tap.error


def test_an_event_that_no_blank_line_ended_is_read_at_the_end() -> None:
    assert tapped([delta("a"), last_event().rstrip(b"\n")]).result() == WANTED


@pytest.mark.parametrize(
    "text",
    [
        event({"error": {"code": 500, "message": "boom", "type": "server_error"}}),
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n',
        b"event:error\ndata: oops\n\n",
        b'error: {"code":500,"message":"boom"}\n\n',
        event({"type": "error", "message": "boom"}),
    ],
)
def test_an_error_inside_a_stream_is_seen(text: bytes) -> None:
    tap = tapped([delta("a"), text])
    assert tap.error
    assert tap.result() is None


def test_an_error_in_a_document_is_seen() -> None:
    assert tapped([b'{"error":{"code":500,"message":"x"}}'], stream=False).error
    assert not tapped([b'{"error":null,"timings":{}}'], stream=False).error


def test_words_in_the_generated_text_are_not_taken_for_the_servers_own() -> None:
    text = '{"error":{"code":1}} "timings":{"predicted_n":1} data: [DONE]\n\ndata: {"timings":{}}'
    tap = tapped([delta(text)])
    assert (tap.result(), tap.error, tap.done, tap.data_events) == (None, False, False, 1)
    whole = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    assert tapped([whole], stream=False).result() is None


def test_a_document_is_read_wherever_it_is_cut() -> None:
    text = document()
    for cut in range(len(text) + 1):
        assert tapped([text[:cut], text[cut:]], stream=False).result() == WANTED


def test_timings_in_the_middle_of_a_document_are_found() -> None:
    text = json.dumps({"timings": TIMINGS, "content": "x" * 1000}).encode()
    assert tapped([text], stream=False).result() == WANTED


def test_timings_deeper_than_the_top_level_are_not_the_servers() -> None:
    text = json.dumps({"choices": [{"timings": TIMINGS}]}).encode()
    assert tapped([text], stream=False).result() is None
    assert tapped([b"data: " + text + b"\n\n"]).result() is None


@pytest.mark.parametrize("stream", [True, False])
def test_a_last_event_longer_than_the_bound_is_read_from_its_tail(stream: bool) -> None:
    # /completion repeats the prompt before the timings: 128k tokens are half a megabyte.
    text = json.dumps(
        {"prompt": 'a "timings": {"x": 1} ' * 30_000, "stop": True, "timings": TIMINGS}
    ).encode()
    assert len(text) > 2 * KEPT_BYTES
    chunks = [b"data: " + text + b"\n\n"] if stream else [text]
    assert tapped(chunks, stream=stream).result() == WANTED
    pieces = [chunk[n : n + 1000] for chunk in chunks for n in range(0, len(chunk), 1000)]
    assert tapped(pieces, stream=stream).result() == WANTED


def test_after_a_clipped_event_the_next_ones_are_read_in_full() -> None:
    long = b"data: " + b"x" * (KEPT_BYTES * 2) + b"\n\n"
    tap = tapped([long, delta("a"), last_event()])
    assert (tap.result(), tap.data_events) == (WANTED, 3)


def test_a_long_list_of_answers_is_not_one_answer() -> None:
    text = b"[" + b" " * KEPT_BYTES + document() + b"]"
    assert tapped([text], stream=False).result() is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("size", [100, 8192, 1 << 20])
def test_it_never_keeps_more_than_its_bound(stream: bool, size: int) -> None:
    tap = Tap(stream=stream)
    most = 0
    for _ in range((8 << 20) // size):
        tap.feed(b"x" * size)
        most = max(most, tap.kept_bytes)
    assert most <= KEPT_BYTES + TAIL_BYTES


def test_a_stream_of_long_final_events_keeps_one() -> None:
    text = event({"pad": "x" * (KEPT_BYTES - 500), "timings": TIMINGS})
    tap = Tap(stream=True)
    for _ in range(20):
        tap.feed(text)
    assert tap.kept_bytes <= 2 * KEPT_BYTES


def test_wrong_timings_come_back_as_the_reason() -> None:
    assert tapped([last_event({**TIMINGS, "predicted_ms": None})]).result() == "not-a-number"
    assert tapped([last_event([1])]).result() == "not-an-object"
    assert (
        tapped([b'data: {"timings":{"predicted_n":5,"prompt_n":1,"predicted_ms":1e999}}\n\n']).result()
        == "not-finite"
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40) | st.sampled_from([b"\n\n", b"data: ", b'"timings":', b'"error"', b"{", b"\r"])
    )
)
def test_no_bytes_make_it_raise(chunks: list[bytes]) -> None:
    for stream in (True, False):
        tap = tapped(chunks, stream=stream)
        tap.result()
