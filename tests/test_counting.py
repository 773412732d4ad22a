from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from adaptive_dd.counting import (
    FIRST_PAUSE_S,
    INFILL_FRAME_TOKENS,
    LONGEST_BOUND_S,
    Asking,
    Counter,
    api_prefix,
    as_chat,
    bound_s,
)
from adaptive_dd.metrics import Metrics
from adaptive_dd.upstream import Upstream
from tests.counting_server import CountingServer, pieces, rendered, tokenized

Pair = tuple[bytes, bytes]
MESSAGES = [{"role": "user", "content": "How are you today?"}, {"role": "assistant", "content": "Fine; you?"}]


class Bench:
    """A counter before a server on a real socket, with a clock set by hand."""

    def __init__(self, server: CountingServer) -> None:
        self.server, self.metrics, self.now_s = server, Metrics(), 100.0
        self.upstream = Upstream(server.url)
        self.counter = Counter(self.metrics, clock_s=lambda: self.now_s)

    async def count(
        self, endpoint: str, request: dict[str, Any], *, headers: tuple[Pair, ...] = (), prefix: str = ""
    ) -> int | None:
        asking = Asking(request, json.dumps(request).encode(), headers, prefix)
        return await self.counter.count(self.upstream, endpoint, asking)

    def counted(self, result: str) -> float:
        return self.metrics.value("count_calls_total", result=result)


def bench(test: Callable[[Bench], Awaitable[None]], server: CountingServer | None = None) -> None:
    async def run() -> None:
        async with (server or CountingServer()).serving() as serving:
            around = Bench(serving)
            try:
                await test(around)
            finally:
                await around.upstream.aclose()

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("generation", ["new", "old"])
def test_a_chat_is_counted_with_its_template_by_both_generations(generation: str) -> None:
    async def test(around: Bench) -> None:
        exact = len(tokenized(rendered(MESSAGES), True))
        assert await around.count("chat", {"messages": MESSAGES}) == exact
        assert around.counted("counted") == 1

    bench(test, CountingServer(generation))


def test_which_generation_a_server_is_is_found_out_once() -> None:
    async def test(around: Bench) -> None:
        for _ in range(3):
            await around.count("chat", {"messages": MESSAGES})
        paths = [path for path, _ in around.server.asked]
        assert paths == ["/v1/chat/completions/input_tokens"] + ["/apply-template", "/tokenize"] * 3
        around.counter.forget()
        around.server.generation = "new"
        await around.count("chat", {"messages": MESSAGES})
        assert around.server.asked[-1][0] == "/v1/chat/completions/input_tokens"

    bench(test, CountingServer("old"))


def test_the_chat_is_sent_to_be_counted_in_the_clients_own_bytes() -> None:
    async def test(around: Bench) -> None:
        body = b'{ "messages" : [ {"role":"user","content":"Hi"} ], "x": 1.50 }'
        await around.counter.count(around.upstream, "chat", Asking(json.loads(body), body))
        assert around.server.bodies == [body]

    bench(test)


RAW: list[tuple[object, int]] = [
    ("Hello there", 1 + 2),
    ([5, 6, 7], 3),
    ([5, "Hello there", 7], 1 + 2 + 1),
    (["Hello there", 7], 1 + 2 + 1),
    (["a", "a longer one by far"], 1 + 5),
    ([[1, 2], [3, 4, 5, 6]], 4),
    (["one two", [3, 4, 5, 6, 7, 8]], 6),
    ({"prompt_string": "Hello there"}, 1 + 2),
]


@pytest.mark.parametrize(("prompt", "exact"), RAW, ids=[str(i) for i in range(len(RAW))])
def test_a_raw_prompt_is_counted_in_every_form_that_the_server_takes(prompt: object, exact: int) -> None:
    async def test(around: Bench) -> None:
        assert await around.count("completion", {"prompt": prompt}) == exact

    bench(test)


def test_tokens_are_counted_without_a_call() -> None:
    async def test(around: Bench) -> None:
        assert await around.count("completion", {"prompt": [1] * 50}) == 50
        assert around.server.asked == []

    bench(test)


def test_of_many_prompts_only_the_longest_are_asked_about() -> None:
    async def test(around: Bench) -> None:
        prompts = ["word " * number for number in range(1, 31)]
        assert await around.count("completion", {"prompt": prompts}) == len(tokenized(prompts[-1], True))
        assert len(around.server.asked) == 8

    bench(test)


def test_infill_is_counted_in_one_call_with_what_fits_the_batch() -> None:
    async def test(around: Bench) -> None:
        request = {"input_prefix": "one two ", "input_suffix": "three", "prompt": "four"}
        extra = [{"filename": "a.py", "text": "five six"}]
        exact = INFILL_FRAME_TOKENS + pieces("one two ") + 1 + 1
        assert await around.count("infill", request) == exact
        assert await around.count("infill", {**request, "input_extra": extra}) == exact + pieces("a.py\n") + 2
        long = {"input_prefix": "word " * 5000, "input_suffix": "word " * 5000}
        assert await around.count("infill", long) == INFILL_FRAME_TOKENS + 1536 + 510
        assert len(around.server.asked) == 3

    bench(test)


