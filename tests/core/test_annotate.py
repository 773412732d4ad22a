"""`dynamic_draft`: added once, in the right place, with every other byte as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.annotate import HELD_BYTES, Annotator, annotated_document
from tests.fake_upstream import DONE, STREAM, TIMINGS, delta, document, event, last_event

NOTE = {"applied": True, "reason": "frontier", "prompt_tokens": 12, "setting": "n4,p0.25", "decision_us": 4.2}
MEMBER = b',"dynamic_draft": ' + json.dumps(NOTE).encode()


def annotated(chunks: list[bytes]) -> bytes:
    annotator = Annotator(NOTE)
    return b"".join(annotator.feed(chunk) for chunk in chunks) + annotator.end()


def noted(text: bytes, last: bytes) -> bytes:
    """`text` with the note in the event `last`, before its final brace."""
    at = last.rindex(b"}")
    return text.replace(last, last[:at] + MEMBER + last[at:])


def test_a_document_gains_one_member_before_its_last_brace() -> None:
    text = document() + b" \n"
    out = annotated_document(text, NOTE)
    assert out == noted(text, document())
    assert json.loads(out)["dynamic_draft"] == NOTE


@pytest.mark.parametrize("text", [b"[1]", b"{", b"", b"null", b'{"dynamic_draft": 1}'])
def test_what_cannot_be_annotated_stays(text: bytes) -> None:
    assert annotated_document(text, NOTE) == text


def test_an_empty_object_gets_no_comma() -> None:
    assert json.loads(annotated_document(b"{ }", NOTE)) == {"dynamic_draft": NOTE}


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_the_last_event_of_a_stream_is_annotated_wherever_the_stream_is_cut(ending: bytes) -> None:
    text = STREAM.replace(b"\n", ending)
    wanted = noted(text, last_event().replace(b"\n", ending))
    assert wanted != text
    for cut in range(len(text) + 1):
        assert annotated([text[:cut], text[cut:]]) == wanted
    assert annotated([text[n : n + 1] for n in range(len(text))]) == wanted


LASTS = {
    "chat": (last_event(), DONE),
    "chat with usage": (event({"choices": [], "usage": {"prompt_tokens": 9}, "timings": TIMINGS}), DONE),
    "completion": (event({"content": "", "stop": True, "timings": TIMINGS}), b""),
    "responses": (event({"type": "response.completed", "response": {}, "timings": TIMINGS}), b""),
}


@pytest.mark.parametrize("kind", LASTS)
def test_every_dialects_last_event_is_found(kind: str) -> None:
    last, behind = LASTS[kind]
    text = b": ping\n\n" + delta("a") + b"event: x\n" + last + behind
    assert annotated([text]) == noted(text, last)
    assert annotated([text.removesuffix(b"\n\n")]) == noted(text, last).removesuffix(b"\n\n")


def test_with_timings_in_every_event_only_the_last_is_annotated_and_none_is_held_back_before() -> None:
    early = event(
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}], "timings": TIMINGS}
    )
    annotator = Annotator(NOTE)
    assert annotator.feed(early) == early
    assert annotator.feed(early) == early
    assert annotator.feed(last_event()) == b""
    assert annotator.feed(DONE) == noted(last_event(), last_event()) + DONE


def test_a_final_looking_event_with_another_behind_it_was_not_the_last() -> None:
    usage = event({"choices": [], "timings": TIMINGS})
    text = last_event() + usage + DONE
    assert annotated([text]) == last_event() + noted(usage, usage) + DONE


@pytest.mark.parametrize(
    "text",
    [
        delta("a") + DONE,
        delta("a"),
        event({"error": {"code": 500}}),
        b"",
        b"\n\n\n",
        b'data: {"timings": broken}\n\n' + DONE,
        b'data: {"timings": {}}\n\n' + DONE,
        b'data: {"a": 1,\ndata: "stop": true, "timings": {}}\n\n',
        b"event: message_stop\ndata: {}\n\n",
    ],
)
def test_a_stream_without_a_final_event_passes_as_it_is(text: bytes) -> None:
    assert annotated([text]) == text


def test_an_event_too_long_to_hold_passes_as_it_is() -> None:
    text = b'data: {"stop": true, "timings": {}, "x": "' + b"y" * (HELD_BYTES + 10)
    rest = b'"}\n\n' + DONE
    assert annotated([text, rest]) == text + rest


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([last_event(), DONE, delta("x"), b"\n\n", b"\r"])))
def test_no_bytes_make_it_raise_or_lose_one(chunks: list[bytes]) -> None:
    out = annotated(chunks)
    assert out.replace(MEMBER, b"") == b"".join(chunks)
