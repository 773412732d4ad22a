"""Chat: a person asks about small practical things, an assistant answers."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from adaptive_dd.prompts.prose import Writer
from adaptive_dd.prompts.words import Source

_QUESTIONS = (
    "How would you {now} a {adjective} {noun} without a {trade}?",
    "My {noun} in {place} is {adjective}. Should I {now} it or the {noun} first?",
    "What is the difference between a {noun} and a {adjective} {noun}?",
    "Can you write a short note to {name}, the {trade}, about the {noun}?",
    "I have {count} {noun}s and {count} {noun}s. How do I {now} them before {name} arrives?",
    "Why did people in {place} {now} their {noun}s by hand?",
    "Please list a few things that a {trade} needs for a {adjective} {noun}.",
)

_ANSWERS = (
    "Start with the {noun}. Make sure that it is {adjective}, then {now} the {noun} slowly.",
    "That depends on the {noun}: a {adjective} one is easy to {now}, while a {adjective} one needs a {trade}.",
    "Here is what I would do:\n1. {now} the {noun}.\n2. Ask a {trade} about the {adjective} {noun}.\n"
    "3. Wait {count} days before you {now} it again.",
    "Dear {name},\n\nthe {noun} that you {verb} is {adjective}. Could you {now} it before the {noun} closes?",
    "In {place} the {noun} was {adjective}, so most people {verb} it themselves. A {trade} cost {count} crowns.",
    "About {count} {noun}s fit into one {noun}, as long as none of them is {adjective}.",
)


def dialogue(random: Random) -> Iterator[str]:
    """Turns of a conversation, without end."""
    writer = Writer(Source(random))
    while True:
        source = writer.source
        yield f"User: {writer.fill(source.one(_QUESTIONS))}\n\n"
        more = f" {writer.sentence()}" if source.chance(0.5) else ""
        yield f"Assistant: {writer.fill(source.one(_ANSWERS))}{more}\n\n"
