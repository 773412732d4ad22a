"""Rivals that learn nothing."""

from __future__ import annotations

from bisect import bisect_right

from adaptive_dd.core.arena import Terms
from adaptive_dd.core.domain import OFF, Context, Setting
from adaptive_dd.core.frontier import ladder
from adaptive_dd.core.rivals.common import Rival


class Off(Rival):
    """No drafting, ever."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """n0."""
        return OFF


class Fixed(Rival):
    """The baseline, ever."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The baseline."""
        return self.terms.settings.baseline


class Ladder(Rival):
    """The research note's Dynamic Draft: the last rule with MIN <= prompt tokens, no learning."""

    def __init__(self, terms: Terms) -> None:
        """Build the rules once."""
        super().__init__(terms)
        rungs = ladder(terms.frontier, edges=terms.edges, cap=self.cap, baseline=terms.settings.baseline)
        self._from = [rung.min_tokens for rung in rungs]
        self._settings = [rung.setting for rung in rungs]

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The rung of this prompt; the baseline where the frontier has none."""
        rung = bisect_right(self._from, context.prompt_tokens or 0) - 1
        return self._settings[rung] if rung >= 0 else self.terms.settings.baseline