def test_responses_are_counted_by_new_servers_and_by_old_ones_where_they_are_plain_text() -> None:
    request: dict[str, Any] = {"input": "How are you today?"}
    exact = len(tokenized(rendered(MESSAGES[:1]), True))

    async def both(around: Bench) -> None:
        assert await around.count("responses", request) == exact

    async def old(around: Bench) -> None:
        items = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": request["input"]}]}
        ]
        assert await around.count("responses", {"input": items}) == exact
        assert await around.count("responses", {"input": [{"type": "function_call"}]}) is None
        assert await around.count("responses", {"input": "Hi", "tools": [{"type": "function"}]}) is None
        assert around.counted("unusable") == 2

    bench(both, CountingServer("new"))
    bench(both, CountingServer("old"))
    bench(old, CountingServer("old"))


def test_responses_become_the_chat_that_the_server_makes_of_them() -> None:
    request = {"instructions": "Be brief.", "input": "Hi"}
    assert as_chat(request) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    }


def test_messages_are_counted_by_their_own_route_or_not_at_all() -> None:
    async def test(around: Bench) -> None:
        assert await around.count("messages", {"messages": MESSAGES}) == len(
            tokenized(rendered(MESSAGES), True)
        )
        around.server.fails["/v1/messages/count_tokens"] = 404
        assert await around.count("messages", {"messages": MESSAGES}) is None

    bench(test, CountingServer("old"))


def test_the_clients_key_goes_along_and_nothing_else_of_its_headers() -> None:
    async def test(around: Bench) -> None:
        request = {"messages": MESSAGES}
        assert await around.count("chat", request) is None
        headers = ((b"Authorization", b"Bearer k"), (b"Cookie", b"c"), (b"Content-Length", b"3"))
        assert await around.count("chat", request, headers=headers) is not None
        assert "cookie" not in around.server.asked[-1][1]
        assert around.server.asked[-1][1]["authorization"] == "Bearer k"

    bench(test, CountingServer("old", key="k"))


def test_one_clients_impossible_key_does_not_stop_counting_for_the_others() -> None:
    async def test(around: Bench) -> None:
        request = {"prompt": "Hello there"}
        assert await around.count("completion", request, headers=((b"authorization", b"k\nx"),)) is None
        assert await around.count("completion", request) == 3

    bench(test)


def test_a_configured_key_is_used_where_the_client_brings_none() -> None:
    async def test(around: Bench) -> None:
        counter = Counter(own_headers=((b"authorization", b"Bearer k"),))
        asking = Asking({"prompt": "Hello there"}, b"")
        assert await counter.count(around.upstream, "completion", asking) == 3

    bench(test, CountingServer(key="k"))


def test_counting_stays_under_the_api_prefix() -> None:
    async def test(around: Bench) -> None:
        assert await around.count("completion", {"prompt": "Hello there"}, prefix="/llm") == 3
        assert around.server.asked[-1][0] == "/llm/tokenize"

    bench(test, CountingServer(prefix="/llm"))
    assert api_prefix("/llm/v1/chat/completions") == "/llm"
    assert api_prefix("/v1/chat/completions") == api_prefix("/completion") == ""
    assert api_prefix("/a/b/infill") == "/a/b"


def test_behind_a_router_the_model_goes_along() -> None:
    async def test(around: Bench) -> None:
        await around.count("completion", {"prompt": "Hi", "model": "small@n4"})
        assert json.loads(around.server.bodies[-1])["model"] == "small@n4"

    bench(test)


def test_a_server_that_does_not_answer_costs_a_short_wait_once() -> None:
    async def test(around: Bench) -> None:
        began_s = time.monotonic()
        assert await around.count("completion", {"prompt": "Hi"}) is None
        assert time.monotonic() - began_s < 2.0
        assert around.counted("failed") == 1
        assert await around.count("completion", {"prompt": "Hi"}) is None  # and now without waiting
        assert around.counted("paused") == 1
        assert len(around.server.asked) == 1
        around.server.stalls = frozenset()
        around.now_s += FIRST_PAUSE_S
        assert await around.count("completion", {"prompt": "Hi"}) == 2

    bench(test, CountingServer(stalls=frozenset({"/tokenize"})))


def test_pauses_grow_while_the_server_stays_silent_and_a_success_ends_them() -> None:
    async def test(around: Bench) -> None:
        await around.upstream.aclose()
        around.upstream = Upstream("http://127.0.0.1:9", connect_s=0.2)  # nobody listens
        waits = []
        for _ in range(6):
            assert await around.count("completion", {"prompt": "Hi"}) is None
            began = around.now_s
            while around.counted("failed") == len(waits) + 1:
                around.now_s += 1.0
                await around.count("completion", {"prompt": "Hi"})
            waits.append(around.now_s - began)
        assert waits == sorted(waits)
        assert max(waits) <= 61

    bench(test)


