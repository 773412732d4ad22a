"""Streams through the relay, over real sockets: the same bytes, at once, however they are cut; and what the tap saw."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import subprocess
import sys

import pytest

from adaptive_dd.core.domain import Setting, Status
from tests.fake_upstream import (
    DONE,
    STREAM,
    TIMINGS,
    Peer,
    Received,
    answer,
    delta,
    document,
    event,
    last_event,
)
from tests.support.client import Client, ask
from tests.support.relay import serving

BODY = b'{"stream": true, "messages": []}'
CHAT = "/v1/chat/completions"


def test_events_go_out_one_by_one_as_they_come() -> None:
    async def drip(request: Received, peer: Peer) -> None:
        await peer.stream(*[delta(f"t{n} ") for n in range(20)], gap_s=0.05)

    with serving(drip) as world:
        got = ask(world.port, body=BODY)
    times = [at for at, _ in got.chunks]
    assert len(times) == 20
    assert times[-1] - times[0] >= 0.9
    assert (
        times[0] < 0.65
    )  # 0.15 s, and half a second for a loaded machine; a buffer would hold it for the full second
    assert sum(b - a < 0.005 for a, b in itertools.pairwise(times)) <= 2
    assert got.complete


def test_an_event_stream_tells_proxies_in_front_not_to_buffer() -> None:
    with serving() as world:
        assert ask(world.port, body=BODY).values("x-accel-buffering") == ["no"]
        assert ask(world.port).values("x-accel-buffering") == []


def test_a_server_that_says_so_itself_is_not_said_twice() -> None:
    async def says(request: Received, peer: Peer) -> None:
        await peer.start("200 OK", "X-Accel-Buffering: yes", "Cache-Control: no-cache")
        await peer.chunk(STREAM)
        await peer.end()

    with serving(says) as world:
        got = ask(world.port, body=BODY)
    assert got.values("x-accel-buffering") == ["yes"]
    assert got.values("cache-control") == ["no-cache"]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_the_stream_cut_at_every_byte_is_the_same_stream_and_one_sample(ending: bytes) -> None:
    text = (b": ping\n\n" + delta("Hé \U0001f600") + last_event() + DONE).replace(b"\n", ending)
    cut = 0

    async def two_pieces(request: Received, peer: Peer) -> None:
        await peer.start()
        await peer.raw(
            b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:cut], text[cut:]) if part)
        )
        await peer.end()

    with serving(two_pieces) as world, Client(world.port) as client:
        for number, cut in enumerate(range(0, len(text) + 1, 1 if ending == b"\n" else 5), start=1):  # noqa: B007
            got = client.ask(body=BODY)
            assert got.body == text
            assert got.complete
            outcome = world.chooser.outcome(number)
            assert outcome.status is Status.OK
            assert outcome.timings is not None
            assert outcome.timings.predicted_n == 64
        assert len(world.chooser.outcomes) == number


def test_any_cuts_with_pauses_between_them_change_nothing() -> None:
    text = b"\xef\xbb\xbf" + STREAM.replace(b"\n", b"\r\n")
    random_cuts = random.Random(5)

    async def pieces(request: Received, peer: Peer) -> None:
        await peer.start()
        places = sorted(random_cuts.sample(range(1, len(text)), 6))
        for a, b in zip([0, *places], [*places, len(text)], strict=True):
            await peer.chunk(text[a:b])
            await asyncio.sleep(0)
        await peer.end()

    with serving(pieces) as world, Client(world.port) as client:
        for number in range(1, 31):
            assert client.ask(body=BODY).body == text
            assert world.chooser.outcome(number).status is Status.OK


def test_pings_pass_at_once_and_are_no_data() -> None:
    async def pings(request: Received, peer: Peer) -> None:
        await peer.start()
        for _ in range(6):
            await peer.chunk(b":\n\n")
            await asyncio.sleep(0.05)
        await peer.chunk(STREAM)
        await peer.end()

    with serving(pings) as world:
        got = ask(world.port, body=BODY)
        assert world.chooser.outcome().status is Status.OK
    assert got.body == b":\n\n" * 6 + STREAM
    assert got.chunks[0][1] == b":\n\n"
    assert got.chunks[-1][0] - got.chunks[0][0] > 0.2


def test_an_error_inside_a_stream_passes_as_it_is_ends_cleanly_and_is_no_sample() -> None:
    error = event({"error": {"code": 500, "message": "boom", "type": "server_error"}})

    async def breaks(request: Received, peer: Peer) -> None:
        await peer.stream(delta("a"), delta("b"), error)

    with serving(breaks) as world:
        got = ask(world.port, body=BODY)
        outcome = world.chooser.outcome()
    assert got.body == delta("a") + delta("b") + error
    assert got.complete
    assert outcome.status is Status.ERROR
    assert outcome.timings is None


@pytest.mark.parametrize("how", ["reset", "hang_up"])
def test_an_upstream_that_dies_mid_stream_is_visible_as_such(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def dies(request: Received, peer: Peer) -> None:
        await peer.start()
        for text in "abc":
            await peer.chunk(delta(text))
        await asyncio.sleep(0.05)
        getattr(peer, how)()

    with serving(dies) as world:
        for number in range(1, 6):
            got = ask(world.port, body=BODY)
            assert got.body == delta("a") + delta("b") + delta("c")
            assert not got.complete
            outcome = world.chooser.outcome(number)
            assert (outcome.status, outcome.timings) == (Status.CUT, None)
    assert [
        record for record in caplog.records if record.exc_info or "Traceback" in record.getMessage()
    ] == []
    assert len(caplog.records) <= 3  # not one line per broken stream


def test_an_upstream_that_dies_within_a_document_is_visible_as_such() -> None:
    async def dies(request: Received, peer: Peer) -> None:
        await peer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await asyncio.sleep(0.05)
        peer.hang_up()

    with serving(dies) as world:
        got = ask(world.port)
        assert world.chooser.outcome().status is Status.CUT
    assert got.body == b""
    assert not got.complete


def test_a_dead_upstream_is_visible_to_an_http_1_0_client_too() -> None:
    async def dies(request: Received, peer: Peer) -> None:
        await peer.start()
        await peer.chunk(delta("a"))
        await asyncio.sleep(0.1)
        peer.reset()

    with serving(dies) as world, Client(world.port) as client:
        got = client.ask(body=BODY, version="1.0")
    assert got.reset  # its only sign of an end is the close, so a clean one would be a lie
    assert got.body in (b"", delta("a"))


def test_a_compressed_answer_stays_compressed_and_its_length_true() -> None:
    packed = gzip.compress(document())

    async def zipped(request: Received, peer: Peer) -> None:
        if b"gzip" in b"".join(request.values("accept-encoding")):
            await peer.whole(packed, "200 OK", "Content-Encoding: gzip")
        else:
            await peer.whole(document())

    with serving(zipped) as world:
        got = ask(world.port, "POST", CHAT, b"{}", "Accept-Encoding: gzip")
        plain = ask(world.port, "POST", CHAT, b"{}")
        first, second = world.chooser.outcome(1), world.chooser.outcome(2)
        assert world.fake.received[1].values("accept-encoding") == []
    assert got.body == packed
    assert got.values("content-encoding") == ["gzip"]
    assert got.values("content-length") == [str(len(packed))]
    assert first.status is Status.NO_TIMINGS
    assert plain.body == document()
    assert plain.values("content-encoding") == []
    assert second.status is Status.OK


def test_a_compressed_stream_passes_as_it_is() -> None:
    packed = gzip.compress(STREAM)

    async def zipped(request: Received, peer: Peer) -> None:
        await peer.start("200 OK", "Content-Encoding: gzip")
        await peer.chunk(packed)
        await peer.end()

    with serving(zipped, annotate=True) as world:
        assert ask(world.port, body=BODY).body == packed
        assert world.chooser.outcome().status is Status.NO_TIMINGS


def test_an_ordinary_sdk_sees_the_same_events_as_without_us() -> None:
    import openai

    def events_of(url: str) -> list[str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return [chunk.model_dump_json() for chunk in stream]

    with serving(setting=Setting(4)) as world:
        direct = events_of(world.fake.url)
        through = events_of(f"http://127.0.0.1:{world.port}")
        sent = world.fake.received[-1].json
    assert len(direct) == 3
    assert through == direct
    assert "stream_options" not in sent


@pytest.mark.parametrize("body", [BODY, b"{}"])
def test_timings_reach_the_client_unchanged(body: bytes) -> None:
    with serving(setting=Setting(4)) as world:
        got = ask(world.port, body=body)
    assert got.body == (STREAM if body == BODY else document())
    if body == b"{}":
        assert got.json["timings"] == TIMINGS  # type: ignore[index]


def test_a_slow_client_makes_the_server_wait_instead_of_filling_our_memory() -> None:
    sent = 0

    async def floods(request: Received, peer: Peer) -> None:
        nonlocal sent
        await peer.start(kind="text/plain")
        for _ in range(1024):
            await peer.chunk(b"x" * 65536)
            sent += 65536
        await peer.end()

    with serving(floods) as world, Client(world.port) as client:
        client.send(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
        client.head()
        before = -1
        while before != sent:  # until the upstream is stopped by back-pressure
            before = sent
            world.run(asyncio.sleep(0.2))
        assert sent < 48 << 20  # kernel buffers on two connections, and a little of ours
        got = client.answer_body()
        assert got == 64 << 20


def test_a_long_stream_without_a_line_end_stays_within_its_memory() -> None:
    """In a process of its own, because this one's memory is not the relay's. The full gigabyte is a benchmark."""
    code = "from tests.test_proxy_streaming import flat_memory; flat_memory()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["grown_mb"] < 20


def flat_memory() -> None:
    async def floods(request: Received, peer: Peer) -> None:
        await peer.start()
        await peer.chunk(b"data: ")
        for _ in range(1024):
            await peer.chunk(b"x" * 65536)
        await peer.end()

    def rss_mb() -> float:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 / 1e6

    with serving(floods) as world, Client(world.port) as client:
        client.ask("POST", CHAT, BODY)
        before, total = rss_mb(), 0
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 32\r\n\r\n" + BODY)
        total = client.answer_body(client.head())
        assert total == 64 * 1024 * 1024 + 6, total
        print(json.dumps({"grown_mb": rss_mb() - before}))


def test_with_no_chooser_everything_passes_untouched() -> None:
    with serving(answer, choosing=False) as world:
        got = ask(world.port, body=BODY)
        assert world.fake.received[0].body == BODY
    assert got.body == STREAM
    assert not any(name.startswith("x-dd") for name, _ in got.headers)
