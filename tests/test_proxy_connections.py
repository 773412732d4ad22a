"""Connections: who is still there, whose turn it is, and what each side was sent. Over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adaptive_dd.core.domain import Setting, Status
from tests.fake_upstream import STREAM, Peer, Received, answer, delta, document, silence
from tests.support.client import Client, ask, request
from tests.support.relay import World, serving

BODY = b'{"stream": true, "messages": []}'
CHAT = "/v1/chat/completions"


# --- the client leaves, at every place where one can ---------------------------------------------------------


async def after_head(request: Received, peer: Peer) -> None:
    await peer.start()
    await asyncio.sleep(600)


async def after_document_head(request: Received, peer: Peer) -> None:
    await peer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
    await asyncio.sleep(600)


async def in_a_gap(request: Received, peer: Peer) -> None:
    await peer.start()
    for text in "abc":
        await peer.chunk(delta(text))
    await asyncio.sleep(600)


async def never_ending(request: Received, peer: Peer) -> None:
    await peer.start()
    while True:
        await peer.chunk(delta("x" * 1000))
        await asyncio.sleep(0)


async def before_the_end(request: Received, peer: Peer) -> None:
    await peer.start()
    await peer.chunk(STREAM)
    await asyncio.sleep(600)  # everything is said, only the final chunk is missing


PLACES = {
    "before the head": silence,
    "between head and first byte": after_head,
    "between head and first byte of a document": after_document_head,
    "in a silent gap": in_a_gap,
    "in full flow": never_ending,
    "before the end": before_the_end,
}


@pytest.mark.parametrize("how", ["close", "vanish"])
@pytest.mark.parametrize("target", [CHAT, "/slots"])
@pytest.mark.parametrize("place", PLACES)
def test_when_the_client_leaves_the_server_is_told_within_a_second(place: str, target: str, how: str) -> None:
    with serving(PLACES[place], setting=Setting(4)) as world:
        client = Client(world.port)
        client.send(request("POST", target, BODY))
        if place != "before the head":
            client.head()
        assert world.fake.until(lambda: world.fake.busy == 1)
        left = time.monotonic()
        getattr(client, how)()
        assert world.fake.until(lambda: world.fake.gone == 1 and world.fake.open_links == 0, 1.0)
        assert time.monotonic() - left < 1.0
        if target == CHAT:
            outcome = world.chooser.outcome()
            assert (outcome.status, outcome.timings) == (Status.CLIENT_GONE, None)
            assert len(world.chooser.outcomes) == 1
        assert world.metrics.value("own_failures_total", where="relay") == 0


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("target", [CHAT, "/tokenize"])
def test_a_client_that_leaves_while_sending_leaves_nothing_behind(target: str, framing: str) -> None:
    with serving(choosing=True) as world:
        client = Client(world.port)
        part = b'{"messages": ' if "Length" in framing else b'd\r\n{"messages": \r\n'
        client.send(request("POST", target, None, framing) + part)
        if target == CHAT:
            time.sleep(0.05)
            assert world.fake.links == 0  # it is read before anything is asked
        else:
            assert world.fake.until(lambda: world.fake.links == 1)
        client.vanish()
        assert world.fake.until(lambda: world.fake.open_links == 0, 1.0)
        assert ask(world.port).status == 200
        assert len(world.fake.received) == 1  # the broken one never became a request
        world.chooser.outcome()
        assert len(world.chooser.outcomes) == 1


def test_a_client_that_leaves_while_we_decide_is_noticed() -> None:
    with serving() as world:
        world.chooser.wait_s = 60.0
        client = Client(world.port)
        client.send(request("POST", CHAT, BODY))
        deadline = time.monotonic() + 5
        while not world.chooser.seen and time.monotonic() < deadline:
            time.sleep(0.01)
        client.close()
        deadline = time.monotonic() + 1
        while not world.metrics.value("client_gone_total") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert world.metrics.value("client_gone_total") == 1
        assert world.fake.links == 0


def test_one_client_that_leaves_takes_no_other_with_it() -> None:
    async def slow(request: Received, peer: Peer) -> None:
        await asyncio.sleep(0.5)
        await answer(request, peer)

    with serving(slow) as world:
        clients = [Client(world.port) for _ in range(8)]
        for client in clients:
            client.send(request("POST", CHAT, BODY))
        assert world.fake.until(lambda: world.fake.busy == 8)
        clients[3].vanish()
        for number, client in enumerate(clients):
            if number != 3:
                assert client.answer().body == STREAM
                client.close()
        assert world.fake.gone == 1


def test_two_hundred_requests_cancelled_at_random_leave_room_for_all_who_come_after() -> None:
    async def slowly(request: Received, peer: Peer) -> None:
        await asyncio.sleep(0.02)
        await peer.start()
        for text in "abc":
            await peer.chunk(delta(text))
            await asyncio.sleep(0.02)
        await peer.end()

    def cancelled(seed: int) -> None:
        client = Client(world.port)
        client.send(request("POST", CHAT if seed % 2 else "/slots", BODY))
        time.sleep(random.Random(seed).uniform(0.0, 0.1))
        client.vanish() if seed % 3 else client.close()

    with serving(slowly) as world, ThreadPoolExecutor(16) as threads:
        for _ in range(2):
            list(threads.map(cancelled, range(200)))
        assert world.fake.until(lambda: world.fake.busy == 0, 5.0)
        served = list(threads.map(lambda _: ask(world.port, "POST", CHAT, BODY), range(20)))
        assert all(got.complete and got.status == 200 for got in served)
        assert world.fake.open_links <= 20
        assert world.run(_tasks_of_the_relay()) <= 30


async def _tasks_of_the_relay() -> int:
    await asyncio.sleep(0.1)
    return len(asyncio.all_tasks())


def test_a_client_that_closes_its_sending_half_is_taken_for_one_that_left() -> None:
    """As uvicorn does; a client of a model server has no reason to, and a half-open one cannot be told from a dead."""
    with serving(silence) as world, Client(world.port) as client:
        client.send(request("POST", CHAT, BODY))
        assert world.fake.until(lambda: world.fake.busy == 1)
        client.socket.shutdown(socket.SHUT_WR)
        assert world.fake.until(lambda: world.fake.gone == 1, 1.0)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of connections")
def test_a_peer_that_vanishes_without_a_word_is_probed_for_by_the_kernel_on_both_sides() -> None:
    with serving(silence) as world, Client(world.port) as client:
        client.send(request("POST", CHAT, BODY))
        assert world.fake.until(lambda: world.fake.busy == 1)
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # local address, remote address, state (01: established), and which timer runs (02: keep-alive)
        ours = [row for row in rows if row[3] == "01"]
        listening_side = [row[5][:2] for row in ours if int(row[1].split(":")[1], 16) == world.port]
        upstream_side = [row[5][:2] for row in ours if int(row[2].split(":")[1], 16) == world.fake.port]
        assert (listening_side, upstream_side) == (["02"], ["02"])


# --- kept connections ----------------------------------------------------------------------------------------


def test_one_connection_serves_many_requests_and_so_does_ours() -> None:
    with serving() as world, Client(world.port) as client:
        for _ in range(120):
            assert client.ask(body=BODY).body == STREAM
        assert world.fake.links == 1
        assert world.fake.received[-1].nth == 120


@pytest.mark.parametrize("says_so", [True, False])
def test_a_server_that_closes_after_some_requests_costs_the_client_nothing(says_so: bool) -> None:
    async def five_each(request: Received, peer: Peer) -> None:
        last = request.nth == 5
        await peer.whole(document(), "200 OK", *(["Connection: close"] if last and says_so else []))
        if last:
            peer.hang_up()

    with serving(five_each) as world, Client(world.port) as client:
        for _ in range(52):
            assert client.ask().status == 200
        assert world.fake.links == 11


@pytest.mark.parametrize("how", ["reset", "hang_up"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_kept_connection_that_dies_under_the_next_request_costs_one_retry_and_no_error(
    how: str, method: str
) -> None:
    async def dies_on_the_second(request: Received, peer: Peer) -> None:
        if request.nth == 2:
            getattr(peer, how)()
        else:
            await peer.whole(document())

    with serving(dies_on_the_second, setting=Setting(4)) as world, Client(world.port) as client:
        for _ in range(6):
            assert client.ask(method, CHAT, b"{}" if method == "POST" else None).status == 200
        assert world.metrics.value("upstream_retries_total") >= 3
        assert world.metrics.value("resent_total") == 0  # the setting is not suspected


def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    async def dies(request: Received, peer: Peer) -> None:
        peer.hang_up()

    with serving(dies) as world:
        got = ask(world.port, "GET", "/props", None)
        assert got.status == 502
        assert len(world.fake.received) == 1


def test_a_body_that_streams_through_meets_no_dying_connection() -> None:
    async def dies_on_the_second(request: Received, peer: Peer) -> None:
        if request.nth == 2:
            peer.hang_up()
        else:
            await peer.whole(b"{}")

    with serving(dies_on_the_second) as world, Client(world.port) as client:
        for _ in range(4):
            client.ask("GET", "/props", None)
            assert client.ask("POST", "/tokenize", b'{"content": "x"}').status == 200
            assert world.fake.received[-1].nth == 1


def test_requests_around_the_moment_of_closing_all_succeed() -> None:
    """The server's 5 s scaled to 0.25 s, and our expiry with it."""

    async def closes_when_idle(request: Received, peer: Peer) -> None:
        await peer.whole(document())
        asyncio.get_running_loop().call_later(0.25, peer.writer.close)

    def around(seed: int) -> int:
        pause = random.Random(seed).uniform(0.22, 0.28)
        with Client(world.port) as client:
            failed = 0
            for _ in range(8):
                failed += client.ask().status != 200
                time.sleep(pause)
            return failed

    with serving(closes_when_idle, keepalive_s=0.2) as world, ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(around, range(48))) == 0


