"""Prose: small scenes in plain sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from adaptive_dd.prompts.words import ADJECTIVES, NAMES, NOUNS, PLACES, TRADES, VERBS, VERBS_NOW, Source

_OPENINGS = (
    "In the winter of {year}, ", "Before the road was paved, ", "On a {adjective} morning in {place}, ",
    "Some weeks later, ", "Nobody could say why, but ", "According to the {noun} book, ", "At the edge of {place}, ",
    "By the time the {noun} was finished, ", "Although the {noun} was {adjective}, ", "As {name} told it, ",
    "For {count} years, ", "When the {trade} arrived, ", "Without asking the {trade}, ", "", "", "", "",
)  # fmt: skip

_CORES = (
    "the {trade} {verb} the {adjective} {noun} and {verb} it again",
    "{name} {verb} a {noun} that had belonged to a {trade} from {place}",
    "{name} and {name} {verb} {count} {noun}s, one after another",
    "a {adjective} {noun} stood beside the {noun}, and nobody {verb} it",
    "the {noun} behind the {noun} turned out to be {adjective} and {adjective}",
    "{name}, the {trade}, {verb} what the others had {verb}",
    "the people of {place} {verb} the {noun} by lamplight",
    "it was the {trade} who first {verb} the {noun} near the {noun}",
    "every {noun} in {place} was {adjective}, except the one that {name} {verb}",
    "{name} wanted to {now} the {noun}, while the {trade} hoped to {now} it",
    "the letter from {place} spoke of a {adjective} {noun} and of {count} {adjective} days",
)

_ENDINGS = (
    "", "", "", ", although the {trade} disagreed", ", and the {noun} stayed {adjective}",
    ", which cost {count} crowns", " until the {noun} was {adjective} again", ", as {name} had feared",
    "; the {noun} told another story", ", much to the surprise of the {trade}", " before the {noun} closed",
)  # fmt: skip

_ARTICLE = re.compile(r"\b([Aa]) (?=[aeio])")


class Writer:
    """Fills sentence patterns from the word lists."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def fill(self, pattern: str) -> str:
        """The pattern with every place filled anew."""
        lists = {
            "noun": NOUNS, "trade": TRADES, "name": NAMES, "adjective": ADJECTIVES, "verb": VERBS,
            "now": VERBS_NOW, "place": PLACES,
        }  # fmt: skip
        parts = pattern.split("{")
        filled = [parts[0]]
        for part in parts[1:]:
            key, _, rest = part.partition("}")
            if key in lists:
                word = self.source.one(lists[key])
            else:
                word = str(self.source.number(1790, 1985) if key == "year" else self.source.number(2, 60))
            filled.append(word + rest)
        return _ARTICLE.sub(r"\1n ", "".join(filled))

    def sentence(self) -> str:
        """One sentence."""
        source = self.source
        pattern = source.one(_OPENINGS) + source.one(_CORES) + source.one(_ENDINGS)
        text = self.fill(pattern)
        return text[0].upper() + text[1:] + "."


def paragraphs(random: Random) -> Iterator[str]:
    """Paragraphs of four to eight sentences, without end."""
    writer = Writer(Source(random))
    while True:
        count = writer.source.number(4, 8)
        yield " ".join(writer.sentence() for _ in range(count)) + "\n\n"
