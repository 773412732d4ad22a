"""What `adaptive-dd doctor` finds out about one server, as a value: who it is, what it does, where it tells what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from adaptive_dd.core.identity import Identity
from adaptive_dd.core.listening import Answer, Findings
from adaptive_dd.core.verdict import advice_on, in_one_line, warnings_on
from adaptive_dd.errors import UpstreamError
from adaptive_dd.probe import BUDGET_S, Headers, probe
from adaptive_dd.upstream import Upstream
from adaptive_dd.watch import Sight, look

_CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "Hello"}]}

# Routes that count a prompt's tokens, and what to ask each. The first two generations of llama-server differ here.
COUNTING: Mapping[str, Mapping[str, object]] = {
    "/v1/chat/completions/input_tokens": _CHAT,
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/messages/count_tokens": {**_CHAT, "max_tokens": 1},
    "/apply-template": _CHAT,
    "/tokenize": {"content": "Hello"},
}

# Routes that may carry `timings`, and the shortest answer to ask each for.
GENERATING: Mapping[str, Mapping[str, object]] = {
    "/completion": {"prompt": "Hello", "n_predict": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/chat/completions": {**_CHAT, "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/messages": {**_CHAT, "max_tokens": 2},
}


@dataclass(frozen=True, slots=True)
class Checkup:
    """A server, examined.

    counting   counting route -> whether it answers
    timings    generating route -> (in a JSON answer, in a stream); None where the route itself failed
    """

    upstream: str
    who: Identity
    found: Findings
    counting: Mapping[str, bool] = field(default_factory=dict)
    timings: Mapping[str, tuple[bool | None, bool | None]] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What a user should know beside the verdict."""
        return warnings_on(self.who, self.found)


async def examine(
    upstream: Upstream,
    headers: Headers,
    *,
    nonce: int,
    may_probe: bool = True,
    budget_s: float = BUDGET_S,
) -> Checkup:
    """Ask everything; probing takes at most `budget_s`.

    Raises UpstreamError when the server does not answer, is loading, or goes away meanwhile.
    """
    sight = await look(upstream, headers)
    if sight.who is None:
        raise UpstreamError(sight.why)
    who, found = sight.who, Findings()
    if not may_probe or sight.needs_key or who.sleeping or who.router:
        return Checkup(upstream.base_url, who, _unasked(sight, may_probe))
    answers: list[Answer] = []
    # Twice the launch value: deep enough to tell obeyed from capped, and to meet a limit.
    found = await probe(
        upstream,
        who,
        answers,
        nonce=nonce,
        headers=headers,
        thorough=True,
        raise_to=lambda cap: 2 * cap,
        budget_s=budget_s,
    )
    counting = {path: await _counts(upstream, headers, path) for path in COUNTING}
    timings = {path: await _timed(upstream, headers, path) for path in GENERATING}
    return Checkup(upstream.base_url, who, found, counting, timings)


def _unasked(sight: Sight, may_probe: bool) -> Findings:
    who = sight.who or Identity()
    asleep = "its model is asleep, and asking would wake it" if who.sleeping else ""
    router = "it is a router: ask the servers behind it" if who.router else ""
    return Findings(trouble=sight.why or asleep or router or ("" if may_probe else "not probed, as asked"))


async def _counts(upstream: Upstream, headers: Headers, path: str) -> bool:
    status, body = await upstream.ask("POST", path, COUNTING[path], headers)
    return status == 200 and isinstance(body, Mapping)


async def _timed(upstream: Upstream, headers: Headers, path: str) -> tuple[bool | None, bool | None]:
    whole = await _text(upstream, headers, path, stream=False)
    streamed = await _text(upstream, headers, path, stream=True)
    return tuple(None if text is None else b'"timings"' in text for text in (whole, streamed))  # type: ignore[return-value]


async def _text(upstream: Upstream, headers: Headers, path: str, *, stream: bool) -> bytes | None:
    """The raw body of the shortest answer; None where the route refuses."""
    body = json.dumps({**GENERATING[path], "stream": stream}).encode()
    framing = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    reply = await upstream.send("POST", path.encode(), [*framing, *headers], body)
    try:
        text = b"".join([chunk async for chunk in reply.aiter_raw()])
    finally:
        await reply.aclose()
    return text if reply.status == 200 else None


def as_json(checkup: Checkup) -> dict[str, object]:
    """The check-up for programs: names and units as in the docs."""
    who, found = checkup.who, checkup.found
    return {
        "upstream": checkup.upstream,
        "model": who.model,
        "build": who.build,
        "slots": who.slots,
        "context_tokens": who.n_ctx,
        "spec_type": found.facts.spec_type or who.spec_type,
        "listens": found.facts.listens.value,
        "cap": found.facts.cap,
        "limit": found.facts.limit,
        "n_max_acts": found.n_acts,
        "p_min_acts": found.p_acts,
        "n_min_acts": found.n_min_acts,
        "above_launch_value": found.above_cap or None,
        "probes": found.probes,
        "trouble": found.trouble or None,
        "counting": dict(checkup.counting),
        "timings": {path: {"json": j, "stream": s} for path, (j, s) in checkup.timings.items()},
        "warnings": checkup.warnings,
        "advice": advice_on(found),
    }


def as_lines(checkup: Checkup) -> Iterator[str]:
    """The check-up for people."""
    who, found = checkup.who, checkup.found
    yield f"server     {checkup.upstream}"
    yield f"model      {who.model or 'not told'}   build {who.build or 'not told'}"
    context = f"{who.n_ctx} tokens" if who.n_ctx else "not told"
    yield f"slots      {who.slots}   context of a slot: {context}"
    yield f"drafting   {found.facts.spec_type or who.spec_type or 'type not told'}"
    yield f"verdict    {in_one_line(found.facts)}"
    yield f"fields     n_max {_acts(found.n_acts)}, p_min {_acts(found.p_acts)}, n_min {_acts(found.n_min_acts)}"
    if found.facts.cap is not None:
        yield f"cap        {found.facts.cap}, the launch value as seen; {_above(found)}"
    if checkup.counting:
        yield f"counting   {', '.join(path for path, works in checkup.counting.items() if works) or 'no route answers'}"
    for path, (whole, streamed) in checkup.timings.items():
        yield f"timings    {path}: JSON {_has(whole)}, stream {_has(streamed)}"
    if found.trouble:
        yield f"trouble    {found.trouble}"
    yield from (f"warning    {line}" for line in checkup.warnings)
    yield from (f"advice     {line}" for line in advice_on(found) if line != found.trouble)


def _acts(acts: bool | None) -> str:
    return "not known" if acts is None else "acts" if acts else "does not act"


def _has(there: bool | None) -> str:
    return "refused" if there is None else "yes" if there else "no"


def _above(found: Findings) -> str:
    limit = found.facts.limit
    return {
        "obeyed": "a request may go above it",
        "capped": "a request above it is taken as the launch value",
        "refused": f"a request above {limit} is refused",
    }.get(found.above_cap, "above it was not tried")