def test_our_own_listening_side_keeps_idle_connections_longer_than_clients_do() -> None:
    from adaptive_dd.httpd import KEEPALIVE_S, server_for

    assert KEEPALIVE_S >= 75
    assert server_for(answer).config.timeout_keep_alive == KEEPALIVE_S
    with serving() as world, Client(world.port) as client:
        client.ask()
        time.sleep(5.3)  # uvicorn's own default would have closed it by now
        assert client.ask().status == 200


def test_a_client_that_resets_leaves_no_timer_behind() -> None:
    with serving() as world:
        for _ in range(20):
            client = Client(world.port)
            client.ask()
            client.vanish()
        time.sleep(0.1)
        assert world.on_loop(_armed_keepalive_timers) == 0


def _armed_keepalive_timers() -> int:
    import gc

    from adaptive_dd.httpd import Protocol

    found = [thing for thing in gc.get_objects() if isinstance(thing, Protocol)]
    return sum(protocol.timeout_keep_alive_task is not None for protocol in found)


# --- framing -------------------------------------------------------------------------------------------------


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("target", [CHAT, "/tokenize", "/v1/audio/transcriptions", "/v1/messages"])
@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_chunked_request_arrives_whole_with_exactly_one_framing(target: str, size: int) -> None:
    body = b'{"messages": [{"content": "' + b"x" * 300 + b'"}]}'
    with serving(setting=Setting(4)) as world, Client(world.port) as client:
        client.send(
            request("POST", target, None, "Transfer-Encoding: chunked", "Trailer: X-Sum")
            + chunked(body, size)
        )
        assert client.answer().status == 200
        got = world.fake.received[0]
    assert len(got.values("content-length") + got.values("transfer-encoding")) == 1
    assert got.values("trailer") == []
    assert got.body == (body[:-1] + b',"speculative.n_max":4}' if target == CHAT else body)


