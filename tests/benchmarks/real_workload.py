"""A mixed workload for a real server: greedy code, sampled stories, constrained JSON; contexts of 50 to 2,000 tokens.

Text is made, never repeated and the same for a seed. Requests come in sessions that share a document, as people and
agents do, so a server's prompt cache works as it would for them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# Tokens of shared document per session, with its share of the sessions.
CONTEXTS: Mapping[int, float] = {50: 0.5, 250: 0.3, 800: 0.14, 1900: 0.06}
KINDS: Mapping[str, float] = {"code": 0.4, "story": 0.35, "json": 0.25}
SESSION = 5  # requests that share a document

_NOUNS = ("river", "engine", "garden", "harbour", "lantern", "market", "orchard", "bridge")
_VERBS = ("carried", "found", "opened", "followed", "measured", "painted", "repaired", "crossed")
_PLACES = ("mill", "valley", "station", "library", "island", "cellar", "tower", "square")
_FIELDS = ("name", "city", "price", "colour", "weight", "owner", "status", "rating")


@dataclass(frozen=True)
class Request:
    """One request. number: its place in the workload; context_tokens: about how long its document is."""

    number: int
    kind: str
    context_tokens: int
    path: str
    body: Mapping[str, object]


def _name(draw: random.Random) -> str:
    return "".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(3))


def _sentence(draw: random.Random) -> str:
    who, thing, place = _name(draw).title(), draw.choice(_NOUNS), draw.choice(_PLACES)
    return f"{who} {draw.choice(_VERBS)} the {thing} near the {place} with {draw.randint(2, 99)} others. "


def _function(draw: random.Random) -> str:
    name, a, b = _name(draw), _name(draw), _name(draw)
    return f"def {name}({a}, {b}):\n    total = {a} * {draw.randint(2, 99)} + {b}\n    return total\n\n"


def document(kind: str, tokens: int, draw: random.Random) -> str:
    """Text of about that many tokens: code for code, prose for everything else."""
    part, tokens_each = (_function, 34) if kind == "code" else (_sentence, 19)
    return "".join(part(draw) for _ in range(max(1, tokens // tokens_each)))


def _body(kind: str, context: str, tokens: int, draw: random.Random) -> tuple[str, dict[str, object]]:
    seed = draw.randint(1, 2**31 - 1)
    if kind == "code":
        first, second = _name(draw), _name(draw)
        prompt = f"{context}def {first}({second}, count):\n    result = []\n    for {second}_item in"
        return "/completion", {"prompt": prompt, "temperature": 0.0, "seed": seed, "n_predict": tokens}
    if kind == "story":
        prompt = (
            f"{context}\nThat evening {_name(draw).title()} told a story about the {draw.choice(_NOUNS)}:"
        )
        return "/completion", {"prompt": prompt, "temperature": 0.9, "seed": seed, "n_predict": tokens}
    fields = {field: {"type": "string"} for field in draw.sample(_FIELDS, 3)}
    item = {"type": "object", "properties": fields, "required": list(fields)}
    schema = {"type": "array", "items": item, "minItems": 6}
    question = f"{context}\nList what is known about {_name(draw).title()} as JSON."
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"messages": [{"role": "user", "content": question}], "response_format": form}
    return "/v1/chat/completions", {**body, "temperature": 0.3, "seed": seed, "max_tokens": tokens}


def workload(count: int, *, tokens: int, seed: int) -> Iterator[Sequence[Request]]:
    """Sessions of requests, `count` in all. tokens: length of each answer."""
    draw, number = random.Random(seed), 0
    while number < count:
        [size] = draw.choices(list(CONTEXTS), list(CONTEXTS.values()))
        [kind] = draw.choices(list(KINDS), list(KINDS.values()))
        context = document(kind, size, draw)
        session = []
        for _ in range(min(SESSION, count - number)):
            path, body = _body(kind, context, tokens, draw)
            session.append(Request(number, kind, size, path, {**body, "ignore_eos": kind != "json"}))
            number += 1
        yield session
