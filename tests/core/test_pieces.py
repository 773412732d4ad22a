from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.pieces import count_pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", 0),
        ("word", 1),
        ("two words", 2),
        ("camelCase", 2),
        ("HTML", 1),
        ("2026", 4),
        ("a == b", 3),
        ("a\n\n\nb", 3),
        ("a    b", 3),
        ("äöü", 2),
    ],
)
def test_runs_count_once_and_digits_each(text: str, pieces: float) -> None:
    assert count_pieces(text.encode()) == pytest.approx(pieces)


@given(st.binary(max_size=300))
def test_there_are_never_more_pieces_than_bytes(text: bytes) -> None:
    assert 0.0 <= count_pieces(text) <= len(text)


@given(st.text(max_size=60), st.text(max_size=60))
def test_two_texts_together_have_about_the_pieces_of_both(first: str, second: str) -> None:
    together = count_pieces((first + second).encode())
    apart = count_pieces(first.encode()) + count_pieces(second.encode())
    assert abs(together - apart) <= 2.0
