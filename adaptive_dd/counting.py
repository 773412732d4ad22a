"""Asking the server how many tokens a prompt has, through its own routes.

Newer builds (b11434) have routes that apply template and tools and answer with a number; older ones (b9101) render
the prompt and tokenize it in two calls. Which of both a server has is found out by a 404 and remembered. Nothing
here may hold up a request for long or make it fail: a call has a short bound, and after a call that broke or ran
out of time none is made for a while.

How exact: chat, messages, responses and raw prompts to the token. Infill to about a dozen, because which of the
model's fill-in-the-middle tokens exist cannot be seen from outside, and its batch size is taken as the default.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adaptive_dd.core.prompt import infill_texts, is_list_of_prompts
from adaptive_dd.core.wire import scan
from adaptive_dd.errors import AdaptiveDDError
from adaptive_dd.metrics import Metrics
from adaptive_dd.upstream import UnsendableError

log = logging.getLogger("adaptive_dd.counting")

Header = tuple[bytes, bytes]

# A short prompt is counted in a millisecond or two, and tokenizing runs at some megabytes a second; a server that
# takes longer than this is busy with something else, and the request should rather go out.
BOUND_S = 0.5
BOUND_S_PER_MB = 3.0
LONGEST_BOUND_S = 5.0
# After a failure: do not let each of the next requests wait for the same one.
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0

# A server that cannot count is left alone, but one 404 may also mean a model that a router does not know.
LACKING_TO_PAUSE = 3

NUMBER_ROUTES: Mapping[str, str] = {
    "chat": "/v1/chat/completions/input_tokens",
    "responses": "/v1/responses/input_tokens",
    "messages": "/v1/messages/count_tokens",
}
# What a server says to a route that it does not have; httplib, gateways before it, and forks differ.
MISSING = (404, 405, 501)
AUTH_HEADERS = (b"authorization", b"x-api-key", b"api-key")

# Of a list of prompts the longest counts. Those with the most bytes are asked about.
MOST_PROMPTS = 8

# llama-server fits the text around the cursor into one batch, in a ratio of 3 to 1 (server-common.cpp).
DEFAULT_BATCH = 2048
# BOS, the three marks, project and file name with their marks: 10 to 14 in the models that have them.
INFILL_FRAME_TOKENS = 12

_ENDINGS = (
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/completions",
    "/completions",
    "/completion",
    "/v1/responses",
    "/responses",
    "/v1/messages",
    "/infill",
)


class Asks(Protocol):
    """The part of `Upstream` that counting needs."""

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Iterable[Header] = (),
        *,
        timeout_s: float = 5.0,
        parse: Callable[[bytes], object] = json.loads,
    ) -> tuple[int, object]:
        """Status and parsed body, None where `parse` raised ValueError; raises UpstreamError."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A request whose prompt is to be counted: parsed, as bytes, with its headers and api prefix."""

    request: Mapping[str, Any]
    body: bytes
    headers: Iterable[Header] = ()
    prefix: str = ""


class _UncountableError(Exception):
    """The server answered something that holds no count; said by `str`."""


class _LackingError(_UncountableError):
    """The server has no route that counts this."""


def api_prefix(path: str) -> str:
    """What stands before a generating route's own path (llama-server's --api-prefix)."""
    return next((path.removesuffix(ending) for ending in _ENDINGS if path.endswith(ending)), "")


def bound_s(body_bytes: int) -> float:
    """How long counting a request of this size may take."""
    return min(LONGEST_BOUND_S, BOUND_S + BOUND_S_PER_MB * body_bytes / 1e6)


