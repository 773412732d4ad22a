"""A llama-server on a real socket that can count: a tokenizer and a template of its own, and honest `timings`.

Its tokens are not bytes over four: a word of up to nine letters is one, as is a digit or a pair of signs, so prose and
code differ by a factor of two in tokens per byte, as they do with real vocabularies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

Headers = dict[str, str]

_PIECES = re.compile(r"<\|\w+\|>| ?[A-Za-z]{1,9}|\d|\s{1,16}|[^\sA-Za-z\d]{1,2}")


def pieces(text: str) -> int:
    return len(_PIECES.findall(text))


def rendered(messages: list[dict[str, Any]]) -> str:
    """ChatML, with a short default system prompt where none is given, and reasoning left out."""
    if not messages or messages[0].get("role") != "system":
        messages = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
    return (
        "".join(f"<|im_start|>{m['role']}\n{_text(m)}<|im_end|>\n" for m in messages)
        + "<|im_start|>assistant\n"
    )


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    content = content.rpartition("</think>")[2]
    return content + "".join(json.dumps(call["function"]) for call in message.get("tool_calls", ()))


def tokenized(content: object, add_special: bool) -> list[int]:
    parts = content if isinstance(content, list) else [content]
    tokens = [2] if add_special and parts and isinstance(parts[0], str) else []
    for part in parts:
        tokens += [7] * pieces(part) if isinstance(part, str) else [int(part)]
    return tokens


@dataclass
class CountingServer:
    """generation: `new` has the counting routes, `old` has not. key: what calls must bring.

    prefix: its --api-prefix. stalls: routes that never answer. fails: route -> status. say: what it answers to a
    chat, from its prompt. asked: (path, headers) of every call.
    """

    generation: str = "new"
    key: str = ""
    prefix: str = ""
    stalls: frozenset[str] = frozenset()
    fails: dict[str, int] = field(default_factory=dict)
    say: Callable[[str], str] = lambda prompt: "I see."
    asked: list[tuple[str, Headers]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""
    called: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def counts(self) -> list[str]:
        """Paths of the calls that count: one for a new server, two for an old one."""
        names = ("input_tokens", "count_tokens", "tokenize", "apply-template")
        return [path for path, _ in self.asked if path.endswith(names)]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[CountingServer]:
        tasks: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await self._connection(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                pass
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 26)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = head[0].split(" ")[1]
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.asked.append((path, headers))
            self.bodies.append(body)
            self.called.set()
            if path.removeprefix(self.prefix) in self.stalls:
                await reader.read()
                return
            status, answer = self.answer(path, headers, body)
            content = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n" % status)
            writer.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
            await writer.drain()

    def answer(self, path: str, headers: Headers, body: bytes) -> tuple[int, object]:
        route = path.removeprefix(self.prefix)
        if not path.startswith(self.prefix):
            return 404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}
        if route in self.fails:
            return self.fails[route], {"error": {"code": self.fails[route], "message": "no"}}
        request = json.loads(body)
        return self._answer(route, request)

    def _answer(self, route: str, request: dict[str, Any]) -> tuple[int, object]:
        if route == "/tokenize":
            return 200, {"tokens": tokenized(request["content"], request.get("add_special", False))}
        if route == "/apply-template":
            return 200, {"prompt": rendered(request["messages"])}
        if route == "/v1/messages/count_tokens" or (
            self.generation == "new" and route == "/v1/chat/completions/input_tokens"
        ):
            return 200, {"input_tokens": self.prompt_tokens(request)}
        if self.generation == "new" and route == "/v1/responses/input_tokens":
            messages = [{"role": "user", "content": request["input"]}]
            return 200, {"input_tokens": self.prompt_tokens({"messages": messages})}
        if route.endswith("completions") or route == "/completion":
            return 200, self._generated(request)
        return 404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}

    def prompt_tokens(self, request: dict[str, Any]) -> int:
        """The exact length, as this server sees it."""
        prompt = rendered(request["messages"]) if "messages" in request else request["prompt"]
        return len(tokenized(prompt, True))

    def _generated(self, request: dict[str, Any]) -> object:
        prompt = rendered(request["messages"]) if "messages" in request else str(request["prompt"])
        said = self.say(prompt)
        cached = self.prompt_tokens(request) // 2
        timings = {
            "cache_n": cached,
            "prompt_n": self.prompt_tokens(request) - cached,
            "prompt_ms": 10.0,
            "predicted_n": pieces(said) + 1,
            "predicted_ms": 20.0 * (pieces(said) + 1),
        }
        return {"choices": [{"message": {"role": "assistant", "content": said}}], "timings": timings}
