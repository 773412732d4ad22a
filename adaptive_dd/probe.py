"""Ask a server what it does with draft settings: a few short requests, only while nobody else is waiting.

What to ask and what the answers prove is decided in `core.listening`; here they are sent, one at a time, within
a budget of time, and not while the server is busy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal, Protocol

from adaptive_dd.core.identity import Identity, spec_type_of
from adaptive_dd.core.listening import Answer, Ask, Findings, conclude, never_above, next_ask
from adaptive_dd.core.wire import parse_timings, setting_fields
from adaptive_dd.errors import UpstreamError

# All probes together: about eight answers of 48 tokens at one token a second would be the slowest worth waiting for.
BUDGET_S = 120.0
BUSY = "the server is busy"
SLOW = "probing took longer than its budget"

Headers = Iterable[tuple[bytes, bytes]]

_SYLLABLES = ("ba", "ko", "li", "mu", "ne", "pa", "ri", "so", "tu", "ve", "za", "do", "fi", "gu", "he", "jo")


class Asker(Protocol):
    """Sends a small request of our own; `Upstream` is one. The object is the parsed JSON answer."""

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Headers = (),
        *,
        timeout_s: float = ...,
    ) -> tuple[int, object]:
        """(status, object). Raises UpstreamError when no whole answer comes within the time."""


def prompt_of(ask: Ask, nonce: int) -> str:
    """A text of the wanted sort that no probe before it has used."""
    words = random.Random(f"{nonce}.{ask.name}")

    def word() -> str:
        return "".join(words.choice(_SYLLABLES) for _ in range(words.randint(2, 3)))

    if ask.text == "novel":
        return f"The {word()} of {word()} said to the {word()}, who had never seen a {word()}:"
    if ask.text == "long":
        block = " ".join(word() for _ in range(40))
        return f"{block}\n{block}\n" + " ".join(block.split()[:12])
    name, first = word(), words.randint(100, 800)
    return "".join(f"{name} {first + step}, {name} {first + step}\n" for step in range(5))


def body_of(ask: Ask, nonce: int, *, model: str = "", slot: int | None = None) -> Mapping[str, object]:
    """The request of a probe. `cache_prompt` is off: it has nothing to gain and timings stay comparable."""
    sampling = (
        {"temperature": 1.0, "seed": nonce & 0x7FFFFFFF} if ask.text == "novel" else {"temperature": 0.0}
    )
    return {
        "prompt": prompt_of(ask, nonce),
        "n_predict": ask.tokens,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": False,
        **sampling,
        **({"model": model} if model else {}),
        **({"id_slot": slot} if slot is not None else {}),
        **setting_fields(ask.setting),
    }


def _message(answer: object) -> str:
    """The first line of an error object's message, shortened: it may hold anything."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    text = error.get("message") if isinstance(error, Mapping) else error if isinstance(error, str) else ""
    return str(text or "").strip().splitlines()[0][:200] if str(text or "").strip() else ""


def read_answer(ask: Ask, status: int, body: object) -> Answer:
    """The answer of a probe as far as it matters."""
    if status != 200:
        return Answer(ask, status, message=_message(body))
    answer = body if isinstance(body, Mapping) else {}
    timings = parse_timings(answer["timings"]) if "timings" in answer else ""
    kinds = spec_type_of(answer.get("generation_settings"))
    return Answer(ask, status, None if isinstance(timings, str) else timings, spec_type=kinds)


async def idle_slot(asker: Asker, who: Identity, headers: Headers = ()) -> int | Literal[False] | None:
    """Which slot to use: its id, None where any will do, False while a slot is at work.

    A probe takes the last slot: servers hand out the first ones first, so it holds the least worth keeping.
    """
    if not who.has_slots or who.sleeping:
        return None
    status, body = await asker.ask("GET", "/slots", headers=headers)
    if status != 200 or not isinstance(body, list) or not body:
        return None
    slots = [slot for slot in body if isinstance(slot, Mapping)]
    if any(slot.get("is_processing") for slot in slots):
        return False
    ids = [slot["id"] for slot in slots if isinstance(slot.get("id"), int)]
    return max(ids) if len(ids) > 1 else None


async def probe(
    asker: Asker,
    who: Identity,
    answers: list[Answer],
    *,
    nonce: int,
    headers: Headers = (),
    raise_to: Callable[[int], int | None] = never_above,
    thorough: bool = False,
    quiet: Callable[[], bool] = lambda: True,
    budget_s: float = BUDGET_S,
) -> Findings:
    """Send probes until nothing is left to find out, and conclude.

    answers is filled as they come, so that a caller who cancels, or who is told `BUSY`, can go on from there.
    raise_to: from the launch value seen so far to a value above it worth trying, or None. quiet: whether our own
    side has nothing under way. Raises UpstreamError when the server cannot be reached.
    """
    trouble, ends_s = "", time.monotonic() + budget_s
    while not trouble and (ask := next_ask(answers, raise_to=raise_to, thorough=thorough)):
        slot = await idle_slot(asker, who, headers)
        if slot is False or not quiet():
            trouble = BUSY
            break
        body = body_of(ask, nonce, model=who.ask_as, slot=slot)
        try:
            left_s = max(0.1, ends_s - time.monotonic())
            status, got = await asker.ask("POST", "/completion", body, headers, timeout_s=left_s)
            answers.append(read_answer(ask, status, got))
        except UpstreamError:
            if time.monotonic() < ends_s:
                raise
            trouble = SLOW
    findings = conclude(answers, spec_type=who.spec_type, slots=who.slots)
    return replace(findings, trouble=trouble) if trouble else findings
