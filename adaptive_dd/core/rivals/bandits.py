"""Bandits: the textbook's, per context bucket, and two from papers."""

from __future__ import annotations

import math

from adaptive_dd.core.arena import Terms
from adaptive_dd.core.domain import OFF, Context, Setting, Timings
from adaptive_dd.core.rivals.common import Rival, geometric_chance, tok_s
from adaptive_dd.core.rng import rng_for


class _Buckets(Rival):
    """A bandit per context bucket over off, the baseline and the usual depths at p 0."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        grid = {OFF, terms.settings.baseline, *(Setting(n, 0.0) for n in self.depths)}
        self.arms = tuple(sorted(grid, key=lambda arm: arm.order))
        self._tables: dict[int, dict[Setting, list[float]]] = {}

    def table(self, context: Context) -> dict[Setting, list[float]]:
        """Sums of this bucket, per arm."""
        return self._tables.setdefault(self.bucket(context), {})


class Epsilon(_Buckets):
    """Epsilon-greedy (.1) on mean ms per token; begins with the baseline."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The smallest mean, or a uniform arm."""
        first, second = self.draw(number)
        if first < 0.1:
            return self.arms[int(second * len(self.arms))]
        table = self.table(context)
        if not table:
            return self.terms.settings.baseline
        return min(table, key=lambda arm: table[arm][0] / table[arm][1])

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Add to the mean."""
        total = self.table(context).setdefault(arm, [0.0, 0.0])
        total[0] += timings.predicted_ms / timings.decode_tokens
        total[1] += 1.0


class Ucb1(_Buckets):
    """UCB1 on tok/s, scaled by the largest seen in the bucket; every arm once first."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The largest index."""
        table = self.table(context)
        for arm in self.arms:
            if arm not in table:
                return arm
        top = max(total[2] for total in table.values())
        rounds = sum(total[1] for total in table.values())
        return max(
            table,
            key=lambda arm: (
                table[arm][0] / table[arm][1] / top + math.sqrt(2.0 * math.log(rounds) / table[arm][1])
            ),
        )

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Sum, count and largest."""
        speed = tok_s(timings)
        total = self.table(context).setdefault(arm, [0.0, 0.0, 0.0])
        total[0] += speed
        total[1] += 1.0
        total[2] = max(total[2], speed)


class DiscountedThompson(_Buckets):
    """Discounted Gaussian Thompson sampling (gamma .99) on log tok/s; a content spread of .3, untried arms as wide."""

    GAMMA = 0.99
    SPREAD = 0.3

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The largest draw."""
        table = self.table(context)
        weight = sum(total[1] for total in table.values())
        level = sum(total[0] for total in table.values()) / weight if weight else 0.0
        rng, best, chosen = rng_for(self.terms.settings.seed ^ 0xD75, number), -math.inf, self.arms[0]
        for arm in self.arms:
            total, count = table.get(arm, (0.0, 0.0))
            mean = (total + level) / (count + 1.0)  # one pseudo-answer at the bucket's level
            drawn = mean + self.SPREAD / math.sqrt(count + 1.0) * rng.normal()
            if drawn > best:
                best, chosen = drawn, arm
        return chosen

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Forget a little of everything, then add."""
        table = self.table(context)
        for total in table.values():
            total[0] *= self.GAMMA
            total[1] *= self.GAMMA
        total = table.setdefault(arm, [0.0, 0.0])
        total[0] += math.log(tok_s(timings))
        total[1] += 1.0


class UcbSpec(Rival):
    """BanditSpec's UCBSpec: mean accepted length + n_max * sqrt(2 log t / N), cost not counted. Arms: the depths."""

    def __init__(self, terms: Terms) -> None:
        """Nothing tried."""
        super().__init__(terms)
        self._sums: dict[int, list[float]] = {}

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The largest index; every depth once first."""
        for depth in self.depths:
            if depth not in self._sums:
                return Setting(depth, 0.0)
        rounds = sum(count for _, count in self._sums.values())
        wide = self.depths[-1] * math.sqrt(2.0 * math.log(rounds))
        return Setting(
            max(
                self._sums,
                key=lambda depth: (
                    self._sums[depth][0] / self._sums[depth][1] + wide / math.sqrt(self._sums[depth][1])
                ),
            ),
            0.0,
        )

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Accepted per cycle."""
        if timings.cycles and arm.n_max:
            total = self._sums.setdefault(arm.n_max, [0.0, 0.0])
            total[0] += timings.draft_n_accepted / timings.cycles
            total[1] += 1.0


class FullInformation(Rival):
    """Not-a-Bandit's full-information view: every depth is scored on each verified text, as drafts are prefixes.

    Follows the leader of discounted (.98) scores E_n / t(n); E_n is geometric in the text's own acceptance and t(n) a
    least-squares line through the cycle times seen (off included). One request in twenty goes to a depth in turn.
    """

    def __init__(self, terms: Terms) -> None:
        """Begin at the launch depth."""
        super().__init__(terms)
        self._all = (0, *self.depths)
        self._emitted = dict.fromkeys(self._all, 0.0)
        self._weight = 0.0
        self._moments = [0.0] * 5  # weight, n, n*n, ms, n*ms

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The leader, or the depth whose turn it is."""
        if number % 20 == 0:
            depth = self._all[number // 20 % len(self._all)]
        elif self._weight == 0.0:
            depth = min(self.terms.launch.n_max or 2, self.cap)
        else:
            depth = max(self._all, key=lambda n: self._emitted[n] / self._time(n))
        return Setting(depth, 0.0) if depth else OFF

    def _time(self, depth: int) -> float:
        weight, n, nn, ms, nms = self._moments
        spread = weight * nn - n * n
        slope = (weight * nms - n * ms) / spread if spread > 1e-6 * weight * weight else 0.15 * ms / weight
        return max((ms - slope * n) / weight + slope * depth, 0.05 * ms / weight)

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Score all depths on this text."""
        depth = arm.n_max if arm.n_max is not None else self.terms.launch.n_max or 0
        if timings.cycles == 0:
            return
        ms = timings.predicted_ms / timings.cycles
        moments = (1.0, depth, depth * depth, ms, depth * ms)
        self._moments = [0.98 * old + new for old, new in zip(self._moments, moments, strict=True)]
        if timings.draft_n == 0 or depth == 0:
            return
        chance = geometric_chance(timings.draft_n_accepted / timings.cycles, depth)
        self._weight = 0.98 * self._weight + 1.0
        for n in self._all:
            emitted = sum(chance**k for k in range(n + 1))
            self._emitted[n] = 0.98 * self._emitted[n] + emitted
