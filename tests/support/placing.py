"""The whole proxy (as `serve` assembles it) before fake servers that stand for a router's presets or for replicas."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from adaptive_dd.config import resolve
from adaptive_dd.httpd import bind, server_for
from adaptive_dd.serve import Proxy, assemble, running
from tests import streams
from tests.fake_upstream import FakeUpstream, Peer, Received
from tests.support.client import Client

T = TypeVar("T")


class FakeModel:
    """One loaded model: drafts as `depth` says, keeps each conversation's prompt, answers on three routes."""

    def __init__(self, alias: str, depth: int) -> None:
        self.alias, self.depth = alias, depth
        self.status = "loaded"
        self.dies = 0  # answers to break off before a byte
        self.cycle_ms = 0.0  # of messages that are streamed by cycle; 0: they are empty
        self.cycles = 12
        self.word = "a"
        self.cache: dict[str, int] = {}
        self.served: list[Mapping[str, Any]] = []

    def timings(self, body: Mapping[str, Any]) -> dict[str, object]:
        tokens, key = tokens_of(body), str(first_text(body))
        cached = min(self.cache.get(key, 0), tokens - 1)
        self.cache[key] = tokens + 30
        drafted = (
            {"draft_n": 10 * self.depth, "draft_n_accepted": min(10 * self.depth, 20)} if self.depth else {}
        )
        prompt_n = tokens - cached
        return {
            "cache_n": cached,
            "prompt_n": prompt_n,
            "prompt_ms": 2.0 * prompt_n,
            "predicted_n": 31,
            "predicted_ms": 300.0,
            **drafted,
        }

    async def answer(self, request: Received, peer: Peer) -> None:
        body = json.loads(request.body)
        self.served.append(body)
        if text(request).startswith("/v1/messages") and self.cycle_ms:
            await self.message(body, peer)
        elif text(request).startswith("/v1/messages"):
            await peer.stream(*messages(self.alias))
        elif body.get("stream"):
            await peer.stream(*chat_stream(self.alias, self.timings(body)))
        else:
            choices = [
                {"message": {"role": "assistant", "content": 'I am "model":"x"'}, "finish_reason": "stop"}
            ]
            answer = {"choices": choices, "model": self.alias, "timings": self.timings(body)}
            await peer.whole(json.dumps(answer, separators=(",", ":")).encode())

    async def message(self, body: Mapping[str, Any], peer: Peer) -> None:
        """A message with usage and without timings; streamed, each cycle brings all that it may."""
        found, size = self.timings(body), self.depth + 1
        count, tokens = {"prompt_n": found["prompt_n"], "cache_n": found["cache_n"]}, 1 + size * self.cycles
        if not body.get("stream"):
            usage = {"input_tokens": found["prompt_n"], "output_tokens": tokens}
            await peer.whole(json.dumps({"type": "message", "model": self.alias, "usage": usage}).encode())
            return
        await peer.start()
        await peer.chunk(streams.opening(model=self.alias, **count) + streams.text(self.word))
        for _ in range(self.cycles):
            await asyncio.sleep(self.cycle_ms / 1000.0)
            for _ in range(size):
                await peer.chunk(streams.text(self.word))
        await peer.chunk(streams.closing(tokens))
        await peer.end()


def text(request: Received) -> str:
    target: str | bytes = request.target
    return target.decode() if isinstance(target, bytes) else target


def first_text(body: Mapping[str, Any]) -> object:
    return body["messages"][0]["content"] if body.get("messages") else ""