def test_a_server_that_cannot_count_is_left_alone_after_a_few_tries() -> None:
    async def test(around: Bench) -> None:
        for _ in range(10):
            assert await around.count("chat", {"messages": MESSAGES}) is None
        assert len(around.server.asked) == 1 + 3  # once for the new route, thrice for the old one
        around.server.fails.clear()
        around.now_s += FIRST_PAUSE_S
        assert await around.count("chat", {"messages": MESSAGES}) is not None

    bench(test, CountingServer("old", fails={"/apply-template": 404}))


@pytest.mark.parametrize("status", [400, 401, 500, 503])
def test_a_refusal_is_no_count_and_no_reason_to_stop_asking(status: int) -> None:
    async def test(around: Bench) -> None:
        assert await around.count("completion", {"prompt": "Hi"}) is None
        assert around.counted("unusable") == 1
        around.server.fails.clear()
        assert await around.count("completion", {"prompt": "Hi"}) == 2

    bench(test, CountingServer(fails={"/tokenize": status}))


@pytest.mark.parametrize(
    ("endpoint", "request_"),
    [
        ("completion", {}),
        ("completion", {"prompt": 5}),
        ("completion", {"prompt": []}),
        ("completion", {"prompt": {"x": 1}}),
        ("responses", {"input": 5}),
        ("audio", {}),
    ],
)
def test_a_request_that_makes_no_sense_is_not_counted_and_breaks_nothing(
    endpoint: str, request_: dict[str, Any]
) -> None:
    async def test(around: Bench) -> None:
        assert await around.count(endpoint, request_) is None

    bench(test, CountingServer("old"))


TOKENS = [
    (b'{"tokens":[]}', 0),
    (b'{"tokens":[2]}', 1),
    (b'{"tokens": [2, 9259,\n 1902 ]}\n', 3),
    (b'{"tokens":[{"id":2,"piece":"a,b"},{"id":3,"piece":"]"}]}', 2),
    (b'{"more":1,"tokens":[2,3]}', 2),
    (b'{"tokens":5}', None),
    (b'{"tokens":"1,2"}', None),
    (b"[1,2]", None),
    (b"", None),
]


@pytest.mark.parametrize(("answer", "exact"), TOKENS, ids=[str(i) for i in range(len(TOKENS))])
def test_tokens_are_counted_in_every_spelling_of_the_answer(answer: bytes, exact: int | None) -> None:
    class Odd:
        async def ask(self, *_: object, parse: Callable[[bytes], object], **__: object) -> tuple[int, object]:
            try:
                return 200, parse(answer)
            except ValueError:
                return 200, None

    assert asyncio.run(Counter().count(Odd(), "completion", Asking({"prompt": "Hi"}, b""))) == exact


def test_what_the_template_rendered_is_sent_on_byte_for_byte() -> None:
    async def test(around: Bench) -> None:
        odd = [{"role": "user", "content": 'Zürich \u2028 "quoted" \\ \U0001f600'}]
        assert await around.count("chat", {"messages": odd}) == len(tokenized(rendered(odd), True))
        assert json.loads(around.server.bodies[-1])["content"] == rendered(odd)

    bench(test, CountingServer("old"))


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"input_tokens": "5"}, {"input_tokens": -1}, {"input_tokens": True}]
)
def test_an_answer_without_a_number_is_no_count(answer: object) -> None:
    class Odd:
        async def ask(self, *_: object, **__: object) -> tuple[int, object]:
            return 200, answer

    counter = Counter()
    assert asyncio.run(counter.count(Odd(), "chat", Asking({"messages": []}, b"{}"))) is None


def test_the_bound_grows_with_the_prompt_but_stays_short() -> None:
    assert bound_s(0) < bound_s(500_000) < LONGEST_BOUND_S
    assert bound_s(10**9) == LONGEST_BOUND_S


def test_a_failure_is_said_once_and_without_the_prompt(caplog: pytest.LogCaptureFixture) -> None:
    async def test(around: Bench) -> None:
        for _ in range(3):
            await around.count(
                "completion", {"prompt": "secret"}, headers=((b"authorization", b"Bearer sesame"),)
            )
        assert len(caplog.records) == 1
        assert "secret" not in caplog.text
        assert "sesame" not in caplog.text

    bench(test, CountingServer(fails={"/tokenize": 500}))


def test_a_client_that_leaves_while_we_count_cancels_the_count() -> None:
    async def test(around: Bench) -> None:
        task = asyncio.ensure_future(around.count("completion", {"prompt": "Hi"}))
        await around.server.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert around.counted("failed") == 0

    bench(test, CountingServer(stalls=frozenset({"/tokenize"})))
