"""Rivals that servers and their wrappers ship."""

from __future__ import annotations

import math

from adaptive_dd.core.arena import Terms
from adaptive_dd.core.domain import OFF, Context, Setting, Timings
from adaptive_dd.core.rivals.common import Rival, geometric_chance, tok_s
from adaptive_dd.core.rivals.fixed import Ladder
from adaptive_dd.core.rng import rng_for


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


class IkAutotune(Rival):
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


class Sglang(Rival):
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


class CostModel(Rival):
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
