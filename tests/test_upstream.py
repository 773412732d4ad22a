"""The HTTP client: what it sends is what it was given, and what it does when the other side misbehaves."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from adaptive_dd.errors import UpstreamError
from adaptive_dd.upstream import DiedError, Header, UnreachableError, Upstream
from tests.fake_upstream import STREAM, FakeUpstream, Peer, Received, Script, answer, document, silence


def against(script: Script, test: Callable[[Upstream, FakeUpstream], Awaitable[None]], **more: float) -> None:
    async def go() -> None:
        fake = FakeUpstream(script)
        await fake.start()
        upstream = Upstream(fake.url, **more)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(upstream, fake), 20)
        finally:
            await upstream.aclose()
            await fake.stop()

    asyncio.run(go())


async def get(upstream: Upstream, target: bytes = b"/props", *headers: Header) -> bytes:
    reply = await upstream.send("GET", target, headers)
    body = b"".join([chunk async for chunk in reply.aiter_raw()])
    await reply.aclose()
    return body


def test_nothing_is_added_to_a_request_but_the_host() -> None:
    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        await get(upstream, b"/a%2Fb//c?x=%26", (b"X-One", b"1"))
        got = fake.received[0]
        assert got.target == b"/a%2Fb//c?x=%26"
        assert got.headers == [("Host", fake.url.removeprefix("http://").encode()), ("X-One", b"1")]

    against(answer, test)


def test_redirects_are_passed_on_and_cookies_forgotten() -> None:
    async def redirects(request: Received, peer: Peer) -> None:
        await peer.whole(b"", "302 Found", "Location: /elsewhere", "Set-Cookie: a=1")

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        for _ in range(2):
            reply = await upstream.send("GET", b"/", [])
            assert reply.status == 302
            assert (b"Location", b"/elsewhere") in reply.headers
            await reply.aclose()
        assert [one.target for one in fake.received] == [b"/", b"/"]
        assert fake.received[1].values("cookie") == []

    against(redirects, test)


def test_a_proxy_of_the_environment_is_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        assert await get(upstream) == document()

    against(answer, test)


def test_a_body_is_streamed_in_the_parts_in_which_it_comes() -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"ab", b"c", b"defg"):
            yield part

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        for framing in ((b"Content-Length", b"7"), (b"Transfer-Encoding", b"chunked")):
            reply = await upstream.send("POST", b"/x", [framing], parts())
            await reply.aclose()
        assert [one.body for one in fake.received] == [b"abcdefg"] * 2

    against(answer, test)


def test_no_server_is_an_error_of_its_own_and_comes_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    async def go() -> None:
        upstream = Upstream(f"http://127.0.0.1:{port}")
        start = time.monotonic()
        with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}"):
            await upstream.send("GET", b"/", [])
        assert time.monotonic() - start < 2
        await upstream.aclose()

    asyncio.run(go())


def test_a_host_that_says_nothing_to_a_connection_is_given_up_in_time() -> None:
    """A full accept queue drops further SYNs, as a dead host does."""

    async def go() -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(0)
            port = server.getsockname()[1]
            fillers = [socket.socket() for _ in range(4)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            upstream = Upstream(f"http://127.0.0.1:{port}", connect_s=0.3)
            start = time.monotonic()
            with pytest.raises(UnreachableError):
                await upstream.send("GET", b"/", [])
            assert time.monotonic() - start < 3
            await upstream.aclose()
            for filler in fillers:
                filler.close()

    asyncio.run(go())


@pytest.mark.parametrize("how", ["reset", "hang_up"])
def test_only_a_kept_connection_that_gave_no_answer_is_replaced(how: str) -> None:
    async def dies_after(request: Received, peer: Peer) -> None:
        if request.target == b"/good":
            await peer.whole(b"{}")
        else:
            getattr(peer, how)()

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        with pytest.raises(DiedError):
            await upstream.send("GET", b"/bad", [])
        assert len(fake.received) == 1  # fresh: not tried again
        await get(upstream, b"/good")
        with pytest.raises(DiedError):
            await upstream.send("POST", b"/bad", [(b"Content-Length", b"2")], b"{}")
        assert len(fake.received) == 4  # kept: once more, on a fresh one

    against(dies_after, test)


def test_an_answer_that_began_is_never_asked_for_again() -> None:
    async def breaks(request: Received, peer: Peer) -> None:
        if request.target == b"/good":
            await peer.whole(b"{}")
            return
        await peer.start()
        await peer.chunk(b"abc")
        await asyncio.sleep(0.02)
        peer.reset()

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        await get(upstream, b"/good")
        with pytest.raises(DiedError):
            await get(upstream, b"/bad")
        assert len(fake.received) == 2

    against(breaks, test)


def test_an_idle_connection_is_not_used_past_its_time() -> None:
    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        await get(upstream)
        await asyncio.sleep(0.1)
        await get(upstream)
        assert fake.links == 1
        await asyncio.sleep(0.4)
        await get(upstream)
        assert fake.links == 2

    against(answer, test, keepalive_s=0.3)


def test_idle_connections_are_given_up_before_the_server_closes_them() -> None:
    from adaptive_dd.upstream import KEEPALIVE_S

    assert KEEPALIVE_S < 5.0


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.05])
def test_a_request_cancelled_once_or_again_closes_its_connection_at_once(after_s: float, times: int) -> None:
    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        tasks = [asyncio.ensure_future(get(upstream)) for _ in range(20)]
        await asyncio.sleep(after_s)
        for _ in range(times):
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        for _ in range(100):
            if fake.open_links == 0:
                break
            await asyncio.sleep(0.01)
        assert fake.open_links == 0
        fake.script = answer
        assert await asyncio.gather(*(get(upstream) for _ in range(20))) == [document()] * 20

    against(silence, test)


def test_an_answer_left_unread_closes_its_connection() -> None:
    async def endless(request: Received, peer: Peer) -> None:
        await peer.start()
        while True:
            await peer.chunk(STREAM)
            await asyncio.sleep(0)

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        reply = await upstream.send("GET", b"/", [])
        await anext(reply.aiter_raw())
        await reply.aclose()
        for _ in range(100):
            if fake.gone:
                break
            await asyncio.sleep(0.01)
        assert fake.gone == 1

    against(endless, test)


def test_our_own_calls_give_status_and_json() -> None:
    async def script(request: Received, peer: Peer) -> None:
        if request.target == b"/text":
            await peer.whole(b"hello", kind="text/plain")
        else:
            await peer.whole(b'{"n": %d}' % len(request.body), "201 Created")

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        assert await upstream.ask("POST", "/tokenize", {"content": "é"}, [(b"X-Api-Key", b"k")]) == (
            201,
            {"n": 21},
        )
        assert await upstream.ask("GET", "/text") == (200, None)
        sent = fake.received[0]
        assert sent.json == {"content": "é"}
        assert sent.values("content-type") == [b"application/json"]
        assert sent.values("x-api-key") == [b"k"]

    against(script, test)


def test_our_own_calls_have_an_end() -> None:
    async def stalls(request: Received, peer: Peer) -> None:
        if request.target == b"/late":
            await peer.start()
        await asyncio.sleep(600)

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        for path in ("/never", "/late"):
            with pytest.raises(UpstreamError, match="did not answer within"):
                await upstream.ask("GET", path, timeout_s=0.1)

    against(stalls, test)


def test_our_own_calls_to_a_server_that_dies_are_an_upstream_error() -> None:
    async def dies(request: Received, peer: Peer) -> None:
        peer.reset()

    async def test(upstream: Upstream, fake: FakeUpstream) -> None:
        with pytest.raises(UpstreamError):
            await upstream.ask("GET", "/props")

    against(dies, test)
