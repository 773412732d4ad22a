"""One contract for the three ways in which a setting reaches a server, and what each does besides."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from adaptive_dd.actuator import Actuator, Fields, Placed
from adaptive_dd.core.codec import codec_of
from adaptive_dd.core.cost import free_to_try, switch_ms
from adaptive_dd.core.domain import (
    OFF,
    SERVER,
    Context,
    Deployment,
    Listens,
    Outcome,
    ServerFacts,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.wire import Scan, scan
from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.replicas import Replicas
from adaptive_dd.router import Presets

N2, N8, N8P = Setting(2), Setting(8), Setting(8, 0.6)
FOUR = (OFF, N2, N8, N8P)
BODY = b'{"model": "gemma", "messages": [{"role": "user", "content": "h\xc3\xb6"}],\n "stream": true }'


class FakeUpstream:
    """Answers our own calls from a function; nothing else."""

    def __init__(
        self, answer: Callable[[str, str, Any], tuple[int, object]], url: str = "http://one"
    ) -> None:
        self.answer, self.base_url = answer, url
        self.calls: list[tuple[str, str, object]] = []

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Iterable[Any] = (),
        *,
        timeout_s: float = 5.0,
    ) -> tuple[int, object]:
        self.calls.append((method, path, json_body))
        return self.answer(method, path, json_body)


class FakeRouter(FakeUpstream):
    """A router's `/models`, with what is loaded in our hand."""

    def __init__(
        self, settings: Iterable[str] = ("off", "n2", "n8", "n8-p0.6"), public: str = "gemma"
    ) -> None:
        super().__init__(self._serve)
        self.status = {f"{public}@{setting}": "loaded" for setting in settings}
        self.home = f"{public}@{next(iter(settings))}"
        self.public, self.up, self.loads = public, True, True
        self.failed: set[str] = set()
        self.args: list[str] = []
        self.most: int | None = 4

    def _serve(self, method: str, path: str, body: Any) -> tuple[int, object]:
        if not self.up:
            raise UpstreamError("gone")
        if path == "/props":
            return 200, {"role": "router", "max_instances": self.most}
        if path == "/models/load":
            if body["model"] not in self.status:
                return 404, {}
            self.status[body["model"]] = "loaded" if self.loads else "loading"
            return 200, {"success": True}
        return 200, {"data": [self._entry(alias) for alias in self.status]}

    def _entry(self, alias: str) -> dict[str, object]:
        status = {
            "value": self.status[alias],
            "args": self.args,
            **({"failed": True} if alias in self.failed else {}),
        }
        return {"id": alias, "aliases": [self.public] if alias == self.home else [], "status": status}


def well(method: str, path: str, body: object) -> tuple[int, object]:
    return 200, {"status": "ok"}


def fields() -> Fields:
    return Fields(FakeUpstream(well))  # type: ignore[arg-type]


def presets(router: FakeRouter | None = None, baseline: Setting = SERVER, **more: Any) -> Presets:
    made = Presets(router or FakeRouter(), baseline, **more)  # type: ignore[arg-type]
    asyncio.run(made.refresh())
    return made


def replicas(
    baseline: Setting = SERVER, answer: Callable[[str, str, Any], tuple[int, object]] = well
) -> Replicas:
    urls = {setting: FakeUpstream(answer, f"http://{setting}") for setting in FOUR}
    return Replicas(urls, baseline)  # type: ignore[arg-type]


def place(actuator: Actuator, arm: Setting, body: bytes = BODY, *, force: bool = False) -> Placed:
    return actuator.place(body, scan(body), arm, force=force)


def outcome(prompt_n: int, cache_n: int, predicted_n: int = 100, status: Status = Status.OK) -> Outcome:
    return Outcome(status, Timings(prompt_n, 2.0 * prompt_n, predicted_n, 900.0, cache_n))


def talk(tokens: int, conversation: str = "c1") -> Context:
    return Context(tokens, conversation=conversation)


