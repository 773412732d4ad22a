"""What people use or propose today, as baselines of the bench.

Each rival is described by its authors for other places (inside an engine, per cycle, per load); here all act per
request and see what a proxy sees. Where a description leaves something open, the docstring says what was taken.
None has a floor against the baseline.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

from adaptive_dd.core.arena import Maker, Terms
from adaptive_dd.core.domain import OFF, Context, Outcome, ServerFacts, Setting, Timings
from adaptive_dd.core.frontier import bucket_of, ladder
from adaptive_dd.core.rng import rng_for

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def tok_s(timings: Timings) -> float:
    """Decoded tokens a second of an answer that has some."""
    return 1000.0 * timings.decode_tokens / max(timings.predicted_ms, 1e-3)


class _Rival:
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


class Off(_Rival):
    """No drafting, ever."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """n0."""
        return OFF


class Fixed(_Rival):
    """The baseline, ever."""

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The baseline."""
        return self.terms.settings.baseline


class Ladder(_Rival):
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


class Rocmfpx(Ladder):
    """rocmfpx-dynamic-draft.py with its quirks. Its prompt-length profile is the ladder, or the launch setting.

    One scope for all. The profile's n, not the learned one, is the centre; the last step comes after learning, so
    that at an acceptance above .80 the sent n is always one above the learned best; one sample can win; nothing decays.
    """

    ALPHA = 0.35

    def __init__(self, terms: Terms) -> None:
        """Nothing tried."""
        super().__init__(terms)
        self._acceptance: float | None = None
        self._speed: dict[int, float] = {}
        self._by_n: dict[int, float] = {}
        self._count: dict[int, int] = {}

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The best recorded n near the profile's, maybe explored, then moved by the scope's acceptance."""
        profile = super().choose(number, context, at_s)
        base, p_min = profile.n_max, profile.p_min or 0.0
        if base is None:
            base, p_min = self.terms.launch.n_max or 2, self.terms.launch.p_min or 0.0
        near = [n for n in self._speed if abs(n - base) <= 2 and self._by_n[n] >= 0.45]
        n = max(near, key=self._speed.__getitem__) if near else base
        first, second = self.draw(number)
        if first < 0.05:
            sides = (n - 1, n + 1) if second < 0.5 else (n + 1, n - 1)
            n = min(sides, key=lambda side: self._count.get(side, 0))
        if self._acceptance is not None and self._acceptance < 0.45:
            n, p_min = n - 1, max(p_min, 0.25)
        elif self._acceptance is not None and self._acceptance > 0.80:
            n, p_min = n + 1, min(p_min, 0.25)
        return Setting(min(max(n, 1), 8, self.cap), p_min)

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Three running means; a reply with nothing drafted never updates."""
        if timings.acceptance is None or arm.n_max is None:
            return
        n, speed = arm.n_max, tok_s(timings)
        self._acceptance = self._mix(self._acceptance, timings.acceptance)
        self._by_n[n] = self._mix(self._by_n.get(n), timings.acceptance)
        self._speed[n] = self._mix(self._speed.get(n), speed)
        self._count[n] = self._count.get(n, 0) + 1

    def _mix(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.ALPHA * (new - old)


class IkAutotune(_Rival):
    """ik_llama.cpp --spec-autotune: n and p each an epsilon-greedy bandit of its own on plain means of tok/s."""

    EPSILON = 0.15
    P_POINTS = tuple(round(0.095 * k, 3) for k in range(11))

    def __init__(self, terms: Terms) -> None:
        """Begin at the smallest of both."""
        super().__init__(terms)
        self._values: tuple[tuple[float, ...], ...] = (tuple(range(1, self.cap + 1)), self.P_POINTS)
        self._sums: tuple[dict[float, list[float]], ...] = ({}, {})
        self._ema: float | None = None
        self._low = self._cool = 0

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """Each coordinate on its own."""
        rng = rng_for(self.terms.settings.seed ^ 0x1C, number)
        picked = []
        for values, sums in zip(self._values, self._sums, strict=True):
            if rng.random() < self.EPSILON:
                picked.append(values[rng.integers(len(values))])
            else:
                means = {value: total / count for value, (total, count) in sums.items()}
                picked.append(max(means, key=means.__getitem__) if means else values[0])
        return Setting(int(picked[0]), float(picked[1]))

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Plain means, and everything forgotten after 30 slow replies in a row (then 50 requests of patience)."""
        speed = tok_s(timings)
        for sums, value in zip(self._sums, (float(arm.n_max or 0), float(arm.p_min or 0.0)), strict=True):
            total = sums.setdefault(value, [0.0, 0.0])
            total[0] += speed
            total[1] += 1.0
        slow = self._ema is not None and speed < 0.70 * self._ema
        self._ema = speed if self._ema is None else self._ema + 0.05 * (speed - self._ema)
        self._cool = max(0, self._cool - 1)
        self._low = self._low + 1 if slow and self._cool == 0 else 0
        if self._low >= 30:
            self._sums = ({}, {})
            self._ema, self._low, self._cool = None, 0, 50


class _Buckets(_Rival):
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


class Sglang(_Rival):
    """SGLang's adaptive steps: acceptance alone, over steps 1, 3, 5, 7, looked at every five requests. Starts at 3."""

    STEPS = (1, 3, 5, 7)

    def __init__(self, terms: Terms) -> None:
        """At step 3."""
        super().__init__(terms)
        self._steps = tuple(step for step in self.STEPS if step <= self.cap) or (1,)
        self._at = min(1, len(self._steps) - 1)
        self._ema: float | None = None
        self._seen = 0

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The current step."""
        return Setting(self._steps[self._at], 0.0)

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Move while the mean accepted length is far from the step."""
        if timings.draft_n == 0 or timings.cycles == 0:
            return
        accepted = timings.draft_n_accepted / timings.cycles
        self._ema = accepted if self._ema is None else self._ema + 0.2 * (accepted - self._ema)
        self._seen += 1
        if self._seen % 5:
            return
        while self._at > 0 and self._ema <= self._steps[self._at - 1] - 0.5 - 0.25:
            self._at -= 1
        while self._at < len(self._steps) - 1 and self._ema > self._steps[self._at] - 0.5:
            self._at += 1


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


class CostModel(_Rival):
    """Depth by a cost model, as omlx and MTPLX do per cycle: (1 + p1 + p1p2 + ...) / t(d), a 3% threshold, probes.

    Timings tell no position, so the p_k are what a geometric text of the same acceptance has; an unmeasured t(d)
    comes from its nearest measured depths. Every 16th request probes, in turn the best rival and the stalest depth.
    """

    def __init__(self, terms: Terms) -> None:
        """Begin at the launch depth."""
        super().__init__(terms)
        self._depth = min(terms.launch.n_max or 2, self.cap)
        self._chance = [0.7] * self.cap
        self._ms: dict[int, float] = {}
        self._last: dict[int, int] = {}

    def choose(self, number: int, context: Context, at_s: float) -> Setting:
        """The incumbent, a rival that scores 1.03 times as much, or a probe."""
        scores = {depth: self._score(depth) for depth in range(self.cap + 1)}
        rival = max((d for d in scores if d != self._depth), key=scores.__getitem__)
        if self._ms and scores[rival] > 1.03 * scores[self._depth]:
            self._depth, rival = rival, self._depth
        depth = self._depth
        if number % 32 == 16:
            depth = rival
        elif number % 32 == 0:
            depth = min(scores, key=lambda d: self._last.get(d, 0))
        self._last[depth] = number
        return Setting(depth, 0.0) if depth else OFF

    def _score(self, depth: int) -> float:
        survive, emitted = 1.0, 1.0
        for chance in self._chance[:depth]:
            survive *= chance
            emitted += survive
        return emitted / self._time(depth)

    def _time(self, depth: int) -> float:
        if depth in self._ms or not self._ms:
            return self._ms.get(depth, 1.0 + 0.15 * depth)
        known = sorted(self._ms)
        if len(known) == 1:
            return self._ms[known[0]] * (1.0 + 0.15 * depth) / (1.0 + 0.15 * known[0])
        near = sorted(sorted(known, key=lambda d: abs(d - depth))[:2])
        slope = (self._ms[near[1]] - self._ms[near[0]]) / (near[1] - near[0])
        return max(self._ms[near[0]] + slope * (depth - near[0]), 0.1 * self._ms[near[0]])

    def take(self, context: Context, arm: Setting, timings: Timings) -> None:
        """Running means: p_k by .08 a request, t(d) by a time constant of 400 ms."""
        depth = arm.n_max if arm.n_max is not None else self.terms.launch.n_max or 0
        if timings.cycles == 0:
            return
        new, keep = timings.predicted_ms / timings.cycles, math.exp(-timings.predicted_ms / 400.0)
        self._ms[depth] = keep * self._ms.get(depth, new) + (1.0 - keep) * new
        if timings.draft_n and depth:
            chance = geometric_chance(timings.draft_n_accepted / timings.cycles, depth)
            for k in range(min(depth, self.cap)):
                self._chance[k] += 0.08 * (chance - self._chance[k])


class UcbSpec(_Rival):
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


class FullInformation(_Rival):
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


RIVALS: Mapping[str, Maker] = {
    "off": Off,
    "fixed": Fixed,
    "ladder": Ladder,
    "rocmfpx": Rocmfpx,
    "ik": IkAutotune,
    "eps": Epsilon,
    "ucb1": Ucb1,
    "dts": DiscountedThompson,
    "sglang": Sglang,
    "cost-model": CostModel,
    "ucbspec": UcbSpec,
    "full-information": FullInformation,
}
