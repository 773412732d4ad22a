"""What rivals share."""

from __future__ import annotations

from adaptive_dd.core.arena import Terms
from adaptive_dd.core.domain import Context, Outcome, ServerFacts, Setting, Timings
from adaptive_dd.core.frontier import bucket_of
from adaptive_dd.core.rng import rng_for

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def tok_s(timings: Timings) -> float:
    """Decoded tokens a second of an answer that has some."""
    return 1000.0 * timings.decode_tokens / max(timings.predicted_ms, 1e-3)


def geometric_chance(accepted_per_cycle: float, depth: int) -> float:
    """The per-token chance of acceptance that gives this accepted length at a depth, by bisection."""
    low, high = 0.0, 0.999
    for _ in range(30):
        middle = (low + high) / 2.0
        if sum(middle**k for k in range(1, depth + 1)) < accepted_per_cycle:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


class Rival:
    """What rivals share: their terms, a random source per request, and that they hear nothing of the server."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.cap = terms.settings.cap or 8
        self.depths = tuple(n for n in DEPTHS if n <= self.cap)

    def told(self, facts: ServerFacts, build: str, at_s: float) -> None:
        """Rivals do not listen."""

    def learn(self, number: int, context: Context, arm: Setting, outcome: Outcome, at_s: float) -> None:
        """Take the timings, if there are any."""
        if outcome.timings is not None and outcome.timings.decode_tokens > 0:
            self.take(context, arm, outcome.timings)

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Learn from an answer; the fixed rivals do not."""

    def bucket(self, context: Context) -> int:
        """Index of the context bucket."""
        return bucket_of(self.terms.edges, context.prompt_tokens or 0)

    def draw(self, number: int) -> tuple[float, float]:
        """Two uniform draws for request `number`."""
        rng = rng_for(self.terms.settings.seed ^ 0x5EED, number)
        return rng.random(), rng.random()
