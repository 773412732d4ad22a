"""The proxy before a real b9101: what comes out is what the server said, and the settings act."""

from __future__ import annotations

import concurrent.futures
import json
import re
import socket
import time
import urllib.error
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tests.real.conftest import Garage, Proxy, Serve
from tests.real.proxies import RealProxy
from tests.real.servers import RealServer, call, draft_flags, free_port, starting

LAUNCH = draft_flags(16)
CHAT = {"messages": [{"role": "user", "content": "Count from one to ten."}]}
TEXT = "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n"

# Every generating route and a short greedy request for it. The model has no infill tokens: a refusal must come
# through as it is.
ROUTES: Mapping[str, Mapping[str, object]] = {
    "/completion": {"prompt": TEXT, "n_predict": 24},
    "/completions": {"prompt": TEXT, "n_predict": 24},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 24},
    "/chat/completions": {**CHAT, "max_tokens": 24},
    "/v1/chat/completions": {**CHAT, "max_tokens": 24},
    "/v1/responses": {"input": "Count from one to ten.", "max_output_tokens": 24},
    "/v1/messages": {**CHAT, "max_tokens": 24},
    "/infill": {"input_prefix": "def add(", "input_suffix": "return a + b", "n_predict": 8},
}
# A server that waits for an unstreamed answer looks for its client only when no answer of any kind, also one of /slots,
# came for a whole second: who asks more often keeps it from ever looking (server-queue.cpp, recv_with_timeout).
LOOK_EVERY_S = 2.5
FIXED = {"temperature": 0.0, "seed": 1, "cache_prompt": False}
# What differs between two equal calls: names, clocks and stopwatches.
VOLATILE = [
    (rb'"(id|item_id)":"[^"]*"', rb'"\1":"*"'),
    (rb'"(created|created_at|completed_at|id_slot)":[0-9]+', rb'"\1":0'),
    (rb'"timings":\{[^{}]*\}', rb'"timings":{}'),
]


def normal(body: bytes) -> bytes:
    for pattern, instead in VOLATILE:
        body = re.sub(pattern, instead, body)
    return body


