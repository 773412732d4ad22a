"""Code: small Python functions and classes, each with names and numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from adaptive_dd.prompts.words import ADJECTIVES, NOUNS, TRADES, VERBS_NOW, Source


def _filter(source: Source, noun: str, verb: str) -> str:
    field, limit, other = source.one(ADJECTIVES), source.number(2, 990), source.one(NOUNS)
    return (
        f"def {verb}_{noun}s({noun}s: list[dict], minimum: int = {limit}) -> list[dict]:\n"
        f'    """Return the {noun}s whose {field} value is at least the minimum."""\n'
        f"    kept = []\n    for {noun} in {noun}s:\n"
        f'        if {noun}.get("{field}", 0) >= minimum and "{other}" not in {noun}:\n'
        f"            kept.append({noun})\n    return kept\n"
    )


def _count(source: Source, noun: str, verb: str) -> str:
    key = source.one(TRADES)
    return (
        f"def {verb}_{noun}_by_{key}(rows):\n"
        f'    """Count how many {noun}s each {key} has."""\n'
        f"    counts = {{}}\n    for row in rows:\n"
        f'        {key} = row["{key}"]\n        counts[{key}] = counts.get({key}, 0) + row["{noun}"]\n'
        f"    return dict(sorted(counts.items(), key=lambda item: -item[1])[:{source.number(3, 40)}])\n"
    )


def _class(source: Source, noun: str, verb: str) -> str:
    title, a, b, c = noun.title(), source.one(ADJECTIVES), source.one(NOUNS), source.one(TRADES)
    limit = source.one(("capacity", "limit", "room", "most", "size", "bound", "maximum", "space"))
    return (
        f"class {title}:\n"
        f'    """A {a} {noun} that a {c} fills with {b}s."""\n\n'
        f"    def __init__(self, {c}: str, {limit}: int = {source.number(8, 900)}) -> None:\n"
        f"        self.{c} = {c}\n        self.{limit} = {limit}\n        self.{b}s: list[str] = []\n\n"
        f"    def {verb}(self, {b}: str) -> bool:\n"
        f"        if len(self.{b}s) >= self.{limit}:\n            return False\n"
        f"        self.{b}s.append({b})\n        return True\n\n"
        f"    def count_{b}s(self) -> int:\n        return len(self.{b}s)\n"
    )


def _read(source: Source, noun: str, verb: str) -> str:
    other, sep, unit = source.one(NOUNS), source.random.choice((",", ";", "|", "\\t")), source.one(ADJECTIVES)
    line = source.one(("line", "text", "row", "entry", "record"))
    return (
        f"def {verb}_{noun}_file(path: str, skip: int = {source.number(0, 9)}) -> dict[str, float]:\n"
        f'    """Read {other} values of a {noun}, one per line."""\n'
        f"    {other}s: dict[str, float] = {{}}\n"
        f'    with open(path, encoding="utf-8") as {noun}_file:\n'
        f"        for number, {line} in enumerate({noun}_file):\n"
        f"            if number < skip or not {line}.strip():\n                continue\n"
        f'            {unit}, value = {line}.rstrip().split("{sep}", 1)\n'
        f"            {other}s[{unit}] = float(value) * {source.number(2, 99) / 10}\n    return {other}s\n"
    )


def _test(source: Source, noun: str, verb: str) -> str:
    first, second = source.number(1, 500), source.number(501, 999)
    word = source.one(ADJECTIVES)
    return (
        f"def test_{verb}_{noun}_is_{word}():\n"
        f'    rows = [{{"{noun}": {first}, "{word}": True}}, {{"{noun}": {second}, "{word}": False}}]\n'
        f"    result = {verb}_{noun}s(rows, minimum={first})\n"
        f'    assert len(result) == 2\n    assert result[0]["{noun}"] == {first}\n'
        f'    assert result[1]["{noun}"] - result[0]["{noun}"] == {second - first}\n'
    )


_SHAPES = (_filter, _count, _class, _read, _test)


def functions(random: Random) -> Iterator[str]:
    """Functions, classes and tests, without end."""
    source = Source(random)
    yield "import csv\nimport math\nfrom collections import defaultdict\n\n\n"
    while True:
        shape = random.choice(_SHAPES)
        yield shape(source, source.one(NOUNS), source.one(VERBS_NOW)) + "\n\n"
