"""The whole proxy before a router and before replicas, over real sockets: what acts, what sticks, what clients see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import Answer
from tests.support.placing import FakeReplica, FakeRouter, Placing, placing

# Prompts of 50 tokens and of 500: the static policy plays n2 for the one and n8 for the other.
SHORT, LONG = "word" * 50, "text" * 500
LADDER = "0:n2;300:n8"


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter("off", "n2", "n8", "n8-p0.6")


@pytest.fixture
def presets(router: FakeRouter, tmp_path: Path) -> Iterator[Placing]:
    with placing(
        {"router": router}, tmp_path, upstream="{router}", actuator="presets", mode="static", frontier=LADDER
    ) as world:
        yield world


def drafted(answer: Answer) -> int:
    """Drafted tokens of a whole answer, by its timings."""
    found = answer.json
    assert isinstance(found, dict)
    return int(found["timings"].get("draft_n", 0))


def test_each_request_is_played_by_the_preset_of_its_setting(presets: Placing) -> None:
    short, long = presets.chat(SHORT), presets.chat(LONG)
    assert (short.status, drafted(short), short.value("x-dd-setting")) == (200, 20, "n2")
    assert (long.status, drafted(long), long.value("x-dd-setting")) == (200, 80, "n8")
    assert long.value("x-dd-applied") == "true"


def test_clients_see_one_model_in_documents_streams_and_headers(presets: Placing, router: FakeRouter) -> None:
    whole, stream = presets.chat(LONG), presets.chat(LONG, stream=True)
    for answer in (whole, stream):
        assert b'"model":"gemma"' in answer.body
        assert b"gemma@" not in answer.body
        assert answer.complete
    assert isinstance(whole.json, dict)
    assert whole.json["choices"][0]["message"]["content"] == 'I am "model":"x"'
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert stream.body.count(b"data: ") == 5
    assert [body["model"] for body in router.models["gemma@n8"].served] == ["gemma@n8", "gemma@n8"]


def test_messages_are_acted_on_although_fields_would_be_dropped_and_timings_are_absent(
    presets: Placing, router: FakeRouter
) -> None:
    body = {
        "model": "gemma",
        "max_tokens": 9,
        "stream": True,
        "messages": [{"role": "user", "content": LONG}],
    }
    with presets.client() as client:
        answer = client.ask("POST", "/v1/messages", json.dumps(body).encode())
    assert (answer.status, answer.value("x-dd-setting"), answer.value("x-dd-applied")) == (200, "n8", "true")
    assert len(router.models["gemma@n8"].served) == 1
    assert b'"model":"gemma"' in answer.body


def test_a_client_that_asks_for_an_alias_gets_it_and_sees_it(presets: Placing) -> None:
    answer = presets.chat(LONG, model="gemma@n2")
    assert (drafted(answer), answer.value("x-dd-reason")) == (20, "request-override")
    assert b'"model":"gemma@n2"' in answer.body


def test_another_model_and_one_that_is_unknown_are_the_router_s_business(presets: Placing) -> None:
    answer = presets.chat(LONG, model="nobody")
    assert (answer.status, answer.value("x-dd-reason")) == (400, "other-model")
    assert b"model 'nobody' not found" in answer.body


def test_the_model_list_and_the_properties_show_one_model_unless_asked(presets: Placing) -> None:
    with presets.client() as client:
        listed = client.ask("GET", "/v1/models", None)
        properties = client.ask("GET", "/props", None)
        asked = client.ask("GET", "/v1/models", None, "X-DD-Show-Aliases: yes")
    assert isinstance(listed.json, dict)
    assert [entry["id"] for entry in listed.json["data"]] == ["gemma"]
    assert properties.json == {"model_alias": "gemma", "total_slots": 1}
    assert asked.body.count(b"gemma@") == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["killed", "unloaded"])
def test_a_preset_that_is_gone_costs_no_client_an_error(
    presets: Placing, router: FakeRouter, fault: str, stream: bool
) -> None:
    lost = router.models["gemma@n8"]
    if fault == "killed":
        lost.dies = 1
    else:
        lost.status = "unloaded"
    answer = presets.chat(LONG, stream=stream)
    assert answer.status == 200
    assert answer.complete
    assert b"gemma@" not in answer.body
    assert answer.value("x-dd-setting") == "n0"
    after = presets.chat(LONG, stream=stream)
    assert after.status == 200
    if fault == "unloaded":
        assert after.value("x-dd-setting") == "n0"
        assert len(lost.served) == 0


def test_a_preset_that_is_back_is_played_again(presets: Placing, router: FakeRouter) -> None:
    router.models["gemma@n8"].dies = 1
    presets.chat(LONG)
    presets.look()
    assert presets.chat(LONG).value("x-dd-setting") == "n8"


def test_when_the_baseline_s_own_preset_is_gone_another_one_serves(
    presets: Placing, router: FakeRouter
) -> None:
    router.models["gemma@off"].status = "unloaded"
    answer = presets.chat("", model="gemma")
    assert answer.status == 200


def test_the_router_is_found_out_without_being_named(router: FakeRouter, tmp_path: Path) -> None:
    with placing({"router": router}, tmp_path, upstream="{router}", mode="static", frontier=LADDER) as world:
        world.until(lambda: world.proxy.watch.who is not None)
        world.look()
        assert world.proxy.tend.actuator.name == "presets"
        assert world.chat(LONG).value("x-dd-setting") == "n8"
        state = world.proxy.engine.state
        assert (state.deployment.actuator, state.deployment.model) == ("presets", "gemma")
        assert str(state.settings.baseline) == "n0"


def test_a_frontier_row_that_no_preset_plays_is_the_baseline(router: FakeRouter, tmp_path: Path) -> None:
    with placing(
        {"router": router}, tmp_path, upstream="{router}", actuator="presets", mode="static", frontier="0:n5"
    ) as world:
        answer = world.chat(LONG)
        assert (answer.value("x-dd-setting"), drafted(answer)) == ("n0", 0)


# --- replicas ------------------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> dict[str, FakeReplica]:
    return {"off": FakeReplica(0), "n2": FakeReplica(2), "n8": FakeReplica(8)}


@pytest.fixture
def replicas(servers: dict[str, FakeReplica], tmp_path: Path) -> Iterator[Placing]:
    arms = ["off={off}", "n2={n2}", "n8={n8}"]
    with placing(servers, tmp_path, arm=arms, mode="static", frontier=LADDER) as world:
        yield world


def test_each_request_goes_to_the_server_of_its_setting_with_the_client_s_own_bytes(
    replicas: Placing, servers: dict[str, FakeReplica]
) -> None:
    short, long = replicas.chat(SHORT), replicas.chat(LONG, stream=True)
    assert (drafted(short), short.value("x-dd-setting")) == (20, "n2")
    assert long.value("x-dd-setting") == "n8"
    assert b'"model":"m.gguf"' in long.body
    sent = servers["n8"].model.served
    assert sent == [{"model": "gemma", "messages": [{"role": "user", "content": LONG}], "stream": True}]


@pytest.mark.parametrize("fault", ["down", "loading"])
def test_one_dead_replica_costs_no_client_an_error(
    replicas: Placing, servers: dict[str, FakeReplica], fault: str
) -> None:
    setattr(servers["n8"], fault, True)
    for _ in range(3):
        answer = replicas.chat(LONG, stream=True)
        assert (answer.status, answer.complete, answer.value("x-dd-setting")) == (200, True, "n0")
    replicas.look()
    assert replicas.chat(LONG).value("x-dd-setting") == "n0"
    setattr(servers["n8"], fault, False)
    replicas.look()
    assert replicas.chat(LONG).value("x-dd-setting") == "n8"


def test_with_the_baseline_s_server_gone_everything_else_goes_to_one_that_is_well(
    replicas: Placing, servers: dict[str, FakeReplica]
) -> None:
    servers["off"].down = True
    replicas.look()
    with replicas.client() as client:
        assert client.ask("GET", "/v1/models", None).status == 200
    assert replicas.chat(LONG).status == 200


def test_all_replicas_gone_is_one_clear_error(replicas: Placing, servers: dict[str, FakeReplica]) -> None:
    for server in servers.values():
        server.down = True
    answer = replicas.chat(LONG)
    assert answer.status == 502
    assert isinstance(answer.json, dict)
    assert answer.json["error"]["code"] == 502
