from __future__ import annotations

import json
from typing import Any

import pytest

from adaptive_dd.core.context import FEATURES_VERSION
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
    Frontier,
    Listens,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
    Timings,
    parse_setting,
)
from adaptive_dd.core.wire import route_of
from adaptive_dd.replicas import Replicas
from tests.support.choosing import CHAT, N2, N4, N8, STEPS, Bench, bench, chat, frontier, settings


def test_the_prompt_length_picks_the_frontiers_setting_and_the_fields_are_spliced_before_the_brace() -> None:
    async def test(around: Bench) -> None:
        body = b'{"messages":[{"role":"user","content":"Hi"}] , "stream":true }'
        choice = await around.choose(body)
        assert choice.body == body[:-1] + b',"speculative.n_max":4,"speculative.p_min":0.25}'
        assert choice.original == body
        assert choice.changed
        assert choice.applied
        assert (choice.arm, choice.reason) == (N4, "frontier")
        assert choice.upstream is around.upstream
        assert around.metrics.value("decisions_total", reason="frontier") == 1

    bench(test)


def test_the_servers_own_values_mean_the_identical_bytes() -> None:
    async def test(around: Bench) -> None:
        body = b' { "prompt" : "Hi" }\n'
        choice = await around.choose(body, path="/completion")
        assert choice.body is choice.original
        assert choice.body == body
        assert not choice.changed
        assert not choice.applied
        assert (choice.arm, choice.reason) == (SERVER, "baseline")

    bench(test, measured=Frontier())


def test_a_named_baseline_is_spliced_like_any_setting() -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose({"prompt": "Hi"}, path="/completion")
        assert json.loads(choice.body) == {"prompt": "Hi", "speculative.n_max": 2, "speculative.p_min": 0.0}
        assert choice.reason == "baseline"
        assert choice.applied

    bench(test, chosen=settings(baseline=N2), measured=Frontier(baseline=N2))


def test_what_the_client_set_itself_wins() -> None:
    async def test(around: Bench) -> None:
        body = b'{"prompt":"Hi","speculative.n_max":5}'
        choice = await around.choose(body, path="/completion")
        assert choice.body == body
        assert not choice.changed
        assert choice.applied
        assert (choice.arm, choice.reason) == (Setting(n_max=5), "request-override")
        assert around.server.counts == []

    bench(test)


def test_force_replaces_what_the_client_set_and_resets_what_we_leave_open() -> None:
    async def test(around: Bench) -> None:
        body = b'{"speculative.n_max":5,"speculative.n_min":3,"prompt":"Hi"}'
        choice = await around.choose(body, path="/completion")
        assert choice.body == (
            b'{"speculative.n_max":4,"speculative.n_min":null,"prompt":"Hi","speculative.p_min":0.25}'
        )
        assert choice.arm == N4
        assert choice.applied

    bench(test, chosen=settings(force=True))


@pytest.mark.parametrize(
    ("mode", "listens", "reason"),
    [
        (Mode.OBSERVE, Listens.HONOURS, "observe"),
        (Mode.STATIC, Listens.IGNORES, "not-honoured"),
        (Mode.STATIC, Listens.DRAFTLESS, "draftless"),
    ],
)
def test_force_changes_nothing_where_nothing_is_chosen(mode: Mode, listens: Listens, reason: str) -> None:
    async def test(around: Bench) -> None:
        around.engine.found(ServerFacts(listens))
        body = b'{"speculative.n_max":5,"prompt":"Hi"}'
        choice = await around.choose(body, path="/completion")
        assert choice.body is choice.original
        assert choice.body == body
        assert choice.reason == reason

    bench(test, chosen=settings(mode, force=True))


def test_nothing_deeper_than_the_cap_is_sent() -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose({"prompt": "word " * 3000}, path="/completion")
        assert choice.arm == parse_setting("n3,p0.0")
        assert json.loads(choice.body)["speculative.n_max"] == 3

    bench(test, chosen=settings(cap=3), measured=frontier((1000, "n8,p0.0"), (4000, "n3,p0.0")))


UNTOUCHABLE = [
    (b'{"prompt":"Hi","speculative.n_max":5,"speculative.n_max":6}', "duplicate-key"),
    (b'{"prompt":"Hi","speculative\\u002en_max":5}', "duplicate-key"),
    (b'["Hi"]', "not-object"),
    (b'{"prompt":', "not-json"),
    (
        b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}',
        "multimodal",
    ),
]