def tokens_of(body: Mapping[str, Any]) -> int:
    """A token for every four letters."""
    return sum(len(str(message["content"])) // 4 for message in body.get("messages", ())) + 1


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chat_stream(alias: str, timings: object) -> list[bytes]:
    deltas = [
        {"choices": [{"index": 0, "delta": {"content": word}}], "model": alias} for word in ("a ", "b ", "c")
    ]
    last = {
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "model": alias,
        "timings": timings,
    }
    return [event(each) for each in (*deltas, last)] + [b"data: [DONE]\n\n"]


def messages(alias: str) -> list[bytes]:
    start = {
        "type": "message_start",
        "message": {"id": "1", "role": "assistant", "model": alias, "content": []},
    }
    return [
        b"event: message_start\n" + event(start),
        b"event: message_stop\n" + event({"type": "message_stop"}),
    ]


def error(status: int, message: str) -> tuple[bytes, str]:
    return json.dumps({"error": {"code": status, "message": message, "type": "x"}}).encode(), f"{status} Bad"


class FakeRouter:
    """b11434's router mode, as far as it shows: aliases, what is loaded, and its ways of failing."""

    def __init__(self, *settings: str, public: str = "gemma") -> None:
        self.public = public
        self.models = {f"{public}@{name}": FakeModel(f"{public}@{name}", depth_of(name)) for name in settings}
        self.home = f"{public}@{settings[0]}"
        self.counts = 0

    def named(self, name: object) -> FakeModel | None:
        return self.models.get(self.home if name == self.public else str(name))

    async def __call__(self, request: Received, peer: Peer) -> None:
        path, _, query = text(request).partition("?")
        if request.method == "GET":
            await self._look(path, query, peer)
            return
        body = json.loads(request.body)
        model = self.named(body.get("model"))
        if model is None:
            await peer.whole(*error(400, f"model '{body.get('model')}' not found"))
        elif path.endswith(("/input_tokens", "/count_tokens")):
            self.counts += 1
            await peer.whole(json.dumps({"input_tokens": tokens_of(body)}).encode())
        elif model.status != "loaded":
            await peer.whole(*error(400, "model is not loaded"))
        elif model.dies:
            model.dies -= 1
            await peer.whole(b"proxy error: Could not establish connection", "500 Internal Server Error")
        else:
            await model.answer(request, peer)

    async def _look(self, path: str, query: str, peer: Peer) -> None:
        if path.endswith("/models"):
            data = [self._entry(model) for model in self.models.values()]
            await peer.whole(json.dumps({"data": data, "object": "list"}).encode())
        elif path == "/props" and not query:
            await peer.whole(
                json.dumps({"role": "router", "max_instances": 9, "build_info": "b11434"}).encode()
            )
        elif path == "/props":
            alias = query.removeprefix("model=").replace("%40", "@")
            await peer.whole(json.dumps({"model_alias": alias, "total_slots": 1}).encode())
        else:
            await peer.whole(b'{"status":"ok"}')

    def _entry(self, model: FakeModel) -> dict[str, object]:
        aliases = [self.public] if model.alias == self.home else []
        return {"id": model.alias, "aliases": aliases, "status": {"value": model.status, "args": []}}


def depth_of(name: str) -> int:
    return 0 if name == "off" else int(name.partition("-")[0][1:])


class FakeReplica:
    """One server launched with one setting, whatever fields say. `down`: it hangs up on every connection."""

    def __init__(self, depth: int) -> None:
        self.model = FakeModel("m.gguf", depth)
        self.down = False
        self.loading = False

    async def __call__(self, request: Received, peer: Peer) -> None:
        if self.down:
            peer.hang_up()
        elif self.loading:
            await peer.whole(*error(503, "Loading model"))
        elif request.method == "GET":
            props = {"model_path": "m.gguf", "build_info": "b1", "total_slots": 1, "data": [{"id": "m.gguf"}]}
            await peer.whole(json.dumps(props).encode())
        elif text(request).endswith(("/input_tokens", "/count_tokens")):
            await peer.whole(json.dumps({"input_tokens": tokens_of(json.loads(request.body))}).encode())
        else:
            await self.model.answer(request, peer)


class Placing:
    """port: of the proxy; `run` executes a coroutine on its loop."""

    def __init__(self, proxy: Proxy, port: int, run: Callable[[Coroutine[Any, Any, T]], T]) -> None:
        self.proxy, self.port, self.run = proxy, port, run

    def look(self) -> None:
        """Have the actuator looked after now, instead of in a few seconds."""
        self.run(self.proxy.tend.look())  # type: ignore[arg-type]

    def until(self, true: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for what the proxy does in its own time."""
        deadline, tick = time.monotonic() + timeout_s, threading.Event()
        while not true():
            assert time.monotonic() < deadline, "it never came true"
            tick.wait(0.01)

    def client(self) -> Client:
        return Client(self.port)

    def chat(self, text: str, *, model: str = "gemma", **more: object) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
        with self.client() as client:
            return client.ask("POST", "/v1/chat/completions", json.dumps(body).encode())

    def message(self, text: str, **more: object) -> Any:
        body = {"model": "gemma", "max_tokens": 99, "messages": [{"role": "user", "content": text}], **more}
        with self.client() as client:
            answer = client.ask("POST", "/v1/messages", json.dumps(body).encode())
        self.settled()
        return answer

    def settled(self) -> None:
        """Wait until every answer is recorded: a client has its last byte a moment before that."""
        self.until(lambda: self.proxy.engine.in_flight == 0)
        self.run(asyncio.sleep(0))

    def decisions(self) -> list[Any]:
        """The decisions so far, newest first, as the proxy shows them."""
        self.settled()
        with self.client() as client:
            shown = client.ask("GET", "/_dd/decisions", None).json
        assert isinstance(shown, dict)
        found: list[Any] = shown["decisions"]
        return found


@contextlib.contextmanager
def placing(scripts: Mapping[str, Callable[..., Any]], state_dir: Path, **flags: object) -> Iterator[Placing]:
    """The proxy before servers by name; a flag's `{name}` becomes that server's URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="placing under test")
    thread.start()
    servers = {name: FakeUpstream(script) for name, script in scripts.items()}

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    def with_url(value: object) -> object:
        if isinstance(value, list):
            return [with_url(one) for one in value]
        return str(value).format(**{name: server.url for name, server in servers.items()})

    try:
        for server in servers.values():
            run(server.start())
        given = {name: with_url(value) for name, value in flags.items()}
        config = resolve({"state_dir": str(state_dir), **given}, {})

        async def go(ready: Callable[[Placing, Any], object], done: asyncio.Event) -> None:
            async with running(assemble(config)) as proxy:
                listening = bind("127.0.0.1", 0)
                server = server_for(proxy.relay, grace_s=1)
                serve = asyncio.ensure_future(server.serve(sockets=[listening]))
                ready(Placing(proxy, listening.getsockname()[1], run), None)
                await done.wait()
                server.should_exit = True
                await serve
                listening.close()

        box: list[Placing] = []
        here, done = threading.Event(), asyncio.Event()
        whole = asyncio.run_coroutine_threadsafe(
            go(lambda made, _: (box.append(made), here.set()), done), loop
        )
        while not here.wait(0.05):
            if whole.done():
                whole.result()
        try:
            box[0].look()
            yield box[0]
        finally:
            loop.call_soon_threadsafe(done.set)
            whole.result(30)
            for server in servers.values():
                run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
