"""The upstream: one llama-server, spoken to in the client's own bytes.

Nothing is added to a request (no user-agent, no accept-encoding), followed (no redirect) or decoded; the request
target goes out byte for byte. There is no read timeout, because minutes of silence before a long prompt's first byte
are normal, and no limit on connections, because the queue is the server's.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.http1 import DiedError, Header, Link, Pool, UnreachableError, head_of

__all__ = ["DiedError", "Header", "Reply", "UnreachableError", "Upstream"]

# The server closes an idle connection after 5 s [its header: Keep-Alive: timeout=5, max=100]; a request sent into
# that moment would be lost, so ours are closed first.
KEEPALIVE_S = 4.0
# A host that does not answer a SYN within this time is down.
CONNECT_S = 5.0
# Our own small calls (props, tokenize): a busy server may take a moment, a stuck one must not hold a request.
ASK_S = 5.0

Content = bytes | AsyncIterator[bytes] | None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer whose body is still to come. `headers` are raw pairs, in the server's order and spelling."""

    status: int
    headers: list[Header]
    link: Link

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body as it came, without its framing. Raises DiedError where it breaks off."""
        while chunk := await self.link.read():
            yield chunk

    async def aclose(self) -> None:
        """Give the connection back, or close it at once where the answer was not read to its end."""
        self.link.release()


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
        scheme, host, port, netloc, path = _split(base_url)
        self.prefix = re.sub(r"(/v1)?/*$", "", path)
        self.base_url = f"{scheme}://{netloc}{self.prefix}"
        self.pool = Pool(
            host,
            port,
            tls=ssl.create_default_context() if scheme == "https" else None,
            connect_s=connect_s,
            keepalive_s=keepalive_s,
        )
        self._host_header = (b"Host", netloc.encode())
        self._on_retry = on_retry

    async def send(
        self, method: str, target: bytes, headers: Iterable[Header], content: Content = None
    ) -> Reply:
        """Send one request and wait for the head of its answer, however long that takes.

        `target` is sent byte for byte behind the upstream's own path prefix; `headers` must hold the right framing of
        `content` and no `Host`. A kept connection that turns out dead without a byte of answer is replaced once; a
        body that can be sent only once always gets a fresh connection. Raises UnreachableError, DiedError.
        """
        head = head_of(method, self.prefix.encode() + target, [self._host_header, *headers])
        if content is None or isinstance(content, bytes):
            link = self.pool.kept()
            if link is not None:
                try:
                    return await self._exchange(link, head, content, method)
                except DiedError as error:
                    if error.any_byte:
                        raise
                if self._on_retry is not None:
                    self._on_retry()
        try:
            link = await self.pool.fresh()
        except UnreachableError as error:
            raise UnreachableError(f"{self.base_url}: {error}") from error
        return await self._exchange(link, head, content, method)

    async def _exchange(self, link: Link, head: bytes, content: Content, method: str) -> Reply:
        try:
            await link.request(head, content, head_only=method == "HEAD")
        except BaseException:  # cancelled, too: the server must see at once that nobody waits any more
            link.transport.abort()
            raise
        return Reply(link.status, link.headers, link)

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

        Raises UpstreamError when no whole answer came within `timeout_s`.
        """
        content = None if json_body is None else json.dumps(json_body).encode()
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
            return reply.status, json.loads(body)
        except ValueError:
            return reply.status, None

    async def aclose(self) -> None:
        """Close every connection."""
        self.pool.close()


def _split(base_url: str) -> tuple[str, str, int, str, str]:
    """Scheme, host, port, what goes into `Host`, and path. Raises UsageError."""
    wrong = UsageError(f"upstream: {base_url!r} is not a URL such as http://127.0.0.1:8080")
    try:
        parts = urlsplit(base_url.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        raise wrong from None
    if not port or not parts.hostname or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise wrong
    if parts.query or parts.fragment:
        raise wrong
    return parts.scheme, parts.hostname, port, parts.netloc, parts.path