@pytest.mark.parametrize("target", [CHAT, "/tokenize"])
def test_a_request_with_a_length_keeps_one(target: str) -> None:
    with serving() as world:
        ask(world.port, "POST", target, b'{"a": 1}')
        got = world.fake.received[0]
    assert got.values("content-length") == [str(len(got.body)).encode()]
    assert got.values("transfer-encoding") == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "POST"])
def test_a_request_without_a_body_gets_no_framing(method: str) -> None:
    with serving() as world:
        ask(world.port, method, "/slots/0", None)
        got = world.fake.received[0]
    assert got.values("content-length") + got.values("transfer-encoding") == []


def test_an_empty_body_stays_one() -> None:
    with serving() as world:
        assert ask(world.port, "POST", "/lora-adapters", b"").status == 200
        assert ask(world.port, "POST", CHAT, b"").status == 200
        assert [got.values("content-length") for got in world.fake.received] == [[b"0"], [b"0"]]


def test_a_body_over_the_limit_streams_through_unread() -> None:
    body = b'{"messages": "' + b"x" * 300_000 + b'"}'
    with serving(setting=Setting(4), body_limit_bytes=100_000) as world, Client(world.port) as client:
        assert client.ask("POST", CHAT, body).status == 200
        client.send(request("POST", CHAT, None, "Transfer-Encoding: chunked") + chunked(body, 9000))
        assert client.answer().status == 200
        assert [got.body for got in world.fake.received] == [body, body]
        assert [body for _, _, body in world.chooser.seen] == [None, None]
        assert world.chooser.outcome(2).status is Status.OK


