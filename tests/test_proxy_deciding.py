"""What a generating request goes through: decided, spliced, sent, judged, and never worse off than without us."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from adaptive_dd.core.domain import REJECTIONS, SERVER, Outcome, Setting, Status
from adaptive_dd.core.tap import Tap
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
from tests.support.client import Answer, Client, ask, request
from tests.support.relay import World, serving

BODY = b'{"stream": true, "messages": []}'
CHAT = "/v1/chat/completions"
N4 = b',"speculative.n_max":4}'
ROUTES = [
    "/completion", "/completions", "/v1/completions", "/chat/completions", CHAT, "/infill", "/responses",
    "/v1/responses", "/prefix/v1/chat/completions",
]  # fmt: skip


def decided(got: Answer) -> dict[str, str]:
    return {name: value for name, value in got.headers if name.startswith("x-dd-")}


@pytest.mark.parametrize("target", ROUTES)
@pytest.mark.parametrize("body", [b"{}", b'{"a": "\xc3\xa9" } \n', BODY])
def test_a_generating_request_differs_by_our_field_alone(target: str, body: bytes) -> None:
    with serving(setting=Setting(4)) as world:
        got = ask(world.port, "POST", target, body, "Content-Type: application/json", "X-Extra: 1")
        sent = world.fake.received[0]
    close = body.rindex(b"}")
    assert sent.body == body[:close] + (N4 if close > 1 else N4[1:]) + body[close + 1 :]
    assert sent.values("content-length") == [str(len(sent.body)).encode()]
    assert sent.values("x-extra") == [b"1"]
    assert decided(got) == {
        "x-dd-applied": "true",
        "x-dd-reason": "frontier",
        "x-dd-prompt-tokens": "12",
        "x-dd-setting": "n4",
        "x-dd-decision-us": "4.2",
    }


@pytest.mark.parametrize(
    "target", ["/v1/messages", "/v1/audio/transcriptions", "/tokenize", "/embedding", "/slots/0"]
)
def test_other_bodies_pass_byte_for_byte(target: str) -> None:
    body = b'{"messages": [], "x": 1}'
    with serving(setting=Setting(4)) as world:
        got = ask(world.port, "POST", target, body)
        assert world.fake.received[0].body == body
        assert world.fake.received[0].target == target.encode()
        generates = target in ("/v1/messages", "/v1/audio/transcriptions")
        assert bool(decided(got)) == generates
        assert len(world.chooser.seen) == generates


def test_the_baseline_server_sends_the_identical_bytes() -> None:
    body = b' {"messages" : [ ]\t}\n'
    with serving(setting=SERVER) as world:
        got = ask(world.port, "POST", CHAT, body)
        assert world.fake.received[0].body == body
    assert decided(got)["x-dd-applied"] == "false"
    assert decided(got)["x-dd-setting"] == "server"


@pytest.mark.parametrize(
    "body",
    [
        b'{"speculative.n_max": 5}',
        b'{"speculative\\u002en_max": 5}',
        b'{"speculative.n_max": 5, "speculative.n_max": 6}',
        b'{"speculative": {"n_max": 3}}',
        b'{"messages": [], "a": NaN}',
        b"[]",
        b"not json",
        b"\xff\xfe{",
        b"",
    ],
)
def test_what_the_client_set_itself_and_what_is_doubtful_passes_untouched(body: bytes) -> None:
    with serving(setting=Setting(4)) as world:
        got = ask(world.port, "POST", CHAT, body)
        assert got.status == 200
        assert world.fake.received[0].body == body


# --- a server that does not like what we did -----------------------------------------------------------------


def refuses_fields(status: str):  # type: ignore[no-untyped-def]
    async def script(request: Received, peer: Peer) -> None:
        if b"speculative" in request.body:
            await peer.whole(b'{"error":{"code":1,"message":"n_max"}}', status, "Connection: close")
        else:
            await answer(request, peer)

    return script


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable", "500 Internal Server Error"])
@pytest.mark.parametrize("body", [BODY, b'{"a": 1}'])
def test_a_refusal_that_our_field_caused_never_reaches_the_client(status: str, body: bytes) -> None:
    with serving(refuses_fields(status), setting=Setting(4)) as world:
        got = ask(world.port, "POST", CHAT, body)
        assert (got.status, got.body) == (200, STREAM if body == BODY else document())
        assert [b"speculative" in one.body for one in world.fake.received] == [True, False]
        assert world.fake.received[1].body == body
        assert decided(got)["x-dd-applied"] == "false"
        assert decided(got)["x-dd-setting"] == "server"
        outcome = world.chooser.outcome()
        assert outcome.status is Status.REFUSED
        assert world.metrics.value("resent_total") == 1


def test_a_request_that_is_wrong_in_itself_gets_the_servers_own_answer_to_it() -> None:
    async def script(request: Received, peer: Peer) -> None:
        n = b"with" if b"speculative" in request.body else b"without"
        await peer.whole(b'{"error":{"message":"%b"}}' % n, "400 Bad Request")

    with serving(script, setting=Setting(4)) as world:
        got = ask(world.port)
        assert (got.status, got.body) == (400, b'{"error":{"message":"without"}}')
        outcome = world.chooser.outcome()
        assert (outcome.status, outcome.http_status) == (Status.ERROR, 400)
        assert len(world.fake.received) == 2


def test_a_refusal_of_untouched_bytes_is_not_tried_again() -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.whole(b"{}", "500 Internal Server Error")

    with serving(script, setting=SERVER) as world:
        assert ask(world.port).status == 500
        assert len(world.fake.received) == 1


@pytest.mark.parametrize("how", ["reset", "hang_up"])
def test_a_server_that_dies_of_our_field_is_asked_once_more_with_the_clients_bytes(how: str) -> None:
    async def script(request: Received, peer: Peer) -> None:
        if b"speculative" in request.body:
            getattr(peer, how)()
        else:
            await answer(request, peer)

    with serving(script, setting=Setting(4)) as world:
        got = ask(world.port, "POST", CHAT, BODY)
        assert got.body == STREAM
        assert world.chooser.outcome().status is Status.REFUSED
        assert len(world.fake.received) == 2


def test_a_server_that_is_gone_after_our_field_counts_against_the_arm_and_is_a_502() -> None:
    crashed: list[World] = []

    async def script(request: Received, peer: Peer) -> None:
        assert crashed[0].fake._server is not None
        crashed[0].fake._server.close()
        peer.reset()

    with serving(script, setting=Setting(4)) as world:
        crashed.append(world)
        got = ask(world.port, "POST", CHAT, BODY)
        assert got.status == 502
        assert got.value("retry-after") is not None
        outcome = world.chooser.outcome()
        assert (outcome.status, outcome.http_status) == (Status.CUT, 0)


def test_a_server_that_always_dies_is_a_502_after_two_tries() -> None:
    async def script(request: Received, peer: Peer) -> None:
        peer.reset()

    with serving(script, setting=Setting(4)) as world:
        assert ask(world.port, "POST", CHAT, BODY).status == 502
        assert len(world.fake.received) == 2
        assert world.chooser.outcome().status is Status.CUT


def test_a_client_that_leaves_during_the_second_try_is_noticed() -> None:
    async def script(request: Received, peer: Peer) -> None:
        if b"speculative" in request.body:
            await peer.whole(b"{}", "400 Bad Request")
        else:
            await asyncio.sleep(600)

    with serving(script, setting=Setting(4)) as world:
        client = Client(world.port)
        client.send(request("POST", CHAT, BODY))
        assert world.fake.until(lambda: len(world.fake.received) == 2)
        client.vanish()
        assert world.fake.until(lambda: world.fake.gone == 1, 1.0)
        assert world.chooser.outcome().status is Status.CLIENT_GONE


# --- our own faults ------------------------------------------------------------------------------------------


def test_when_deciding_fails_the_clients_bytes_go_out_and_it_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(setting=Setting(4)) as world:
        world.chooser.fail = ValueError("our own fault")
        for _ in range(3):
            got = ask(world.port, "POST", CHAT, BODY)
            assert got.body == STREAM
            assert decided(got) == {}
        assert [one.body for one in world.fake.received] == [BODY] * 3
        assert world.metrics.value("own_failures_total", where="choose") == 3
        assert world.chooser.outcomes == []
    assert sum("own failure in choose" in record.getMessage() for record in caplog.records) == 1


def test_when_the_relay_itself_fails_the_client_gets_a_502_and_no_broken_connection() -> None:
    with serving(setting=Setting(4)) as world, Client(world.port) as client:

        async def nonsense(*args: object, **more: object) -> object:
            return object()  # no Choice at all

        world.chooser.choose = nonsense  # type: ignore[method-assign, assignment]
        assert client.ask().status == 502
        assert world.metrics.value("own_failures_total", where="relay") == 1


@pytest.mark.parametrize("broken", ["feed", "end", "result"])
@pytest.mark.parametrize("annotated", [False, True])
def test_when_listening_to_an_answer_fails_the_client_has_it_all_and_the_decision_ends(
    monkeypatch: pytest.MonkeyPatch, broken: str, annotated: bool
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("our own fault")

    monkeypatch.setattr(Tap, broken, fails)
    with serving(setting=Setting(4), annotate=annotated) as world:
        got = ask(world.port, "POST", CHAT, BODY)
        assert got.complete
        assert got.body.startswith(STREAM[:40])
        assert world.chooser.outcome().status is Status.NO_TIMINGS
        where = "outcome" if broken == "result" else "tap"
        assert world.metrics.value("own_failures_total", where=where) == 1


# --- what timings say ----------------------------------------------------------------------------------------

WRONG = {
    '{"predicted_n":64,"predicted_ms":0,"prompt_n":1}': "no-time",
    '{"predicted_n":64,"predicted_ms":null,"prompt_n":1}': "not-a-number",
    '{"predicted_n":64,"predicted_ms":1e999,"prompt_n":1}': "not-finite",
    '{"predicted_n":64,"predicted_ms":-5,"prompt_n":1}': "negative",
    '{"predicted_n":64,"prompt_n":1}': "missing",
    '{"predicted_n":1e300,"predicted_ms":5,"prompt_n":1}': "too-large",
    '{"predicted_n":64,"predicted_ms":800,"prompt_n":1,"draft_n":3,"draft_n_accepted":9}': "accepted-above-drafted",
    '{"predicted_n":"64","predicted_ms":800,"prompt_n":1}': "not-a-number",
    "null": "not-an-object",
    "[]": "not-an-object",
}


@pytest.mark.parametrize(("timings", "why"), WRONG.items())
def test_timings_that_cannot_be_true_pass_untouched_and_are_rejected_by_name(timings: str, why: str) -> None:
    whole = b'{"choices": [], "timings": ' + timings.encode() + b"}"
    text = b"data: " + whole + b"\n\n" + DONE

    async def script(request: Received, peer: Peer) -> None:
        await (peer.stream(text) if b"true" in request.body else peer.whole(whole))

    with serving(script) as world:
        assert ask(world.port).body == whole
        assert ask(world.port, "POST", CHAT, BODY).body == text
        for number in (1, 2):
            outcome = world.chooser.outcome(number)
            assert (outcome.status, outcome.rejected, outcome.timings) == (Status.REJECTED, why, None)
        assert why in REJECTIONS


def test_null_rates_beside_true_counts_do_no_harm() -> None:
    timings = {**TIMINGS, "predicted_per_second": None, "prompt_per_second": "x"}

    async def script(request: Received, peer: Peer) -> None:
        await peer.whole(document(timings))

    with serving(script) as world:
        ask(world.port)
        assert world.chooser.outcome().status is Status.OK


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b'{"choices": []}', Status.NO_TIMINGS),
        ("application/json", b"{", Status.NO_TIMINGS),
        ("text/plain", document(), Status.NO_TIMINGS),
        ("application/json", b'{"error": {"code": 500}}', Status.ERROR),
        ("APPLICATION/JSON; charset=utf-8", document(), Status.OK),
    ],
)
def test_every_complete_answer_has_an_outcome(kind: str, body: bytes, status: Status) -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.whole(body, kind=kind)

    with serving(script) as world:
        assert ask(world.port).body == body
        assert world.chooser.outcome() == Outcome(status, world.chooser.outcomes[0].timings)


# --- annotations ---------------------------------------------------------------------------------------------

NOTE = {"applied": True, "reason": "frontier", "prompt_tokens": 12, "setting": "n4", "decision_us": 4.2}


def test_without_the_flag_no_answer_is_annotated() -> None:
    with serving(setting=Setting(4)) as world:
        assert ask(world.port).body == document()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_document_is_annotated_and_its_length_true(version: str) -> None:
    with serving(setting=Setting(4), annotate=True) as world, Client(world.port) as client:
        got = client.ask(version=version)
        assert got.json == {**json.loads(document()), "dynamic_draft": NOTE}
        assert got.value("content-length") == str(len(got.body))
        assert got.body.startswith(document()[:-1])
        assert world.chooser.outcome().status is Status.OK


def test_the_last_event_is_annotated_and_the_others_are_not_held_back() -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.stream(delta("a"), delta("b"), last_event(), DONE, gap_s=0.1)

    with serving(script, setting=Setting(4), annotate=True) as world:
        got = ask(world.port, "POST", CHAT, BODY)
        assert world.chooser.outcome().status is Status.OK
    first, second, rest = (chunk for _, chunk in got.chunks)
    assert (first, second) == (delta("a"), delta("b"))
    assert got.chunks[1][0] - got.chunks[0][0] > 0.05
    assert rest.endswith(DONE)
    assert json.loads(rest.removesuffix(DONE)[6:])["dynamic_draft"] == NOTE


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        ("200 OK", "application/json", b"[1, 2]"),
        ("200 OK", "application/json", b"{"),
        ("200 OK", "text/plain", b"{}"),
        ("400 Bad Request", "application/json", b'{"error": {}}'),
    ],
)
def test_what_cannot_be_annotated_passes_as_it_is(status: str, kind: str, body: bytes) -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.whole(body, status, kind=kind)

    with serving(script, setting=Setting(4), annotate=True) as world:
        got = ask(world.port)
        assert got.body == body
        assert got.value("content-length") == str(len(body))


def test_answers_of_other_routes_are_not_annotated() -> None:
    with serving(annotate=True) as world:
        assert ask(world.port, "GET", "/props", None).body == document()


def test_an_answer_that_breaks_off_while_it_is_annotated_is_broken_off() -> None:
    async def script(request: Received, peer: Peer) -> None:
        if b"true" in request.body:
            await peer.start()
            await peer.chunk(delta("a") + b"data: {")
        else:
            await peer.raw(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
            )
        await asyncio.sleep(0.05)
        peer.reset()

    with serving(script, annotate=True) as world:
        got = ask(world.port, "POST", CHAT, BODY)
        assert got.body == delta("a") + b"data: {"
        assert not got.complete
        whole = ask(world.port, "POST", CHAT, b"{}")
        assert whole.status == 502
        assert "middle of its answer" in whole.json["error"]["message"]  # type: ignore[index]
        assert whole.values("retry-after")
        assert world.chooser.outcome(1).status is Status.CUT
        assert world.chooser.outcome(2).status is Status.CUT


def test_a_last_event_that_was_held_for_its_note_reaches_the_client_when_the_server_dies_after_it() -> None:
    async def script(request: Received, peer: Peer) -> None:
        await peer.start()
        await peer.chunk(delta("a") + last_event())
        await asyncio.sleep(0.05)
        peer.reset()

    with serving(script, setting=Setting(4), annotate=True) as world:
        got = ask(world.port, "POST", CHAT, BODY)
        assert not got.complete
        assert json.loads(got.body.removeprefix(delta("a"))[6:])["dynamic_draft"] == NOTE


def test_a_very_large_answer_is_passed_on_without_a_note() -> None:
    body = b'{"x": "' + b"y" * (9 << 20) + b'"}'

    async def script(request: Received, peer: Peer) -> None:
        await peer.whole(body)

    with serving(script, annotate=True) as world:
        got = ask(world.port)
        assert got.complete
        assert got.body == body


# --- the load that the chooser is told -----------------------------------------------------------------------


def test_every_choice_is_finished_exactly_once_however_it_ends() -> None:
    async def script(request: Received, peer: Peer) -> None:
        name = request.values("x-end")[0].decode() if request.values("x-end") else "ok"
        if name == "cut":
            await peer.start()
            peer.reset()
        elif name == "error":
            await peer.stream(event({"error": {"code": 1}}))
        elif name == "silent":
            await asyncio.sleep(600)
        else:
            await answer(request, peer)

    with serving(script, setting=Setting(4)) as world:
        for name in ("ok", "cut", "error", "ok", "silent", "ok"):
            with Client(world.port) as client:
                client.send(request("POST", CHAT, BODY, f"X-End: {name}"))
                if name == "silent":
                    assert world.fake.until(lambda: world.fake.busy == 1)
                else:
                    client.answer()
        world.chooser.outcome(6)
        time.sleep(0.2)
        assert len(world.chooser.outcomes) == len(world.chooser.seen) == 6
