"""What earlier turns of a conversation say about the length of the next prompt.

After every answer the server tells the exact length of its prompt. The next turn usually begins with the same
bytes, so its length is that figure plus what was added since: the answer, whose tokens were counted by the server
too, and a new message, whose bytes are few against the whole. `predict` gives an estimate with bounds; where the
bounds straddle a bucket's edge, the caller must ask the server.

Two kinds of bounds, and how far each can be trusted:

- *hard*: a token stands for at least one byte and at most LONGEST_TOKEN_BYTES of them. The upper one also needs
  the length of what a chat template adds by itself, which is at most the shortest prompt seen so far; before the
  first exact figure that is an assumption (UNSEEN_TEMPLATE_TOKENS), and with tools there is no upper bound. It
  misleads only where a tokenizer makes text longer (some old normalisations) or a template repeats it.
- *learned*: tokens per piece (`core.pieces`) of what was added, with the largest recent error. Pieces are close to
  what tokenizers make, whatever the kind of text; they mislead in the turn where prose becomes base64, so this
  bounds only the added part.

The ledger is a cache, pure and bounded: losing it costs a count call. It holds hashes and figures, no text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from adaptive_dd.core.pieces import count_pieces
from adaptive_dd.core.prompt import ASSISTANT, RECORD, Prompt

# The longest single tokens in vocabularies of today are runs of spaces or dashes, 128 bytes and less.
LONGEST_TOKEN_BYTES = 256
# Role, begin and end of a message in a template: 3 to 8 tokens in those of today. Estimate and doubt.
MESSAGE_TOKENS, MESSAGE_DOUBT = 5.0, 5.0
ANSWER_DOUBT = 0.02
# How far an answer's own count may be from what its text suggests and still be believed.
ANSWER_SLACK = 0.3
# Pieces that our own marks and the role's name add to a message's bytes; its frame is counted by MESSAGE_TOKENS.
FRAME_PIECES = 3.0
# Reasoning is prose; the upper end, because this is a doubt and not an estimate.
SOFT_TOKENS_PER_BYTE = 0.5
# A message's frame can never be this long; only for the hard bound.
LONGEST_FRAME_TOKENS = 64
# What a template may add by itself before any prompt of its family was measured: default system prompts of today
# take up to some 500 tokens. With tools or a schema there is no telling.
UNSEEN_TEMPLATE_TOKENS: Mapping[str, float] = {"messages+free": 1024.0}
# BOS, EOS and the space that SentencePiece puts in front; around the cursor also marks, project and file name.
RAW_EXTRA_TOKENS, INFILL_EXTRA_TOKENS = 4, 20

# Where nothing has been learned: Gemma-3's vocabulary makes 1.06 over prose, code and JSON. Another one's figure is
# taken over from the first exact length.
FIRST_TOKENS_PER_PIECE = 1.05
FIRST_ERROR = 0.2
# The doubt never falls below this: with Gemma-3's vocabulary 95 in 100 chunks of text lie within 9% of the median.
LEAST_ERROR = 0.08
ERROR_MEMORY = 0.8
# Fewer pieces than this tell too little.
LEAST_PIECES = 20.0
# A conversation's first prompt tells a rate too, unless it is long or holds more than messages.
MOST_BYTES_TO_LEARN = 65536
FAMILIES_TO_LEARN = frozenset({"messages+free", "text"})
# Only to have a figure where nothing depends on it.
ROUGH_TOKENS_PER_BYTE = 0.27

TURNS_KEPT = 3  # of a conversation: the last ones, so that a retry or a branch finds its beginning
SHARDS = 64
CONVERSATIONS_KEPT = 4096  # a few megabytes


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per piece of added text, with the relative error to expect of it."""

    tokens_per_piece: float = FIRST_TOKENS_PER_PIECE
    error: float = FIRST_ERROR

    def learned(self, pieces: float, tokens: float) -> Rate:
        """After an exact figure: part of the way to it, most of the way where it surprises.

        A large error is believed at once and forgotten slowly.
        """
        if pieces < LEAST_PIECES or tokens <= 0.0:
            return self
        seen = tokens / pieces
        missed = abs(seen - self.tokens_per_piece) / self.tokens_per_piece
        gain = 0.3 if missed <= self.error else 0.7
        error = min(1.0, max(LEAST_ERROR, missed, ERROR_MEMORY * self.error))
        return Rate(self.tokens_per_piece + gain * (seen - self.tokens_per_piece), error)


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt whose exact length is known, by the length and hash of its bytes.

    answer_tokens: what the server generated for it; None where that is not known, or where the prompt was answered
    more than once and the client may go on from any of the answers (`again`). soft_bytes, live_bytes: as in Prompt.
    """

    content_bytes: int
    digest: bytes
    prompt_tokens: int
    answer_tokens: int | None = None
    again: bool = False
    soft_bytes: int = 0
    live_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Remembered:
    """What of a prompt must outlive its bytes until the answer has come.

    base_tokens    tokens of it that were known exactly (an earlier turn, its answer, frames of messages)
    rated_pieces   pieces of it whose tokens were estimated by rate; 0 where nothing can be learned from them
    """

    conversation: str
    family: str
    content_bytes: int
    digest: bytes
    soft_bytes: int = 0
    live_bytes: int = 0
    base_tokens: float = 0.0
    rated_pieces: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Length of a prompt: an estimate between bounds. known: from an earlier turn (else from bytes alone)."""

    tokens: float
    low: float
    high: float
    known: bool
    remembered: Remembered


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: its last turns, oldest first, and its own rate."""

    turns: tuple[Turn, ...]
    rate: Rate


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is remembered of all conversations.

    shards     conversation -> Talk in order of last use, split by hash so that a change copies little
    shortest   of a family of prompts the fewest tokens ever seen, which bound what its template adds by itself
    rate       what a new conversation starts from
    kept       number of conversations kept (about: each shard keeps its part)
    """

    shards: tuple[Mapping[str, Talk], ...] = field(default_factory=lambda: ({},) * SHARDS)
    shortest: Mapping[str, int] = field(default_factory=dict)
    rate: Rate = Rate()
    kept: int = CONVERSATIONS_KEPT

    def talk(self, conversation: str) -> Talk | None:
        """What is known of a conversation."""
        return self.shards[_shard_of(conversation)].get(conversation)

    def __len__(self) -> int:
        return sum(len(shard) for shard in self.shards)


