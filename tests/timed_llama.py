"""A small llama-server whose answers take the time that a simple model says: to calibrate on, without waiting."""

from __future__ import annotations

import math
import random
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fake_llama import FakeLlama


@dataclass
class TimedLlama(FakeLlama):
    """Tokens are words. A cycle that drafts d tokens takes `cycle_ms(context, d)`; acceptance is `chance`.

    slowness: real seconds that pass for a simulated one (1 where time itself is tested).
    noise, mood: relative spread of a cycle's time, and of a whole answer's.
    hook: called before each answer, may raise or change things.
    caches: whether a prompt's beginning seen just before is re-used. flatters: a prompt that comes twice in a row is
    drafted from its former answer, as b9101 does: everything is accepted.
    """

    n_ctx: int = 8192
    chance: float = 0.9
    cycle_ms: Callable[[int, int], float] = lambda context, d: 10.0 * (1.0 + 0.05 * d)
    noise: float = 0.01
    mood: float = 0.0
    slowness: float = 0.0
    caches: bool = True
    flatters: bool = True
    prompt_ms: float = 0.1
    hook: Callable[[TimedLlama], None] = lambda llama: None
    prompts: list[list[int]] = field(default_factory=list)
    _cached: list[int] = field(default_factory=list)

    def props(self) -> dict[str, object]:
        found = super().props()
        found["default_generation_settings"] = {"params": {}, "n_ctx": self.n_ctx}
        return found

    def answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, object]:
        if path == "/tokenize":
            return 200, {
                "tokens": [zlib.crc32(word.encode()) % 30_000 for word in re.findall(r"\S+", body["content"])]
            }
        return super().answer(method, path, body, headers)

    def complete(self, body: dict[str, Any]) -> tuple[int, object]:
        prompt = body.get("prompt")
        if not isinstance(prompt, list):
            return super().complete(body)
        self.hook(self)
        self.bodies.append(body)
        n_max = body.get("speculative.n_max", self.launch_n)
        if self.limit is not None and n_max > self.limit:
            return 400, {"error": {"code": 400, "message": "too deep", "type": "invalid_request_error"}}
        self.prompts.append(prompt)
        timings = self._timings(prompt, body["n_predict"], n_max)
        time.sleep(self.slowness * (timings["prompt_ms"] + timings["predicted_ms"]) / 1000.0)
        return 200, {"timings": timings}

    def _timings(self, prompt: list[int], tokens: int, n_max: int) -> dict[str, float]:
        luck = random.Random(f"{prompt[:50]}.{n_max}.{tokens}")
        same = next(
            (i for i, (a, b) in enumerate(zip(prompt, self._cached, strict=False)) if a != b), len(prompt)
        )
        cached = min(same, len(prompt) - 1) if self.caches and self._cached else 0
        chance = 1.0 if self.flatters and prompt == self._cached else self.chance
        self._cached = prompt
        left, drafted, accepted, ms = tokens - 1, 0, 0, 0.0
        while left > 0:
            right = 0
            while right < min(n_max, left - 1) and luck.random() < chance:
                right += 1
            drafted, accepted, left = drafted + n_max, accepted + right, left - right - 1
            ms += self.cycle_ms(len(prompt), n_max) * (1.0 + luck.gauss(0.0, self.noise))
        ms *= math.exp(luck.gauss(0.0, self.mood))
        read = len(prompt) - cached
        found: dict[str, float] = {
            "cache_n": cached, "prompt_n": read, "prompt_ms": self.prompt_ms * read,
            "predicted_n": tokens, "predicted_ms": ms,
        }  # fmt: skip
        return found | ({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})


@dataclass
class TimedRouter(TimedLlama):
    """A router with a preset for each setting, as `adaptive-dd presets` makes them; request fields do nothing."""

    settings: tuple[str, ...] = ("off", "n2-p0.0", "n8-p0.0")
    public: str = "gemma"
    honours: frozenset[str] = frozenset()
    resident: bool = True
    _cached_by: dict[str, list[int]] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, object]:
        if path == "/props":
            return 200, {"role": "router", "build_info": self.build}
        if path.startswith("/props?model="):
            return 200, self.props()
        if path == "/models":
            return 200, {"data": [self._entry(setting) for setting in self.settings]}
        if path == "/tokenize" and body.get("model") not in self._names():
            return 400, {"error": {"code": 400, "message": "model not found"}}
        return super().answer(method, path, body, headers)

    def _names(self) -> list[str]:
        return [f"{self.public}@{setting}" for setting in self.settings]

    def _entry(self, setting: str) -> dict[str, object]:
        status = {"value": "loaded" if self.resident else "unloaded", "args": ["--spec-type", "draft-simple"]}
        if setting == "off":
            status["args"] = ["--spec-type", "none"]
        home = [self.public] if setting == self.settings[1] else []
        return {"id": f"{self.public}@{setting}", "aliases": home, "status": status}

    def complete(self, body: dict[str, Any]) -> tuple[int, object]:
        alias = body.get("model", "")
        if alias not in self._names():
            return 400, {"error": {"code": 400, "message": "model not found"}}
        self._cached = self._cached_by.get(alias, [])
        found = super().complete({**body, "speculative.n_max": _depth(alias)})
        self._cached_by[alias] = body["prompt"]
        self.bodies[-1] = body
        return found


def _depth(alias: str) -> int:
    token = alias.partition("@")[2]
    return 0 if token == "off" else int(re.match(r"n(\d+)", token)[1])  # type: ignore[index]
