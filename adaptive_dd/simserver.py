"""The simulator behind HTTP: an ASGI app that looks like a llama-server and decodes like a scenario.

Time does not pass unless the server's `pace` says so; `timings` tell what the model says. `/v1/messages` and
`/v1/responses` speak b9101's dialect: no timings, and every token an event that comes with its verification cycle.
What it does not do: real text, real templates, slots that fill up, `/infill`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from adaptive_dd.core.context import constraint_of, sampling_of
from adaptive_dd.core.domain import SERVER, Kind, Setting, Timings
from adaptive_dd.core.sim import SimRequest, played, refuses
from adaptive_dd.simnamed import Named, in_words_of
from adaptive_dd.simulated import MARK, SimServer, arm_of, bursts, count, rendered, words

MODEL = "sim.gguf"
# Words of an answer that travel in one event of a stream.
WORDS_PER_EVENT = 16
# An answer that is told to ignore its end stops here at the latest.
LONGEST_ANSWER = 4096
# Routes whose events have names and whose answers have no timings.
NAMED = ("messages", "responses")
ENDPOINTS = ("chat", *NAMED)


def timings_json(timings: Timings) -> dict[str, float]:
    """`timings` as llama-server writes them: draft fields only where something was drafted."""
    shown: dict[str, float] = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": timings.prompt_ms / timings.prompt_n,
        "prompt_per_second": 1000.0 * timings.prompt_n / timings.prompt_ms,
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": timings.predicted_ms / timings.predicted_n,
    }
    if timings.predicted_ms > 0.0:
        shown["predicted_per_second"] = 1000.0 * timings.predicted_n / timings.predicted_ms
    if timings.draft_n:
        shown |= {"draft_n": timings.draft_n, "draft_n_accepted": timings.draft_n_accepted}
    return shown


def error(status: int, message: str, kind: str) -> JSONResponse:
    """An error as llama-server words it."""
    return JSONResponse({"error": {"code": status, "message": message, "type": kind}}, status)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer before it is put into a route's shape."""

    endpoint: str
    request: SimRequest
    timings: Timings
    body: Mapping[str, Any]
    depth: int

    def pieces(self) -> Iterator[str]:
        """The text, a few words at a time."""
        left, at = self.timings.predicted_n, 0
        while left > 0:
            size = min(WORDS_PER_EVENT, left)
            yield " ".join(f"t{(at + i) % 97}" for i in range(size)) + " "
            left, at = left - size, at + size

    def usage(self) -> dict[str, Any]:
        """Counts as the OpenAI routes give them."""
        prompt, answer = self.timings.prompt_tokens, self.timings.predicted_n
        return {
            "completion_tokens": answer,
            "prompt_tokens": prompt,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": self.timings.cache_n},
        }

    def head(self, kind: str) -> dict[str, Any]:
        """What every object of the OpenAI routes has."""
        return {
            "id": f"chatcmpl-{self.request.number}",
            "object": kind,
            "created": 0,
            "model": MODEL,
            "system_fingerprint": "b9101-sim",
        }

    def whole(self) -> dict[str, Any]:
        """The answer in one object."""
        text, shown = "".join(self.pieces()), timings_json(self.timings)
        if self.endpoint == "chat":
            message = {"role": "assistant", "content": text}
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "message": message}
            return {
                **self.head("chat.completion"),
                "choices": [choice],
                "usage": self.usage(),
                "timings": shown,
            }
        if self.endpoint == "completion-v1":
            choice = {"index": 0, "finish_reason": "length", "text": text, "logprobs": None}
            return {
                **self.head("text_completion"),
                "choices": [choice],
                "usage": self.usage(),
                "timings": shown,
            }
        return {**self._native(text), "stop": True, **self._native_end(), "timings": shown}

    def events(self) -> Iterator[dict[str, Any]]:
        """The answer as the objects of a stream; the last one holds the timings."""
        shown = timings_json(self.timings)
        if self.endpoint == "chat":
            yield self._chunk({"role": "assistant", "content": None}, None)
            for piece in self.pieces():
                yield self._chunk({"content": piece}, None)
            options = self.body.get("stream_options")
            if isinstance(options, dict) and options.get("include_usage"):
                yield self._chunk({}, "length")
                last = {**self.head("chat.completion.chunk"), "choices": [], "usage": self.usage()}
            else:
                last = self._chunk({}, "length")
            yield {**last, "timings": shown}
        elif self.endpoint == "completion-v1":
            for piece in self.pieces():
                choice = {"index": 0, "finish_reason": None, "text": piece, "logprobs": None}
                yield {**self.head("text_completion"), "choices": [choice]}
            choice = {"index": 0, "finish_reason": "length", "text": "", "logprobs": None}
            yield {
                **self.head("text_completion"),
                "choices": [choice],
                "usage": self.usage(),
                "timings": shown,
            }
        else:
            for piece in self.pieces():
                yield {**self._native(piece), "stop": False}
            yield {**self._native(""), "stop": True, **self._native_end(), "timings": shown}

    def _chunk(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": finish, "delta": delta}
        return {**self.head("chat.completion.chunk"), "choices": [choice]}

    def _native(self, text: str) -> dict[str, Any]:
        return {"index": 0, "content": text, "tokens": [], "id_slot": 0}

    def _native_end(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "tokens_predicted": self.timings.predicted_n,
            "tokens_evaluated": self.timings.prompt_tokens,
            "generation_settings": {"speculative.type": "none"},
            "truncated": False,
            "stop_type": "limit",
        }


@dataclass(frozen=True, slots=True)
class _Routes:
    """The HTTP side of a `SimServer`."""

    server: SimServer

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def props(self, request: Request) -> Response:
        limit = self.server.scenario.context_limit
        settings = {"params": {"temperature": 0.8, "top_k": 40, "speculative.type": "none"}, "n_ctx": limit}
        return JSONResponse(
            {
                "default_generation_settings": settings,
                "total_slots": 4,
                "model_alias": MODEL,
                "model_path": f"models/{MODEL}",
                "build_info": f"{self.server.phase(self.server.asked).build}-sim",
                "chat_template": "sim",
            }
        )

    async def slots(self, request: Request) -> Response:
        busy = self.server.generating
        return JSONResponse(
            [{"id": i, "n_ctx": 8192, "speculative": True, "is_processing": i < busy} for i in range(4)]
        )

    async def models(self, request: Request) -> Response:
        data = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "llamacpp"}]
        return JSONResponse({"object": "list", "data": data, "models": [{"name": MODEL, "model": MODEL}]})

    async def tokenize(self, request: Request) -> Response:
        body = await _json(request)
        content, special = body.get("content", ""), bool(body.get("add_special", False))
        found = words(str(content)) if isinstance(content, str) else list(content)
        ids = [len(str(word)) + 3 for word in found]
        return JSONResponse({"tokens": [2, *ids] if special else ids})

    async def template(self, request: Request) -> Response:
        body = await _json(request)
        return JSONResponse({"prompt": rendered(body.get("messages") or [])})

    async def input_tokens(self, request: Request) -> Response:
        body = await _json(request)
        return JSONResponse({"input_tokens": count(rendered(body.get("messages") or []))})

    async def log(self, request: Request) -> Response:
        return JSONResponse([asdict(one) for one in self.server.served])

    def generate(self, endpoint: str) -> Callable[[Request], Any]:
        """The handler of a generating route."""

        async def handler(request: Request) -> Response:
            return await self._generate(endpoint, request)

        return handler

    async def _generate(self, endpoint: str, request: Request) -> Response:
        server = self.server
        try:
            body = await _json(request)
        except ValueError as problem:
            return error(500, f"parse error: {problem}", "server_error")
        server.asked += 1
        if _every(server.faults.error_every, server.asked):
            return error(500, "simulated failure", "server_error")
        try:
            mark = request.headers.get(MARK)
            arm, asked = self._asked(endpoint, body, mark)
        except (TypeError, ValueError, IndexError) as problem:
            return error(400, str(problem), "invalid_request_error")
        if (asked.context.prompt_tokens or 0) > server.scenario.context_limit:
            return error(400, "request exceeds the available context size", "exceed_context_size_error")
        timings = server.play(asked, arm, marked=bool(mark))
        depth = played(server.phase(asked.number).world, arm).n_max or 0
        return await self._answer(_Answer(endpoint, asked, timings, body, depth))

    def _asked(self, endpoint: str, body: Mapping[str, Any], mark: str | None) -> tuple[Setting, SimRequest]:
        """The setting and the request behind a body. Raises ValueError or IndexError with the server's words."""
        if endpoint in ("chat", "messages") and not isinstance(body.get("messages"), list):
            raise ValueError("'messages' is required")
        arm = SERVER if endpoint == "messages" else arm_of(body)  # which drops what it does not know
        asked = self.server.marked(int(mark)) if mark else self._made_up(endpoint, body)
        world = self.server.phase(asked.number).world
        if refuses(world, arm):
            raise ValueError(f"speculative.n_max must not exceed {world.limit}")
        return arm, asked

    def _made_up(self, endpoint: str, body: Mapping[str, Any]) -> SimRequest:
        prompt = _prompt_of(endpoint, body)
        sampling, constraint = sampling_of(body), constraint_of(body)
        kind = Kind(sampling, constraint, endpoint if endpoint in ENDPOINTS else "completion")
        wanted = body.get("max_tokens", body.get("n_predict", body.get("max_output_tokens")))
        limit = int(wanted) if wanted is not None and int(wanted) >= 0 else None
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        made = self.server.made_up(kind, text, count(prompt), limit)
        if body.get("ignore_eos") and limit is not None:
            return replace(made, answer_tokens=max(1, min(limit, LONGEST_ANSWER)))
        return made

    async def _answer(self, answer: _Answer) -> Response:
        server, timings = self.server, answer.timings
        faults = server.faults
        if not answer.body.get("stream"):
            server.generating += 1
            try:
                await self._pass(timings.prompt_ms + timings.predicted_ms)
            finally:
                server.generating -= 1
            return JSONResponse(_named(answer).whole() if answer.endpoint in NAMED else answer.whole())
        cut = _every(faults.cut_every, server.asked)
        event = _every(faults.event_every, server.asked)
        named = answer.endpoint in NAMED
        stream = self._by_cycle(answer) if named else self._stream(answer, cut=cut, event=event)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _by_cycle(self, answer: _Answer) -> AsyncIterator[bytes]:
        """A stream of named events, each cycle's tokens one after the other when the cycle is over."""
        server, timings, events = self.server, answer.timings, _named(answer)
        server.generating += 1
        try:
            await self._pass(timings.prompt_ms)
            yield events.opening()
            for number, size in enumerate(bursts(timings, answer.depth, answer.request.number)):
                if number:
                    await self._pass(timings.predicted_ms / timings.cycles)
                for _ in range(size):
                    yield events.token()
            yield events.closing()
        finally:
            server.generating -= 1

    async def _stream(self, answer: _Answer, *, cut: bool, event: bool) -> AsyncIterator[bytes]:
        server, timings = self.server, answer.timings
        server.generating += 1
        try:
            await self._pass(timings.prompt_ms)
            events = list(answer.events())
            for number, one in enumerate(events, start=1):
                if number == len(events) and (cut or event):
                    break
                yield b"data: " + json.dumps(one, separators=(",", ":")).encode() + b"\n\n"
                await self._pass(timings.predicted_ms / len(events))
            if event:
                problem = {"code": 500, "message": "simulated failure", "type": "server_error"}
                yield b"data: " + json.dumps({"error": problem}).encode() + b"\n\n"
            elif cut:
                raise ConnectionResetError("simulated cut")
            elif answer.endpoint != "completion":
                yield b"data: [DONE]\n\n"
        finally:
            server.generating -= 1

    async def _pass(self, ms: float) -> None:
        """Let the simulated time pass; at least let others run, so that requests overlap."""
        await asyncio.sleep(ms / 1000.0 * self.server.pace)


