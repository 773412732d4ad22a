"""Status, load, keys, CORS: what the client would see without us, and our own word only where no server answers."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from adaptive_dd.core.domain import Setting, Status
from adaptive_dd.errors import UsageError
from adaptive_dd.httpd import bind
from adaptive_dd.upstream import Upstream
from tests.fake_upstream import STREAM, Peer, Received, answer, document
from tests.support.client import Client, ask
from tests.support.relay import serving

BODY = b'{"stream": true, "messages": []}'
CHAT = "/v1/chat/completions"
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


@pytest.mark.parametrize(("method", "target"), [("GET", "/health"), ("POST", CHAT), ("POST", "/completion")])
def test_a_loading_server_speaks_for_itself(method: str, target: str) -> None:
    async def loading(request: Received, peer: Peer) -> None:
        await peer.whole(LOADING, "503 Service Unavailable")

    with serving(loading, setting=Setting(4)) as world:
        got = ask(world.port, method, target, BODY if method == "POST" else None)
        assert (got.status, got.body) == (503, LOADING)
        assert len(world.fake.received) == 1  # not sent again: loading is no refusal of a field
        if method == "POST":
            outcome = world.chooser.outcome()
            assert (outcome.status, outcome.http_status) == (Status.ERROR, 503)


@pytest.mark.parametrize(
    "status", ["401 Unauthorized", "404 Not Found", "429 Too Many Requests", "501 Not Implemented"]
)
def test_errors_of_the_server_pass_unchanged(status: str) -> None:
    body = b'{"error":{"code":1,"message":"no","type":"x"}}'

    async def refuses(request: Received, peer: Peer) -> None:
        await peer.whole(body, status, "WWW-Authenticate: Bearer", "Connection: close")

    with serving(refuses, setting=Setting(4)) as world:
        got = ask(world.port)
        assert (got.status, got.body) == (int(status[:3]), body)
        assert got.values("www-authenticate") == ["Bearer"]
        assert len(world.fake.received) == 1


def nowhere() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


OPENAI = {
    "error": {
        "code": 502,
        "message": "llama-server is not reachable; is it running?",
        "type": "unavailable_error",
    }
}
ANTHROPIC = {"type": "error", "error": {"type": "api_error", "message": OPENAI["error"]["message"]}}


@pytest.mark.parametrize(
    ("method", "target", "wanted"),
    [
        ("POST", CHAT, OPENAI),
        ("POST", "/completion", OPENAI),
        ("GET", "/health", OPENAI),
        ("POST", "/v1/messages", ANTHROPIC),
        ("POST", "/v1/messages/count_tokens", ANTHROPIC),
        ("POST", "/v1/audio/transcriptions", OPENAI),
    ],
)
def test_without_a_server_the_error_is_in_the_dialect_of_the_path(
    method: str, target: str, wanted: object
) -> None:
    with serving(setting=Setting(4)) as world:
        world.run(world.fake.stop())
        got = ask(world.port, method, target, BODY if method == "POST" else None)
        assert got.status == 502
        assert got.json == wanted
        assert int(got.value("retry-after") or 0) >= 1
        if "completion" in target:
            outcome = world.chooser.outcome()
            assert (outcome.status, outcome.http_status) == (Status.ERROR, 0)
        world.run(world.fake.start())


def test_head_without_a_server_gets_no_body() -> None:
    with serving() as world:
        world.run(world.fake.stop())
        with Client(world.port) as client:
            assert client.ask("HEAD", "/health", None).status == 502
            assert client.at_eof()
        world.run(world.fake.start())


def test_the_server_is_missed_once_and_welcomed_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "adaptive_dd")
    with serving() as world:
        port = world.fake.port
        assert ask(world.port).status == 200
        world.run(world.fake.stop())
        for _ in range(5):
            assert ask(world.port).status == 502
        assert world.metrics.value("upstream_up") == 0
        assert world.metrics.value("upstream_unreachable_total") == 5
        world.run(world.fake.start(port))
        assert ask(world.port).status == 200
        assert world.metrics.value("upstream_up") == 1
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("adaptive_dd")]
    assert len(lines) == 2, lines


def test_sixty_four_requests_to_a_server_with_one_slot_are_all_answered_and_queued_by_it_alone() -> None:
    slot = asyncio.Semaphore(1)

    async def one_at_a_time(request: Received, peer: Peer) -> None:
        async with slot:
            await asyncio.sleep(0.01)
            await answer(request, peer)

    with serving(one_at_a_time) as world, ThreadPoolExecutor(64) as threads:
        futures = [threads.submit(ask, world.port, "POST", CHAT, BODY) for _ in range(64)]
        assert world.fake.until(lambda: world.fake.busy >= 40)  # they wait there, not here
        assert all(future.result().body == STREAM for future in futures)
        assert all(world.chooser.outcome(n).status is Status.OK for n in range(1, 65))


@pytest.mark.parametrize(
    "key", ["Authorization: Bearer sk-very-secret-1", "X-Api-Key: sk-very-secret-1", None]
)
def test_keys_go_to_the_server_and_nowhere_else(key: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def guarded(request: Received, peer: Peer) -> None:
        given = request.values("authorization") + request.values("x-api-key")
        if any(b"sk-very-secret-1" in value for value in given):
            await answer(request, peer)
        else:
            await peer.whole(b'{"error":{"code":401}}', "401 Unauthorized")

    with serving(guarded, setting=Setting(4)) as world:
        headers = [key] if key else []
        text = b'{"messages": [{"content": "my-private-words"}]}'
        got = ask(world.port, "POST", CHAT, text, *headers)
        assert got.status == (200 if key else 401)
        assert ask(world.port, "GET", "/props?api_key=sk-very-secret-1", None, *headers).status in (200, 401)
        world.chooser.fail = ValueError(f"cannot read {text!r} of sk-very-secret-1")  # ours breaks
        ask(world.port, "POST", CHAT, text, *headers)
        port = world.fake.port
        world.run(world.fake.stop())
        down = ask(world.port, "POST", CHAT, text, *headers)
        told = (
            world.metrics.render() + caplog.text + down.body.decode() + str(got.headers) + str(down.headers)
        )
        world.run(world.fake.start(port))
    assert "sk-very-secret" not in told
    assert "my-private-words" not in told


def test_preflight_and_cross_origin_headers_are_the_servers_and_come_once() -> None:
    cors = [
        "Access-Control-Allow-Origin: http://page.example",
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Allow-Methods: GET, POST",
        "Access-Control-Allow-Headers: *",
    ]

    async def browser_friendly(request: Received, peer: Peer) -> None:
        await peer.whole(b"" if request.method == "OPTIONS" else document(), "200 OK", *cors)

    with serving(browser_friendly, setting=Setting(4)) as world:
        ask_headers = (
            "Origin: http://page.example",
            "Access-Control-Request-Headers: authorization,content-type",
        )
        before = ask(world.port, "OPTIONS", CHAT, None, *ask_headers, "Access-Control-Request-Method: POST")
        got = ask(world.port, "POST", CHAT, b"{}", "Origin: http://page.example")
        assert world.fake.received[0].method == "OPTIONS"
        assert world.fake.received[0].values("origin") == [b"http://page.example"]
    for seen in (before, got):
        assert seen.status == 200
        # Spelled as the server spells them: clients that look a name up as it stands are not rare.
        wanted = "access-control"
        assert [f"{name}: {value}" for name, value in seen.headers if name.lower().startswith(wanted)] == cors


def test_our_own_pages_are_not_the_servers_and_all_else_is() -> None:
    async def admin(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})

    with serving(admin=admin) as world:
        for target in ("/_dd", "/_dd/", "/_dd/health", "/_dd/decisions?last=3"):
            assert ask(world.port, "GET", target, None, "Origin: http://x").body == b"{}"
        assert world.fake.received == []
        for target in ("/_ddx", "/health", "/metrics", "/", "/x/_dd/health"):
            ask(world.port, "GET", target, None)
        assert [one.target.decode() for one in world.fake.received] == [
            "/_ddx",
            "/health",
            "/metrics",
            "/",
            "/x/_dd/health",
        ]


def test_the_servers_metrics_are_read_only_when_the_user_reads_them() -> None:
    with serving(setting=Setting(4)) as world:
        for _ in range(3):
            ask(world.port, "GET", "/metrics", None)
            ask(world.port)
        assert sum(one.target == b"/metrics" for one in world.fake.received) == 3


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            bind("127.0.0.1", port)
    assert str(port) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code != 0


@pytest.mark.parametrize("host", ["256.0.0.1", "no-such-host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        bind(host, 0)


def test_a_free_port_is_found_when_none_is_asked_for() -> None:
    with bind("127.0.0.1", 0) as listening:
        assert listening.getsockname()[1] > 0
    with bind("localhost", 0) as listening:
        assert listening.getsockname()[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8080", "ftp://x", "http://", "http://:8080", "http://x:99999", "http://x:0", "http://x/?a=1",
     "http://user:pw@x", "http://x:y", "http://[::1"],
)  # fmt: skip
def test_a_bad_upstream_url_is_one_clear_line(url: str) -> None:
    with pytest.raises(UsageError, match="upstream: ") as caught:
        Upstream(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base", "prefix"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080", ""),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080", ""),
        (" http://localhost/api/v1 ", "http://localhost/api", "/api"),
        ("http://[::1]:8080/api//", "http://[::1]:8080/api", "/api"),
        ("https://llm.example", "https://llm.example", ""),
    ],
)
def test_upstream_urls_are_understood(url: str, base: str, prefix: str) -> None:
    upstream = Upstream(url)
    assert (upstream.base_url, upstream.prefix) == (base, prefix)


def test_localhost_works_where_it_means_ipv6_first() -> None:
    """A server on 127.0.0.1 alone, and a resolver that names ::1 first, as many hosts' do."""
    before = socket.getaddrinfo

    def ipv6_first(host, port, *args, **more):  # type: ignore[no-untyped-def]
        if host in ("localhost", b"localhost"):
            six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", int(port), 0, 0))
            four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))
            return [six, four]
        return before(host, port, *args, **more)

    async def go(port: int) -> tuple[int, object]:
        upstream = Upstream(f"http://localhost:{port}")
        try:
            return await upstream.ask("GET", "/props")
        finally:
            await upstream.aclose()

    with serving() as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", ipv6_first)
        status, _ = asyncio.run(go(world.fake.port))
    assert status == 200


