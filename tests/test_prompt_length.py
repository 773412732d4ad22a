"""The prompt's length, as the server sees it: asked for seldom, and right."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adaptive_dd.core.domain import SERVER, Deployment, Frontier, Listens, Mode, ServerFacts, Setting
from adaptive_dd.core.frontier import bucket_edges, bucket_of
from adaptive_dd.httpd import bind, server_for
from adaptive_dd.proxy import Relay
from adaptive_dd.upstream import Upstream
from tests.counting_server import CountingServer
from tests.support.choosing import (
    CHAT,
    N2,
    N4,
    N8,
    STEPS,
    Bench,
    bench,
    chat,
    code,
    frontier,
    prose,
    settings,
)

EDGES = bucket_edges(STEPS)
ARMS: tuple[Setting, ...] = (N4, N8, N2, N4)
COUNTED_BY = {"new": f"{CHAT}/input_tokens", "old": "/tokenize"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks at a place", "parameters": {}}}


def talker(seed: int, generation: str = "new", **more: Any) -> CountingServer:
    rng = random.Random(seed)
    return CountingServer(generation, say=lambda prompt: prose(rng, rng.randint(20, 400)), **more)


def said_by_user(rng: random.Random, turn: int) -> str:
    return code(rng, rng.randint(5, 90)) if turn % 3 else prose(rng, rng.randint(5, 300))


def asked(server: CountingServer) -> int:
    return sum(path == COUNTED_BY[server.generation] for path in server.counts)


def assert_right(choice: Any, server: CountingServer, request: dict[str, Any]) -> int:
    """The bucket that was selected, which must be that of the exact length."""
    exact = server.prompt_tokens(request)
    assert choice.context.prompt_tokens is not None
    bucket = bucket_of(EDGES, choice.context.prompt_tokens)
    assert bucket == bucket_of(EDGES, exact), f"{choice.context} against {exact}"
    assert choice.arm == ARMS[bucket]
    return bucket


@contextlib.asynccontextmanager
async def relayed(around: Bench) -> AsyncIterator[Upstream]:
    """A client of the whole proxy: relay, chooser, engine."""
    listening = bind("127.0.0.1", 0)
    server = server_for(Relay(around.chooser, around.upstream, around.metrics))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    client = Upstream(f"http://127.0.0.1:{listening.getsockname()[1]}")
    try:
        yield client
    finally:
        await client.aclose()
        server.should_exit = True
        await serving
        listening.close()


@pytest.mark.parametrize("generation", ["new", "old"])
@pytest.mark.parametrize("seed", [1, 4])
def test_over_twenty_turns_through_the_proxy_the_server_is_asked_twice_at_most_and_every_bucket_is_right(
    generation: str, seed: int
) -> None:
    server = talker(seed, generation)

    async def test(around: Bench) -> None:
        rng = random.Random(seed)
        request: dict[str, Any] = {"messages": [{"role": "system", "content": prose(rng, 60)}]}
        buckets = []
        async with relayed(around) as client:
            for turn in range(20):
                request["messages"].append({"role": "user", "content": said_by_user(rng, turn)})
                exact = server.prompt_tokens(request)
                content = json.dumps(request).encode()
                headers = [(b"content-length", str(len(content)).encode())]
                reply = await client.send("POST", CHAT.encode(), headers, content)
                answer = json.loads(b"".join([part async for part in reply.aiter_raw()]))
                await reply.aclose()
                shown = dict(reply.headers)
                bucket = bucket_of(EDGES, int(shown[b"x-dd-prompt-tokens"]))
                assert bucket == bucket_of(EDGES, exact), f"turn {turn}: {shown} against {exact}"
                sent = json.loads(server.bodies[-1])
                assert sent["speculative.n_max"] == ARMS[bucket].n_max
                buckets.append(bucket)
                request["messages"].append(answer["choices"][0]["message"])
        assert len(set(buckets)) >= 3
        assert asked(server) <= 2
        lengths = [record.ended.outcome.timings.prompt_tokens for record in around.engine.recent(1)]  # type: ignore[union-attr]
        assert lengths == [exact]  # what the server said afterwards is on record

    bench(test, server)


@pytest.mark.parametrize("seed", range(4))
def test_a_raw_prompt_that_grows_is_followed_like_a_chat(seed: int) -> None:
    server = talker(seed)

    async def test(around: Bench) -> None:
        rng = random.Random(seed)
        prompt, buckets = prose(rng, 150), []
        for turn in range(20):
            prompt += "\nUser: " + said_by_user(rng, turn) + "\nBot:"
            choice, said = await around.exchange({"prompt": prompt}, path="/completion")
            buckets.append(assert_right(choice, server, {"prompt": prompt}))
            prompt += " " + said
        assert len(set(buckets)) >= 3
        assert server.counts.count("/tokenize") <= 3

    bench(test, server)


@pytest.mark.parametrize("seed", range(4))
def test_an_agents_calls_and_their_results_are_followed_like_a_chat(seed: int) -> None:
    server = talker(seed)

    async def test(around: Bench) -> None:
        rng = random.Random(seed)
        request: dict[str, Any] = {"messages": [{"role": "user", "content": prose(rng, 40)}], "tools": [TOOL]}
        for turn in range(20):
            choice, said = await around.exchange(request)
            assert_right(choice, server, request)
            arguments = json.dumps({"path": said[:30], "lines": turn})
            call = {
                "id": f"c{turn}",
                "type": "function",
                "function": {"name": "look", "arguments": arguments},
            }
            request["messages"] += [
                {"role": "assistant", "content": said, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{turn}", "content": code(rng, rng.randint(5, 60))},
            ]
        assert asked(server) <= 4

    bench(test, server)


@pytest.mark.parametrize("seed", range(4))
def test_reasoning_that_the_template_drops_does_not_mislead(seed: int) -> None:
    server = talker(seed)

    async def test(around: Bench) -> None:
        rng = random.Random(seed)
        request: dict[str, Any] = {"messages": []}
        for turn in range(20):
            request["messages"].append({"role": "user", "content": said_by_user(rng, turn)})
            choice, said = await around.exchange(request)
            assert_right(choice, server, request)
            thought = prose(rng, rng.randint(50, 500))
            request["messages"].append({"role": "assistant", "content": said, "reasoning_content": thought})
        assert asked(server) <= 6

    bench(test, server)


def test_a_retry_and_a_branch_of_a_long_conversation_are_not_asked_about() -> None:
    server = talker(3)

    async def test(around: Bench) -> None:
        rng = random.Random(3)
        base = [prose(rng, 1500), prose(rng, 200), prose(rng, 100)]
        await around.exchange(chat(*base))
        before = asked(server)
        for request in (chat(*base), chat(*base[:2], "Shorter, please."), chat(*base, "Sure.", "Thanks!")):
            choice, _ = await around.exchange(request)
            assert_right(choice, server, request)
        assert asked(server) <= before + 1  # the branch off an answer that was never seen

    bench(test, server)


def test_conversations_side_by_side_do_not_mix() -> None:
    server = talker(5)

    async def test(around: Bench) -> None:
        rng = random.Random(5)
        talks = [[prose(rng, size)] for size in (20, 700, 2500, 9000)]

        async def turn(talk: list[str]) -> None:
            request = chat(*talk)
            choice, said = await around.exchange(request)
            assert_right(choice, server, request)
            talk += [said, prose(rng, 30)]

        for _ in range(5):
            await asyncio.gather(*(turn(talk) for talk in talks))
        assert asked(server) <= 2 * len(talks)

    bench(test, server)


def test_a_short_first_prompt_is_bounded_by_its_bytes_and_not_asked_about() -> None:
    async def test(around: Bench) -> None:
        choice, _ = await around.exchange(chat("Hi"))
        assert choice.context is not None
        assert choice.context.tokens_source == "bounded"
        assert choice.arm == N4
        assert around.server.counts == []

    bench(test)


def test_a_long_prompt_under_a_ladder_that_changes_only_late_is_bounded_by_its_bytes() -> None:
    measured = frontier((1000, "n4,p0.25"), (400_000, "n2,p0.0"))  # changes at 20,000

    async def test(around: Bench) -> None:
        choice, _ = await around.exchange({"prompt": "word " * 3000}, path="/completion")
        assert choice.arm == N4
        assert around.server.counts == []

    bench(test, measured=measured)


def test_tokens_sent_by_the_client_need_no_count() -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose({"prompt": [7] * 5000}, path="/completion")
        assert choice.context is not None
        assert (choice.context.prompt_tokens, choice.context.tokens_source) == (5000, "sent")
        assert choice.arm == N8
        assert around.server.counts == []

    bench(test)


def test_of_several_prompts_the_longest_decides_and_nothing_is_learned_from_the_answer() -> None:
    async def test(around: Bench) -> None:
        request = {"prompt": ["word " * 10, "word " * 3000]}
        choice = await around.choose(request, path="/v1/completions")
        assert choice.context is not None
        assert choice.context.prompt_tokens == 3002
        assert choice.context.conversation == ""
        assert len(around.chooser.ledger) == 0

    bench(test)


@pytest.mark.parametrize("failing", ["stalls", "fails"])
def test_where_counting_fails_the_request_goes_out_on_the_baseline_and_is_on_record(failing: str) -> None:
    route = f"{CHAT}/input_tokens"
    server = (
        CountingServer(stalls=frozenset({route}))
        if failing == "stalls"
        else CountingServer(fails={route: 500})
    )

    async def test(around: Bench) -> None:
        body = json.dumps(chat("word " * 4000)).encode()
        choice = await around.choose(body)
        assert (choice.reason, choice.arm, choice.applied) == ("no-count", SERVER, False)
        assert choice.body is choice.original
        assert around.engine.recent(1)[0].decided.decision.reason == "no-count"

    bench(test, server)


def test_what_the_answer_said_makes_up_for_a_count_that_failed() -> None:
    server = talker(1, fails={f"{CHAT}/input_tokens": 500})

    async def test(around: Bench) -> None:
        first = chat("word " * 4000)
        choice, said = await around.exchange(first)
        assert choice.reason == "no-count"
        second = chat("word " * 4000, said, "Go on")
        choice, _ = await around.exchange(second)
        assert choice.context is not None
        assert choice.context.tokens_source == "ledger"
        assert_right(choice, server, second)

    bench(test, server)


def test_another_model_voids_what_was_known_of_lengths_and_answers_on_their_way_teach_nothing() -> None:
    server = talker(2)

    async def test(around: Bench) -> None:
        request = chat("word " * 1500)
        choice = await around.choose(request)
        around.engine.deploy(Deployment(server.url, "another model"))
        again = await around.choose(request)
        assert again.context is not None
        assert again.context.tokens_source == "counted"
        _, answer = await around.upstream.ask("POST", CHAT, choice.body)
        assert isinstance(answer, dict)
        known = around.chooser.ledger
        from adaptive_dd.core.domain import Outcome, Status
        from adaptive_dd.core.wire import parse_timings

        timings = parse_timings(answer["timings"])
        assert not isinstance(timings, str)
        around.chooser.finish(choice, Outcome(Status.OK, timings))
        assert around.chooser.ledger is known

    bench(test, server)


@pytest.mark.parametrize("mode", [Mode.ADAPTIVE, Mode.STATIC])
def test_a_server_that_ignores_the_fields_is_never_asked_to_count(mode: Mode) -> None:
    async def test(around: Bench) -> None:
        around.engine.found(ServerFacts(Listens.IGNORES))
        for _ in range(3):
            choice, _ = await around.exchange(chat("word " * 4000))
            assert choice.reason == "not-honoured"
        assert around.server.counts == []

    bench(test, chosen=settings(mode))


def test_while_learning_every_bucket_counts_even_where_the_ladder_has_none() -> None:
    async def test(around: Bench) -> None:
        choice, _ = await around.exchange(chat("word " * 4000))
        assert choice.context is not None
        assert choice.context.tokens_source == "counted"
        assert choice.context.prompt_tokens == around.server.prompt_tokens(chat("word " * 4000))

    bench(test, chosen=settings(Mode.ADAPTIVE), measured=Frontier())


def test_counting_uses_the_clients_key_and_prefix() -> None:
    server = CountingServer(key="k", prefix="/llm")

    async def test(around: Bench) -> None:
        path = "/llm" + CHAT
        choice = await around.choose(
            chat("word " * 4000), path=path, headers=((b"authorization", b"Bearer k"),)
        )
        assert choice.context is not None
        assert choice.context.tokens_source == "counted"
        assert [path for path, _ in server.asked] == [f"/llm{CHAT}/input_tokens"]

    bench(test, server)


def test_a_client_that_leaves_while_its_prompt_is_counted_leaves_no_decision_behind() -> None:
    server = CountingServer(stalls=frozenset({f"{CHAT}/input_tokens"}))

    async def test(around: Bench) -> None:
        task = asyncio.ensure_future(around.choose(chat("word " * 4000)))
        await server.called.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert around.engine.in_flight == 0
        assert around.engine.recent(5) == []

    bench(test, server)


def test_no_text_of_the_prompt_stays_in_ledger_or_journal() -> None:
    async def test(around: Bench) -> None:
        await around.exchange(chat("a secret " * 400))
        assert "secret" not in repr(around.chooser.ledger)
        assert "secret" not in repr(around.journal.events)

    bench(test)
