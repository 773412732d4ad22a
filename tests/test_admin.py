from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from adaptive_dd.admin import ENDPOINTS, LISTENS_TEXT, Panel, admin_app, routes_of
from adaptive_dd.core.domain import (
    Context,
    Deployment,
    Kind,
    Listens,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
    Status,
    Timings,
)
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.metrics import Metrics


@pytest.fixture
def panel() -> Panel:
    settings = PolicySettings(mode=Mode.OBSERVE)
    return Panel(Engine(MemoryJournal(), Deployment("http://up"), settings=settings), Metrics())


def call(panel: Panel, method: str, path: str, **more: Any) -> httpx2.Response:
    async def go() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=admin_app(panel))
        async with httpx2.AsyncClient(transport=transport, base_url="http://proxy") as client:
            return await client.request(method, path, **more)

    return asyncio.run(go())


def test_the_table_of_endpoints_is_what_the_app_serves(panel: Panel) -> None:
    assert routes_of(admin_app(panel)) == set(ENDPOINTS)


def test_every_behaviour_of_a_server_has_a_sentence() -> None:
    assert set(LISTENS_TEXT) == set(Listens)


def test_health_says_when_the_server_ignores_the_fields_and_when_it_is_away(panel: Panel) -> None:
    panel.engine.found(ServerFacts(listens=Listens.IGNORES, cap=8))
    health = call(panel, "GET", "/_dd/health").json()
    assert health["status"] == "ok"
    assert health["listens"] == "ignores"
    assert "ignores per-request draft settings" in health["says"]
    panel.upstream_up = lambda: False
    assert call(panel, "GET", "/_dd/health").json()["status"] == "degraded"


def test_a_scrape_shows_the_state_as_it_stands_now(panel: Panel) -> None:
    panel.engine.found(ServerFacts(listens=Listens.HONOURS, cap=8))
    panel.engine.begin(Context(10))
    first = call(panel, "GET", "/_dd/metrics").text
    assert "adaptive_dd_in_flight 1.0\n" in first
    assert 'adaptive_dd_server_listens{listens="honours"} 1.0\n' in first
    assert f"adaptive_dd_budget_seconds {panel.engine.state.headroom_ms / 1000.0!r}\n" in first
    panel.engine.found(ServerFacts(listens=Listens.IGNORES, cap=8))
    panel.engine.abandon(1, "not-sent")
    second = call(panel, "GET", "/_dd/metrics").text
    assert "adaptive_dd_in_flight 0.0\n" in second
    assert "honours" not in second.replace("# HELP", "")


def test_decisions_are_newest_first_with_what_became_of_them(panel: Panel) -> None:
    for tokens in (10, 20):
        ticket = panel.engine.begin(Context(tokens, "counted", kind=Kind("greedy")))
    timings = Timings(
        prompt_n=20, prompt_ms=5.0, predicted_n=11, predicted_ms=100.0, draft_n=8, draft_n_accepted=6
    )
    panel.engine.finish(ticket.number, Outcome(Status.OK, timings))
    newest, older = call(panel, "GET", "/_dd/decisions?last=2").json()["decisions"]
    assert (newest["prompt_tokens"], newest["status"], newest["acceptance"]) == (20, "ok", 0.75)
    assert (older["prompt_tokens"], older["status"]) == (10, "running")
    assert len(call(panel, "GET", "/_dd/decisions?last=1").json()["decisions"]) == 1


@pytest.mark.parametrize("last", ["0", "1001", "x"])
def test_a_bad_number_of_decisions_is_refused(panel: Panel, last: str) -> None:
    assert call(panel, "GET", f"/_dd/decisions?last={last}").status_code == 422


def test_freeze_and_mode_switch_the_engine(panel: Panel) -> None:
    panel.frozen_policy = lambda engine: {"rows": []}
    answer = call(panel, "POST", "/_dd/freeze", json={"frozen": True}).json()
    assert answer == {"frozen": True, "recorded": True, "policy": {"rows": []}}
    assert panel.engine.state.frozen
    assert call(panel, "POST", "/_dd/mode", json={"mode": "static"}).json()["mode"] == "static"
    assert call(panel, "GET", "/_dd/mode").json() == {"mode": "static"}
    assert call(panel, "POST", "/_dd/mode", json={"mode": "fast"}).status_code == 422


def test_another_sites_page_cannot_flip_a_switch(panel: Panel) -> None:
    foreign = {"origin": "http://elsewhere"}
    assert call(panel, "POST", "/_dd/freeze", json={"frozen": True}, headers=foreign).status_code == 403
    plain = {"content-type": "text/plain"}
    assert call(panel, "POST", "/_dd/freeze", content=b'{"frozen":true}', headers=plain).status_code == 415
    assert not panel.engine.state.frozen
    own = {"origin": "http://proxy"}
    assert call(panel, "POST", "/_dd/freeze", json={"frozen": True}, headers=own).status_code == 200


def test_no_answer_of_the_api_is_open_to_other_origins(panel: Panel) -> None:
    for path in ("/_dd/", "/_dd/health", "/_dd/state", "/_dd/decisions", "/_dd/metrics", "/_dd/mode"):
        response = call(panel, "GET", path, headers={"origin": "http://elsewhere"})
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_dd/mode", b'{"mode": 1e999}'),
        ("/_dd/mode", b'{"mode": NaN}'),
        ("/_dd/mode", b'{"mode": "\\ud800"}'),
        ("/_dd/mode", b"{"),
        ("/_dd/mode", b""),
        ("/_dd/freeze", b'{"frozen": NaN}'),
        ("/_dd/freeze", b'{"frozen": [[1e999]]}'),
    ],
)
def test_a_body_that_is_wrong_in_any_way_is_refused_in_one_line(panel: Panel, path: str, body: bytes) -> None:
    answer = call(panel, "POST", path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("body")
    assert "\n" not in answer.json()["detail"]
    assert panel.engine.state.settings.mode is Mode.OBSERVE
    assert not panel.engine.state.frozen
