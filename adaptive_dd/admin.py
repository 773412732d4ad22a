"""The proxy's own HTTP API, all of it under `/_dd/`: what it is doing, what it learned, and two switches.

Never open to other sites: no CORS headers, and a POST must be JSON from the same origin, so that a page elsewhere
cannot freeze or re-mode a proxy on its visitor's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel

from adaptive_dd import __version__
from adaptive_dd.core.domain import Listens, Mode
from adaptive_dd.core.events import Abandoned
from adaptive_dd.engine import RECENT, Engine, Record
from adaptive_dd.metrics import Metrics, show_standing

# What the server does with draft settings, in a sentence for people.
LISTENS_TEXT: Mapping[Listens, str] = {
    Listens.UNKNOWN: "not yet known whether this server honours per-request draft settings",
    Listens.HONOURS: "this server honours per-request draft settings",
    Listens.LOWERS_N: "this server lets a request only lower n_max below its launch value",
    Listens.IGNORES: "this server ignores per-request draft settings: relaying and measuring only",
    Listens.NO_DRAFTING: "this server drafts nothing: there is no setting to choose",
    Listens.DRAFTLESS: "this server drafts from n-grams, where n_max does not act per request",
}

ENDPOINTS: Mapping[str, str] = {
    "GET /_dd/": "a page for people: state, cells and the latest decisions",
    "GET /_dd/health": "whether the proxy, the upstream and the journal are well, and what the server does",
    "GET /_dd/state": "the learned policy as it stands",
    "GET /_dd/decisions": "the latest decisions, newest first (`?last=N`, 1 to 1000)",
    "GET /_dd/metrics": "the proxy's own metrics in the Prometheus text format",
    "POST /_dd/freeze": 'stop or resume learning: `{"frozen": true}`; answers with the policy as frozen',
    "GET /_dd/mode": "the mode in force",
    "POST /_dd/mode": 'change the mode while running: `{"mode": "observe"}`',
}


@dataclass(slots=True)
class Panel:
    """What the API shows and switches. The callables answer without waiting.

    upstream_up      None while nobody has looked
    journal_health   the store's own words, such as {"ok": True}
    state_view       the learned policy as JSON-able values
    frozen_policy    the policy as `freeze` would write it now, with its notes
    """

    engine: Engine
    metrics: Metrics
    upstream_up: Callable[[], bool | None] = lambda: None
    journal_health: Callable[[], Mapping[str, Any]] = lambda: {"ok": True}
    state_view: Callable[[Engine], Mapping[str, Any]] = lambda engine: {"summary": {}, "cells": []}
    frozen_policy: Callable[[Engine], Mapping[str, Any]] = lambda engine: {}
    notes: list[str] = field(default_factory=list)


class FreezeBody(BaseModel):
    """Body of POST /_dd/freeze."""

    frozen: bool = True


class ModeBody(BaseModel):
    """Body of POST /_dd/mode."""

    mode: Mode


def _same_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "this switch answers only its own page and tools without an Origin")
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "expected a JSON body with content-type application/json")


async def _refused(request: Request, error: RequestValidationError) -> JSONResponse:
    """What is wrong with a request, in one line and without its values: those may not even be JSON (NaN)."""
    faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return JSONResponse({"detail": "; ".join(faults)}, status_code=422)


def decision_view(record: Record) -> dict[str, Any]:
    """One decision and its end, as flat JSON-able values."""
    decided, ended = record.decided, record.ended
    context, decision = decided.context, decided.decision
    view: dict[str, Any] = {
        "number": decided.number,
        "at_s": decided.at_s,
        "prompt_tokens": context.prompt_tokens,
        "tokens_source": context.tokens_source,
        "in_flight": context.in_flight,
        "kind": str(context.kind),
        "conversation": context.conversation,
        "cell": str(decision.cell),
        "setting": str(decision.arm),
        "reason": decision.reason,
        "propensity": decision.propensity,
        "decide_us": round(decided.decide_us, 1),
        "status": "running" if ended is None else ended.why if isinstance(ended, Abandoned) else "",
    }
    if ended is not None and not isinstance(ended, Abandoned):
        outcome = ended.outcome
        view |= {
            "status": outcome.status.value,
            "rejected": outcome.rejected,
            "inferred": outcome.inferred,
            "http_status": outcome.http_status,
        }
        if outcome.timings is not None:
            timings = outcome.timings
            view |= {
                "seen_prompt_tokens": timings.prompt_tokens,
                "predicted_n": timings.predicted_n,
                "predicted_ms": timings.predicted_ms,
                "draft_n": timings.draft_n,
                "draft_n_accepted": timings.draft_n_accepted,
                "tokens_per_s": timings.tokens_per_s,
                "acceptance": timings.acceptance,
            }
    return view


def health_view(panel: Panel) -> dict[str, Any]:
    """The answer of /_dd/health."""
    state, up = panel.engine.state, panel.upstream_up()
    says = LISTENS_TEXT[state.facts.listens]
    if up is False:
        says = "the upstream does not answer; " + says
    journal = dict(panel.journal_health())
    return {
        "status": "ok" if up is not False and journal.get("ok", True) else "degraded",
        "says": says,
        "version": __version__,
        "mode": state.settings.mode.value,
        "frozen": state.frozen,
        "upstream": state.deployment.upstream,
        "upstream_up": up,
        "listens": state.facts.listens.value,
        "cap": state.facts.cap,
        "limit": state.facts.limit,
        "model": state.deployment.model,
        "build": state.deployment.build,
        "spec_type": state.facts.spec_type,
        "in_flight": panel.engine.in_flight,
        "journal": journal,
        "notes": list(panel.notes),
        "summary": {
            "upstream": state.deployment.upstream,
            "model": state.deployment.model,
            "build": state.deployment.build,
            "mode": state.settings.mode.value,
            "baseline": str(state.settings.baseline),
            "cap": state.facts.cap,
        },
    }


def admin_app(panel: Panel) -> FastAPI:
    """The API over a panel."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.exception_handler(RequestValidationError)(_refused)
    page = resources.files("adaptive_dd").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/_dd/")
    async def _page() -> HTMLResponse:
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        )
        return HTMLResponse(page, headers={"content-security-policy": policy, "x-frame-options": "DENY"})

    @app.get("/_dd/health")
    async def _health() -> JSONResponse:
        return JSONResponse(health_view(panel))

    @app.get("/_dd/state")
    async def _state() -> JSONResponse:
        return JSONResponse(panel.state_view(panel.engine))

    @app.get("/_dd/decisions")
    async def _decisions(last: Annotated[int, Query(ge=1, le=RECENT)] = 50) -> JSONResponse:
        return JSONResponse({"decisions": [decision_view(record) for record in panel.engine.recent(last)]})

    @app.get("/_dd/metrics")
    async def _metrics() -> Response:
        show_standing(panel.metrics, panel.engine.state, panel.engine.in_flight)
        return Response(panel.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/_dd/freeze", dependencies=[Depends(_same_origin)])
    async def _freeze(body: FreezeBody) -> JSONResponse:
        recorded = panel.engine.freeze(body.frozen)
        policy = panel.frozen_policy(panel.engine) if body.frozen else None
        return JSONResponse({"frozen": panel.engine.state.frozen, "recorded": recorded, "policy": policy})

    @app.get("/_dd/mode")
    async def _mode() -> JSONResponse:
        return JSONResponse({"mode": panel.engine.state.settings.mode.value})

    @app.post("/_dd/mode", dependencies=[Depends(_same_origin)])
    async def _set_mode(body: ModeBody) -> JSONResponse:
        recorded = panel.engine.set_mode(body.mode)
        return JSONResponse({"mode": panel.engine.state.settings.mode.value, "recorded": recorded})

    return app


def routes_of(app: FastAPI) -> set[str]:
    """`METHOD path` of every route, to hold ENDPOINTS and the docs to."""
    found = set()
    for route in app.routes:
        for method in getattr(route, "methods", None) or ():
            found.add(f"{method} {getattr(route, 'path', '')}")
    return found