class Counter:
    """Counts prompts and remembers which routes a server lacks. clock_s: a monotonic clock."""

    def __init__(
        self,
        metrics: Metrics | None = None,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        own_headers: tuple[Header, ...] = (),
    ) -> None:
        self._metrics = metrics or Metrics()
        self._clock_s = clock_s
        self._own_headers = own_headers
        self._said: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Start anew: the server is another one."""
        self._missing: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self._quiet_until_s = float("-inf")
        self._lacking = 0

    async def count(self, upstream: Asks, endpoint: str, asking: Asking) -> int | None:
        """Tokens of the request's prompt as the server sees it, or None where that could not be found out in time.

        Never raises, except when cancelled.
        """
        if self._clock_s() < self._quiet_until_s:
            self._metrics.inc("count_calls_total", result="paused")
            return None
        auth = [pair for pair in asking.headers if pair[0].lower() in AUTH_HEADERS]
        call = _Call(upstream, asking, auth or list(self._own_headers), self._missing)
        try:
            async with asyncio.timeout(call.bound_s):
                tokens = await _COUNTS[endpoint](call)
        except (_UncountableError, UnsendableError, KeyError, TypeError, ValueError) as error:
            self._lacking += isinstance(error, _LackingError)
            if self._lacking >= LACKING_TO_PAUSE:
                self._pause(str(error))
            else:
                self._failed("unusable", f"{endpoint}: {error}")
            return None
        except (AdaptiveDDError, TimeoutError) as error:
            self._pause(str(error) or "no answer in time")
            return None
        self._lacking = 0
        self._pause_s = FIRST_PAUSE_S
        self._metrics.inc("count_calls_total", result="counted")
        return tokens

    def _pause(self, why: str) -> None:
        self._quiet_until_s = self._clock_s() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, 2.0 * self._pause_s)
        self._failed("failed", why)

    def _failed(self, result: str, why: str) -> None:
        self._metrics.inc("count_calls_total", result=result)
        if result not in self._said:
            self._said.add(result)
            log.warning("counting a prompt: %s (said once, then only counted)", why)


@dataclass(frozen=True, slots=True)
class _Call:
    """One count under way: where to ask and with what. `missing` is shared with the Counter."""

    upstream: Asks
    asking: Asking
    headers: list[Header]
    missing: set[str]

    @property
    def bound_s(self) -> float:
        return bound_s(len(self.asking.body))

    async def post(
        self, path: str, body: object, parse: Callable[[bytes], object] = json.loads
    ) -> tuple[int, object]:
        return await self.upstream.ask(
            "POST", self.asking.prefix + path, body, self.headers, timeout_s=self.bound_s, parse=parse
        )

    async def number(self, endpoint: str) -> int | None:
        """The count by the endpoint's own route, None where the server has no such route."""
        path = NUMBER_ROUTES[endpoint]
        if path in self.missing:
            return None
        status, found = await self.post(path, self.asking.body)
        if status in MISSING:
            self.missing.add(path)
            return None
        return _whole(_field(status, found, "input_tokens"))

    def tokenizing(self, content: bytes, *, add_special: bool) -> bytes:
        """A request to /tokenize. content: JSON."""
        special = b"true" if add_special else b"false"
        model = self.asking.request.get("model")
        # A router forwards by the model's name.
        named = b',"model":' + json.dumps(model).encode() if isinstance(model, str) else b""
        return b'{"content":%b,"add_special":%b,"parse_special":%b%b}' % (content, special, special, named)

    async def length(self, content: bytes) -> int:
        """Tokens of a prompt, given as JSON."""
        request = self.tokenizing(content, add_special=True)
        return _whole(_answer(*await self.post("/tokenize", request, parse=_how_many)))

    async def rendered(self, body: bytes) -> int:
        """The count by rendering the template and tokenizing what comes, which is passed on as it is."""
        prompt = _answer(*await self.post("/apply-template", body, parse=_prompt_of))
        assert isinstance(prompt, bytes)
        return await self.length(prompt)


def _prompt_of(answer: bytes) -> bytes:
    """The prompt that /apply-template rendered, still as JSON: 128k tokens need not be decoded to be sent on."""
    member = next((member for member in scan(answer).members if member.key == "prompt"), None)
    if member is None:
        raise ValueError("an answer without prompt")
    return answer[member.start : member.end]


_IN_NUMBERS = b"0123456789-, \t\r\n"