class Contract:
    """What every actuator promises."""

    make: ClassVar[Callable[[], Actuator]]

    def test_an_arm_that_can_be_played_is_played_and_said_to_be(self) -> None:
        actuator = self.make()
        for arm in actuator.settings() or FOUR:
            placed = place(actuator, arm)
            assert (placed.arm, placed.applied) == (arm, True)

    def test_two_arms_never_go_out_the_same(self) -> None:
        actuator = self.make()
        sent = {(placed.body, placed.upstream.base_url) for placed in (place(actuator, arm) for arm in FOUR)}
        assert len(sent) == len(FOUR)

    def test_the_body_stays_a_request_for_the_same_thing(self) -> None:
        actuator, ours = self.make(), ("model", "speculative.n_max", "speculative.p_min", "speculative.n_min")
        for arm in FOUR:
            got, was = json.loads(place(actuator, arm).body), json.loads(BODY)
            assert {k: v for k, v in got.items() if k not in ours} == {
                k: v for k, v in was.items() if k not in ours
            }

    def test_the_retry_goes_elsewhere_or_as_something_else_and_has_none_itself(self) -> None:
        actuator = self.make()
        for arm in FOUR:
            placed = place(actuator, arm)
            assert placed.retry is not None
            assert (placed.retry.body, placed.retry.upstream) != (placed.body, placed.upstream)
            assert placed.retry.retry is None

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{",
            b'{"speculative.n_max":1,"speculative.n_max":2}',
            b'{"model":"a","model":"b"}',
            b"\xff",
        ],
    )
    def test_a_body_that_cannot_be_spliced_goes_out_as_it_came(self, body: bytes) -> None:
        placed = place(self.make(), SERVER, body)
        assert placed.body == body

    def test_an_unread_body_goes_out_as_it_came(self) -> None:
        assert self.make().place(b"", Scan(), SERVER).body == b""

    def test_what_the_client_did_not_choose_is_no_wish(self) -> None:
        assert self.make().wishes(scan(BODY)) == (None, "")

    def test_a_setting_that_the_client_chose_is_its_wish(self) -> None:
        wanted, why = self.make().wishes(scan(b'{"model":"gemma","speculative.n_max":2}'))
        assert (wanted, why) == (N2, "")

    def test_our_own_calls_go_out_as_the_same_request(self) -> None:
        document, body = self.make().own(BODY, scan(BODY))
        assert json.loads(body) == document
        assert document["messages"] == json.loads(BODY)["messages"]

    def test_the_context_of_a_new_conversation_knows_no_switching_cost(self) -> None:
        context = self.make().informed(talk(5000))
        assert context.reprocess == ()
        assert all(free_to_try(context, arm) for arm in FOUR)

    def test_the_baseline_is_always_among_what_can_be_played(self) -> None:
        actuator = self.make()
        assert actuator.settings() is None or actuator.baseline in (actuator.settings() or ())

    def test_nothing_is_learned_wrongly_from_an_ending_without_timings(self) -> None:
        actuator = self.make()
        placed = place(actuator, N8)
        for status, http in itertools.product(Status, (0, 200, 500)):
            actuator.finished(placed, Context(None), Outcome(status, http_status=http))
            actuator.finished(placed, talk(10), Outcome(status, http_status=http))
        assert actuator.informed(talk(10)).prompt_ms_per_token == 0.0

    def test_looking_twice_changes_nothing_the_second_time(self) -> None:
        actuator = self.make()
        asyncio.run(actuator.refresh())
        assert asyncio.run(actuator.refresh()) is False


class TestFields(Contract):
    make = staticmethod(fields)

    def test_the_server_arm_sends_the_identical_bytes(self) -> None:
        placed = place(fields(), SERVER)
        assert placed.body is BODY
        assert placed.retry is None
        assert not placed.applied

    def test_force_replaces_the_client_s_own_fields(self) -> None:
        body = b'{"speculative.n_max":1,"speculative.p_min":0.5}'
        assert json.loads(place(fields(), N8, body, force=True).body) == {
            "speculative.n_max": 8,
            "speculative.p_min": None,
        }

    def test_facts_and_context_are_left_alone(self) -> None:
        facts = ServerFacts(Listens.IGNORES, cap=4)
        assert fields().facts(facts) == facts
        assert fields().informed(talk(5)) == talk(5)


