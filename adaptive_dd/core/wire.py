"""llama-server's dialect, as a proxy must know it: which routes generate, what an answer's `timings` say, how an
error looks. Bytes and values only; cutting into a body is `core.splice`, reading a stream `core.tap`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from adaptive_dd.core.domain import Timings
from adaptive_dd.core.splice import Scan, client_override, replace_value, scan, setting_fields, splice

__all__ = [
    "ROUTES",
    "Route",
    "Scan",
    "client_override",
    "error_body",
    "parse_timings",
    "replace_value",
    "route_of",
    "scan",
    "setting_fields",
    "splice",
]

# --- routes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """A route that generates.

    endpoint      the name in `Kind`
    takes_fields  whether `speculative.*` in its body can reach the generation
    json_body     whether its body is JSON (an upload is not, and is never read)
    by_arrival    whether its streams name their events, so that an answer without `timings` can be learned from by
                  when its tokens arrived (`core.arrivals`)
    """

    endpoint: str
    takes_fields: bool = True
    json_body: bool = True
    by_arrival: bool = False


# By the end of the path, because `--api-prefix` may stand before it; the first that fits wins, so the longer ones
# stand first.
ROUTES: tuple[tuple[str, Route], ...] = (
    ("/chat/completions", Route("chat")),
    ("/audio/transcriptions", Route("audio", takes_fields=False, json_body=False)),
    ("/v1/messages", Route("messages", takes_fields=False, by_arrival=True)),
    ("/completions", Route("completion")),
    ("/completion", Route("completion")),
    ("/responses", Route("responses", by_arrival=True)),
    ("/infill", Route("infill")),
)


def route_of(method: str, path: str) -> Route | None:
    """The generating route that a request means, None for everything else (which passes untouched)."""
    if method != "POST":
        return None
    for ending, route in ROUTES:
        if path.endswith(ending):
            return route
    return None


# --- errors --------------------------------------------------------------------------------------------------


def error_body(path: str, status: int, message: str) -> bytes:
    """An error of ours in the shape that clients of `path` expect: Anthropic's for messages, else llama-server's."""
    if "/v1/messages" in path:
        kind = "overloaded_error" if status == 503 else "api_error"
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    kind = "not_supported_error" if status == 501 else "unavailable_error"
    return json.dumps({"error": {"code": status, "message": message, "type": kind}}).encode()


# --- timings -------------------------------------------------------------------------------------------------

# Above any context window and any answer, so a larger count is an overflow or a wrong unit.
LARGEST_COUNT = 10_000_000
# A week: a decode that long has been interrupted, or the clock has jumped.
LARGEST_MS = 24 * 3_600_000.0
# A token that takes longer than this was not decoded in that time: the machine slept, or the clock jumped.
SLOWEST_MS_PER_TOKEN = 60_000.0
# Tokens a second of one stream. The fastest hardware in public use gives a few thousand.
FASTEST_TOKENS_PER_S = 100_000.0

_NEEDED = ("prompt_n", "predicted_n", "predicted_ms")
_COUNTS = ("prompt_n", "predicted_n", "cache_n", "draft_n", "draft_n_accepted")
_TIMES = ("prompt_ms", "predicted_ms")
_BY_DEPTH = ("depth", "draft_n", "draft_n_accepted")


def parse_timings(found: object) -> Timings | str:
    """The server's account of one answer, or the key of REJECTIONS that says why it cannot be true.

    Rates in it (`predicted_per_second`) are never read: builds compute them differently, and they may be null.
    """
    if not isinstance(found, Mapping):
        return "not-an-object"
    if any(name not in found for name in _NEEDED):
        return "missing"
    for name in _COUNTS + _TIMES:
        fault = _fault(found.get(name, 0), whole=name in _COUNTS)
        if fault:
            return fault
    counts = {name: int(found.get(name, 0)) for name in _COUNTS}
    times = {name: float(found.get(name, 0.0)) for name in _TIMES}
    timings = Timings(**counts, **times)  # type: ignore[arg-type]
    by_depth = parse_by_depth(found.get("draft_by_depth"), timings.draft_n, timings.draft_n_accepted)
    return _contradiction(timings) or replace(timings, by_depth=by_depth)


def parse_by_depth(found: object, draft_n: int, accepted: int) -> tuple[tuple[int, int, int], ...]:
    """ik_llama.cpp's counts by position in the draft: (depth, drafted, accepted), in order of depth.

    Empty where there are none, and where they cannot be true: depths out of order, more accepted than drafted, or
    sums that differ from the totals. The totals then still stand.
    """
    rows: list[tuple[int, int, int]] = []
    for entry in found if isinstance(found, list) else ():
        values = [entry.get(name) if isinstance(entry, Mapping) else None for name in _BY_DEPTH]
        if any(isinstance(v, bool) or not isinstance(v, int) or not 0 <= v <= LARGEST_COUNT for v in values):
            return ()
        rows.append((values[0], values[1], values[2]))  # type: ignore[arg-type]
    ordered = all(low[0] < high[0] for low, high in itertools.pairwise(rows)) and (
        not rows or rows[0][0] >= 1
    )
    true = ordered and all(taken <= drafted for _, drafted, taken in rows)
    sums = (sum(row[1] for row in rows), sum(row[2] for row in rows))
    return tuple(rows) if true and sums == (draft_n, accepted) else ()


def _fault(value: object, *, whole: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "not-a-number"
    if isinstance(value, float) and not math.isfinite(value):
        return "not-finite"
    if value < 0:
        return "negative"
    if value > (LARGEST_COUNT if whole else LARGEST_MS):
        return "too-large"
    if whole and value != int(value):
        return "not-a-number"
    return ""


def _contradiction(timings: Timings) -> str:
    if timings.draft_n_accepted > timings.draft_n:
        return "accepted-above-drafted"
    if timings.draft_n_accepted > timings.predicted_n:
        return "accepted-above-predicted"
    # The first token belongs to the prompt pass: a server may truly report one token in a microsecond.
    if timings.decode_tokens and timings.predicted_ms <= 0.0:
        return "no-time"
    if timings.decode_tokens * 1000.0 > FASTEST_TOKENS_PER_S * timings.predicted_ms:
        return "too-fast"
    if timings.decode_tokens and timings.predicted_ms > SLOWEST_MS_PER_TOKEN * timings.decode_tokens:
        return "too-slow"
    return ""
