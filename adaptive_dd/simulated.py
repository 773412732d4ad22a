"""What is behind the simulated server: its traffic, its tokens, and what it has served.

A token is a word: what stands between spaces. A request is either *marked* (header `X-Sim-Number: 17`, a body made by
`client_request`): then it is request 17 of the scenario's traffic, hidden content and all; or it is anything else
that a person or a test sends: then its content is that of a workload that looks like it, the same for a conversation.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptive_dd.core.domain import Context, Kind, Setting, Timings
from adaptive_dd.core.sim import FRESH, SimRequest, Wear, machine, noise_for, played
from adaptive_dd.core.traffic import Phase, Scenario, Workload, traffic

MARK = "x-sim-number"
FIELDS = ("speculative.n_max", "speculative.p_min", "speculative.n_min")
# Tokens of `client_request` beside the filler: three messages, their frames, the opening of the answer, the first one.
FRAME_TOKENS = 19
# Answers that the log keeps: more than any test or demonstration sends.
REMEMBERED = 20_000


@dataclass(frozen=True, slots=True)
class Served:
    """One generated answer: what was played, and what the model expects it and the baseline to cost.

    marked: whether it was a request of the scenario's own traffic, and `number` its number there.
    """

    number: int
    marked: bool
    arm: str
    played: str
    expected_ms: float
    baseline_ms: float
    predicted_n: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Faults:
    """Things that go wrong, each on every so-manieth generating request; 0 is never.

    error_every    answered 500 before the first token
    cut_every      a stream that ends without its last event
    event_every    an error event inside a stream of status 200
    loading        the first so many requests of any sort are answered 503, as while a model loads
    """

    error_every: int = 0
    cut_every: int = 0
    event_every: int = 0
    loading: int = 0


def words(text: str) -> list[str]:
    """The tokens of a text."""
    return text.split()


def rendered(messages: list[Mapping[str, Any]]) -> str:
    """The simulator's chat template."""
    parts = (f"<|im_start|>{one.get('role')} {_text(one.get('content'))} <|im_end|>" for one in messages)
    return "\n".join((*parts, "<|im_start|>assistant"))


def _text(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def count(prompt: object) -> int:
    """Tokens of a prompt with the one that begins every text: a string, a list of tokens, or both mixed."""
    if isinstance(prompt, list):
        return 1 + sum(len(words(part)) if isinstance(part, str) else 1 for part in prompt)
    return 1 + len(words(str(prompt or "")))


def arm_of(body: Mapping[str, Any]) -> Setting:
    """The setting that a body asks for, by the flat fields alone, as the server reads them."""
    n_max, p_min, n_min = (body.get(name) for name in FIELDS)
    return Setting(
        None if n_max is None else max(0, int(n_max)),
        None if p_min is None else float(p_min),
        None if n_min is None else int(n_min),
    )


def bursts(timings: Timings, depth: int, number: int) -> list[int]:
    """How an answer's tokens came: the first one alone, then what each verification cycle emitted, at most depth + 1.

    `timings` hold sums only; what was accepted is spread over the cycles by the request's number.
    """
    sizes, luck = [1] * timings.cycles, random.Random(number)
    for _ in range(timings.draft_n_accepted):
        open_ = [i for i, size in enumerate(sizes) if size <= depth]
        sizes[luck.choice(open_ or range(len(sizes)))] += 1
    return [1, *sizes]


def client_request(request: SimRequest, *, stream: bool) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body with which a client of the scenario sends this request.

    The prompt has exactly the request's tokens, its conversation a stable beginning, and the body shows its kind. It
    sets no limit: how long the answer will be is what nobody is told.
    """
    context = request.context
    filler = (context.prompt_tokens or 0) - FRAME_TOKENS
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "You serve the simulated users."},
            {"role": "user", "content": f"conversation {context.conversation}"},
            {"role": "assistant", "content": " ".join(f"w{i % 1000}" for i in range(max(0, filler)))},
            {"role": "user", "content": "go on"},
        ],
        "temperature": 0.0 if context.kind.sampling == "greedy" else 0.8,
        "stream": stream,
    }
    if context.kind.constraint == "tools":
        body["tools"] = [{"type": "function", "function": {"name": "look"}}]
    if context.kind.constraint == "schema":
        body["response_format"] = {"type": "json_object"}
    return "/v1/chat/completions", {MARK: str(request.number)}, body


@dataclass(slots=True)
class SimServer:
    """The state behind the app: what has been served, and who is generating now.

    pace: seconds of real time per second of the simulated server's; 0 does not wait. requests: length of the marked
    traffic.
    """

    scenario: Scenario
    seed: int = 1
    requests: int = 1500
    pace: float = 0.0
    faults: Faults = field(default_factory=Faults)
    served: deque[Served] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    generating: int = 0
    asked: int = 0
    hits: int = 0
    _traffic: tuple[SimRequest, ...] = ()
    _wear: Wear = FRESH

    def phase(self, number: int) -> Phase:
        """What holds for a request's number."""
        return self.scenario.phases[self.scenario.phase_index(number)]

    def marked(self, number: int) -> SimRequest:
        """Request `number` of the scenario's traffic. Raises IndexError beyond its end."""
        if not self._traffic:
            self._traffic = traffic(self.scenario, self.seed, self.requests)
        return self._traffic[number - 1]

    def made_up(self, kind: Kind, prompt: str, tokens: int, limit: int | None) -> SimRequest:
        """A request nobody planned: content of a workload that looks like it, the same for one beginning."""
        number, beginning = self.asked, " ".join(words(prompt)[:30])
        digest = hashlib.blake2b(f"{self.seed} {beginning}".encode(), digest_size=8).digest()
        load = self._alike(kind, digest[0], number)
        skill = load.character * (digest[1] / 127.5 - 1.0) * math.sqrt(3.0)
        length = round(load.answer_tokens * math.exp(load.answer_spread * (digest[2] / 127.5 - 1.0)))
        answer = limit if limit is not None and limit < length else length
        context = Context(tokens, "counted", self.generating + 1, kind, digest.hex())
        return SimRequest(number, context, load.content, max(1, answer), skill)

    def _alike(self, kind: Kind, pick: int, number: int) -> Workload:
        loads = self.phase(number).workloads
        alike = [
            load
            for load in loads
            if load.kind.sampling == kind.sampling and load.kind.constraint == kind.constraint
        ]
        alike = alike or [load for load in loads if load.kind.sampling == kind.sampling] or list(loads)
        return alike[pick % len(alike)]

    def play(self, request: SimRequest, arm: Setting, *, marked: bool) -> Timings:
        """Generate, remember what it was worth, and wear the machine."""
        world = self.phase(request.number).world
        box = machine(world)
        timings = box.generate(request, arm, noise_for(self.seed, request.number), self._wear)
        self.served.append(
            Served(
                request.number,
                marked,
                str(arm),
                str(played(world, arm)),
                box.expected_ms(request, arm, self._wear),
                box.expected_ms(request, self.scenario.baseline, self._wear),
                timings.predicted_n,
                request.context.in_flight,
            )
        )
        self._wear = box.after(self._wear, request, arm)
        return timings
