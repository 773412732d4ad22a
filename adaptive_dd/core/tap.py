"""The tap: what an answer says about itself, read from the chunks that pass by, without holding them back.

It is fed after the client was, keeps at most KEPT_BYTES, and never raises. Per event of a stream it costs a search for
a handful of words; JSON is parsed once, at the end. An event or a body that is longer than the bound is clipped to
its last TAIL_BYTES, where `timings` stands in every build we know (it is the last member); one that a server wrote
elsewhere is then not seen, and the answer counts as one without timings.
"""

from __future__ import annotations

import json

from adaptive_dd.core.domain import Timings
from adaptive_dd.core.wire import parse_timings

# The longest event in ordinary use is the last one of /completion, which repeats the prompt: 128k tokens are about
# 500 kB. Clipping it is harmless, so the bound is set by memory: 64 streams cost at most 16 MB.
KEPT_BYTES = 256 * 1024
TAIL_BYTES = 16 * 1024

_HEAD_BYTES = 64
_BOM = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder()


class Tap:
    """Reads one answer. `stream` is true for `text/event-stream`, false for one JSON document.

    data_events   events with data seen so far (comments are none)
    has_data      whether the first byte that is not a ping has come
    done          whether `[DONE]` was seen
    error         whether the answer carries an error object
    """

    def __init__(self, *, stream: bool) -> None:
        self.data_events = 0
        self.done = False
        self.error = False
        self._stream = stream
        self._kept = bytearray()
        self._head = b""
        self._clipped = False
        self._started = False
        self._drop_newline = False
        self._last: tuple[bytes, bool] | None = None

    @property
    def has_data(self) -> bool:
        """Whether the first event (or the first byte of a document) has come."""
        return self.data_events > 0 or (not self._stream and bool(self._kept))

    @property
    def kept_bytes(self) -> int:
        """How much is held now."""
        return len(self._kept) + (len(self._last[0]) if self._last else 0)

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the answer, cut anywhere."""
        if not chunk:
            return
        if not self._stream:
            self._keep(chunk)
            return
        if self._started and not self._kept and not self._drop_newline and _is_one_event(chunk):
            self._event(chunk[:-2])  # the ordinary case, without a copy
            return
        searched = max(0, len(self._kept) - 1)
        self._keep(self._with_plain_newlines(chunk))
        if not self._started:
            if len(self._kept) < len(_BOM) and _BOM.startswith(self._kept):
                return
            self._started = True
            if self._kept.startswith(_BOM):
                del self._kept[: len(_BOM)]
            searched = 0
        self._cut_events(searched)
        self._clip()

    def end(self) -> None:
        """The answer is complete: an event that no blank line ended is read too."""
        if self._stream:
            self._event(bytes(self._kept).strip(b"\n"))
        else:
            self._document()
        self._kept.clear()

    def result(self) -> Timings | str | None:
        """What the last `timings` said: the values, why they cannot be true (a key of REJECTIONS), or None."""
        if self._last is None:
            return None
        found = _timings_in(*self._last)
        return None if found is _NOTHING else parse_timings(found)

    def _keep(self, chunk: bytes) -> None:
        self._kept += chunk
        if not self._stream:
            if len(self._head) < _HEAD_BYTES:
                self._head = bytes(self._kept[:_HEAD_BYTES])
            self._clip()

    def _clip(self) -> None:
        if len(self._kept) > KEPT_BYTES:
            if not self._clipped:
                self._head = bytes(self._kept[:_HEAD_BYTES])
            self._clipped = True
            del self._kept[:-TAIL_BYTES]

    def _with_plain_newlines(self, chunk: bytes) -> bytes:
        """CR LF and CR become LF, also where the cut is between the two."""
        if self._drop_newline and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._drop_newline = False
        if b"\r" in chunk:
            self._drop_newline = chunk.endswith(b"\r")
            return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._drop_newline = self._drop_newline and not chunk
        return chunk

    def _cut_events(self, searched: int) -> None:
        kept = self._kept
        start = 0
        end = kept.find(b"\n\n", searched)
        while end >= 0:
            self._event(bytes(kept[start:end]))
            start = end + 2
            end = kept.find(b"\n\n", start)
        if start:
            del kept[:start]

    def _event(self, event: bytes) -> None:
        head, clipped = self._head, self._clipped
        self._head, self._clipped = b"", False
        if clipped:
            self._data(event, clipped=True, is_data=head.lstrip(b"\n").startswith((b"data:", b"event:")))
        elif event.find(b"\n") >= 0:
            self._lines(event)
        elif event.startswith(b"data:"):
            self._data(event[5:])
        elif event.startswith(b"error:"):
            self.error = True

    def _lines(self, event: bytes) -> None:
        lines = event.split(b"\n")
        data = [line[6:] if line[5:6] == b" " else line[5:] for line in lines if line.startswith(b"data:")]
        # Older builds name the field itself `error`; the Messages API names the event so.
        if any(line.startswith(b"error:") or line.replace(b" ", b"") == b"event:error" for line in lines):
            self.error = True
        if data:
            self._data(b"\n".join(data))

    def _data(self, data: bytes, *, clipped: bool = False, is_data: bool = True) -> None:
        if is_data:
            self.data_events += 1
        if data.find(b'"timings"') >= 0:
            self._last = (data, clipped)
        elif len(data) < _HEAD_BYTES and data.strip() == b"[DONE]":
            self.done = True
        if data.find(b'"error"') >= 0 and not clipped and _is_error(data):
            self.error = True

    def _document(self) -> None:
        document = bytes(self._kept)
        if b'"timings"' in document and self._head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"{"):
            self._last = (document, self._clipped)
        if b'"error"' in document and not self._clipped and _is_error(document):
            self.error = True


def _is_one_event(chunk: bytes) -> bool:
    """Whether it is one line and the end of an event. (`find`, because `in` first tries bytes as a number.)"""
    return chunk.endswith(b"\n\n") and chunk.find(b"\n") == len(chunk) - 2 and chunk.find(b"\r") < 0


_NOTHING = object()


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_error(data: bytes) -> bool:
    value = _parsed(data)
    return isinstance(value, dict) and (bool(value.get("error")) or value.get("type") == "error")


def _timings_in(data: bytes, clipped: bool) -> object:
    if clipped:
        return _timings_in_tail(data.decode("utf-8", "replace"))
    value = _parsed(data)
    if not isinstance(value, dict) or "timings" not in value:
        return _NOTHING
    return value["timings"]


def _timings_in_tail(text: str) -> object:
    """The last member `timings` of a clipped object.

    Inside a JSON string a quote is escaped, so a bare `"timings"` behind a comma or a brace is a key.
    """
    at = text.rfind('"timings"')
    while at >= 0:
        before, behind = text[:at].rstrip(), text[at + 9 :].lstrip()
        if before[-1:] in ("{", ",") and behind.startswith(":"):
            try:
                return _DECODER.raw_decode(behind[1:].lstrip())[0]
            except (ValueError, RecursionError):
                return _NOTHING
        at = text.rfind('"timings"', 0, at)
    return _NOTHING