def _how_many(answer: bytes) -> int:
    """How many tokens /tokenize names. Commas are counted, because parsing 128k numbers takes 15 ms."""
    if answer.translate(None, _IN_NUMBERS) != b'{"tokens":[]}':
        found = json.loads(answer)
        tokens = found.get("tokens") if isinstance(found, dict) else None
        if not isinstance(tokens, list):
            raise ValueError("tokens is no list")
        return len(tokens)
    inside = answer[answer.index(b"[") + 1 : answer.index(b"]")].strip()
    return inside.count(b",") + 1 if inside else 0


def _answer(status: int, found: object) -> object:
    if status in MISSING:
        raise _LackingError(f"the server has no route that counts ({status})")
    if status != 200:
        raise _UncountableError(f"the server answered {status}")
    if found is None:
        raise _UncountableError("an answer that cannot be read")
    return found


def _field(status: int, found: object, name: str) -> object:
    answer = _answer(status, found)
    if not isinstance(answer, dict) or name not in answer:
        raise _UncountableError(f"an answer without {name}")
    return answer[name]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _UncountableError("a count that is no number")
    return value


async def _count_chat(call: _Call) -> int:
    counted = await call.number("chat")
    return await call.rendered(call.asking.body) if counted is None else counted


async def _count_messages(call: _Call) -> int:
    counted = await call.number("messages")
    if counted is None:
        raise _UncountableError("the server cannot count messages")
    return counted


async def _count_responses(call: _Call) -> int:
    counted = await call.number("responses")
    if counted is not None:
        return counted
    return await call.rendered(json.dumps(as_chat(call.asking.request)).encode())


async def _count_raw(call: _Call) -> int:
    prompt = call.asking.request["prompt"]
    prompts = prompt if is_list_of_prompts(prompt) else [prompt]
    longest = sorted((_unwrapped(one) for one in prompts), key=len, reverse=True)[:MOST_PROMPTS]
    return max([await _count_one(call, one) for one in longest])


def _unwrapped(prompt: object) -> str | list[object]:
    if isinstance(prompt, dict):
        prompt = prompt["prompt_string"]
    if not isinstance(prompt, str | list):
        raise _UncountableError("a prompt that is neither text nor tokens")
    return prompt


async def _count_one(call: _Call, prompt: str | list[object]) -> int:
    if isinstance(prompt, list) and not any(isinstance(part, str) for part in prompt):
        return len(prompt)
    return await call.length(json.dumps(prompt).encode())


async def _count_infill(call: _Call) -> int:
    """One call: texts are tokenized one by one with a number between them that no vocabulary has."""
    content: list[object] = []
    for text in infill_texts(call.asking.request):
        content += [text, -1]
    request = call.tokenizing(json.dumps(content).encode(), add_special=False)
    tokens = _field(*await call.post("/tokenize", request), "tokens")
    if not isinstance(tokens, list):
        raise _UncountableError("tokens is no list")
    lengths, length = [], 0
    for token in tokens:
        length += 1
        if token == -1:
            lengths.append(length - 1)
            length = 0
    before, after, prompt, *extras = lengths
    before = min(before, 3 * (DEFAULT_BATCH // 4))
    after = min(after, max(0, DEFAULT_BATCH // 4 - 2 - prompt))
    return INFILL_FRAME_TOKENS + before + after + prompt + sum(extras)


def as_chat(request: Mapping[str, Any]) -> dict[str, object]:
    """A request to /v1/responses as the chat request that llama-server makes of it, where that is plain text.

    Raises _UncountableError for anything else (tool calls, files), which older builds convert in ways of their own.
    """
    given = request.get("input")
    messages: list[object] = []
    if isinstance(request.get("instructions"), str):
        messages.append({"role": "system", "content": request["instructions"]})
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given or ():
        if not isinstance(item, dict) or item.get("type", "message") != "message" or request.get("tools"):
            raise _UncountableError("a conversation that only newer servers can count")
        messages.append({"role": item.get("role"), "content": _plain(item.get("content"))})
    return {"messages": messages}


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise _UncountableError("a message that only newer servers can count")
    return "\n".join(map(str, texts))


_COUNTS = {
    "chat": _count_chat,
    "completion": _count_raw,
    "infill": _count_infill,
    "responses": _count_responses,
    "messages": _count_messages,
}
