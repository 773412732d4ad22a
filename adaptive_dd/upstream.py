"""The only HTTP client: one llama-server, spoken to in the client's own bytes.

Built on httpx2's transport, not on its client object: nothing is added (no user-agent, no accept-encoding, no
cookie), followed (no redirect) or decoded, and the request target goes out byte for byte. httpx 0.28, its
ancestor, leaks a pool slot for requests cancelled at the wrong moment; see docs/decisions.md.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

from adaptive_dd.errors import UpstreamError, UsageError

Header = tuple[bytes, bytes]

# The server closes an idle connection after 5 s [its header: Keep-Alive: timeout=5, max=100]; a request sent into
# that moment would be lost, so ours go first.
KEEPALIVE_S = 4.0
# A host that does not answer a SYN is down; silence after that is a long prompt, and has no limit.
CONNECT_S = 5.0
# Our own small calls (props, tokenize): a busy server may take a moment, a stuck one must not hold a request.
ASK_S = 5.0


class UnreachableError(UpstreamError):
    """No connection could be made: nothing was sent."""


class DiedError(UpstreamError):
    """The connection broke after the request was sent. `began` tells whether an answer had begun."""

    def __init__(self, message: str, *, began: bool = False) -> None:
        super().__init__(message)
        self.began = began


@dataclass(slots=True)
class Reply:
    """An answer whose body is still to come. `headers` are raw pairs, in the server's order."""

    status: int
    headers: list[Header]
    _stream: AsyncIterable[bytes]
    _close: Callable[[], object] = field(repr=False)

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it came, without its framing. Raises DiedError where it breaks off."""
        try:
            async for chunk in self._stream:
                yield chunk
        except httpx2.TransportError as error:
            raise DiedError(_said(error), began=True) from error

    async def aclose(self) -> None:
        """Give the connection back, or close it where the answer was not read to its end."""
        closing = self._close()
        if asyncio.iscoroutine(closing):
            await closing


class Upstream:
    """One server at `base_url`: `http://host:port`, with an optional path prefix. A `/v1` at its end is understood."""

    def __init__(
        self,
        base_url: str,
        *,
        connect_s: float = CONNECT_S,
        keepalive_s: float = KEEPALIVE_S,
        on_retry: Callable[[], None] | None = None,
    ) -> None:
        parts = _split(base_url)
        self.prefix = re.sub(r"(/v1)?/*$", "", parts.path)
        self.base_url = f"{parts.scheme}://{parts.netloc}{self.prefix}"
        self.authority = parts.netloc.encode()
        self._origin = f"{parts.scheme}://{parts.netloc}/"
        self._timeout = {"connect": connect_s, "read": None, "write": None, "pool": None}
        self._on_retry = on_retry
        verify: ssl.SSLContext | bool = parts.scheme == "https"
        self._kept = _transport(verify, httpx2.Limits(keepalive_expiry=keepalive_s))
        # A request whose body can be sent only once must not meet a connection that has just died.
        self._fresh = _transport(verify, httpx2.Limits(max_keepalive_connections=0))

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Iterable[Header],
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> Reply:
        """Send one request and wait for the head of its answer, however long that takes.

        `target` is sent byte for byte behind the upstream's own path prefix; `headers` must hold the right framing for
        `content` and no `Host`. A kept connection that dies without a byte of answer is replaced once. Raises
        UnreachableError, DiedError.
        """
        lines = [(b"Host", self.authority), *headers]
        target = self.prefix.encode() + target
        if not isinstance(content, bytes | None):
            return await self._send(self._fresh, method, target, lines, _Body(content))
        stale = _Connected()
        try:
            return await self._send(self._kept, method, target, lines, _Body.of(content), watch=stale)
        except DiedError:
            if stale.connected:
                raise
        if self._on_retry is not None:
            self._on_retry()
        return await self._send(self._fresh, method, target, lines, _Body.of(content))

    async def _send(
        self,
        transport: httpx2.AsyncHTTPTransport,
        method: str,
        target: bytes,
        headers: list[Header],
        body: httpx2.AsyncByteStream,
        *,
        watch: _Connected | None = None,
    ) -> Reply:
        extensions: dict[str, object] = {"timeout": self._timeout, "target": target}
        if watch is not None:
            extensions["trace"] = watch
        request = httpx2.Request(method, self._origin, headers=headers, stream=body, extensions=extensions)
        request.method = method  # as the client spelled it
        try:
            response = await transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UnreachableError(f"no connection to {self.base_url}: {_said(error)}") from error
        except httpx2.TransportError as error:
            raise DiedError(f"{self.base_url} closed the connection: {_said(error)}") from error
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        return Reply(response.status_code, response.headers.raw, stream, stream.aclose)

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Iterable[Header] = (),
        *,
        timeout_s: float = ASK_S,
    ) -> tuple[int, object]:
        """A small call of our own: the status, and the parsed JSON (None where the body is none).

        Bytes as `json_body` are sent as they are. Raises UpstreamError when no whole answer came within `timeout_s`.
        """
        content = json_body if isinstance(json_body, bytes | None) else json.dumps(json_body).encode()
        framing = [] if content is None else [(b"content-length", str(len(content)).encode())]
        kind = [] if content is None else [(b"content-type", b"application/json")]
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self.send(method, path.encode(), [*framing, *kind, *headers], content)
                try:
                    body = b"".join([chunk async for chunk in reply.aiter_raw()])
                finally:
                    await reply.aclose()
        except TimeoutError:
            raise UpstreamError(f"{self.base_url}{path} did not answer within {timeout_s:g} s") from None
        try:
            return reply.status, json.loads(body)
        except ValueError:
            return reply.status, None

    async def aclose(self) -> None:
        """Close every connection."""
        await self._kept.aclose()
        await self._fresh.aclose()


class _Connected:
    """A trace hook that notes whether a request had to open a connection, or used a kept one."""

    def __init__(self) -> None:
        self.connected = False

    async def __call__(self, name: str, info: object) -> None:
        if name.startswith("connection.connect"):
            self.connected = True


class _Body(httpx2.AsyncByteStream):
    def __init__(self, parts: AsyncIterable[bytes]) -> None:
        self._parts = parts

    @staticmethod
    def of(content: bytes | None) -> httpx2.AsyncByteStream:
        return _Body(_once(content))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            yield part


async def _once(content: bytes | None) -> AsyncIterator[bytes]:
    if content:
        yield content


def _transport(verify: ssl.SSLContext | bool, limits: httpx2.Limits) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _split(base_url: str) -> _Parts:
    try:
        parts = urlsplit(base_url.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    good = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not good or parts.username or parts.query or parts.fragment:
        raise UsageError(f"upstream: {base_url!r} is not a URL such as http://127.0.0.1:8080")
    return _Parts(parts.scheme, parts.netloc, parts.path)


@dataclass(frozen=True, slots=True)
class _Parts:
    scheme: str
    netloc: str
    path: str
