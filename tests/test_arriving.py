"""Routes without timings through the whole proxy, over real sockets: what is learned by when tokens arrive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptive_dd.core.domain import OFF, Setting, Status
from adaptive_dd.store import FILE_NAME
from tests.fake_upstream import Peer, Received
from tests.streams import closing, message, named, opening, text
from tests.support.cli import run_here
from tests.support.client import Client, ask, request
from tests.support.placing import FakeReplica, FakeRouter, Placing, placing
from tests.support.relay import serving

CYCLE_MS = 25.0
# Where cycles are counted: a busy machine holds up a burst by ten milliseconds now and then.
SLOW_CYCLE_MS = 100.0
TALK = "word" * 50


@pytest.fixture
def servers() -> dict[str, FakeReplica]:
    found = {"off": FakeReplica(0), "n4": FakeReplica(4)}
    for server in found.values():
        server.model.cycle_ms = CYCLE_MS
    return found


@pytest.fixture
def replicas(servers: dict[str, FakeReplica], tmp_path: Path) -> Iterator[Placing]:
    with placing(servers, tmp_path, arm=["off={off}", "n4={n4}"]) as world:
        yield world


def kinds(world: Placing) -> set[str]:
    """The kinds of request that something was learned of."""
    return {kind.split(".")[2] for kind in world.proxy.engine.state.lengths}


def test_a_streamed_message_is_learned_from(replicas: Placing) -> None:
    answer = replicas.message(TALK, stream=True)
    assert (answer.status, answer.complete, answer.value("x-dd-setting")) == (200, True, "n0")
    row = replicas.decisions()[0]
    assert (row["status"], row["inferred"], row["rejected"]) == ("ok", True, "")
    assert (row["predicted_n"], row["draft_n"], row["draft_n_accepted"]) == (13, 0, 0)
    assert row["predicted_ms"] > 12 * CYCLE_MS * 0.9
    assert row["seen_prompt_tokens"] == 51
    assert kinds(replicas) == {"messages"}
    assert replicas.proxy.engine.state.guard.prices


def test_cycles_are_told_from_bursts_of_a_replica_that_drafts(
    servers: dict[str, FakeReplica], tmp_path: Path
) -> None:
    servers["n4"].model.cycle_ms = SLOW_CYCLE_MS
    arms = ["off={off}", "n4,p0.0={n4}"]
    with placing(servers, tmp_path, arm=arms, mode="static", frontier="0:n4,p0.0") as world:
        assert world.message(TALK, stream=True).value("x-dd-setting") == "n4,p0.0"
        row = world.decisions()[0]
    assert (row["status"], row["inferred"]) == ("ok", True), row
    cycles = row["predicted_n"] - 1 - row["draft_n_accepted"]
    assert cycles == pytest.approx(12, abs=1)
    assert row["draft_n"] == 4 * cycles


def test_presets_are_learned_from_although_their_answers_are_renamed_on_the_way(tmp_path: Path) -> None:
    router = FakeRouter("off", "n2")
    for model in router.models.values():
        model.cycle_ms = CYCLE_MS
    with placing({"router": router}, tmp_path, upstream="{router}", actuator="presets") as world:
        answer = world.message(TALK, stream=True)
        assert b'"model": "gemma"' in answer.body
        assert b"gemma@" not in answer.body
        assert world.decisions()[0]["inferred"] is True
        assert kinds(world) == {"messages"}


def test_an_unstreamed_message_is_acted_on_and_not_learned_from(replicas: Placing) -> None:
    for _ in range(2):
        answer = replicas.message(TALK)
        assert (answer.status, answer.value("x-dd-applied")) == (200, "true")
    rows = replicas.decisions()
    assert [(row["status"], row["inferred"]) for row in rows] == [("no-timings", False)] * 2
    assert kinds(replicas) == set()
    assert rows[0]["cell"].endswith(".chat"), "the second one is known to be blind"
    replicas.message(TALK, stream=True)
    assert kinds(replicas) == {"messages"}, "a streamed one is not"


def test_with_fields_a_message_passes_unmodified_and_is_not_timed(tmp_path: Path) -> None:
    server = FakeReplica(4)
    server.model.cycle_ms = CYCLE_MS
    with placing({"one": server}, tmp_path, upstream="{one}", actuator="fields") as world:
        answer = world.message(TALK, stream=True)
        assert answer.value("x-dd-reason") == "route-drops-fields"
        assert set(server.model.served[-1]) == {"model", "max_tokens", "messages", "stream"}
        assert [row["status"] for row in world.decisions()] == ["no-timings"]


def test_the_relay_listens_to_arrivals_only_where_it_is_told_to() -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.stream(*[message(9)[at : at + 200] for at in range(0, len(message(9)), 200)], gap_s=0.01)

    for by_arrival in (True, False):
        with serving(script, setting=Setting(4)) as world:
            world.chooser.by_arrival = by_arrival
            assert ask(world.port, "POST", "/v1/messages", b'{"stream": true}').body == message(9)
            outcome = world.chooser.outcome()
        assert (outcome.status is Status.NO_TIMINGS) is not by_arrival


def test_a_client_that_leaves_is_noticed_as_quickly_while_arrivals_are_listened_to() -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.start()
        await peer.chunk(opening() + text())
        await asyncio.sleep(600)

    with serving(script, setting=Setting(4)) as world:
        world.chooser.by_arrival = True
        client = Client(world.port)
        client.send(request("POST", "/v1/messages", b'{"stream": true}'))
        assert world.fake.until(lambda: world.fake.busy == 1)
        client.vanish()
        assert world.fake.until(lambda: world.fake.gone == 1, 1.0)
        assert world.chooser.outcome().status is Status.CLIENT_GONE


def test_a_stream_that_breaks_off_or_ends_in_an_error_is_not_learned_from() -> None:
    async def script(asked: Received, peer: Peer) -> None:
        await peer.start()
        await peer.chunk(opening() + text() * 30)
        if b"error" in asked.body:
            await peer.chunk(named("error", error={"type": "api_error", "message": "x"}) + closing(30))
            await peer.end()
        peer.hang_up()

    with serving(script, setting=Setting(4)) as world:
        world.chooser.by_arrival = True
        ask(world.port, "POST", "/v1/messages", b'{"stream": true}')
        ask(world.port, "POST", "/v1/messages", b'{"stream": true, "error": 1}')
        endings = [world.chooser.outcome(number) for number in (1, 2)]
    assert [(one.status, one.timings) for one in endings] == [(Status.CUT, None), (Status.ERROR, None)]


def test_the_bytes_are_the_servers_own_and_nothing_is_held_back(replicas: Placing) -> None:
    body = json.dumps({"max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": TALK}]})
    with replicas.client() as client:
        answer = client.ask("POST", "/v1/messages", body.encode())
    assert answer.body.count(b"event: content_block_delta\n") == 13
    assert answer.body.startswith(b"event: message_start\n")
    assert answer.body.endswith(b'data: {"type": "message_stop"}\n\n')
    assert len(answer.chunks) > 12


def test_a_client_that_reads_too_slowly_is_noticed_and_not_learned_from(
    replicas: Placing, servers: dict[str, FakeReplica]
) -> None:
    servers["off"].model.word = "a" * 600_000
    body = json.dumps({"max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": TALK}]})
    with replicas.client() as client:
        client.send(request("POST", "/v1/messages", body.encode()))
        time.sleep(1.0)
        assert client.answer().complete
    row = replicas.decisions()[0]
    assert (row["status"], row["rejected"]) == ("rejected", "slow-reader")


def test_what_a_place_holds_is_known_from_the_usage_and_what_a_prompt_costs_from_the_first_token(
    replicas: Placing,
) -> None:
    said = {"role": "user", "content": "text" * 300}
    for _ in range(2):
        replicas.message("", messages=[said], stream=True)
    residents = replicas.proxy.tend.actuator.residents  # type: ignore[attr-defined]
    conversation = replicas.decisions()[0]["conversation"]
    assert conversation
    assert residents.held_tokens(conversation, OFF) > 250
    assert 0.0 < residents.speed.ms_per_token < 20.0


def test_trials_are_made_where_all_traffic_is_messages(
    replicas: Placing, servers: dict[str, FakeReplica]
) -> None:
    for server in servers.values():
        server.model.cycle_ms = 6.0
    for number in range(40):
        replicas.message(f"talk {number}", stream=True)
    rows = replicas.decisions()
    assert any(row["setting"] == "n4" for row in rows), [row["reason"] for row in rows]
    learned = replicas.proxy.engine.state.guard.trials
    assert any("n4" in trials and trials["n4"].weight > 0.0 for trials in learned.values())


def test_metrics_and_the_journal_mark_what_was_told_by_arrival(
    servers: dict[str, FakeReplica], tmp_path: Path
) -> None:
    servers["n4"].model.cycle_ms = SLOW_CYCLE_MS
    with placing(servers, tmp_path, arm=["off={off}", "n4={n4}"], mode="static", frontier="0:n4") as world:
        world.message(TALK, stream=True)
        world.chat(TALK)
        world.settled()
        metrics = world.proxy.metrics
        assert metrics.value("samples_by_arrival_total") == 1
        assert metrics.value("drafted_tokens_total") == 40, "the chat's alone"
        assert metrics.value("decoded_tokens_total") == 61 + 31
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as journal:
        rows = journal.execute(
            "select kind, inferred, draft_n, accepted, predicted_n from decisions"
        ).fetchall()
    assert [row[1:] for row in sorted(rows)] == [(0, 40, 20, 31), (1, None, None, 61)]
    explained = [run_here("inspect", "--state-dir", str(tmp_path), "--explain", n).stdout for n in "12"]
    assert ["61 tokens, told by when they arrived" in shown for shown in explained] == [True, False]


def test_an_answer_with_timings_of_its_own_is_not_inferred(replicas: Placing) -> None:
    replicas.chat(TALK, stream=True)
    row = replicas.decisions()[0]
    assert (row["status"], row["inferred"], row["predicted_ms"]) == ("ok", False, 300.0)