def test_an_upload_goes_on_while_it_comes() -> None:
    with serving() as world, Client(world.port) as client:
        client.send(request("POST", "/v1/audio/transcriptions", None, "Content-Length: 200000"))
        client.send(b"a" * 100_000)
        assert world.fake.until(lambda: world.fake.links == 1)  # it is on its way before it is complete
        client.send(b"b" * 100_000)
        assert client.answer().status == 200
        assert world.fake.received[0].body == b"a" * 100_000 + b"b" * 100_000


def test_a_server_that_answers_before_the_upload_ends_is_heard() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.write_eof()
        await reader.read()  # take the rest, so that the answer is not lost to a reset
        writer.close()

    with serving() as world:
        world.run(world.fake.stop())
        server = world.run(asyncio.start_server(early, "127.0.0.1", world.fake.port))
        with Client(world.port) as client:
            client.send(request("POST", "/v1/audio/transcriptions", b"a" * 400_000))
            assert client.answer().status == 413
        world.on_loop(server.close)
        world.run(world.fake.start())


@pytest.mark.parametrize("target", [CHAT, "/tokenize"])
def test_a_client_that_waits_for_leave_to_send_gets_it(target: str) -> None:
    with serving() as world, Client(world.port) as client:
        client.send(request("POST", target, None, "Content-Length: 8", "Expect: 100-continue"))
        deadline = time.monotonic() + 5
        while b"100 Continue" not in client.buffer and time.monotonic() < deadline:
            client.buffer += client.socket.recv(100)
        client.send(b'{"a": 1}')
        assert client.answer().status == 200
        assert world.fake.received[0].values("expect") == []


# --- HTTP/1.0, HEAD, 204, 304, 1xx, odd endings ----------------------------------------------------------------


def test_an_http_1_0_client_gets_a_stream_without_chunk_marks_in_time_and_a_close() -> None:
    async def drip(request: Received, peer: Peer) -> None:
        await peer.stream(*[delta(str(n)) for n in range(5)], gap_s=0.1)

    with serving(drip) as world, Client(world.port) as client:
        got = client.ask(body=BODY, version="1.0")
        assert world.chooser.outcome().status is Status.NO_TIMINGS
    assert got.values("transfer-encoding") == []
    assert got.body == b"".join(delta(str(n)) for n in range(5))
    assert got.complete
    assert got.chunks[-1][0] - got.chunks[0][0] > 0.3


@pytest.mark.parametrize("target", [CHAT, "/health"])
def test_an_http_1_0_client_gets_a_document_and_a_close(target: str) -> None:
    with serving() as world, Client(world.port) as client:
        got = client.ask(
            "POST" if target == CHAT else "GET", target, b"{}" if target == CHAT else None, version="1.0"
        )
        assert got.body == document()
        assert got.value("content-length") == str(len(document()))
        assert client.at_eof()
        assert world.fake.received[0].values("connection") == []


def test_a_bare_http_1_0_request_works() -> None:
    with serving() as world, Client(world.port) as client:
        client.send(b"GET /health HTTP/1.0\r\n\r\n")
        got = client.answer("GET")
        assert got.status == 200
        assert client.at_eof()


def test_head_is_answered_with_the_length_and_no_body() -> None:
    with serving() as world, Client(world.port) as client:
        got = client.ask("HEAD", "/health", None)
        assert got.value("content-length") == str(len(document()))
        assert client.ask("GET", "/health", None).body == document()
        assert [one.method for one in world.fake.received] == ["HEAD", "GET"]