@pytest.mark.parametrize(
    ("body", "reason"), UNTOUCHABLE, ids=[f"{r}-{i}" for i, (_, r) in enumerate(UNTOUCHABLE)]
)
def test_what_cannot_be_spliced_safely_goes_out_as_it_came_with_a_reason(body: bytes, reason: str) -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose(body)
        assert choice.body is choice.original
        assert choice.body == body
        assert (choice.reason, choice.arm, choice.applied) == (reason, SERVER, False)
        assert around.server.asked == []
        assert len(around.engine.recent(10)) == 1

    bench(test)


def test_a_body_in_another_encoding_or_too_large_to_read_is_not_touched() -> None:
    async def test(around: Bench) -> None:
        route = route_of("POST", CHAT)
        assert route is not None
        packed = await around.chooser.choose(route, [(b"Content-Encoding", b"gzip")], b"\x1f\x8b", path=CHAT)
        assert (packed.body, packed.reason) == (b"\x1f\x8b", "encoded")
        large = await around.chooser.choose(route, [], None, path=CHAT)
        assert large.reason == "too-large"
        assert not large.changed

    bench(test)


def test_a_route_that_drops_fields_is_left_alone_and_not_counted() -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose(chat("Hi", max_tokens=5), path="/v1/messages")
        assert choice.reason == "route-drops-fields"
        assert not choice.changed
        assert around.server.asked == []
        assert choice.context is not None
        assert choice.context.max_tokens == 5

    bench(test)


WITHOUT_A_CHOICE = [
    (settings(Mode.OFF), STEPS, Listens.UNKNOWN, "off"),
    (settings(Mode.OBSERVE), STEPS, Listens.UNKNOWN, "observe"),
    (settings(), STEPS, Listens.IGNORES, "not-honoured"),
    (settings(), STEPS, Listens.NO_DRAFTING, "no-drafting"),
    (settings(), Frontier(), Listens.HONOURS, "baseline"),
    (settings(), frontier((1000, "n4,p0.25"), (9000, "n4,p0.25")), Listens.HONOURS, "frontier"),
]


@pytest.mark.parametrize(("chosen", "measured", "listens", "reason"), WITHOUT_A_CHOICE)
def test_where_the_length_cannot_change_the_decision_it_is_not_asked_for(
    chosen: PolicySettings, measured: Frontier, listens: Listens, reason: str
) -> None:
    async def test(around: Bench) -> None:
        around.engine.found(ServerFacts(listens))
        choice = await around.choose(chat("word " * 5000))
        assert choice.reason == reason
        assert around.server.asked == []

    bench(test, chosen=chosen, measured=measured)


def test_our_own_failure_costs_the_client_nothing_and_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(around: Bench) -> None:
        def broken(*_: object, **__: object) -> None:
            raise KeyError("a secret of the client's")

        monkeypatch.setattr("adaptive_dd.chooser.features_of", broken)
        for _ in range(3):
            choice = await around.choose({"prompt": "secret"}, path="/completion")
            assert choice.body is choice.original
            assert choice.reason == "failed"
            assert choice.ticket is not None  # on record all the same
        monkeypatch.setattr(around.engine, "begin", broken)
        choice = await around.choose({"prompt": "secret"}, path="/completion")
        assert choice.reason == "failed"
        assert choice.ticket is None
        assert not choice.changed
        around.chooser.finish(choice, Outcome(Status.OK))
        assert around.metrics.value("own_failures_total", where="choose") == 4
        assert around.metrics.value("own_failures_total", where="decide") == 1
        assert len(caplog.records) == 2
        assert "secret" not in caplog.text

    bench(test)


def test_a_failure_after_the_decision_leaves_no_decision_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(around: Bench) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("adaptive_dd.actuator.splice", broken)
        choice = await around.choose({"prompt": "Hi"}, path="/completion")
        assert choice.reason == "failed"
        assert not choice.changed
        assert around.engine.in_flight == 0
        assert not around.engine.state.open

    bench(test)


def test_the_record_says_under_which_meaning_of_the_features_it_was_read() -> None:
    async def test(around: Bench) -> None:
        await around.choose({"prompt": "Hi", "temperature": 0}, path="/completion")
        context = around.engine.recent(1)[0].decided.context
        assert context.features == FEATURES_VERSION
        assert str(context.kind) == "greedy.free.completion"

    bench(test)


def test_a_clients_hint_makes_a_kind_of_its_own_and_hints_are_bounded() -> None:
    async def test(around: Bench) -> None:
        hints = []
        for number in range(20):
            hint = f"job-{number}".encode()
            choice = await around.choose(
                {"prompt": "Hi"}, path="/completion", headers=((b"X-DD-Workload", hint),)
            )
            assert choice.context is not None
            hints.append(choice.context.kind.hint)
        assert hints[0] == "job-0"
        assert hints[-1] == "other"
        assert len(set(hints)) == 17

    bench(test)


