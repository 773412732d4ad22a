"""Whether the prompt's exact length matters for a decision, and whether its bounds leave open what to decide."""

from __future__ import annotations

import math
from dataclasses import replace

from adaptive_dd.core.controller import State, decide
from adaptive_dd.core.domain import Context, Mode
from adaptive_dd.core.frontier import bucket_of
from adaptive_dd.core.ledger import Prediction
from adaptive_dd.core.rng import rng_for


def edges_that_matter(state: State, context: Context) -> tuple[int, ...] | None:
    """The prompt lengths at which the decision may change; None where the length does not matter at all.

    Found by asking `decide` itself: without a length it says `no-count` only where it would have chosen by it.
    While learning, every edge of a bucket counts, because evidence is kept by bucket.
    """
    if decide(state, replace(context, prompt_tokens=None), rng_for(0, 0)).reason != "no-count":
        return None
    if state.settings.mode is Mode.ADAPTIVE and not state.frozen:
        return state.edges
    return _steps(state, context)


def _steps(state: State, context: Context) -> tuple[int, ...]:
    """The edges at which a policy that does not learn changes its setting."""
    rng = rng_for(0, 0)
    arms = [decide(state, replace(context, prompt_tokens=at), rng).arm for at in (0, *state.edges)]
    steps = zip(state.edges, arms[:-1], arms[1:], strict=True)
    return tuple(edge for edge, below, above in steps if below != above)


def may_change(edges: tuple[int, ...], prediction: Prediction) -> bool:
    """Whether the bounds of a prompt's length lie in more than one bucket."""
    if math.isinf(prediction.high):
        return bool(edges) and prediction.low < edges[-1]
    return bucket_of(edges, math.ceil(prediction.low)) != bucket_of(edges, math.floor(prediction.high))
