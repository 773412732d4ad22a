"""How many pieces a text falls into: runs of letters, single digits, runs of signs, line ends, runs of spaces.

Tokenizers of language models first split a text much like this, and make one token of most pieces. So tokens per
piece hardly move from prose to code to JSON, where tokens per byte move by a factor of two: over 3,300 chunks of
300 bytes and more, with Gemma-3's vocabulary, the standard deviation of the first was 4.5%, of the second 19%.
It misleads for scripts other than Latin, whose pieces are guessed at three bytes, and for text without words
(base64).

A piece is counted where it begins, by the classes of two neighbouring bytes; 500 kB take about a millisecond.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SPACE, _LOWER, _UPPER, _DIGIT, _SIGN, _LINE, _OTHER = range(7)
_CLASSES = 8
# Bytes of a piece in scripts outside of ASCII: one letter of most, half a word of Cyrillic or Greek.
_OTHER_BYTES = 3.0


def _class_table() -> bytes:
    table = bytearray([_SIGN]) * 256
    for byte in range(256):
        text = chr(byte)
        if byte >= 128:
            table[byte] = _OTHER
        elif text in "\r\n\t\v\f":
            table[byte] = _LINE
        elif text == " ":
            table[byte] = _SPACE
        elif text.isdigit():
            table[byte] = _DIGIT
        elif text.isalpha():
            table[byte] = _UPPER if text.isupper() else _LOWER
    return bytes(table)


def _weights() -> npt.NDArray[np.float64]:
    """(class before x class) -> pieces that begin there; flat, index before * _CLASSES + class."""
    begins = np.zeros((_CLASSES, _CLASSES))
    for before in range(_CLASSES):
        begins[before, _DIGIT] = 1.0
        begins[before, _OTHER] = 1.0 / _OTHER_BYTES
        begins[before, _LOWER] = before not in (_LOWER, _UPPER)
        begins[before, _UPPER] = before != _UPPER
        begins[before, _SIGN] = before != _SIGN
        begins[before, _LINE] = before != _LINE
    return begins.ravel()


_TABLE = _class_table()
_BEGINS = _weights()
_START = bytes([_SPACE])


def count_pieces(text: bytes) -> float:
    """Number of pieces in a text; not whole where it holds bytes outside of ASCII."""
    if not text:
        return 0.0
    classes = np.frombuffer(_START + text.translate(_TABLE), dtype=np.uint8)
    pairs = classes[:-1] * _CLASSES + classes[1:]
    found = np.bincount(pairs, minlength=_CLASSES * _CLASSES)
    # A single space belongs to the word behind it; a run of several is a piece of its own.
    space = classes == _SPACE
    runs = np.count_nonzero(space[1:-1] & space[2:] & ~space[:-2])
    return float(found @ _BEGINS) + float(runs)