class ByPlaceContract(Contract):
    """What actuators promise whose arms are places."""

    def test_settings_act_whatever_the_server_does_with_fields(self) -> None:
        facts = self.make().facts(ServerFacts(Listens.IGNORES, limit=3, slots=4))
        assert (facts.listens, facts.cap, facts.limit, facts.slots) == (Listens.HONOURS, 8, None, 4)
        assert facts.arms == FOUR

    def test_an_arm_that_does_not_answer_now_is_still_an_arm_of_the_deployment(self) -> None:
        actuator = self.make()
        actuator.failed(place(actuator, N8))
        assert actuator.facts(ServerFacts()).arms == FOUR
        assert actuator.informed(talk(5)).arms == (OFF, N2, N8P)

    def test_what_is_learned_belongs_to_server_and_actuator_together(self) -> None:
        actuator = self.make()
        scope = actuator.deployment(Deployment("http://one", "m", "b", cap=4))
        assert (scope.upstream, scope.build, scope.cap, scope.actuator) == (
            "http://one",
            "b",
            None,
            actuator.name,
        )

    def test_what_is_no_arm_is_played_as_the_baseline_and_said_so(self) -> None:
        actuator = self.make()
        assert place(actuator, Setting(5)).arm == actuator.baseline == OFF
        assert place(actuator, SERVER).arm == OFF

    def test_a_wish_that_is_no_arm_is_not_placed(self) -> None:
        assert self.make().wishes(scan(b'{"model":"gemma","speculative.n_max":5}')) == (None, "not-honoured")
        assert self.make().wishes(scan(b'{"model":"gemma","speculative.n_max":5}'), force=True) == (None, "")

    def test_a_conversation_costs_a_switch_by_what_its_place_holds(self) -> None:
        actuator = self.make()
        actuator.finished(place(actuator, N8), talk(4000), outcome(4000, 0))
        context = actuator.informed(talk(4300))
        assert dict(context.reprocess) == {OFF: 4100, N2: 4100, N8P: 4100}
        assert switch_ms(context, N2) == pytest.approx(8200.0)
        assert switch_ms(context, N8) == 0.0
        assert context.turns == 1
        assert actuator.informed(talk(4300, "c2")).reprocess == ()

    def test_a_place_visited_before_still_holds_the_older_part(self) -> None:
        actuator = self.make()
        actuator.finished(place(actuator, N8), talk(1000), outcome(1000, 0))
        actuator.finished(place(actuator, N2), talk(2000), outcome(2000, 0))
        assert dict(actuator.informed(talk(2200)).reprocess) == {OFF: 2100, N8: 1000, N8P: 2100}

    def test_a_place_that_turns_out_to_hold_nothing_is_not_stuck_to(self) -> None:
        actuator, at = self.make(), place(self.make(), N8)
        for turn in range(1, 30):
            actuator.finished(at, talk(1000 * turn), outcome(1000 * turn, 0))
        assert dict(actuator.informed(talk(30_000)).reprocess)[N2] < 500

    def test_a_place_that_was_lost_holds_nothing_when_it_is_back(self) -> None:
        actuator = self.make()
        actuator.finished(place(actuator, N8), talk(4000), outcome(4000, 0))
        actuator.failed(place(actuator, N8))
        assert N8 not in (actuator.settings() or ())
        assert asyncio.run(actuator.refresh()) is True
        assert N8 in (actuator.settings() or ())
        assert actuator.informed(talk(4300)).reprocess == ()

    def test_after_a_retry_the_conversation_lives_where_it_was_served(self) -> None:
        actuator = self.make()
        actuator.finished(place(actuator, N8), talk(4000), Outcome(Status.MOVED))
        assert OFF not in dict(actuator.informed(talk(4200)).reprocess)

    def test_an_error_leaves_the_conversation_where_it_was(self) -> None:
        actuator = self.make()
        actuator.finished(place(actuator, N8), talk(4000), outcome(4000, 0))
        actuator.finished(place(actuator, N2), talk(4100), Outcome(Status.ERROR, http_status=500))
        assert dict(actuator.informed(talk(4200)).reprocess)[N2] == 4100

    def test_the_baseline_s_retry_goes_to_another_arm(self) -> None:
        placed = place(self.make(), OFF)
        assert placed.retry is not None
        assert placed.retry.arm != OFF

    def test_what_conversations_leave_behind_is_bounded(self) -> None:
        actuator = self.make()
        at = place(actuator, N8)
        for number in range(5000):
            actuator.finished(at, talk(100, f"c{number}"), outcome(100, 0))
        held = actuator.residents._held  # type: ignore[attr-defined]
        assert len(held) == len(actuator.residents._turns) <= 2048  # type: ignore[attr-defined]