def post(url: str, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> httpx2.Response:
    return httpx2.post(url, json=dict(body), headers=dict(headers or {}), timeout=600)


def timings_in(answer: httpx2.Response) -> dict[str, Any]:
    """The last timings of an answer, streamed or not."""
    found = re.findall(r'"timings":(\{[^{}]*\})', answer.text)
    assert found, answer.text[:2000]
    timings: dict[str, Any] = json.loads(found[-1])
    return timings


def depth(timings: Mapping[str, Any]) -> float:
    cycles = timings["predicted_n"] - 1 - timings.get("draft_n_accepted", 0)
    return float(timings.get("draft_n", 0) / max(1, cycles))


def directly_and(
    made: RealProxy, server: RealServer, path: str, told: Mapping[str, object], body: Mapping[str, object]
) -> tuple[httpx2.Response, httpx2.Response]:
    """(direct answer, relayed answer). The same direct call goes first: the drafter remembers the text that it saw
    last, other drafts make other batches, and a near tie may then fall the other way even for a greedy request.
    """
    post(server.url + path, told)
    return post(server.url + path, told), post(made.url + path, body)


@pytest.fixture
def server(serve: Serve) -> RealServer:
    return serve("b9101", *LAUNCH)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_every_generating_route_gives_the_bytes_of_a_direct_call(
    server: RealServer, proxy: Proxy, path: str, stream: bool
) -> None:
    made = proxy(server.url, "--mode", "observe", "--no-probe")
    body = {**ROUTES[path], **FIXED, "stream": stream}
    direct, relayed = directly_and(made, server, path, body, body)
    assert relayed.status_code == direct.status_code
    assert normal(relayed.content) == normal(direct.content)
    assert relayed.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("ladder", ["n0", "n2,p0.0"])
def test_a_setting_takes_effect_and_the_bytes_are_those_of_a_direct_call_with_it(
    server: RealServer, proxy: Proxy, path: str, stream: bool, ladder: str
) -> None:
    made = proxy(server.url, "--mode", "static", "--frontier", f"0:{ladder}", "--no-probe")
    body = {**ROUTES[path], **FIXED, "stream": stream}
    fields = (
        {"speculative.n_max": 0} if ladder == "n0" else {"speculative.n_max": 2, "speculative.p_min": 0.0}
    )
    direct, relayed = directly_and(made, server, path, {**body, **fields}, body)
    assert normal(relayed.content) == normal(direct.content)
    timings = timings_in(relayed)
    if ladder == "n0":
        assert "draft_n" not in timings
    else:
        assert 0 < depth(timings) <= 2.0
    assert relayed.headers["x-dd-setting"] == ladder
    assert relayed.headers["x-dd-reason"] == "frontier"
    record = made.own("decisions?last=1")["decisions"][0]
    assert record["setting"] == ladder
    assert record["seen_prompt_tokens"] == timings["prompt_n"] + timings["cache_n"]


def test_the_clients_own_setting_wins(server: RealServer, proxy: Proxy) -> None:
    made = proxy(server.url, "--mode", "static", "--frontier", "0:n0", "--no-probe")
    body = {**ROUTES["/completion"], **FIXED, "speculative.n_max": 5, "speculative.p_min": 0.0}
    relayed = post(made.url + "/completion", body)
    assert relayed.headers["x-dd-reason"] == "request-override"
    assert 2.0 < depth(timings_in(relayed)) <= 5.0


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
def test_the_bucket_is_chosen_by_the_servers_own_count_to_the_token(
    server: RealServer, proxy: Proxy, path: str
) -> None:
    made = proxy(server.url, "--mode", "static", "--frontier", "0:n2,p0.0;40:n0", "--no-probe")
    lengths = []
    # The chat template adds some twenty tokens.
    for words in range(30, 45) if path == "/completion" else range(13, 20):
        text = "seven " * words
        prompt = (
            {"prompt": text} if path == "/completion" else {"messages": [{"role": "user", "content": text}]}
        )
        counted = server.call("POST", "/tokenize", {"content": text, "add_special": True})["tokens"]
        if path == "/completion" and abs(len(counted) - 40) > 2:
            continue
        answer = post(made.url + path, {**prompt, **FIXED, "max_tokens": 2, "n_predict": 2})
        timings = timings_in(answer)
        tokens = timings["prompt_n"] + timings["cache_n"]
        assert answer.headers["x-dd-setting"] == ("n0" if tokens >= 40 else "n2,p0.0")
        record = made.own("decisions?last=1")["decisions"][0]
        assert record["seen_prompt_tokens"] == tokens
        lengths.append(tokens)
    assert {39, 40} <= set(lengths)


def test_the_prompt_cache_works_as_it_does_without_the_proxy(server: RealServer, proxy: Proxy) -> None:
    made = proxy(server.url, "--mode", "static", "--frontier", "0:n2,p0.0", "--no-probe")

    def twice(url: str, topic: str) -> list[int]:
        body = {
            "prompt": f"{topic}: " + "one, two, three, " * 10,
            "n_predict": 4,
            "temperature": 0.0,
        }
        return [post(url + "/completion", body).json()["timings"]["cache_n"] for _ in range(2)]

    direct, relayed = twice(server.url, "Numbers"), twice(made.url, "Figures")
    assert direct[1] > 30
    # The first may share its very first token with whatever the slot held before.
    assert relayed[1] == direct[1]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("through", ["direct", "proxy"])
def test_a_client_that_leaves_stops_the_generation(
    server: RealServer, proxy: Proxy, through: str, stream: bool
) -> None:
    made = proxy(server.url, "--no-probe", "--mode", "static", "--frontier", "0:n2,p0.0")
    leave_in_mid_generation(server, server.url if through == "direct" else made.url, stream=stream)
    # All 4,000 tokens would take some minutes.
    wait_for(lambda: not is_processing(server), seconds=120, every_s=LOOK_EVERY_S)
    if through == "proxy":
        assert made.own("decisions?last=1")["decisions"][0]["status"] == "client-gone"


def leave_in_mid_generation(server: RealServer, url: str, *, stream: bool) -> None:
    """Ask for 4,000 tokens and hang up once the server has begun (streamed: once something came)."""
    body = {"prompt": "Once upon a time", "n_predict": 4000, "ignore_eos": True, "stream": stream}
    host, port = url.removeprefix("http://").split(":")
    payload = json.dumps(body).encode()
    kind = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    head = f"POST /completion HTTP/1.1\r\n{kind}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode() + payload)
        wait_for(lambda: is_processing(server), seconds=60)
        if stream:
            assert client.recv(16)


def is_processing(server: RealServer) -> bool:
    return any(slot["is_processing"] for slot in server.call("GET", "/slots"))


def wait_for(true: Any, *, seconds: float, every_s: float = 0.05) -> None:
    ends_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends_s
        time.sleep(every_s)


def test_64_requests_at_once_to_one_slot_are_all_answered(server: RealServer, proxy: Proxy) -> None:
    made = proxy(server.url, "--mode", "static", "--frontier", "0:n2,p0.0", "--no-probe")

    def one(number: int) -> int:
        stream = number % 2 == 0
        body = {"prompt": f"Item {number}:", "n_predict": 3, "temperature": 0.0, "stream": stream}
        return post(made.url + "/completion", body).status_code

    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        assert list(pool.map(one, range(64))) == [200] * 64
    records = made.own("decisions?last=64")["decisions"]
    assert len(records) == 64
    assert made.own("health")["in_flight"] == 0


def test_keys_are_the_servers_business(garage: Garage, proxy: Proxy) -> None:
    key = "open-sesame-31337"
    server = garage.get("b9101", *LAUNCH, "--api-key", key)
    made = proxy(server.url)
    body = {**ROUTES["/completion"], **FIXED, "n_predict": 2}
    for headers in (
        {"Authorization": f"Bearer {key}"},
        {"X-Api-Key": key},
        {"Authorization": "Bearer no"},
        {},
    ):
        direct = post(server.url + "/completion", body, headers)
        relayed = post(made.url + "/completion", body, headers)
        assert relayed.status_code == direct.status_code
        assert normal(relayed.content) == normal(direct.content)
    assert "needs a key" in made.log.read_text()
    assert key not in made.log.read_text()
    assert all(key.encode() not in path.read_bytes() for path in made.state.rglob("*") if path.is_file())
    assert key not in httpx2.get(made.url + "/_dd/metrics").text


def test_absent_then_loading_then_there(garage: Garage, proxy: Proxy) -> None:
    garage.clear()
    port = free_port()
    made = proxy(f"http://127.0.0.1:{port}", "--no-probe")
    body = {**ROUTES["/completion"], **FIXED, "n_predict": 1}
    absent = post(made.url + "/completion", body)
    assert absent.status_code == 502
    assert "error" in absent.json()
    assert int(absent.headers["retry-after"]) >= 1
    seen = []
    with starting("b9101", *LAUNCH, "--no-mmap", wait=False, port=port):
        ends_s = time.monotonic() + 120
        while (answer := post(made.url + "/completion", body)).status_code != 200:
            assert time.monotonic() < ends_s
            seen.append(answer)
            time.sleep(0.01)
    loading = [answer for answer in seen if answer.status_code == 503]
    assert loading
    assert loading[0].json()["error"] == {
        "message": "Loading model",
        "type": "unavailable_error",
        "code": 503,
    }
    assert {answer.status_code for answer in seen} <= {502, 503}


def test_everything_else_is_relayed_as_it_is(server: RealServer, proxy: Proxy) -> None:
    made = proxy(server.url, "--no-probe")
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/v1/models", None),
        ("GET", "/nothing-here", None),
        ("POST", "/tokenize", {"content": "Hello, world"}),
        ("POST", "/apply-template", CHAT),
        ("OPTIONS", "/v1/chat/completions", None),
    ):
        direct = httpx2.request(method, server.url + path, json=body)
        relayed = httpx2.request(method, made.url + path, json=body)
        assert (relayed.status_code, normal(relayed.content)) == (direct.status_code, normal(direct.content))
        cors = "access-control-allow-origin"
        assert relayed.headers.get_list(cors) == direct.headers.get_list(cors)


def test_a_server_that_goes_away_is_a_502_and_its_return_is_noticed(garage: Garage, proxy: Proxy) -> None:
    garage.clear()
    port = free_port()
    with starting("b9101", *draft_flags(4), port=port) as server:
        made = proxy(server.url)
        made.wait_for("honours")
        server.process.kill()
        server.process.wait()
        with pytest.raises(urllib.error.HTTPError) as refused:
            call(made.url + "/completion", "POST", {"prompt": "x", "n_predict": 1})
        assert refused.value.code == 502
        refused.value.close()
    with starting("b9101", *draft_flags(6), port=port):
        wait_for(lambda: made.own("health")["cap"] == 6, seconds=900)
