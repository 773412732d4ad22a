"""Prompts of exactly the asked length, as the server counts: its own tokens, cut.

A text longer than needed is tokenised by the server and cut to the wanted number of tokens, and the tokens themselves
are sent as the prompt, so that nothing is left to guess. Each block gets a text that no block before it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from adaptive_dd.errors import InputFileError, UpstreamError
from adaptive_dd.probe import Asker, Headers
from adaptive_dd.prompts import SORTS, text

# Characters to a token, generously: too little text is asked for again, too much only costs a moment.
CHARACTERS_PER_TOKEN = 5.0
LARGEST_FILE_BYTES = 256 * 1024 * 1024
# A text moved by this many characters is another text to the server's cache from the first token on.
STRIDE_CHARACTERS = 997
TOKENIZE_S = 120.0


class Shelf(Protocol):
    """Where texts come from."""

    @property
    def sorts(self) -> tuple[str, ...]:
        """The sorts of text, in the order in which blocks take turns."""

    @property
    def name(self) -> str:
        """What the file says of it."""

    def take(self, sort: str, number: int, characters: int) -> str:
        """The `number`th text of a sort, at least so long if there is as much. Raises InputFileError."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The text that ships with the package; it never runs out."""

    seed: int = 0
    sorts: tuple[str, ...] = tuple(SORTS)
    name: str = "shipped"

    def take(self, sort: str, number: int, characters: int) -> str:
        """See `Shelf`."""
        return text(sort, seed=self.seed * 1_000_003 + number, characters=characters)


@dataclass(frozen=True, slots=True)
class OwnTexts:
    """A user's own files: each is a sort of its own, read onwards from block to block."""

    texts: Mapping[str, str]
    name: str

    @property
    def sorts(self) -> tuple[str, ...]:
        """See `Shelf`."""
        return tuple(self.texts)

    def take(self, sort: str, number: int, characters: int) -> str:
        """The next stretch of the file; once it is used up, stretches that begin elsewhere."""
        whole = self.texts[sort]
        if characters >= len(whole):
            return whole if number == 0 else whole[number * STRIDE_CHARACTERS % max(1, len(whole)) :] + whole
        starts = len(whole) - characters
        return whole[(number * characters + number * STRIDE_CHARACTERS) % (starts + 1) :][:characters]


def read_texts(source: str) -> OwnTexts:
    """The user's FILE, or every file of DIR. Raises InputFileError in one line."""
    path = Path(source).expanduser()
    try:
        files = (
            sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
            if path.is_dir()
            else [path]
        )
        texts = {p.name: _read(p) for p in files}
    except OSError as error:
        raise InputFileError(
            f"prompts {source}: cannot be read ({error.strerror or error}), expected text files"
        ) from None
    texts = {name: body for name, body in texts.items() if body.strip()}
    if not texts:
        raise InputFileError(f"prompts {source}: holds no text, expected one or more text files")
    digest = hashlib.sha256("\0".join(f"{n}\0{b}" for n, b in texts.items()).encode()).hexdigest()[:12]
    return OwnTexts(texts, f"own texts, {len(texts)} of them, sha256 {digest}")


def _read(path: Path) -> str:
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise InputFileError(
            f"prompts {path}: is larger than {LARGEST_FILE_BYTES >> 20} MB, expected a text file"
        )
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputFileError(f"prompts {path}: is not UTF-8 text (byte {error.start})") from None


@dataclass(slots=True)
class Cutter:
    """Cuts texts to a number of tokens with the server's own tokenizer."""

    asker: Asker
    headers: Headers
    model: str = ""

    async def prompt(self, shelf: Shelf, sort: str, number: int, tokens: int) -> list[int]:
        """Exactly `tokens` tokens. Raises InputFileError where the texts are too short, UpstreamError."""
        characters = int(tokens * CHARACTERS_PER_TOKEN) + 64
        while True:
            body = shelf.take(sort, number, characters)
            found = await self._tokens(body)
            if len(found) >= tokens:
                return found[:tokens]
            if len(body) < characters:
                raise InputFileError(
                    f"prompts {sort}: holds {len(found)} tokens, expected at least {tokens} for that context"
                )
            characters *= 2

    async def _tokens(self, body: str) -> list[int]:
        request = {"content": body, "add_special": True, **({"model": self.model} if self.model else {})}
        status, found = await self.asker.ask("POST", "/tokenize", request, self.headers, timeout_s=TOKENIZE_S)
        tokens = found.get("tokens") if isinstance(found, Mapping) else None
        if status != 200 or not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise UpstreamError(
                f"/tokenize answered {status} without tokens, so no prompt of exact length can be made"
            )
        return tokens
