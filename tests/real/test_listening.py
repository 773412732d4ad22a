"""What real builds do with the fields is found out: the sentences of docs/compatibility.md."""

from __future__ import annotations

import asyncio
import time

import pytest

from adaptive_dd.checkup import Checkup, examine
from adaptive_dd.core.domain import Listens
from adaptive_dd.upstream import Upstream
from tests.real.conftest import Proxy, Serve
from tests.real.servers import RealServer, draft_flags

# Generous: the question here is what is found, not how fast a test machine is.
BUDGET_S = 1000.0


_CHECKED: dict[str, Checkup] = {}


def check(server: RealServer) -> Checkup:
    """Examine a server, once."""

    async def go() -> Checkup:
        upstream = Upstream(server.url)
        try:
            return await examine(upstream, (), nonce=time.time_ns() & 0x7FFFFFFF, budget_s=BUDGET_S)
        finally:
            await upstream.aclose()

    if server.url not in _CHECKED:
        _CHECKED[server.url] = asyncio.run(go())
    return _CHECKED[server.url]


@pytest.mark.parametrize(("launch_n", "launch_p"), [(16, 0.0), (6, 0.75), (4, 0.0)])
def test_b9101_honours_the_fields_does_not_cap_and_shows_its_launch_value(
    serve: Serve, launch_n: int, launch_p: float
) -> None:
    found = check(serve("b9101", *draft_flags(launch_n, p_min=launch_p))).found
    assert found.trouble == ""
    assert (found.facts.listens, found.facts.cap, found.facts.limit) == (Listens.HONOURS, launch_n, None)
    assert (found.n_acts, found.p_acts, found.above_cap) == (True, True, "obeyed")


def test_b9101_counts_by_template_and_tokenize_and_tells_timings_where_the_docs_say(serve: Serve) -> None:
    checkup = check(serve("b9101", *draft_flags(4)))
    assert checkup.counting == {
        "/v1/chat/completions/input_tokens": False,
        "/v1/responses/input_tokens": False,
        "/v1/messages/count_tokens": True,
        "/apply-template": True,
        "/tokenize": True,
    }
    assert checkup.timings["/completion"] == (True, True)
    assert checkup.timings["/v1/completions"] == (True, True)
    assert checkup.timings["/v1/chat/completions"] == (True, True)
    assert checkup.timings["/v1/responses"] == (False, False)
    assert checkup.timings["/v1/messages"] == (False, False)


def test_the_proxy_finds_the_same_by_itself_and_says_it(serve: Serve, proxy: Proxy) -> None:
    made = proxy(serve("b9101", *draft_flags(4)).url)
    made.wait_for("honours")
    assert made.own("health")["cap"] == 4
    assert "honours per-request draft settings (launched with n_max 4)" in made.log.read_text()


def test_b9101_launched_with_a_depth_of_zero_could_still_draft(serve: Serve) -> None:
    found = check(serve("b9101", *draft_flags(0))).found
    assert found.trouble == ""
    assert (found.facts.listens, found.facts.cap) == (Listens.HONOURS, 0)


def test_b9101_drafting_from_ngrams_takes_no_n_max(serve: Serve) -> None:
    found = check(serve("b9101", "--spec-type", "ngram-simple", drafter=False)).found
    assert found.trouble == ""
    assert found.facts.listens is Listens.DRAFTLESS


def test_b9101_without_a_drafter_drafts_nothing(serve: Serve) -> None:
    found = check(serve("b9101", drafter=False)).found
    assert found.trouble == ""
    assert found.facts.listens is Listens.NO_DRAFTING


def test_b11434_ignores_the_fields(serve: Serve) -> None:
    checkup = check(serve("b11434", *draft_flags(8, build="b11434")))
    assert checkup.found.trouble == ""
    assert (checkup.found.facts.listens, checkup.found.n_acts) == (Listens.IGNORES, False)
    assert checkup.found.facts.spec_type == "draft-simple"
    assert checkup.counting["/v1/chat/completions/input_tokens"] is True
    assert checkup.timings["/v1/responses"] == (False, True)


def test_b11434_without_a_spec_type_drafts_nothing_although_it_has_a_draft_model(serve: Serve) -> None:
    found = check(serve("b11434")).found
    assert found.trouble == ""
    assert found.facts.listens is Listens.NO_DRAFTING
