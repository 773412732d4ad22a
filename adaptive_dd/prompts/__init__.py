"""Text to calibrate on: four sorts, written by our own generators, without end and without repeating itself.

A repeated text inflates speed, because the server re-uses what it drafted before, so a shelf of fixed samples would run
out in the first hour. Each sort is a generator of paragraphs from a seeded source: the same seed gives the same text
everywhere, another seed gives another text.

    text("code", seed=7, characters=4000)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

from adaptive_dd.prompts.chat import dialogue
from adaptive_dd.prompts.code import functions
from adaptive_dd.prompts.prose import paragraphs
from adaptive_dd.prompts.records import records

SORTS: Mapping[str, Callable[[Random], Iterator[str]]] = {
    "code": functions,
    "prose": paragraphs,
    "json": records,
    "chat": dialogue,
}


def text(sort: str, *, seed: int, characters: int) -> str:
    """At least `characters` characters of a sort; the same for the same seed. Raises KeyError for an unknown sort."""
    pieces: list[str] = []
    length = 0
    for piece in SORTS[sort](Random(f"{sort}.{seed}")):
        pieces.append(piece)
        length += len(piece)
        if length >= characters:
            break
    return "".join(pieces)
