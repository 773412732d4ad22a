"""The texts to calibrate on: without end, without repeating themselves, and of exact length once cut."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path

import pytest

from adaptive_dd.errors import InputFileError, UpstreamError
from adaptive_dd.exact_prompts import Cutter, Generated, OwnTexts, read_texts
from adaptive_dd.prompts import SORTS, text
from tests.timed_llama import TimedLlama


@pytest.mark.parametrize("sort", SORTS)
def test_a_text_does_not_repeat_itself(sort: str) -> None:
    body = text(sort, seed=3, characters=120_000)
    words = body.split()
    run = 24  # words: long enough that a pattern's fixed words alone cannot fill it
    runs = [tuple(words[i : i + run]) for i in range(len(words) - run)]
    assert 1.0 - len(set(runs)) / len(runs) < 0.01


@pytest.mark.parametrize("sort", SORTS)
def test_the_same_seed_gives_the_same_text_and_another_seed_another(sort: str) -> None:
    assert text(sort, seed=1, characters=3000) == text(sort, seed=1, characters=3000)
    assert text(sort, seed=1, characters=3000)[:400] != text(sort, seed=2, characters=3000)[:400]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("characters", [1, 5000, 200_000])
def test_a_text_is_as_long_as_asked(sort: str, characters: int) -> None:
    assert characters <= len(text(sort, seed=0, characters=characters)) < characters + 4000


def test_the_code_is_code_and_the_json_is_json() -> None:
    ast.parse(text("code", seed=5, characters=60_000))
    body = text("json", seed=5, characters=60_000)
    assert len(json.loads(body.rstrip().rstrip(",") + "]")) > 100


def test_the_prose_has_no_slip_of_the_article() -> None:
    body = text("prose", seed=5, characters=60_000) + text("chat", seed=5, characters=60_000)
    assert not any(f" {article} {vowel}" in body for article in ("a", "A") for vowel in "aeio")


# --- cutting


def cut(llama: TimedLlama, shelf: Generated | OwnTexts, sort: str, number: int, tokens: int) -> list[int]:
    return asyncio.run(Cutter(llama, ()).prompt(shelf, sort, number, tokens))


@pytest.mark.parametrize("tokens", [1, 256, 5000, 65536])
def test_a_prompt_has_exactly_the_asked_length_in_the_servers_own_tokens(tokens: int) -> None:
    assert len(cut(TimedLlama(), Generated(), "prose", 0, tokens)) == tokens


def test_every_number_gives_another_prompt() -> None:
    shelf = Generated(seed=4)
    found = {tuple(cut(TimedLlama(), shelf, "code", number, 200)) for number in range(12)}
    assert len(found) == 12


def test_a_server_without_a_tokenizer_is_said_in_one_line() -> None:
    class Mute(TimedLlama):
        def answer(self, *args: object) -> tuple[int, object]:
            return 404, None

    with pytest.raises(UpstreamError, match="/tokenize answered 404 without tokens"):
        cut(Mute(), Generated(), "code", 0, 10)


# --- a user's own texts


def test_each_file_is_a_sort_and_stretches_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"word{i}" for i in range(5000)))
    (tmp_path / "b.py").write_text("x = 1\n" * 2000)
    (tmp_path / ".hidden").write_text("no")
    shelf = read_texts(str(tmp_path))
    assert shelf.sorts == ("a.txt", "b.py")
    prompts = [tuple(cut(TimedLlama(), shelf, "a.txt", number, 300)) for number in range(10)]
    assert len(set(prompts)) == 10
    assert {len(p) for p in prompts} == {300}


def test_a_file_barely_long_enough_still_gives_different_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"word{i}" for i in range(320)))
    shelf = read_texts(str(tmp_path / "a.txt"))
    prompts = [tuple(cut(TimedLlama(), shelf, "a.txt", number, 300)) for number in range(4)]
    assert len({p[:1] for p in prompts}) == 4


@pytest.mark.parametrize("make", ["absent", "binary", "empty", "empty-folder"])
def test_texts_that_cannot_be_read_are_said_in_one_line(make: str, tmp_path: Path) -> None:
    path = tmp_path / "texts"
    if make == "binary":
        path.write_bytes(b"\xff\xfe\x00\x81")
    if make == "empty":
        path.write_text("  \n")
    if make == "empty-folder":
        path.mkdir()
    with pytest.raises(InputFileError) as caught:
        read_texts(str(path))
    assert str(caught.value).startswith("prompts ")
    assert "\n" not in str(caught.value)
    assert "texts" in str(caught.value)
