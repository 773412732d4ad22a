"""When the tokens of a streamed answer arrived: what is left to learn from on routes whose answers bring no `timings`.

Read from llama-server's sources (b9101, b11434) and seen on both: on `/v1/messages` and `/v1/responses` every token
that has text is an event of its own, the opening event comes with the first token (whether that has text or not), the
closing one with the last, and it counts them all. Events have names there, so that telling them apart costs no JSON.

This module only notes; what it means is `core.inferred`. It is told the time, like everything in the core: the shell
sets `at_ms` before it feeds what it read then, and says how long the client let it wait.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from adaptive_dd.core.tap import Tap

# Times kept of one answer: 256 kB at most. A verification cycle arrives in one read or a few.
MOST_BURSTS = 16_384
# Passing a chunk on takes some 50 us. Less than this is no waiting for the client.
NO_WAIT_MS = 1.0

OPENING = frozenset({b"message_start", b"response.created"})
CLOSING = frozenset({b"message_delta", b"response.completed", b"response.incomplete"})
_DELTA, _RESPONSE = b"content_block_delta", b"response."
# What the Messages API wants at the end of a thinking block: an event without a token.
_SIGNATURE = b'"signature_delta"'


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One answer by its arrivals. Times are milliseconds of one clock.

    sent_ms       the request went out                opened_ms   the opening event, with the first token
    closed_ms     the closing event, with the last    held_ms     time during which the client held up our reading
    times, counts   when token events came, and how many at once
    output_tokens, prompt_n, cache_n   the server's own counts, unchecked
    complete      False where there were more times than are kept
    """

    sent_ms: float
    opened_ms: float
    closed_ms: float
    held_ms: float
    times: tuple[float, ...]
    counts: tuple[int, ...]
    output_tokens: object
    prompt_n: object
    cache_n: object
    complete: bool = True


class TimedTap(Tap):
    """A tap that also notes when the tokens of a stream came. `at_ms`: when the chunk fed next was read."""

    def __init__(self, sent_ms: float) -> None:
        super().__init__(stream=True)
        self.at_ms = sent_ms
        self._sent_ms = sent_ms
        self._held_ms = 0.0
        self._opened_ms: float | None = None
        self._closed_ms: float | None = None
        self._times, self._counts = array("d"), array("l")
        self._complete = True
        self._usage: dict[str, object] = {}

    def held(self, ms: float) -> None:
        """Passing a chunk on took this long, and nothing was read meanwhile."""
        if ms > NO_WAIT_MS and self._opened_ms is not None and self._closed_ms is None:
            self._held_ms += ms

    def arrivals(self) -> Arrivals | None:
        """What was noted; None where the stream did not open and close as one of these routes' does."""
        if self._opened_ms is None or self._closed_ms is None:
            return None
        return Arrivals(
            self._sent_ms,
            self._opened_ms,
            self._closed_ms,
            self._held_ms,
            tuple(self._times),
            tuple(self._counts),
            *_counted(self._usage),
            complete=self._complete,
        )

    def _event(self, event: bytes) -> None:
        super()._event(event)
        name = _name_of(event)
        if name == _DELTA or (name.startswith(_RESPONSE) and name.endswith(b".delta")):
            if _SIGNATURE not in event:
                self._token()
        elif name in OPENING:
            self._opened_ms = self.at_ms
            self._usage |= _usage_in(event)
        elif name in CLOSING:
            self._closed_ms = self.at_ms
            self._usage |= _usage_in(event)

    def _token(self) -> None:
        if self._times and self._times[-1] == self.at_ms:
            self._counts[-1] += 1
        elif len(self._times) < MOST_BURSTS:
            self._times.append(self.at_ms)
            self._counts.append(1)
        else:
            self._complete = False


def _name_of(event: bytes) -> bytes:
    """The event's name; empty where it has none."""
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line[6:].strip()
    return b""


def _usage_in(event: bytes) -> dict[str, object]:
    """The counts that an opening or a closing event brings, wherever its route keeps them."""
    data = b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:"))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    for name in ("message", "response"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    usage = found.get("usage") if isinstance(found, Mapping) else None
    return dict(usage) if isinstance(usage, Mapping) else {}


def _counted(usage: Mapping[str, object]) -> tuple[object, object, object]:
    """Output tokens, prompt tokens that were processed, and prompt tokens that were not.

    Messages leave the cached ones out of `input_tokens`, responses count them in.
    """
    details, whole = usage.get("input_tokens_details"), usage.get("input_tokens")
    if not isinstance(details, Mapping):
        return usage.get("output_tokens"), whole, usage.get("cache_read_input_tokens", 0)
    cached = details.get("cached_tokens", 0)
    processed = whole - cached if isinstance(whole, int) and isinstance(cached, int) else None
    return usage.get("output_tokens"), processed, cached