def family_of(prompt: Prompt, constraint: str) -> str:
    """Prompts of one family get the same from the template; tools and schemas bring a preamble of their own."""
    return f"{prompt.form}+{constraint}" if prompt.form == "messages" else prompt.form


def _shard_of(conversation: str) -> int:
    return int(conversation[:8] or "0", 16) % SHARDS


def _recognise(turns: tuple[Turn, ...], content: bytes) -> tuple[Turn | None, bytes]:
    """The longest turn whose bytes this prompt begins with, and the hash of all of it: one pass over the bytes."""
    hasher, at, found = hashlib.blake2b(digest_size=16), 0, None
    view = memoryview(content)
    for turn in sorted(turns, key=lambda turn: turn.content_bytes):
        if turn.content_bytes > len(content):
            break
        hasher.update(view[at : turn.content_bytes])
        at = turn.content_bytes
        if hasher.digest() == turn.digest:
            found = turn
    hasher.update(view[at:])
    return found, hasher.digest()


def predict(ledger: Ledger, prompt: Prompt, *, conversation: str, family: str) -> Prediction:
    """The length of a prompt by what is remembered, with bounds to ask by."""
    talk = ledger.talk(conversation) if conversation else None
    found, digest = _recognise(talk.turns if talk else (), prompt.content)
    remembered = Remembered(
        conversation, family, len(prompt.content), digest, prompt.soft_bytes, prompt.live_bytes
    )
    if prompt.tokens is not None:
        exact = float(prompt.tokens)
        return Prediction(exact, exact, exact, True, remembered)
    if talk is None or found is None:
        return _by_bytes(ledger, prompt, remembered)
    return _by_turn(talk.rate, prompt, found, remembered)


def _by_bytes(ledger: Ledger, prompt: Prompt, remembered: Remembered) -> Prediction:
    size = len(prompt.content)
    if prompt.form == "messages":
        template = ledger.shortest.get(
            remembered.family, UNSEEN_TEMPLATE_TOKENS.get(remembered.family, math.inf)
        )
        extra = template + LONGEST_FRAME_TOKENS * prompt.messages
    else:
        extra = INFILL_EXTRA_TOKENS if prompt.form == "infill" else RAW_EXTRA_TOKENS
    low, high = (size - prompt.soft_bytes) / LONGEST_TOKEN_BYTES, size + extra
    estimate = size * ROUGH_TOKENS_PER_BYTE + MESSAGE_TOKENS * prompt.messages
    if remembered.conversation and size <= MOST_BYTES_TO_LEARN and remembered.family in FAMILIES_TO_LEARN:
        frames = FRAME_PIECES * prompt.messages
        remembered = replace(
            remembered,
            base_tokens=MESSAGE_TOKENS * prompt.messages,
            rated_pieces=max(0.0, count_pieces(prompt.content) - frames),
        )
    return Prediction(min(max(estimate, low), high), low, high, False, remembered)