def test_finishing_records_the_outcome_and_frees_the_place() -> None:
    async def test(around: Bench) -> None:
        choice = await around.choose({"prompt": "Hi"}, path="/completion")
        assert around.engine.in_flight == 1
        second = await around.choose({"prompt": "Hi"}, path="/completion")
        assert second.context is not None
        assert second.context.in_flight == 2
        around.chooser.finish(choice, Outcome(Status.ERROR, http_status=500))
        around.chooser.finish(second, Outcome(Status.CLIENT_GONE))
        assert around.engine.in_flight == 0

    bench(test)


# --- routes without timings ----------------------------------------------------------------------------------

MESSAGES = "/v1/messages"
TOLD = Outcome(Status.OK, Timings(9, 0.0, 30, 900.0), inferred=True)
HELD_BACK = Outcome(Status.REJECTED, rejected="held-back", inferred=True)
NOTHING = Outcome(Status.NO_TIMINGS)


def asked(*, stream: bool = True, **more: Any) -> dict[str, Any]:
    return chat("Hi", max_tokens=9, stream=stream, **more)


async def blindness(around: Bench, *endings: Outcome, **more: Any) -> list[bool]:
    """Whether each of the next messages, ending like this, was taken to teach nothing; and one more."""
    found = []
    for ending in (*endings, TOLD):
        choice = await around.choose(asked(**more), path=MESSAGES)
        assert choice.context is not None
        found.append(choice.context.blind)
        around.chooser.finish(choice, ending)
    return found


def by_replicas(around: Bench) -> None:
    around.chooser.actuator = Replicas({OFF: around.upstream, N8: around.upstream})


@pytest.mark.parametrize(
    ("endings", "blind"),
    [
        ((), [False]),
        ((TOLD, TOLD), [False] * 3),
        ((HELD_BACK, HELD_BACK), [False] * 3),
        ((HELD_BACK, HELD_BACK, HELD_BACK), [False, False, False, True]),
        ((HELD_BACK, TOLD) * 6, [False] * 13),
        ((HELD_BACK, HELD_BACK, TOLD) * 2, [False] * 5 + [True, False]),
        ((*(HELD_BACK,) * 40, *(TOLD,) * 4), [False] * 3 + [True] * 41 + [False]),
        ((NOTHING,), [False, True]),
        ((NOTHING, TOLD, TOLD, HELD_BACK), [False, True, False, False, False]),
        ((NOTHING, HELD_BACK), [False, True, True]),
        ((Outcome(Status.CUT),) * 4, [False] * 5),
    ],
)
def test_one_answer_that_tells_nothing_is_an_exception_and_most_of_them_are_the_rule(
    endings: tuple[Outcome, ...], blind: list[bool]
) -> None:
    async def test(around: Bench) -> None:
        by_replicas(around)
        assert await blindness(around, *endings) == blind

    bench(test)


def test_what_is_known_of_one_sort_of_answer_is_not_believed_of_another() -> None:
    async def test(around: Bench) -> None:
        by_replicas(around)
        tools = [{"name": "look", "input_schema": {}}]
        await blindness(around, NOTHING, NOTHING, stream=False)
        assert await blindness(around) == [False]
        for _ in range(3):
            choice = await around.choose(asked(tools=tools), path=MESSAGES)
            around.chooser.finish(choice, HELD_BACK)
        assert await blindness(around) == [False]
        assert (await blindness(around, tools=tools))[0]

    bench(test)


def test_timings_that_cannot_be_true_say_nothing_of_the_route() -> None:
    async def test(around: Bench) -> None:
        for _ in range(5):
            choice = await around.choose(asked())
            assert choice.context is not None
            assert not choice.context.blind
            around.chooser.finish(choice, Outcome(Status.REJECTED, rejected="missing"))

    bench(test)


@pytest.mark.parametrize(
    ("path", "places", "by_arrival"),
    [
        (MESSAGES, True, True),
        ("/v1/responses", True, True),
        (CHAT, True, False),
        ("/completion", True, False),
        (MESSAGES, False, False),
        ("/v1/responses", False, False),
    ],
)
def test_arrivals_are_listened_to_where_the_arm_is_a_place_and_timings_may_be_missing(
    path: str, places: bool, by_arrival: bool
) -> None:
    async def test(around: Bench) -> None:
        if places:
            by_replicas(around)
        body = asked() | {"prompt": "Hi", "input": "Hi"}
        assert (await around.choose(body, path=path)).by_arrival is by_arrival

    bench(test)


def test_a_place_whose_depth_nobody_named_is_not_listened_to() -> None:
    async def test(around: Bench) -> None:
        around.chooser.actuator = Replicas({SERVER: around.upstream})
        assert not (await around.choose(asked(), path=MESSAGES)).by_arrival

    bench(test)
