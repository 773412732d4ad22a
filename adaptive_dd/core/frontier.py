"""The offline frontier as a value: buckets, safe rows, the ladder of chosen settings.

Pure look-ups on `Frontier`; reading and checking files is `frontier_file`'s work.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from adaptive_dd.core.domain import Frontier, Setting

# Without measurements: powers of four, as decode cost grows slowly with context.
DEFAULT_EDGES = (512, 2048, 8192, 32768, 131072)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: from `min_tokens` prompt tokens on, play `setting`."""

    min_tokens: int
    setting: Setting


def bucket_edges(frontier: Frontier) -> tuple[int, ...]:
    """Where one context bucket ends and the next begins (a prompt of exactly an edge belongs above it)."""
    if frontier.edges is not None:
        return frontier.edges
    contexts = sorted({row.context_tokens for row in frontier.rows})
    if not contexts:
        return DEFAULT_EDGES
    return tuple(round(math.sqrt(low * high)) for low, high in zip(contexts, contexts[1:], strict=False))


def bucket_of(edges: tuple[int, ...], prompt_tokens: int) -> int:
    """Index of the bucket (0 .. len(edges)) that holds a prompt of this length."""
    return bisect_right(edges, prompt_tokens)