def test_head_of_a_chunked_answer_is_answered_too() -> None:
    async def heads(request: Received, peer: Peer) -> None:
        await peer.start(kind="text/plain")

    with serving(heads) as world, Client(world.port) as client:
        assert client.ask("HEAD", "/health", None).status == 200


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("extra", [[], ["Content-Length: 17"], ["ETag: x"]])
def test_answers_without_a_body_leave_the_connection_in_order(status: str, extra: list[str]) -> None:
    async def bodiless(request: Received, peer: Peer) -> None:
        if request.target == b"/none":
            await peer.raw("\r\n".join([f"HTTP/1.1 {status}", *extra, "", ""]).encode())
        else:
            await peer.whole(document())

    with serving(bodiless) as world, Client(world.port) as client:
        for _ in range(3):
            got = client.ask("GET", "/none", None)
            assert got.status == int(status[:3])
            assert got.values("transfer-encoding") == []
            assert client.ask("GET", "/props", None).body == document()
        assert world.metrics.value("own_failures_total", where="relay") == 0


def test_an_interim_answer_is_not_the_answer() -> None:
    async def interim(request: Received, peer: Peer) -> None:
        await peer.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await peer.whole(document())

    with serving(interim) as world:
        got = ask(world.port)
    assert (got.status, got.body, got.values("link")) == (200, document(), [])


def test_an_answer_that_ends_with_its_connection_is_complete() -> None:
    async def old(request: Received, peer: Peer) -> None:
        await peer.raw(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + document())
        peer.hang_up()

    with serving(old) as world, Client(world.port) as client:
        for number in (1, 2):
            got = client.ask()
            assert got.body == document()
            assert got.complete
            assert world.chooser.outcome(number).status is Status.OK


def test_trailers_are_dropped_and_the_body_is_whole() -> None:
    async def trails(request: Received, peer: Peer) -> None:
        await peer.start("200 OK", "Trailer: X-Sum")
        await peer.chunk(STREAM)
        await peer.raw(b"0\r\nX-Sum: 1\r\n\r\n")

    with serving(trails) as world, Client(world.port) as client:
        for _ in range(2):
            got = client.ask(body=BODY)
            assert got.body == STREAM
            assert got.values("trailer") == []


@pytest.mark.parametrize(
    "raw",
    [
        b"this is no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 99 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 700 Odd\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_an_answer_that_is_no_http_becomes_a_clean_502(raw: bytes) -> None:
    async def odd(request: Received, peer: Peer) -> None:
        await peer.raw(raw)
        await asyncio.sleep(0.05)

    with serving(odd) as world:
        got = ask(world.port)
        assert got.status == 502
        assert "error" in got.json  # type: ignore[operator]


def test_a_header_that_no_server_may_send_does_not_break_the_answer() -> None:
    async def odd(request: Received, peer: Peer) -> None:
        await peer.whole(document(), "200 OK", "X-Odd: a\x01b", "X-Good: yes")

    with serving(odd) as world:
        got = ask(world.port)
    assert got.status in (200, 502)
    if got.status == 200:
        assert (got.body, got.values("x-odd"), got.values("x-good")) == (document(), [], ["yes"])


# --- targets, headers, upgrades ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "/models/org%2Fname?x=%26", "//slots", "/a//b/../c", "/x?", "/x?a=1&a=2&&", "/%", "/a%zz?%", "/a;b=c",
        "/v1/models?x=a+b%20c", "/~x!$'()*,[]|^", "/%C3%A9", "/?q=/v1",
    ],
)  # fmt: skip
def test_the_request_target_arrives_byte_for_byte(target: str) -> None:
    with serving() as world:
        assert ask(world.port, "GET", target, None).status == 200
        assert world.fake.received[0].target == target.encode()