class TestPresets(ByPlaceContract):
    make = staticmethod(presets)

    def test_only_the_model_s_name_differs_from_what_the_client_sent(self) -> None:
        assert place(presets(), N8P).body == BODY.replace(b'"gemma"', b'"gemma@n8-p0.6"')

    @pytest.mark.parametrize("body", [b'{"a":1}', b'{"model":"","a":1}', b'{"model":null,"a":1}'])
    def test_a_request_that_names_no_model_is_given_one(self, body: bytes) -> None:
        assert json.loads(place(presets(), N2, body).body) == {"a": 1, "model": "gemma@n2"}

    def test_a_client_that_names_an_alias_gets_it_and_sees_it(self) -> None:
        actuator, body = presets(), b'{"model":"gemma@n2"}'
        assert actuator.wishes(scan(body)) == (N2, "")
        placed = place(actuator, N2, body)
        assert (placed.body, placed.arm, placed.rename) == (body, N2, None)

    def test_another_model_of_the_router_is_none_of_ours(self) -> None:
        actuator, body = presets(), b'{"model":"llama"}'
        assert actuator.wishes(scan(body)) == (None, "other-model")
        assert place(actuator, SERVER, body).body == body

    def test_the_baseline_is_the_identical_bytes_where_the_router_knows_the_public_name(self) -> None:
        assert place(presets(), OFF).body is BODY
        router = FakeRouter()
        router.home = ""
        assert json.loads(place(presets(router), OFF).body)["model"] == "gemma@off"

    def test_answers_are_given_the_public_name_back(self) -> None:
        renamer = place(presets(), N8).renamer()
        assert renamer is not None
        assert renamer.feed(b'{"model":"gemma@n8"}') + renamer.end() == b'{"model":"gemma"}'

    def test_only_what_is_loaded_is_an_arm(self) -> None:
        router = FakeRouter()
        router.status["gemma@n2"], router.status["gemma@n8"] = "unloaded", "sleeping"
        assert presets(router).settings() == (OFF, N8P)

    def test_the_preset_behind_the_public_name_is_the_baseline_unless_one_is_configured(self) -> None:
        assert presets(FakeRouter(("n2", "off"))).baseline == N2
        assert presets(FakeRouter(("n2", "off")), OFF).baseline == OFF

    def test_a_configured_baseline_that_is_no_preset_is_said_and_the_home_preset_is_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert presets(baseline=Setting(3)).baseline == OFF
        assert "baseline n3 is none of the presets" in caplog.text

    def test_a_router_that_is_not_there_yet_leaves_everything_as_it_came(self) -> None:
        router = FakeRouter()
        router.up = False
        actuator = presets(router)
        assert actuator.settings() == (SERVER,)
        assert place(actuator, N8).body == BODY
        router.up = True
        assert asyncio.run(actuator.refresh())
        assert actuator.settings() == FOUR

    def test_a_router_without_presets_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        actuator = presets(public="other")
        asyncio.run(actuator.refresh())
        assert caplog.text.count("no presets of 'other'") == 1

    def test_a_preset_deeper_than_the_cap_is_no_arm(self) -> None:
        assert presets(cap=2).settings() == (OFF, N2)

    def test_the_deployment_names_the_model_behind_the_presets_and_how_they_draft(self) -> None:
        router = FakeRouter()
        router.args = ["--spec-type", "draft-mtp"]
        del router.status["gemma@off"]
        scope = presets(router).deployment(Deployment("http://one", "none", "b1"))
        assert (scope.model, scope.spec_type, scope.build) == ("gemma", "draft-mtp", "b1")

    def test_there_is_room_where_the_router_loads_without_unloading(self) -> None:
        router = FakeRouter()
        actuator = presets(router)
        assert [asyncio.run(actuator.has_room()) for router.most in (0, 4, 5, None)] == [
            True,
            False,
            True,
            False,
        ]

    def test_loading_is_asked_for_waited_for_and_timed(self) -> None:
        router = FakeRouter()
        router.status["gemma@n8"] = "unloaded"
        actuator, ticks = presets(router), itertools.count()
        assert actuator.missing() == (N8,)
        took_ms = asyncio.run(actuator.load(N8, clock_s=lambda: next(ticks)))
        assert took_ms == 2000.0
        assert ("POST", "/models/load", {"model": "gemma@n8"}) in router.calls
        assert N8 in actuator.settings()

    def test_what_failed_to_load_is_not_asked_for_again(self) -> None:
        router = FakeRouter()
        router.status["gemma@n8"] = "unloaded"
        router.failed.add("gemma@n8")
        assert presets(router).missing() == ()

    def test_a_preset_that_will_not_load_is_an_error_in_bounded_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("adaptive_dd.router.LOAD_POLL_S", 0.0)
        router, ticks = FakeRouter(), itertools.count(step=100)
        router.status["gemma@n8"], router.loads = "unloaded", False
        with pytest.raises(UpstreamError, match="did not load within 600 s"):
            asyncio.run(presets(router).load(N8, clock_s=lambda: next(ticks)))

    @pytest.mark.parametrize(
        ("target", "sent"),
        [
            (b"/props", b"/props?model=gemma%40off"),
            (b"/api/slots?fail=1", b"/api/slots?fail=1&model=gemma%40off"),
            (b"/props?model=gemma", b"/props?model=gemma%40off"),
            (b"/props?model=gemma%40n8", b"/props?model=gemma%40n8"),
            (b"/props?model=llama", b"/props?model=llama"),
            (b"/health", b"/health"),
        ],
    )
    def test_a_get_route_about_one_model_is_about_the_baseline_s(self, target: bytes, sent: bytes) -> None:
        assert presets().target_for("GET", target) == sent
        assert presets().target_for("POST", target) == target

    def test_the_model_list_and_what_is_about_one_model_hide_the_aliases(self) -> None:
        actuator = presets()
        listed = json.dumps({"data": [{"id": "gemma@off"}, {"id": "gemma@n8"}, {"id": "llama"}]}).encode()
        assert json.loads(actuator.shown("GET", "/v1/models", listed)) == {
            "data": [{"id": "gemma"}, {"id": "llama"}]
        }
        assert actuator.shown("GET", "/props", b'{"model_alias":"gemma@off"}') == b'{"model_alias":"gemma"}'
        assert actuator.shown("GET", "/health", b"gemma@off") == b"gemma@off"


