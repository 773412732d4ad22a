from __future__ import annotations

import random

import pytest

from adaptive_dd.core.domain import OFF, SERVER, Listens, ServerFacts, Setting, Timings
from adaptive_dd.core.overheard import SILENT_TOKENS, Overheard, facts_from, heard, refused
from tests.fake_llama import FakeLlama

UNKNOWN = ServerFacts()
HONOURS = ServerFacts(listens=Listens.HONOURS, cap=8)


def answer(fake: FakeLlama, sent: Setting, number: int, tokens: int = 64) -> Timings:
    fields = {"n_max": sent.n_max, "p_min": sent.p_min, "n_min": sent.n_min}
    stamped = {f"speculative.{name}": value for name, value in fields.items() if value is not None}
    _, got = fake.complete({"prompt": f"{number}\n", "n_predict": tokens, **stamped})
    assert isinstance(got, dict)
    return Timings(**got["timings"])


def listen(fake: FakeLlama, sends: list[Setting], before: ServerFacts = UNKNOWN) -> ServerFacts:
    so_far = Overheard()
    for number, sent in enumerate(sends):
        so_far = heard(so_far, sent, answer(fake, sent, number))
    return facts_from(so_far, before)


MIX = [SERVER, OFF, Setting(2, 0.0), SERVER, OFF, Setting(4)] * 3


def test_obedience_is_learned_from_traffic() -> None:
    assert listen(FakeLlama(), MIX).listens is Listens.HONOURS


def test_disobedience_is_learned_within_two_stamped_requests() -> None:
    fake = FakeLlama(honours=frozenset(), launch_n=8)
    assert listen(fake, [OFF, OFF]).listens is Listens.IGNORES
    assert listen(fake, [Setting(2), SERVER, Setting(2)]).listens is Listens.IGNORES


def test_one_contradiction_is_not_enough() -> None:
    assert listen(FakeLlama(honours=frozenset()), [OFF, SERVER]).listens is Listens.UNKNOWN


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_honours_is_never_called_one_that_ignores(seed: int) -> None:
    draw = random.Random(seed)
    settings = [
        OFF,
        SERVER,
        Setting(1),
        Setting(2, 0.3),
        Setting(4, 0.0),
        Setting(16, 0.6),
        Setting(8, 0.0, 2),
    ]
    fake = FakeLlama(launch_n=draw.choice([1, 4, 16]), launch_p=draw.choice([0.0, 0.75]))
    so_far = Overheard()
    for number in range(200):
        sent = draw.choice(settings)
        so_far = heard(so_far, sent, answer(fake, sent, number, tokens=draw.randint(1, 200)))
        facts = facts_from(so_far, UNKNOWN)
        assert facts.listens in (Listens.UNKNOWN, Listens.HONOURS)
        assert facts.cap is None or facts.cap <= fake.launch_n


def test_traffic_overrules_a_verdict_that_has_become_wrong() -> None:
    fake = FakeLlama(honours=frozenset())
    assert listen(fake, [OFF, OFF], HONOURS).listens is Listens.IGNORES


def test_an_ngram_server_keeps_its_name_when_it_disobeys() -> None:
    before = ServerFacts(listens=Listens.DRAFTLESS)
    assert listen(FakeLlama(honours=frozenset()), [OFF, OFF], before).listens is Listens.DRAFTLESS


def test_long_silence_means_no_drafter_until_one_token_is_drafted() -> None:
    silent = FakeLlama(drafts="none")
    so_far = Overheard()
    for number in range(SILENT_TOKENS // 63 + 1):
        so_far = heard(so_far, SERVER, answer(silent, SERVER, number))
    facts = facts_from(so_far, UNKNOWN)
    assert facts.listens is Listens.NO_DRAFTING
    so_far = heard(so_far, SERVER, answer(FakeLlama(), SERVER, 999))
    assert facts_from(so_far, facts).listens is Listens.UNKNOWN


def test_requests_that_forbid_drafting_do_not_count_as_silence() -> None:
    so_far = Overheard()
    for number in range(200):
        so_far = heard(so_far, OFF, answer(FakeLlama(), OFF, number))
    assert facts_from(so_far, UNKNOWN).listens is Listens.UNKNOWN


def test_the_launch_value_is_approached_from_below() -> None:
    facts = listen(FakeLlama(launch_n=16), [SERVER] * 30)
    assert facts.cap is not None
    assert 12 <= facts.cap <= 16
    assert listen(FakeLlama(launch_n=4), [SERVER] * 3, ServerFacts(cap=4)).cap == 4


def test_a_refusal_sets_the_limit_below_the_value_refused() -> None:
    so_far = refused(refused(Overheard(), Setting(8)), Setting(12))
    assert facts_from(so_far, UNKNOWN).limit == 7
    assert facts_from(so_far, ServerFacts(limit=5)).limit == 5
    assert facts_from(refused(Overheard(), Setting(p_min=0.5)), UNKNOWN).limit is None


def test_short_answers_prove_nothing() -> None:
    timings = Timings(5, 10.0, 6, 30.0, draft_n=16, draft_n_accepted=4)
    assert heard(Overheard(), OFF, timings) == Overheard()
