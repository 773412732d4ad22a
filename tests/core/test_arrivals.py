"""The tap that notes when tokens came: the same events at the same times, wherever the stream is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.arrivals import MOST_BURSTS, Arrivals, TimedTap
from tests.core.test_tap import ENDINGS
from tests.fake_upstream import TIMINGS, delta
from tests.streams import (
    closing,
    completed,
    created,
    message,
    named,
    opening,
    piece,
    response,
    tapped,
    text,
)


def noted(tap: TimedTap) -> Arrivals:
    found = tap.arrivals()
    assert found is not None
    return found


def counts_of(found: Arrivals) -> tuple[object, object, object, int]:
    return found.output_tokens, found.prompt_n, found.cache_n, sum(found.counts)


STREAMS = {"messages": message(4), "responses": response(4)}
# Messages leave cached tokens out of the prompt's, responses count them in: 26 tokens, 21 of them cached.
WANTED = (4, 5, 21, 4)


@pytest.mark.parametrize("route", STREAMS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_cut_position_and_every_line_ending_give_the_same_counts(route: str, ending: bytes) -> None:
    stream = STREAMS[route].replace(b"\n", ending)
    for cut in range(len(stream) + 1):
        found = noted(tapped((1.0, stream[:cut]), (2.0, stream[cut:])))
        assert counts_of(found) == WANTED, cut
        assert set(found.times) <= {1.0, 2.0}


@settings(deadline=None)
@given(st.data())
def test_each_event_has_the_time_of_the_chunk_that_completed_it(data: st.DataObject) -> None:
    route, ending = data.draw(st.sampled_from(sorted(STREAMS))), data.draw(st.sampled_from(ENDINGS[:2]))
    stream = STREAMS[route].replace(b"\n", ending)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)))
    bounds = [0, *cuts, len(stream)]
    found = noted(tapped(*((float(b), stream[a:b]) for a, b in itertools.pairwise(bounds))))
    word = b"content_block_delta" if route == "messages" else b"response.output_text.delta"
    ends = [0]
    for _ in range(4):
        begun = stream.index(b"event: " + word, ends[-1])
        ends.append(stream.index(2 * ending, begun) + 2 * len(ending))
    seen = [at for at, count in zip(found.times, found.counts, strict=True) for _ in range(count)]
    whole = [next(float(b) for b in bounds if b >= end) for end in ends[1:]]
    # A line end of CR LF is one as soon as its CR has come.
    almost = [next(float(b) for b in bounds if b >= end - len(ending) + 1) for end in ends[1:]]
    assert all(low <= at <= high for low, at, high in zip(almost, seen, whole, strict=True))


def test_what_came_in_one_chunk_shares_its_time_and_the_ends_have_theirs() -> None:
    found = noted(
        tapped(
            (10.0, opening() + text()),
            (20.0, text() + text()),
            (31.0, text()),
            (31.5, closing(4)),
            sent_ms=3.0,
        )
    )
    assert (found.times, found.counts) == ((10.0, 20.0, 31.0), (1, 2, 1))
    assert (found.sent_ms, found.opened_ms, found.closed_ms, found.complete) == (3.0, 10.0, 31.5, True)


@pytest.mark.parametrize(
    "event",
    [
        text(),
        piece(),
        named("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        named("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{"}),
        named("response.reasoning_text.delta", delta="hm"),
        named("response.function_call_arguments.delta", delta="{"),
    ],
)
def test_text_thinking_and_arguments_are_tokens(event: bytes) -> None:
    assert sum(noted(tapped((1.0, opening() + event + closing(1)))).counts) == 1


@pytest.mark.parametrize(
    "event",
    [
        named("content_block_delta", index=0, delta={"type": "signature_delta", "signature": ""}),
        named("content_block_start", index=0),
        named("ping"),
        named("response.output_item.added", item={}),
        named("message_delta", usage={"output_tokens": 1}),
        b":\n\n",
        delta("event: content_block_delta"),
    ],
)
def test_what_brings_no_token_is_none(event: bytes) -> None:
    assert sum(noted(tapped((1.0, opening() + event + closing(1)))).counts) == 0


def test_a_stream_without_names_or_without_its_end_tells_nothing() -> None:
    assert tapped((1.0, delta("a") * 3)).arrivals() is None
    assert tapped((1.0, opening() + text())).arrivals() is None
    assert tapped((1.0, text() + closing(1))).arrivals() is None


@pytest.mark.parametrize("usage", [None, [], {"output_tokens": "x"}, {}])
def test_a_usage_that_is_none_is_handed_on_unchecked(usage: object) -> None:
    end = named("message_delta", usage=usage)
    assert counts_of(noted(tapped((1.0, opening() + end))))[0] in (0, "x")


def test_the_servers_own_timings_are_still_found() -> None:
    tap = tapped((1.0, created() + piece()), (2.0, completed(1, timings=dict(TIMINGS))))
    assert tap.result() is not None
    assert noted(tap).output_tokens == 1


def test_only_real_waiting_for_the_client_counts_and_only_while_tokens_come() -> None:
    tap = TimedTap(0.0)
    tap.held(500.0)
    tap.feed(opening())
    for ms in (0.9, 2.0, 40.0):
        tap.held(ms)
    tap.feed(closing(1))
    tap.held(500.0)
    assert noted(tap).held_ms == 42.0


def test_a_very_long_answer_is_bounded_and_says_so() -> None:
    tap, token = TimedTap(0.0), text()
    tap.feed(opening())
    for number in range(MOST_BURSTS + 5):
        tap.at_ms = float(number)
        tap.feed(token)
    tap.feed(closing(MOST_BURSTS + 5))
    found = noted(tap)
    assert (len(found.times), found.complete) == (MOST_BURSTS, False)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.binary(max_size=30)
        | st.sampled_from(
            [
                b"\n\n",
                b"event: message_start\n",
                b"event: message_delta\n",
                b'data: {"usage":{"output_tokens":3}}',
                b'data: {"message":{"usage":[]}}',
                b'data: {"response":' + json.dumps({"usage": {"input_tokens_details": {}}}).encode() + b"}",
                text(),
                b"event:",
            ]
        ),
        max_size=12,
    )
)
def test_no_bytes_make_it_raise(chunks: list[bytes]) -> None:
    tapped(*((float(at), chunk) for at, chunk in enumerate(chunks))).arrivals()