def _by_turn(rate: Rate, prompt: Prompt, found: Turn, remembered: Remembered) -> Prediction:
    added = prompt.content[found.content_bytes :]
    messages = added.count(RECORD) if prompt.form == "messages" else 0
    answer, others = _split(added)
    known = _known_answer(answer, found, rate)
    rated = others if known is not None else added
    pieces = max(0.0, count_pieces(rated) - FRAME_PIECES * messages)
    base = found.prompt_tokens + (known or 0) + MESSAGE_TOKENS * messages
    most = float(len(rated))  # a token is at least a byte
    guess = min(pieces * rate.tokens_per_piece, most)
    # A reply is tokenized anew in the next prompt, and not always into the tokens that were generated.
    doubt = MESSAGE_DOUBT * messages + ANSWER_DOUBT * (known or 0)
    # Reasoning that the earlier turn still counted may be left out now, and what was added may not count at all.
    soft_bytes = found.live_bytes + max(0, prompt.soft_bytes - found.soft_bytes)
    dropped = soft_bytes * SOFT_TOKENS_PER_BYTE
    return Prediction(
        base + guess,
        max(0.0, base + guess * (1.0 - rate.error) - doubt - dropped),
        base + min(guess * (1.0 + rate.error), most) + doubt,
        True,
        replace(remembered, base_tokens=base, rated_pieces=0.0 if soft_bytes else pieces),
    )


def _split(added: bytes) -> tuple[bytes, bytes]:
    """What was added since a turn: the assistant's answer to it, and the rest."""
    if not added.startswith(ASSISTANT):
        return b"", added
    end = added.find(RECORD, 1)
    return (added, b"") if end < 0 else (added[:end], added[end:])


def _known_answer(answer: bytes, found: Turn, rate: Rate) -> int | None:
    """The answer's own count of tokens, where its text does not contradict it; None: go by its text.

    It does where reasoning was generated but left out of the next prompt, and where it is another answer.
    """
    if not answer:
        return 0
    if found.answer_tokens is None:
        return None
    by_text = count_pieces(answer) * rate.tokens_per_piece
    slack = max(rate.error, ANSWER_SLACK) * by_text + MESSAGE_TOKENS + MESSAGE_DOUBT
    return found.answer_tokens if abs(found.answer_tokens - by_text) <= slack else None


def learned(
    ledger: Ledger, remembered: Remembered, *, prompt_tokens: int, answer_tokens: int | None = None
) -> Ledger:
    """The ledger after a prompt's exact length became known, from a count (no answer yet) or from `timings`."""
    shortest = ledger.shortest
    if prompt_tokens < shortest.get(remembered.family, 1 << 62):
        shortest = {**shortest, remembered.family: prompt_tokens}
    if not remembered.conversation or not remembered.content_bytes:
        return replace(ledger, shortest=shortest)
    talk = ledger.talk(remembered.conversation)
    turns, again = _with_turn(talk.turns if talk else (), remembered, prompt_tokens, answer_tokens)
    rate = ledger.rate
    if talk is None:
        talk = Talk(turns, rate)
    if again or not remembered.rated_pieces:
        talk = Talk(turns, talk.rate)
    else:
        added = prompt_tokens - remembered.base_tokens
        talk = Talk(turns, talk.rate.learned(remembered.rated_pieces, added))
        rate = rate.learned(remembered.rated_pieces, added)
    return replace(
        ledger, shards=_with_talk(ledger, remembered.conversation, talk), shortest=shortest, rate=rate
    )


def _with_turn(
    turns: tuple[Turn, ...], remembered: Remembered, prompt_tokens: int, answer_tokens: int | None
) -> tuple[tuple[Turn, ...], bool]:
    """The turns with this one last, and whether it was there before."""
    turn = Turn(
        remembered.content_bytes,
        remembered.digest,
        prompt_tokens,
        answer_tokens,
        soft_bytes=remembered.soft_bytes,
        live_bytes=remembered.live_bytes,
    )
    before = next((old for old in turns if old.digest == turn.digest), None)
    if before is not None and (before.again or before.answer_tokens is not None):
        turn = replace(turn, answer_tokens=None, again=True)
    others = tuple(old for old in turns if old.digest != turn.digest)
    return (*others, turn)[-TURNS_KEPT:], before is not None


def _with_talk(ledger: Ledger, conversation: str, talk: Talk) -> tuple[Mapping[str, Talk], ...]:
    at = _shard_of(conversation)
    shard = {name: old for name, old in ledger.shards[at].items() if name != conversation}
    shard[conversation] = talk
    if len(shard) > max(1, ledger.kept // SHARDS):
        del shard[next(iter(shard))]  # the one used longest ago
    return (*ledger.shards[:at], shard, *ledger.shards[at + 1 :])
