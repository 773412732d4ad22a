"""The word lists that the four sorts share, and a source that does not give the same thing twice in a row."""

# ruff: noqa: SIM905 (a list of words is easier to read and to extend as a text)

from __future__ import annotations

from collections.abc import Sequence
from random import Random

NOUNS = (
    "harbour orchard ledger lantern bridge kettle archive compass garden furnace window staircase market valley mill "
    "workshop railway library river cellar telescope engine meadow tower notebook quarry ferry bakery clock fountain "
    "barn lighthouse canal theatre museum forest chapel station greenhouse printer radio reservoir vineyard smithy "
    "courtyard attic balcony dyke pasture tunnel pier weir dairy loom kiln sawmill granary aqueduct observatory "
    "terrace stable pantry gallery depot signal turbine pump valve boiler crane anchor rudder sail mast hull keel "
    "map chart letter parcel coin stamp ribbon thread needle button basket barrel ladder rope hinge lock key shelf "
    "drawer mirror candle blanket carpet curtain pillow chimney gutter roof fence gate path hedge pond stream spring "
    "hill ridge cliff cave beach island marsh field furrow harvest seed root branch leaf blossom berry acorn"
).split()

TRADES = (
    "gardener clerk sailor teacher carpenter surveyor baker engineer librarian ferryman weaver doctor printer miller "
    "shepherd painter smith watchmaker postman cook farmer pilot tailor mason glazier cooper potter archivist actor "
    "musician geologist botanist chemist nurse warden conductor porter apprentice merchant innkeeper fisherman "
    "beekeeper cartographer locksmith optician translator stonecutter harbourmaster signalman bookbinder"
).split()

NAMES = (
    "Ada Bruno Clara Dario Elsa Farid Greta Hamid Irene Jonas Karin Luis Mira Nadia Oskar Petra Quentin Rosa Stefan "
    "Tilda Ulrich Vera Walter Xenia Yusuf Zora Anton Berta Cosmo Dora Emil Flora Gustav Hanna Ivo Judith Konrad Lena "
    "Marek Nora Otto Paula Ravi Selma Tomas Ursula Viktor Wanda Yara Zeno"
).split()

ADJECTIVES = (
    "narrow quiet old broken patient heavy pale distant careful rusty warm uneven hollow bright stubborn wooden damp "
    "slender forgotten steady crooked shallow golden bitter gentle hasty silent rough polished crowded empty cheap "
    "famous ordinary peculiar obvious secret temporary generous cautious restless faint sturdy brittle muddy dusty "
    "cold foggy frozen sunlit windy humid spacious tidy untidy reliable doubtful ancient recent modest grand local"
).split()

VERBS = (
    "repaired carried measured crossed counted described painted followed noticed remembered sorted borrowed sold "
    "opened closed lifted copied questioned answered delayed finished started watched ignored cleaned emptied filled "
    "moved turned weighed traced marked numbered folded wrapped delivered collected hid found lost mended replaced "
    "examined adjusted tested praised blamed defended inherited designed abandoned rebuilt visited left entered"
).split()

VERBS_NOW = (
    "repair carry measure cross count describe paint follow notice remember sort borrow sell open close lift copy "
    "question answer delay finish start watch ignore clean empty fill move turn weigh trace mark number fold wrap "
    "deliver collect hide find mend replace examine adjust test praise defend design rebuild visit enter"
).split()

PLACES = (
    "Norwick Altbruck Saint-Remy Halden Porto Velo Kesterly Mirenburg Oakhaven Tarnow Eastmere Lindholm Carrow "
    "Ferrybank Stonebridge Westerholt Brindle Ashcombe Dunmore Pelham Ravensby Skarholm Thornfield Ulverton Wexholm "
    "Yarrowdale Zellbach Amberley Coldwater Drayford Elmsworth Fallowmere Glenhollow Harrowgate"
).split()


class Source:
    """Draws from lists, never the same word twice within its last draws from that list."""

    def __init__(self, random: Random, *, memory: int = 12) -> None:
        self.random = random
        self._memory = memory
        self._recent: dict[int, list[str]] = {}

    def one(self, words: Sequence[str]) -> str:
        """A word of the list that was not drawn lately."""
        recent = self._recent.setdefault(id(words), [])
        limit = min(self._memory, len(words) // 2)
        word = self.random.choice(words)
        while word in recent[-limit:] if limit else False:
            word = self.random.choice(words)
        recent.append(word)
        del recent[: -self._memory]
        return word

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high."""
        return self.random.randint(low, high)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share