class TestReplicas(ByPlaceContract):
    make = staticmethod(replicas)

    def test_the_bytes_are_the_client_s_and_only_the_place_differs(self) -> None:
        placed = place(replicas(), N8)
        assert (placed.body, placed.upstream.base_url, placed.rename) == (BODY, "http://n8", None)

    def test_the_first_is_the_baseline_unless_one_is_configured(self) -> None:
        assert replicas().baseline == OFF
        assert replicas(N2).baseline == N2
        with pytest.raises(
            UsageError, match=r"baseline: n3 is none of the arms; expected one of n0 n2 n8 n8,p0\.6"
        ):
            replicas(Setting(3))
        with pytest.raises(UsageError, match="expected at least one"):
            Replicas({})

    def test_one_that_is_not_well_is_no_arm_and_home_moves_when_it_is_the_baseline(self) -> None:
        def off_is_loading(method: str, path: str, body: object) -> tuple[int, object]:
            return (503, None) if sick else (200, None)

        sick, actuator = True, replicas(answer=off_is_loading)
        actuator._upstreams[N2].answer = well  # type: ignore[attr-defined]
        assert asyncio.run(actuator.refresh()) is True
        assert actuator.settings() == (OFF, N2)
        assert actuator.home.base_url == "http://n2"
        sick = False
        asyncio.run(actuator.refresh())
        assert (actuator.settings(), actuator.home.base_url) == (FOUR, "http://n0")

    def test_one_that_runs_another_model_is_no_arm_and_is_named_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def running(size: int) -> Callable[[str, str, Any], tuple[int, object]]:
            meta = {"n_params": 268, "n_vocab": 262144, "size": size}
            return lambda method, path, body: (200, {"data": [{"id": "m", "meta": meta}]})

        actuator = replicas(answer=running(500))
        actuator._upstreams[N8].answer = running(250)  # type: ignore[attr-defined]
        actuator._upstreams[N2].answer = well  # type: ignore[attr-defined]
        with caplog.at_level("WARNING"):
            asyncio.run(actuator.refresh())
            asyncio.run(actuator.refresh())
        assert actuator.settings() == (OFF, N2, N8P), "one that tells nothing is believed"
        assert [r.getMessage() for r in caplog.records] == [
            "replicas: n8 at http://n8 runs another model: size 250 (baseline: 500); not used"
        ]

    def test_one_that_refuses_connections_is_no_arm(self) -> None:
        def gone(method: str, path: str, body: object) -> tuple[int, object]:
            raise UpstreamError("gone")

        actuator = replicas()
        actuator._upstreams[N8].answer = gone  # type: ignore[attr-defined]
        asyncio.run(actuator.refresh())
        assert actuator.settings() == (OFF, N2, N8P)


def test_a_context_with_places_survives_the_journal() -> None:
    context = replace(talk(5), arms=FOUR, reprocess=((N8, 3),), prompt_ms_per_token=1.5, turns=2, blind=True)
    codec = codec_of(Context)
    assert codec.decode(json.loads(json.dumps(codec.encode(context)))) == context