def test_a_target_in_raw_utf_8_is_refused_as_no_http() -> None:
    """A limit of ours: the parser takes only what RFC 9112 allows, and so does the client library."""
    with serving() as world, Client(world.port) as client:
        client.send(b"GET /mod\xc3\xa8le HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer("GET").status == 400
        assert world.fake.links == 0


@pytest.mark.parametrize("place", ["value", "name", "target"])
def test_every_byte_in_a_header_or_target_is_passed_on_or_refused_but_never_a_fault_of_the_server(
    place: str,
) -> None:
    with serving() as world:
        for code in range(256):
            odd = {"value": b"a", "name": b"X", "target": b"x"}
            odd[place] += bytes([code]) + b"b"
            with Client(world.port) as client:
                client.send(
                    b"GET /%b HTTP/1.1\r\nHost: h\r\n%b: %b\r\n\r\n"
                    % (odd["target"], odd["name"], odd["value"])
                )
                assert client.answer("GET").status in (200, 400), code
        assert world.metrics.value("upstream_unreachable_total") == 0


def test_spaces_around_a_header_value_do_no_harm_and_tell_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as world, Client(world.port) as client:
        client.send(b"GET /x HTTP/1.1\r\nHost: h\r\nAuthorization: \t Bearer sk-secret \t \r\n\r\n")
        assert client.answer("GET").status == 200
        assert world.fake.received[0].values("authorization") == [b"Bearer sk-secret"]
        client.send(b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 2 \r\n\r\n{}")
        assert client.answer("POST").status == 200
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (
            b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nab", 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: +2\r\n\r\n{}", 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /x HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400),
        (b"FOO /x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_a_request_that_two_readers_could_read_differently_is_refused(raw: bytes, status: int) -> None:
    with serving() as world, Client(world.port) as client:
        client.send(raw)
        assert client.answer("GET").status == status
        assert world.fake.received == []


def test_requests_sent_without_waiting_are_answered_in_order() -> None:
    with serving() as world, Client(world.port) as client:
        client.send(
            request("POST", CHAT, BODY) + request("GET", "/a", None) + request("POST", "/completion", b"{}")
        )
        assert client.answer("POST").body == STREAM
        assert client.answer("GET").body == document()
        assert client.answer("POST").body == document()
        assert [one.target for one in world.fake.received] == [CHAT.encode(), b"/a", b"/completion"]


def test_an_absolute_target_is_sent_as_a_path() -> None:
    with serving() as world, Client(world.port) as client:
        client.send(b"GET http://other.example/a%2Fb?x=1 HTTP/1.1\r\nHost: other.example\r\n\r\n")
        assert client.answer("GET").status == 200
        assert world.fake.received[0].target == b"/a%2Fb?x=1"
        assert world.fake.received[0].values("host") == [world.fake.url.removeprefix("http://").encode()]


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/"])
def test_an_upstream_url_with_or_without_v1_means_the_same(base: str) -> None:
    with serving(base=base) as world:
        ask(world.port, "GET", "/v1/models", None)
        assert world.fake.received[0].target == b"/v1/models"


def test_a_path_prefix_of_the_upstream_is_put_before_every_target() -> None:
    with serving(base="/llama/v1") as world:
        ask(world.port, "GET", "/v1/models?x=1", None)
        assert world.fake.received[0].target == b"/llama/v1/models?x=1"


def test_headers_pass_in_order_and_spelling_and_only_those_of_one_hop_are_dropped() -> None:
    async def answers(request: Received, peer: Peer) -> None:
        await peer.whole(
            document(), "200 OK", "Set-Cookie: a=1", "Set-Cookie: b=2", "Keep-Alive: timeout=5, max=100",
            "Connection: keep-alive, X-Hop", "X-Hop: 1", "Server: llama.cpp", "Access-Control-Allow-Origin: ",
        )  # fmt: skip

    with serving(answers) as world:
        got = ask(
            world.port, "POST", "/slots", b"{}", "Authorization: Bearer k", "X-Api-Key: k", "x-ODD: \xe9 1",
            "TE: trailers", "Connection: close, X-Private", "X-Private: 1", "Cookie: a=b; c=d",
            "Keep-Alive: timeout=9", "Accept: */*",
            "Proxy-Connection: x",
        )  # fmt: skip
        sent = world.fake.received[0].headers
    names = [name.lower() for name, _ in sent]
    assert sorted(names) == [
        "accept",
        "authorization",
        "content-length",
        "cookie",
        "host",
        "x-api-key",
        "x-odd",
    ]
    assert (
        names.index("authorization")
        < names.index("x-api-key")
        < names.index("cookie")
        < names.index("accept")
    )
    assert got.values("set-cookie") == ["a=1", "b=2"]
    assert got.values("server") == ["llama.cpp"]
    assert got.values("access-control-allow-origin") == [""]
    assert got.values("keep-alive") == got.values("x-hop") == got.values("date") == []


@pytest.mark.parametrize("key", ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "X-None: 1"])
def test_a_websocket_upgrade_gets_a_quick_clean_501(key: str) -> None:
    with serving() as world, Client(world.port) as client:
        got = client.ask(
            "GET",
            "/ws",
            None,
            "Upgrade: WebSocket",
            "Connection: keep-alive, Upgrade",
            "Sec-WebSocket-Version: 13",
            key,
        )
        assert got.status == 501
        assert got.chunks[-1][0] < 2.0
        assert got.json["error"]["code"] == 501  # type: ignore[index]
        assert world.fake.links == 0
        assert client.at_eof()
        assert ask(world.port).status == 200


def test_a_tunnel_is_refused_cleanly_also_with_a_body() -> None:
    with serving() as world:
        got = ask(world.port, "CONNECT", "/v1/chat/completions", b'{"prompt": "a"}')
        assert got.status == 501
        assert got.json["error"]["message"] == "this proxy opens no tunnels"  # type: ignore[index]
        assert world.fake.links == 0
        assert world.metrics.value("own_failures_total", where="relay") == 0


def test_an_offer_of_http_2_is_passed_over() -> None:
    with serving() as world, Client(world.port) as client:
        extra = (
            "Upgrade: h2c",
            "Connection: Upgrade, HTTP2-Settings",
            "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        )
        got = client.ask("POST", CHAT, BODY, *extra)
        assert got.body == STREAM
        sent = world.fake.received[0]
        assert sent.values("upgrade") + sent.values("connection") + sent.values("http2-settings") == []


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_an_offer_of_another_protocol_is_passed_over_wherever_the_request_is_cut(size: int) -> None:
    raw = request("POST", CHAT, BODY, "Upgrade: h2c", "Connection: Upgrade", "X-Mark: 1")
    with serving() as world, Client(world.port) as client:
        for _ in range(3):
            for at in range(0, len(raw), size):
                client.send(raw[at : at + size])
            assert client.answer().body == STREAM
        client.send(
            request("POST", CHAT, None, "Upgrade: h2c", "Connection: Upgrade", "Transfer-Encoding: chunked")
        )
        client.send(chunked(BODY, 5))
        assert client.answer().body == STREAM
        assert client.ask("GET", "/props", None, "Upgrade: h2c", "Connection: Upgrade").status == 200
        assert client.ask(body=BODY).body == STREAM


def test_a_tunnel_is_refused_cleanly() -> None:
    with serving() as world, Client(world.port) as client:
        client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
        assert 400 <= client.answer("GET").status < 600
        assert world.fake.links == 0


def test_a_very_large_head_passes() -> None:
    with serving() as world:
        assert ask(world.port, "GET", "/props", None, f"Cookie: {'x' * 60_000}").status == 200
        assert len(world.fake.received[0].values("cookie")[0]) == 60_000


# --- patience ------------------------------------------------------------------------------------------------


def test_minutes_of_silence_are_normal_and_no_timeout_of_ours_ends_them() -> None:
    """Eleven minutes before the head and within a stream, scaled to what client libraries end after: five seconds."""

    async def long_prompt(request: Received, peer: Peer) -> None:
        if request.target == b"/completion":
            await asyncio.sleep(5.4)
        await peer.start()
        if request.target == CHAT.encode():
            await asyncio.sleep(5.4)
        await peer.chunk(STREAM)
        await peer.end()

    with serving(long_prompt) as world, ThreadPoolExecutor(2) as threads:
        got = list(threads.map(lambda target: ask(world.port, "POST", target, BODY), ["/completion", CHAT]))
    assert [one.body for one in got] == [STREAM, STREAM]
    assert got[0].chunks[0][0] > 5.3
    assert got[1].chunks[0][0] > 5.3


def test_sixty_four_streams_at_once_all_get_through(world_of_many: World) -> None:
    world = world_of_many
    with ThreadPoolExecutor(64) as threads:
        start = time.monotonic()
        answers = list(threads.map(lambda _: ask(world.port, "POST", CHAT, BODY), range(64)))
        spent = time.monotonic() - start
    assert all(got.body == STREAM for got in answers)
    assert world.fake.links >= 32  # no queue of our own
    assert spent < 10


@pytest.fixture
def world_of_many():  # type: ignore[no-untyped-def]
    async def slow(request: Received, peer: Peer) -> None:
        await asyncio.sleep(0.4)
        await peer.stream(STREAM)

    with serving(slow) as world:
        yield world