RUN = """
import sys, logging
sys.path.insert(0, {root!r})
from adaptive_dd.errors import AdaptiveDDError
from adaptive_dd.httpd import run_server
from adaptive_dd.metrics import Metrics
from adaptive_dd.proxy import Relay
from adaptive_dd.upstream import Upstream
upstream = Upstream(sys.argv[2])
try:
    run_server(Relay(None, upstream, Metrics()), "127.0.0.1", int(sys.argv[1]), grace_s=1)
except AdaptiveDDError as error:
    sys.exit(f"error: {{error}}")
print("ended in order", flush=True)
"""


def started(port: int, upstream: str) -> subprocess.Popen[str]:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = [sys.executable, "-c", RUN.format(root=root), str(port), upstream]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("it did not start")


def test_it_starts_without_a_server_answers_502_and_ends_in_order_when_told_to() -> None:
    port = nowhere()
    with started(port, f"http://127.0.0.1:{nowhere()}") as process:
        wait_for_port(port)
        got = ask(port)
        second = started(port, "http://127.0.0.1:1")
        _, clash = second.communicate(timeout=30)
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert got.status == 502
    assert second.returncode != 0
    assert clash.count("\n") == 1
    assert str(port) in clash
    assert process.returncode == 0
    assert "ended in order" in out
    assert "Traceback" not in err


def test_told_to_stop_it_lets_answers_end_and_breaks_off_those_that_do_not() -> None:
    async def some(request: Received, peer: Peer) -> None:
        await peer.start()
        await asyncio.sleep(0.5 if request.target == b"/short" else 600)
        await peer.chunk(b"end")
        await peer.end()

    with serving(some) as world:
        port = nowhere()
        with started(port, world.fake.url) as process:
            wait_for_port(port)
            with Client(port) as short, Client(port) as long:
                short.send(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
                long.send(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
                assert world.fake.until(lambda: world.fake.busy == 2)
                process.terminate()
                assert short.answer("GET").body == b"end"
                got = long.answer("GET")
                assert not got.complete
            out, err = process.communicate(timeout=30)
        assert world.fake.until(lambda: world.fake.gone == 1, 2.0)
    assert process.returncode == 0, err
    assert "ended in order" in out
    assert "Traceback" not in err