def _named(answer: _Answer) -> Named:
    return in_words_of(answer.endpoint, MODEL, answer.request.number, answer.timings)


def _prompt_of(endpoint: str, body: Mapping[str, Any]) -> Any:
    if endpoint in ("chat", "messages"):
        return rendered(body["messages"])
    given = body.get("input" if endpoint == "responses" else "prompt", "")
    return rendered(given) if endpoint == "responses" and isinstance(given, list) else given


async def _json(request: Request) -> dict[str, Any]:
    body = json.loads(await request.body())
    if not isinstance(body, dict):
        raise ValueError("expected a JSON object")
    return body


def _every(period: int, number: int) -> bool:
    return period > 0 and number % period == 0


class _Loading:
    """Answers 503 to the first requests, as a llama-server that is loading its model does."""

    def __init__(self, app: Any, server: SimServer) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._server.hits += 1
            if self._server.hits <= self._server.faults.loading:
                await error(503, "Loading model", "unavailable_error")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def sim_app(server: SimServer) -> Any:
    """The ASGI app. `/sim/log` tells what was served."""
    routes = _Routes(server)
    table: list[tuple[str, str, Any]] = [
        ("GET", "/health", routes.health),
        ("GET", "/v1/health", routes.health),
        ("GET", "/props", routes.props),
        ("GET", "/slots", routes.slots),
        ("GET", "/v1/models", routes.models),
        ("GET", "/models", routes.models),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/apply-template", routes.template),
        ("POST", "/v1/chat/completions/input_tokens", routes.input_tokens),
        ("POST", "/v1/messages/count_tokens", routes.input_tokens),
        ("GET", "/sim/log", routes.log),
        ("POST", "/v1/messages", routes.generate("messages")),
        *(("POST", path, routes.generate("responses")) for path in ("/responses", "/v1/responses")),
        *(("POST", path, routes.generate("completion")) for path in ("/completion", "/completions")),
        ("POST", "/v1/completions", routes.generate("completion-v1")),
        *(("POST", path, routes.generate("chat")) for path in ("/chat/completions", "/v1/chat/completions")),
    ]
    app = Starlette(routes=[Route(path, handler, methods=[method]) for method, path, handler in table])

    async def missing(request: Request, problem: Exception) -> Response:
        return error(404, "File Not Found", "not_found_error")

    app.add_exception_handler(404, missing)
    return _Loading(app, server)
