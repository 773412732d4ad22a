"""The only HTTP client: one llama-server, spoken to in the client's own bytes.

Built on httpx2's transport, not on its client object: nothing is added to a request (no user-agent, no
accept-encoding, no cookie), followed (no redirect, no proxy of the environment) or decoded, and the request target
goes out byte for byte. There is no read timeout, because minutes of silence before a long prompt's first byte are
normal, and no limit on connections, because the queue is the server's. Why httpx2: docs/decisions.md.
An error names its class only: the library's own text may quote a header, and with it a key.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.sockets import KEEPALIVE

Header = tuple[bytes, bytes]
Content = bytes | AsyncIterator[bytes] | None

# The server closes an idle connection after 5 s [its header: Keep-Alive: timeout=5, max=100]; a request sent into
# that moment would be lost, so ours are given up first.
KEEPALIVE_S = 4.0
# A host that does not answer a SYN within this time is down.
CONNECT_S = 5.0
# Our own small calls (props, tokenize): a busy server may take a moment, a stuck one must not hold a request.
ASK_S = 5.0


class UnreachableError(UpstreamError):
    """No connection could be made: nothing was sent."""


class DiedError(UpstreamError):
    """The connection broke after the request was sent, or in the middle of the answer."""


class UnsendableError(UpstreamError):
    """The request cannot be written as HTTP/1.1; nothing was sent. The client's fault, not the server's."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer whose body is still to come. `headers` are raw pairs, in the server's order and spelling."""

    status: int
    headers: list[Header]
    stream: httpx2.AsyncByteStream

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it came, without its framing. Raises DiedError where it breaks off."""
        try:
            async for chunk in self.stream:
                yield chunk
        except httpx2.TransportError as error:
            raise DiedError(f"the answer broke off ({type(error).__name__})") from error

    async def aclose(self) -> None:
        """Give the connection back, or close it at once where the answer was not read to its end."""
        await self.stream.aclose()


class Upstream:
    """One server at `base_url`: `http://host:port`, with an optional path prefix. A `/v1` at its end is understood.

    `on_retry` is called when a kept connection turned out dead and the request was sent again on a fresh one.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_s: float = CONNECT_S,
        keepalive_s: float = KEEPALIVE_S,
        on_retry: Callable[[], None] | None = None,
    ) -> None:
        scheme, netloc, path = _split(base_url)
        self.prefix = re.sub(r"(/v1)?/*$", "", path)
        self.base_url = f"{scheme}://{netloc}{self.prefix}"
        self.authority = netloc.encode()
        self._origin = httpx2.URL(f"{scheme}://{netloc}/")
        self._timeout = {"connect": connect_s, "read": None, "write": None, "pool": None}
        self._on_retry = on_retry
        verify = scheme == "https"  # else the certificates of the system need not be loaded
        self._kept = _transport(verify, httpx2.Limits(keepalive_expiry=keepalive_s))
        # What can be sent only once must not meet a kept connection that has just died.
        self._fresh = _transport(verify, httpx2.Limits(max_keepalive_connections=0))

    async def send(
        self, method: str, target: bytes, headers: Iterable[Header], content: Content = None
    ) -> Reply:
        """Send one request and wait for the head of its answer, however long that takes.

        `target` is sent byte for byte behind the upstream's own path prefix; `headers` must hold the right framing of
        `content` and no `Host`. A kept connection that dies before the head of an answer is replaced once, by a fresh
        one; a body that can be sent only once always gets a fresh one. Raises UnreachableError, DiedError,
        UnsendableError.
        """
        lines = [(b"Host", self.authority), *headers]
        target = self.prefix.encode() + target
        if content is not None and not isinstance(content, bytes):
            return await self._send(self._fresh, method, target, lines, body=_Parts(content))
        watch = _ConnectionWatch()
        try:
            return await self._send(self._kept, method, target, lines, body=_whole(content), watch=watch)
        except DiedError:
            if watch.connected:
                raise
        if self._on_retry is not None:
            self._on_retry()
        return await self._send(self._fresh, method, target, lines, body=_whole(content))

    async def _send(
        self,
        transport: httpx2.AsyncHTTPTransport,
        method: str,
        target: bytes,
        headers: list[Header],
        *,
        body: httpx2.AsyncByteStream,
        watch: _ConnectionWatch | None = None,
    ) -> Reply:
        extensions: dict[str, object] = {"timeout": self._timeout, "target": target}
        if watch is not None:
            extensions["trace"] = watch
        request = httpx2.Request(method, self._origin, headers=headers, stream=body, extensions=extensions)
        try:
            response = await transport.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UnreachableError(f"no connection to {self.base_url} ({type(error).__name__})") from error
        except httpx2.LocalProtocolError:
            raise UnsendableError("the request is not HTTP/1.1") from None
        except httpx2.TransportError as error:
            raise DiedError(f"{self.base_url} gave no answer ({type(error).__name__})") from error
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return Reply(response.status_code, response.headers.raw, response.stream)

    async def ask(
        self,
        method: str,
        path: str,
        json_body: object = None,
        headers: Iterable[Header] = (),
        *,
        timeout_s: float = ASK_S,
        parse: Callable[[bytes], object] = json.loads,
    ) -> tuple[int, object]:
        """A small call of our own: the status, and the parsed JSON (None where the body is none).

        A `json_body` that is bytes already is sent as it is. parse: reads the body, and may raise ValueError. Raises
        UpstreamError when no whole answer came within `timeout_s`.
        """
        content = json_body if isinstance(json_body, bytes | None) else json.dumps(json_body).encode()
        own: list[Header] = []
        if content is not None:
            own = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(content))]
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self.send(method, path.encode(), [*own, *headers], content)
                try:
                    body = b"".join([chunk async for chunk in reply.aiter_raw()])
                finally:
                    await reply.aclose()
        except TimeoutError:
            raise UpstreamError(f"{self.base_url}{path} did not answer within {timeout_s:g} s") from None
        try:
            return reply.status, parse(body)
        except ValueError:
            return reply.status, None

    async def aclose(self) -> None:
        """Close every connection."""
        await self._kept.aclose()
        await self._fresh.aclose()


class _ConnectionWatch:
    """A trace hook that notes whether a request had to open a connection, or used a kept one."""

    def __init__(self) -> None:
        self.connected = False

    async def __call__(self, name: str, info: object) -> None:
        if name.startswith("connection.connect"):
            self.connected = True


class _Parts(httpx2.AsyncByteStream):
    """A body that comes in parts, and only once."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


def _whole(content: bytes | None) -> httpx2.AsyncByteStream:
    return httpx2.ByteStream(content or b"")


def _transport(verify: bool, limits: httpx2.Limits) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits, socket_options=KEEPALIVE)


def _split(base_url: str) -> tuple[str, str, str]:
    """Scheme, host with port, and path. Raises UsageError."""
    wrong = UsageError(f"upstream: {base_url!r} is not a URL such as http://127.0.0.1:8080")
    try:
        parts = urlsplit(base_url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if port == 0 or not parts.hostname or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise wrong
    if parts.query or parts.fragment:
        raise wrong
    return parts.scheme, parts.netloc, parts.path
