"""JSON: records of orders, readings and visits, one object on a few lines each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from adaptive_dd.prompts.words import ADJECTIVES, NAMES, NOUNS, PLACES, TRADES, Source


def _order(source: Source) -> dict[str, object]:
    lines = [
        {
            "item": source.one(NOUNS),
            "quantity": source.number(1, 48),
            "price": source.number(100, 99900) / 100,
        }
        for _ in range(source.number(1, 4))
    ]
    return {
        "order": source.number(10_000, 999_999),
        "customer": {"name": source.one(NAMES), "trade": source.one(TRADES), "city": source.one(PLACES)},
        "lines": lines,
        "note": f"{source.one(ADJECTIVES)} {source.one(NOUNS)}",
        "paid": source.chance(0.6),
    }


def _reading(source: Source) -> dict[str, object]:
    return {
        "sensor": f"{source.one(NOUNS)}-{source.number(10, 99)}",
        "at": f"20{source.number(10, 39)}-{source.number(1, 12):02d}-{source.number(1, 28):02d}T"
        f"{source.number(0, 23):02d}:{source.number(0, 59):02d}:00Z",
        "values": [source.number(-400, 4000) / 100 for _ in range(source.number(3, 7))],
        "unit": source.random.choice(("mm", "kPa", "degC", "lx", "rpm")),
        "state": source.one(ADJECTIVES),
    }


def _visit(source: Source) -> dict[str, object]:
    return {
        "visitor": source.one(NAMES),
        "age": source.number(9, 93),
        "seen": {source.one(NOUNS): source.number(1, 9) for _ in range(source.number(2, 5))},
        "from": source.one(PLACES),
        "guide": None if source.chance(0.3) else f"{source.one(NAMES)} the {source.one(TRADES)}",
    }


def records(random: Random) -> Iterator[str]:
    """Members of one long JSON array, without end."""
    source = Source(random)
    yield "[\n"
    while True:
        make = random.choice((_order, _reading, _visit))
        body = json.dumps(make(source), indent=2)
        yield "".join(f"  {line}\n" for line in body.splitlines()).rstrip("\n") + ",\n"
