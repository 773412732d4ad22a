"""Our own listening side: uvicorn on httptools, with six corrections that a relay needs.

    exact target      the request target as it came (`raw_target`), not a path that was taken apart
    abort             end an answer visibly broken: no final chunk, and no traceback
    HTTP/1.0          uvicorn's httptools protocol sends chunk markers to HTTP/1.0 clients; here such an answer ends
                      with its connection
    keep-alive timer  uvicorn leaves it armed when a client resets the connection, and with it the whole request
                      (until the timer ends); here it is cancelled
    upgrades          a request that offers another protocol (`Upgrade: h2c`, as Java and curl do) loses its body in
                      httptools; here the offer is passed over, as a server may, and the request read in full
    spelling          names of an answer's headers are lower-cased; here they go out as the server spells them

The first two are ASGI extensions under EXTENSION, so the relay runs under another server as well, a little coarser.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from adaptive_dd.errors import UsageError
from adaptive_dd.sockets import KEEPALIVE

EXTENSION = "adaptive_dd"
# Longer than the 60 s that clients and load balancers keep idle connections, so that they close first; not longer,
# because every idle connection holds memory.
KEEPALIVE_S = 75
BACKLOG = 2048


class Spelled(bytes):
    """A header name that goes out as it is spelled: uvicorn lower-cases names on the way out.

    Names mean the same in any case, but some clients look them up as the server spells them.
    """

    def lower(self) -> bytes:
        """As it is spelled; what lower-casing is for, comparing, works all the same."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes) and bytes.lower(self) == bytes.lower(other)

    def __hash__(self) -> int:
        return hash(bytes.lower(self))


class Extension(TypedDict):
    """What the relay finds in `scope["extensions"][EXTENSION]`."""

    raw_target: bytes
    abort: Callable[[], None]


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the corrections named above."""

    # The head of a request that offered another protocol, without the offer, until it is read again.
    _declined: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Also let the kernel look after a client that says nothing for long."""
        super().connection_made(transport)  # type: ignore[arg-type]
        for option in KEEPALIVE:
            transport.get_extra_info("socket").setsockopt(*option)

    def connection_lost(self, exc: Exception | None) -> None:
        """Also forget the keep-alive timer of a connection that was reset."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """As uvicorn does it, but an offer to upgrade is declined without losing what follows it."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._declined is not None:
                head, self._declined = self._declined, None
                self.parser = httptools.HttpRequestParser(self)
                self.data_received(head + data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Keep the request target as it came, and see to offers of other protocols."""
        if self.parser.should_upgrade() and self._offers_other_than_websocket():
            self._declined = self._head_without_offer()
            return
        extension: Any = Extension(raw_target=self.url, abort=lambda: None)
        self.scope["extensions"] = {EXTENSION: extension}
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        extensions: Any = cycle.scope["extensions"]
        extensions[EXTENSION]["abort"] = lambda: _abort(cycle)
        if cycle.scope["http_version"] == "1.0":
            app = _until_close(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """Nothing is complete while a declined offer is read again."""
        if self._declined is None:
            super().on_message_complete()

    def _offers_other_than_websocket(self) -> bool:
        offers = [value.lower() for name, value in self.headers if name == b"upgrade"]
        return bool(offers) and not any(b"websocket" in offer for offer in offers)

    def _head_without_offer(self) -> bytes:
        kept = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name not in _OFFER]
        first = b"%b %b HTTP/%b\r\n" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        return first + b"".join(kept) + b"\r\n"


# What an offer consists of. Dropping `Connection` with it means keep-alive, which is what HTTP/1.1 says anyway.
_OFFER = frozenset({b"upgrade", b"connection", b"http2-settings"})


def _abort(cycle: RequestResponseCycle) -> None:
    """End the connection with the answer visibly incomplete.

    What was written goes out first. A client that knows where the answer should end (chunks, a length) sees the end
    missing; an HTTP/1.0 client that waits for the close is told with a reset.
    """
    transport = cycle.transport
    cycle.disconnected = True
    cycle.message_event.set()
    until_close = cycle.scope["http_version"] == "1.0" and not cycle.expected_content_length
    if until_close and not transport.get_write_buffer_size():
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        transport.abort()
    else:
        transport.close()


def _until_close(cycle: RequestResponseCycle, app: Any) -> Any:
    """`app` for an HTTP/1.0 client: an answer without a length has no chunks and ends with the connection."""

    async def framed(scope: Any, receive: Any, send: Any) -> None:
        state = {"until_close": False}

        async def send_framed(message: Any) -> None:
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                state["until_close"] = not has_length
                if not has_length:
                    cycle.chunked_encoding = False
                await send(message)
            elif state["until_close"]:
                await _send_plain(cycle, message)
            else:
                await send(message)

        await app(scope, receive, send_framed)

    return framed


async def _send_plain(cycle: RequestResponseCycle, message: Any) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected or cycle.response_complete:
        return
    if cycle.scope["method"] != "HEAD":
        cycle.transport.write(message.get("body", b""))
    if not message.get("more_body", False):
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.close()
        cycle.on_response()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError with one clear line where the address is taken or not ours."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"host: cannot listen on {host!r}: {error.strerror or error}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        why = (
            "is another program (or another adaptive-dd) on it?"
            if error.errno == 98
            else "expected a free port"
        )
        raise UsageError(f"port: cannot listen on {host}:{port}: {error.strerror}; {why}") from None
    return listening


class Server(uvicorn.Server):
    """uvicorn's server, which returns after a signal; the original raises the signal again, past every clean-up.

    heeds_signals: False where the server is one part of a program that ends as a whole.
    """

    heeds_signals = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for a stop; a second SIGINT for one at once."""
        if not self.heeds_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server_for(app: Any, *, grace_s: int = 10) -> Server:
    """A uvicorn server for the relay. `grace_s`: how long answers under way may take once it is told to stop."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEPALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )
    return Server(config)


async def serve_on(listening: socket.socket, app: Any, *, grace_s: int = 10) -> None:
    """Serve `app` until a signal says to stop; answers under way are given `grace_s` to end."""
    await server_for(app, grace_s=grace_s).serve(sockets=[listening])


def run_server(app: Any, host: str, port: int, *, grace_s: int = 10) -> None:
    """Bind, serve until a signal, and return. Raises UsageError when the address cannot be had."""
    listening = bind(host, port)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve_on(listening, app, grace_s=grace_s))
    finally:
        listening.close()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop
