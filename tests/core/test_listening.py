from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from adaptive_dd.core.domain import OFF, SERVER, Listens, Setting, Timings
from adaptive_dd.core.listening import (
    MOST_PROBES,
    Answer,
    Ask,
    Findings,
    conclude,
    launch_depth,
    launch_depths,
    never_above,
    next_ask,
)
from tests.fake_llama import FakeLlama

# A prompt of each sort as far as the fake cares: predictable text has lines, repeats are long.
TEXTS = {"loop": "one\ntwo", "long": "block " * 60 + "\n", "novel": "the thing"}


def put(fake: FakeLlama, ask: Ask, nonce: int) -> Answer:
    setting = ask.setting
    fields = {"n_max": setting.n_max, "p_min": setting.p_min, "n_min": setting.n_min}
    stamped = {f"speculative.{name}": value for name, value in fields.items() if value is not None}
    body = {"prompt": f"{nonce}{ask.name}{TEXTS[ask.text]}", "n_predict": ask.tokens, **stamped}
    status, got = fake.answer("POST", "/completion", body, {})
    assert isinstance(got, dict)
    if status != 200:
        return Answer(ask, status, message=got["error"]["message"])
    kinds = got["generation_settings"]["speculative.types"].replace("none", "").strip(",")
    return Answer(ask, status, Timings(**got["timings"]) if "timings" in got else None, spec_type=kinds)


def converse(
    fake: FakeLlama,
    *,
    nonce: int = 0,
    raise_to: Callable[[int], int | None] = never_above,
    thorough: bool = False,
) -> tuple[list[Answer], Findings]:
    answers: list[Answer] = []
    while ask := next_ask(answers, raise_to=raise_to, thorough=thorough):
        answers.append(put(fake, ask, nonce))
        assert len(answers) <= MOST_PROBES
    return answers, conclude(answers)


def double(cap: int) -> int:
    return 2 * cap


NONCES = range(12)


@pytest.mark.parametrize("launch_n", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("launch_p", [0.0, 0.75])
@pytest.mark.parametrize("nonce", NONCES)
def test_a_server_that_honours_all_fields_is_found_with_its_launch_value(
    launch_n: int, launch_p: float, nonce: int
) -> None:
    _, found = converse(FakeLlama(launch_n=launch_n, launch_p=launch_p), nonce=nonce, thorough=True)
    assert (found.facts.listens, found.facts.cap) == (Listens.HONOURS, launch_n)
    assert (found.n_acts, found.p_acts) == (True, True)
    # A launch value of 1 leaves no room for short drafts, and now and then none is short.
    assert found.n_min_acts in ((None,) if launch_n == 1 else (True, None))


def test_n_min_that_does_not_act_is_told_from_one_that_does() -> None:
    deaf = frozenset({"n_max", "p_min"})
    hears = [converse(FakeLlama(), nonce=n, thorough=True)[1].n_min_acts for n in NONCES]
    does_not = [converse(FakeLlama(honours=deaf), nonce=n, thorough=True)[1].n_min_acts for n in NONCES]
    assert hears.count(True) >= len(NONCES) // 2
    assert False not in hears
    assert does_not.count(False) >= len(NONCES) // 2
    assert True not in does_not


@pytest.mark.parametrize("nonce", NONCES)
def test_a_server_that_takes_only_n_max_and_only_lower_is_found(nonce: int) -> None:
    fake = FakeLlama(launch_n=8, honours=frozenset({"n_max"}), lowers_only=True)
    _, found = converse(fake, nonce=nonce, raise_to=double)
    assert (found.facts.listens, found.facts.cap, found.above_cap) == (Listens.LOWERS_N, 8, "capped")


@pytest.mark.parametrize("launch_p", [0.0, 0.75])
@pytest.mark.parametrize("nonce", NONCES)
def test_a_server_that_ignores_the_fields_is_found(launch_p: float, nonce: int) -> None:
    fake = FakeLlama(launch_n=8, launch_p=launch_p, honours=frozenset(), shortens=True)
    answers, found = converse(fake, nonce=nonce)
    assert found.facts.listens is Listens.IGNORES
    assert found.n_acts is False
    assert len(answers) <= 4


@pytest.mark.parametrize("nonce", NONCES)
def test_a_server_without_a_drafter_is_found(nonce: int) -> None:
    answers, found = converse(FakeLlama(drafts="none"), nonce=nonce)
    assert (found.facts.listens, found.facts.cap) == (Listens.NO_DRAFTING, None)
    assert len(answers) <= 3


@pytest.mark.parametrize(
    ("drafts", "names"), [("ngram", "none"), ("ngram", "ngram-mod"), ("both", "ngram-mod")]
)
@pytest.mark.parametrize("nonce", NONCES)
def test_ngram_drafting_is_told_from_ignoring(drafts: str, names: str, nonce: int) -> None:
    fake = FakeLlama(
        drafts=drafts, names_types=names, honours=frozenset({"n_max"} if drafts == "ngram" else ())
    )
    _, found = converse(fake, nonce=nonce)
    assert found.facts.listens is Listens.DRAFTLESS
    assert found.facts.cap is None


@pytest.mark.parametrize("limit", [8, 9, 11, 15])
def test_refused_values_above_a_limit_are_narrowed_down_to_it(limit: int) -> None:
    _, found = converse(FakeLlama(launch_n=8, limit=limit), raise_to=double)
    assert (found.facts.listens, found.facts.cap, found.facts.limit) == (Listens.HONOURS, 8, limit)
    assert found.above_cap == "refused"


def test_a_server_that_obeys_values_above_its_launch_value_has_no_limit() -> None:
    _, found = converse(FakeLlama(launch_n=4), raise_to=double)
    assert (found.above_cap, found.facts.limit, found.facts.cap) == ("obeyed", None, 4)


def test_nothing_above_the_launch_value_is_sent_unless_asked_for() -> None:
    fake = FakeLlama(launch_n=8)
    converse(fake, thorough=True)
    assert max(body.get("speculative.n_max", 0) for body in fake.bodies) <= 8
    fake = FakeLlama(launch_n=1)
    converse(fake, thorough=True)
    assert max(body.get("speculative.n_max", 0) for body in fake.bodies) <= 1


def test_a_cap_below_the_launch_value_is_not_tried() -> None:
    answers, found = converse(FakeLlama(launch_n=8), raise_to=lambda cap: 2)
    assert found.above_cap == ""
    assert all(answer.ask.name != "above" for answer in answers)


def test_a_launch_value_of_zero_is_seen_as_such() -> None:
    _, found = converse(FakeLlama(launch_n=0))
    assert (found.facts.listens, found.facts.cap) == (Listens.HONOURS, 0)


def test_a_launch_p_min_that_lets_nothing_through_hides_no_drafter() -> None:
    _, found = converse(FakeLlama(launch_n=6, launch_p=1.0))
    assert (found.facts.listens, found.facts.cap) == (Listens.HONOURS, 6)


@pytest.mark.parametrize(
    ("fake", "word"),
    [
        (FakeLlama(key="k"), "key"),
        (FakeLlama(status=503), "loading"),
        (FakeLlama(timings=False), "timings"),
        (FakeLlama(status=404), "404"),
    ],
)
def test_what_stands_in_the_way_is_said_after_one_request(fake: FakeLlama, word: str) -> None:
    answers, found = converse(fake)
    assert word in found.trouble
    assert found.facts.listens is Listens.UNKNOWN
    assert len(answers) == 1


def test_a_server_that_falls_over_on_a_probe_is_not_asked_on() -> None:
    fake = FakeLlama()
    answers = [put(fake, Ask("base", SERVER), 0), Answer(Ask("off", OFF), 500, message="boom")]
    assert next_ask(answers) is None
    assert "boom" in conclude(answers).trouble


def test_contradicting_answers_prove_nothing() -> None:
    fake = FakeLlama()
    base = put(fake, Ask("base", SERVER), 0)
    drafted = dataclasses.replace(base, ask=Ask("off", OFF))
    silent = put(fake, Ask("off-again", OFF), 0)
    assert conclude([base, drafted, silent]).facts.listens is Listens.UNKNOWN


def test_the_type_of_drafting_is_taken_from_the_answers() -> None:
    _, found = converse(FakeLlama(names_types="none,draft-mtp"))
    assert found.facts.spec_type == "draft-mtp"


@pytest.mark.parametrize(
    ("predicted", "drafted", "accepted", "depths"),
    [
        (32, 160, 21, {16}),
        (32, 20, 20, {2}),
        (32, 32, 29, {16, 32}),
        (32, 82, 20, {8}),
        (16, 0, 0, {0}),
        (1, 0, 0, {0}),
        (16, 56, 7, {7, 8}),
    ],
)
def test_the_launch_value_is_read_off_timings(
    predicted: int, drafted: int, accepted: int, depths: set[int]
) -> None:
    assert launch_depths(seen(predicted, drafted, accepted)) == depths


def seen(predicted: int, drafted: int, accepted: int) -> Timings:
    return Timings(5, 100.0, predicted, 1000.0, draft_n=drafted, draft_n_accepted=accepted)


def test_an_ambiguous_launch_value_is_settled_by_another_answer() -> None:
    assert launch_depth([seen(16, 56, 7), seen(16, 72, 6)]) == {8}
    assert launch_depth([seen(16, 56, 7), seen(16, 40, 5)]) == {7}, (
        "nothing in common: the larger lower bound"
    )


def test_settings_are_spelt_as_the_plan_wants_them() -> None:
    assert next_ask([]) == Ask("base", Setting())
