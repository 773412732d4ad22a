"""Timings from arrivals: how long an answer took, and in how many verification cycles, by when its tokens came.

Time. The server's `predicted_ms` runs from the first token to the last, and so does the stream: from its opening event
to its last token, or to its closing event where that token has no text. Seen on a real b9101: within 0.6%.

Cycles. The tokens of a cycle come together, but not at one instant: they are looked at one after the other (gaps of up
to some milliseconds, where cycles take 60 to 130). So what counts as the same cycle must be a share of a cycle's time,
and that share is looked for where there are no gaps: upwards from a tenth, the first octave that is as good as empty. A
cycle's time is the gap such that half of the answer passed in gaps at least as long. Without drafting every token is a
cycle: no gap needs a meaning, and tokens without an event do no harm. With it they may hide cycles, so few are allowed.

What cannot be known: drafted tokens. With a p_min of 0 every cycle drafts all it may (the last ones less, which is left
out). With another, or with the server's own (0.75 on b9101, 0 on b11434), only those accepted are counted, and
`Outcome.inferred` says that the rest is not there.

Where it misleads: two cycles that were read together and emitted few tokens look like one long one, so a proxy that is
too busy to read in time sees fewer and longer cycles. Time per token, which is what counts, is right all the same.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence

from adaptive_dd.core.arrivals import Arrivals
from adaptive_dd.core.domain import Setting, Timings
from adaptive_dd.core.wire import parse_timings

# Share of an answer's time during which the client may have held up our reading.
HELD_SHARE = 0.05
# Tokens without an event of their own: the first and the last (a special token has no text), and this share of the
# others (half a character, the beginning of a stop word).
SILENT_ENDS, SILENT_SHARE = 2, 0.02
# Where the octave without gaps may lie (its middle, in cycle times), and the share of cycles that may lie in it all the
# same. A tenth fits the real server above; from .4 on an undrafted cycle would be lost beside a deeply drafted one.
VALLEYS = (0.1, 0.14, 0.2, 0.28, 0.4)
BLURRED_SHARE = 0.05
# Share of bursts with more tokens than one cycle can emit; they are counted as the cycles that they must have been.
MERGED_SHARE = 0.05


def inferred(seen: Arrivals, arm: Setting, *, alone: bool = False) -> Timings | str | None:
    """The timings that an answer must have had, or the key of REJECTIONS that says why they cannot be told.

    None where the depth of drafting is not known. alone: nothing else was generated when the request went out, so that
    the time to the first token is the prompt's; else `prompt_ms` is 0, which says nothing.
    """
    if arm.n_max is None:
        return None
    # Counts first: what follows calculates with them.
    whole = _timings(seen, (seen.opened_ms - seen.sent_ms) if alone else 0.0, 0, 0)
    if isinstance(whole, str):
        return whole
    times = [seen.opened_ms, *seen.times, _last_ms(seen)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    cycles = _faulty(seen, whole, arm.n_max, gaps) or _cycles(seen, whole.decode_tokens, arm.n_max, gaps)
    if isinstance(cycles, str):
        return cycles
    accepted = whole.decode_tokens - cycles
    drafted = max(accepted, arm.n_max * cycles) if arm.p_min == 0.0 else accepted
    return _timings(seen, whole.prompt_ms, drafted, accepted)


def _timings(seen: Arrivals, prompt_ms: float, drafted: int, accepted: int) -> Timings | str:
    return parse_timings(
        {
            "prompt_n": seen.prompt_n,
            "prompt_ms": prompt_ms,
            "predicted_n": seen.output_tokens,
            "predicted_ms": _last_ms(seen) - seen.opened_ms,
            "cache_n": seen.cache_n,
            "draft_n": drafted,
            "draft_n_accepted": accepted,
        }
    )


def _last_ms(seen: Arrivals) -> float:
    """When the last token came: a last one without text with the closing event, which else is a little later."""
    all_told = isinstance(seen.output_tokens, int) and sum(seen.counts) >= seen.output_tokens
    return seen.times[-1] if all_told and seen.times else seen.closed_ms


def _faulty(seen: Arrivals, whole: Timings, depth: int, gaps: Sequence[float]) -> str:
    """Why the arrivals are not those of the tokens; empty where they are."""
    if not seen.complete:
        return "too-long"
    if seen.held_ms > HELD_SHARE * whole.predicted_ms:
        return "slow-reader"
    missing, few = whole.predicted_n - sum(seen.counts), SILENT_ENDS + SILENT_SHARE * whole.predicted_n
    # An opening event that came before the first token would count the prompt in.
    early = gaps[0] > (1.0 + 2.0 * max(0, missing)) * _usual(sorted(gaps))
    # A draft that goes on behind the answer's end is counted by the server and never sent.
    silent = depth > 0 and missing > few + min(depth, whole.predicted_n // 4)
    return "held-back" if early or silent or -missing > few else ""


def _cycles(seen: Arrivals, tokens: int, depth: int, gaps: Sequence[float]) -> int | str:
    """Verification cycles of an answer of so many decoded tokens, or why they cannot be counted."""
    if depth == 0 or tokens == 0:
        return tokens
    bar = _bar(gaps)
    if bar is None:
        return "blurred"
    sizes = _bursts(gaps, (0, *seen.counts, 0), bar)
    too_large = [size for size in sizes if size > depth + 1]
    if len(too_large) > max(1.0, MERGED_SHARE * len(sizes)):
        return "merged"
    cycles = len(sizes) - 1 + sum(math.ceil(size / (depth + 1)) - 1 for size in too_large)
    return "merged" if tokens > (depth + 1) * cycles else min(cycles, tokens)


def _bar(gaps: Sequence[float]) -> float | None:
    """The gap from which on another cycle has begun; None where there is no such gap."""
    ordered = sorted(gaps)
    usual = _usual(ordered)
    for share in VALLEYS:
        bar = share * usual
        low, middle, high = (
            bisect_right(ordered, bar * factor) for factor in (math.sqrt(0.5), 1.0, math.sqrt(2.0))
        )
        if high - low <= max(1.0, BLURRED_SHARE * (len(ordered) - middle)):
            return bar
    return None


def _usual(ordered: Sequence[float]) -> float:
    """The gap, of those in order, such that half of the whole time passed in gaps at least as long."""
    left = 0.5 * sum(ordered)
    for gap in reversed(ordered):
        left -= gap
        if left <= 0.0:
            return gap
    return 0.0


def _bursts(gaps: Sequence[float], counts: Sequence[int], bar: float) -> list[int]:
    """Tokens that came together: the first one's burst, then one for each cycle. counts: one more than gaps."""
    sizes = [counts[0]]
    for gap, count in zip(gaps, counts[1:], strict=True):
        if gap > bar:
            sizes.append(count)
        else:
            sizes[-1] += count
    return sizes
