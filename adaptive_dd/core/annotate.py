"""`dynamic_draft`: the decision spliced into an answer: into a document, or into the last event of a stream.

Only with `--annotate`. The last event is known by what follows it (`[DONE]` or the end), so an event that carries
`timings` and looks final is held back until then; all other bytes go through as they come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from adaptive_dd.core.splice import scan

NAME = "dynamic_draft"

# An event longer than this is passed on unannotated, because it would have to be held back.
HELD_BYTES = 4 * 1024 * 1024


def annotated_document(document: bytes, note: Mapping[str, object]) -> bytes:
    """The JSON object with the note added as its last member; anything else comes back as it is."""
    found = scan(document)
    if found.untouchable not in ("", "duplicate-key") or NAME in found.document:
        return document
    text = json.dumps({NAME: note})[1:-1].encode()
    member = b"," + text if found.members else text
    return document[: found.close] + member + document[found.close :]


class Annotator:
    """Annotates one event stream. `feed` gives the bytes to pass on now, `end` those still held."""

    def __init__(self, note: Mapping[str, object]) -> None:
        self._note = note
        self._rest = b""
        self._final = b""
        self._given_up = False

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the stream, cut anywhere; what of them (and of those held) can go out."""
        if self._given_up:
            return chunk
        data = self._rest + chunk
        out: list[bytes] = []
        at = 0
        for blank in _BLANK.finditer(data):
            out.append(self._pass(data[at : blank.end()]))
            at = blank.end()
        self._rest = data[at:]
        if len(self._rest) > HELD_BYTES:
            self._given_up = True
            out += [self._final, self._rest]
            self._final = self._rest = b""
        return b"".join(out)

    def end(self) -> bytes:
        """The stream is over: the bytes still held, annotated where they are the last event."""
        out = self._pass(self._rest) if self._rest else b""
        last, self._final, self._rest = self._final, b"", b""
        return out + _annotated_event(last, self._note)

    def _pass(self, event: bytes) -> bytes:
        """What goes out now that this event is complete; a final one stays until it is known to be the last."""
        held, self._final = self._final, b""
        if held and _data_of(event).strip() == b"[DONE]":
            return _annotated_event(held, self._note) + event
        if _looks_final(event):
            self._final = event
            return held
        return held + event


# Two line ends in a row, of any sort; a CR LF counts once.
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_DATA = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")


def _data_of(event: bytes) -> bytes:
    """The payload of an event with one data line, empty for any other."""
    lines = _DATA.findall(event)
    data: bytes = lines[0] if len(lines) == 1 else b""
    return data


def _looks_final(event: bytes) -> bool:
    if b'"timings"' not in event:
        return False
    try:
        value = json.loads(_data_of(event))
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or "timings" not in value:
        return False
    choices = value.get("choices")
    if not isinstance(choices, list):
        return value.get("stop") is True or value.get("type") == "response.completed"
    return all(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


def _annotated_event(event: bytes, note: Mapping[str, object]) -> bytes:
    match = _DATA.search(event)
    if match is None:
        return event
    start, end = match.span(1)
    return event[:start] + annotated_document(event[start:end], note) + event[end:]
