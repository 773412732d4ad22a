"""A leaner client behind the seam of `adaptive_dd.upstream`, as the comparison column of the relay benchmark only.

    Link    one connection (an asyncio protocol, httptools parses): sends a request, collects what comes back
    Pool    the idle links: hands out the youngest, closes each one before the server would

What it does not do: redirects, cookies, proxies, decompression, upgrades, HTTP/2. A request is given as bytes, with the
right framing in its head.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import cast

import httptools

from adaptive_dd.upstream import DiedError as PackageDiedError
from adaptive_dd.upstream import UnreachableError

Header = tuple[bytes, bytes]

# What may lie here unread before the server is made to wait: a slow client must not fill our memory.
UNREAD_BYTES = 256 * 1024
# A head longer than this is no answer of a model server.
HEAD_BYTES = 256 * 1024


class DiedError(PackageDiedError):
    """The connection broke after the request was sent. `any_byte`: whether something of an answer had come."""

    def __init__(self, message: str, *, any_byte: bool) -> None:
        super().__init__(message)
        self.any_byte = any_byte


class Link(asyncio.Protocol):
    """One connection, at most one exchange at a time: `request`, then `read` until it gives nothing, then `release`."""

    def __init__(self, pool: Pool) -> None:
        self.reused = False
        self.status = 0
        self.headers: list[Header] = []
        self.transport: asyncio.Transport
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_data_after_close=True, lenient_optional_cr_before_lf=True
        )
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._chunks: list[bytes] = []
        self._fault = ""  # why nothing more will come
        self._begin(head_only=False)
        self._complete = True

    def _begin(self, *, head_only: bool) -> None:
        self.headers = []
        self._head_only = head_only
        self._seen = self._unread = 0
        self._head_done = self._complete = self._sent_all = False
        self._keep_alive = self._until_close = self._paused = False

    # --- one exchange

    async def request(
        self, head: bytes, content: bytes | AsyncIterator[bytes] | None, *, head_only: bool
    ) -> None:
        """Send a request and wait for the head of its answer. `head_only`: it was a HEAD. Raises DiedError."""
        self._begin(head_only=head_only)
        if content is None or isinstance(content, bytes):
            self.transport.write(head + content if content else head)
            self._sent_all = True
        else:
            self.transport.write(head)
            await self._upload(content, chunked=b"\r\ntransfer-encoding: chunked\r\n" in head)
        while not self._head_done:
            if self._fault:
                raise DiedError(self._fault, any_byte=self._seen > 0)
            await self._wait()

    async def _upload(self, content: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send the parts as they come. An answer before the last of them ends the sending, as the server meant."""
        async for part in content:
            if self._head_done or self._fault:
                return
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            await self._writable.wait()
        if chunked:
            self.transport.write(b"0\r\n\r\n")
        self._sent_all = True

    async def read(self) -> bytes:
        """What has come of the body since last time; empty at its end. Raises DiedError where it breaks off."""
        while not self._chunks:
            if self._complete:
                return b""
            if self._fault:
                raise DiedError(self._fault, any_byte=True)
            await self._wait()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._unread = 0
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return data

    def release(self) -> None:
        """The exchange is over: keep the link where the answer was read to its end, else close it at once."""
        done = self._complete and self._sent_all and not self._chunks
        if done and self._keep_alive and not self._fault and not self._head_only:
            self._pool.keep(self)
        else:
            self.transport.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, fault: str) -> None:
        self._fault = self._fault or fault
        self.transport.abort()
        self._wake()

    # --- idle

    def rest(self, seconds: float) -> None:
        """Idle from now on; closed after `seconds`."""
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._end, "it was idle")

    def rouse(self) -> bool:
        """Back to work; False where the link is closed already."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.reused = True
        return not self._fault and not self.transport.is_closing()

    # --- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._complete:
            self._end("it spoke out of turn")
            return
        self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(f"its answer is not HTTP/1.1 ({type(error).__name__})")
            return
        if not self._head_done and self._seen > HEAD_BYTES:
            self._end("the head of its answer has no end")
        if self._unread > UNREAD_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_done and self._until_close and exc is None and not self._fault:
            self._complete = True
        self._fault = self._fault or (
            f"connection lost ({type(exc).__name__})" if exc else "it closed the connection"
        )
        self._pool.forget(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._writable.set()
        self._wake()
        self._parser = None  # type: ignore[assignment]  # it holds us, and we it

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # later ones are trailers
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:
            return
        self._head_done = True
        self._keep_alive = self._parser.should_keep_alive()
        framed = any(
            name.lower() == b"content-length"
            or (name.lower() == b"transfer-encoding" and b"chunked" in value.lower())
            for name, value in self.headers
        )
        self._until_close = not framed
        self._complete = self._head_only

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._complete = True
        else:
            self.headers = []  # that was a 1xx: the answer follows


class Pool:
    """The links to one host and port. No limit on their number: a proxy must not queue what the server would take."""

    def __init__(
        self, host: str, port: int, *, tls: ssl.SSLContext | None, connect_s: float, keepalive_s: float
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._connect_s, self._keepalive_s = connect_s, keepalive_s
        self._idle: list[Link] = []
        self._links: set[Link] = set()

    @property
    def open_links(self) -> int:
        """Connections open now, idle ones included."""
        return len(self._links)

    def kept(self) -> Link | None:
        """The idle link that was used last, None where there is none."""
        while self._idle:
            link = self._idle.pop()
            if link.rouse():
                return link
        return None

    async def fresh(self) -> Link:
        """A new link. Raises UnreachableError."""
        loop = asyncio.get_running_loop()
        name = self._host if self._tls is not None else None
        try:
            async with asyncio.timeout(self._connect_s):
                _, link = await loop.create_connection(
                    lambda: Link(self), self._host, self._port, ssl=self._tls, server_hostname=name
                )
        except TimeoutError:
            raise UnreachableError(f"no connection within {self._connect_s:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise UnreachableError(f"no connection: {error.strerror or error}") from error
        self._links.add(link)
        return link

    def keep(self, link: Link) -> None:
        """Take an idle link back."""
        link.rest(self._keepalive_s)
        self._idle.append(link)

    def forget(self, link: Link) -> None:
        """The link is closed."""
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)

    def close(self) -> None:
        """Close every link."""
        for link in list(self._links):
            link.transport.abort()


def head_of(method: str, target: bytes, headers: Iterable[Header]) -> bytes:
    """A request's head. Names and values must hold no line end (a server's parser has seen to that)."""
    lines = [b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target)]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join(lines) + b"\r\n"


class LeanReply:
    def __init__(self, link: Link) -> None:
        self.status, self.headers, self._link = link.status, link.headers, link

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        while chunk := await self._link.read():
            yield chunk

    async def aclose(self) -> None:
        self._link.release()


class LeanUpstream:
    """The part of `adaptive_dd.upstream.Upstream` that the relay uses, for `http://host:port`."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        host, _, port = base_url.removeprefix("http://").partition(":")
        self._authority = f"{host}:{port}".encode()
        self._pool = Pool(host, int(port), tls=None, connect_s=5.0, keepalive_s=4.0)

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Iterable[Header],
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> LeanReply:
        head = head_of(method, target, [(b"Host", self._authority), *headers])
        link = self._pool.kept() or await self._pool.fresh()
        try:
            await link.request(head, content, head_only=method == "HEAD")
        except BaseException:
            link.transport.abort()
            raise
        return LeanReply(link)
