from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from adaptive_dd.core.domain import SERVER, Listens
from adaptive_dd.core.identity import Identity, identity_of
from adaptive_dd.core.listening import Answer, Ask, Findings
from adaptive_dd.errors import UpstreamError
from adaptive_dd.probe import BUSY, SLOW, Headers, body_of, probe, prompt_of, read_answer
from adaptive_dd.upstream import Upstream
from adaptive_dd.watch import auth
from tests.fake_llama import FakeLlama

BASE = Ask("base", SERVER)


def who_is(fake: FakeLlama) -> Identity:
    who = identity_of(fake.props())
    assert who is not None
    return who


def run(fake: FakeLlama, **how: object) -> Findings:
    return asyncio.run(probe(fake, who_is(fake), [], nonce=7, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fake", "listens"),
    [
        (FakeLlama(launch_n=4), Listens.HONOURS),
        (FakeLlama(honours=frozenset({"n_max"}), lowers_only=True), Listens.LOWERS_N),
        (FakeLlama(honours=frozenset(), shortens=True), Listens.IGNORES),
        (FakeLlama(drafts="none"), Listens.NO_DRAFTING),
        (FakeLlama(drafts="ngram"), Listens.DRAFTLESS),
        (FakeLlama(limit=8), Listens.HONOURS),
    ],
)
def test_each_behaviour_is_found_over_a_real_socket(fake: FakeLlama, listens: Listens) -> None:
    async def over_http(url: str) -> Findings:
        upstream = Upstream(url)
        try:
            return await probe(upstream, who_is(fake), [], nonce=1)
        finally:
            await upstream.aclose()

    with fake.serving() as url:
        found = asyncio.run(over_http(url))
    assert found.facts.listens is listens
    assert found.probes <= 6


def test_no_two_probes_send_the_same_text() -> None:
    fake = FakeLlama(limit=9)
    run(fake, thorough=True, raise_to=lambda cap: 4 * cap)
    texts = [body["prompt"] for body in fake.bodies]
    assert len(texts) == len(set(texts)) > 6


def test_another_round_sends_other_texts() -> None:
    assert prompt_of(BASE, 1) != prompt_of(BASE, 2)
    assert prompt_of(BASE, 1) == prompt_of(BASE, 1)


def test_probes_are_greedy_where_obedience_is_judged_and_leave_the_prompt_cache_alone() -> None:
    fake = FakeLlama()
    run(fake)
    by_setting = {
        body.get("speculative.n_max", "none"): body for body in fake.bodies if "speculative.p_min" not in body
    }
    assert by_setting["none"]["temperature"] == by_setting[0]["temperature"] == 0.0
    assert all(body["cache_prompt"] is False and body["stream"] is False for body in fake.bodies)


def test_a_server_at_work_is_not_probed() -> None:
    fake = FakeLlama(busy=True)
    assert run(fake).trouble == BUSY
    assert fake.bodies == []


def test_our_own_requests_under_way_hold_a_probe_back() -> None:
    fake = FakeLlama()
    assert run(fake, quiet=lambda: False).trouble == BUSY
    assert fake.bodies == []


def test_what_was_answered_before_an_interruption_is_not_asked_again() -> None:
    fake = FakeLlama()
    answers: list[Answer] = []
    free = iter([True, True, False])
    first = asyncio.run(probe(fake, who_is(fake), answers, nonce=1, quiet=lambda: next(free)))
    assert (first.trouble, len(answers)) == (BUSY, 2)
    second = asyncio.run(probe(fake, who_is(fake), answers, nonce=2))
    assert second.facts.listens is Listens.HONOURS
    assert len(fake.bodies) == second.probes == 4


def test_the_last_slot_of_several_is_used() -> None:
    fake = FakeLlama(slots=4)
    run(fake)
    assert {body["id_slot"] for body in fake.bodies} == {3}


def test_a_sleeping_server_is_not_asked_for_its_slots() -> None:
    fake = FakeLlama(sleeping=True)
    run(fake)
    assert ("GET", "/slots") not in fake.asked


def test_the_configured_key_is_sent_and_its_lack_is_said() -> None:
    assert run(FakeLlama(key="k"), headers=auth("k")).facts.listens is Listens.HONOURS
    refused = FakeLlama(key="k")
    assert "needs a key" in run(refused).trouble
    assert len(refused.bodies) == 0


@dataclass
class Stuck:
    """A server that answers nothing for as long as it is allowed to."""

    asked: list[str] = field(default_factory=list)
    allowed_s: list[float] = field(default_factory=list)

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Headers = (),
        *,
        timeout_s: float = 5.0,
    ) -> tuple[int, object]:
        self.asked.append(path)
        self.allowed_s.append(timeout_s)
        await asyncio.sleep(timeout_s)
        raise UpstreamError("did not answer")


def test_the_budget_of_time_bounds_a_stuck_server() -> None:
    stuck = Stuck()
    found = asyncio.run(probe(stuck, Identity(), [], nonce=1, budget_s=0.15))
    assert found.trouble == SLOW
    assert stuck.asked == ["/completion"]
    assert sum(stuck.allowed_s) <= 0.15


def test_a_server_that_goes_away_is_the_callers_business() -> None:
    class Gone(Stuck):
        async def ask(self, *args: object, **kwargs: object) -> tuple[int, object]:  # type: ignore[override]
            raise UpstreamError("no connection")

    with pytest.raises(UpstreamError, match="no connection"):
        asyncio.run(probe(Gone(), Identity(), [], nonce=1))


@pytest.mark.parametrize(
    "answer",
    [None, [], "x", {"timings": None}, {"timings": {"predicted_n": -1}}, {"generation_settings": 3}],
)
def test_any_answer_can_be_read(answer: object) -> None:
    assert read_answer(BASE, 200, answer).timings is None
    assert read_answer(BASE, 500, answer).message == ""


def test_an_error_message_is_kept_to_one_short_line() -> None:
    long = {"error": {"message": "first " * 100 + "\nsecond"}}
    message = read_answer(BASE, 400, long).message
    assert len(message) <= 200
    assert "\n" not in message


def test_a_model_name_is_sent_where_the_server_wants_one() -> None:
    assert body_of(BASE, 1, model="m")["model"] == "m"
    assert "model" not in body_of(BASE, 1)
