"""The relay: one raw ASGI app between the client and the server. Chunks go through as they come.

    Relay       one for the process; knows the upstream, who decides, and the limits
    _Exchange   one request and its answer: who is still there, what came of it

What generates is read, decided on (the Chooser), and sent with at most a few bytes spliced in; everything else streams
through. At every moment the client's leaving is watched for: its request is cancelled upstream at once. Whatever fails
in our own part is counted, and the client's bytes go out as they came: never worse than no proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable
from functools import partial

from adaptive_dd.actuator import Placed
from adaptive_dd.core.aliases import Renamer
from adaptive_dd.core.annotate import Annotator, annotated_document
from adaptive_dd.core.arrivals import TimedTap
from adaptive_dd.core.domain import Status
from adaptive_dd.core.ending import outcome_of
from adaptive_dd.core.headers import (
    Header,
    to_client,
    to_upstream,
    unknown_coding,
    value_of,
    wants_websocket,
    with_length,
)
from adaptive_dd.core.tap import Tap
from adaptive_dd.core.wire import Route, error_body, route_of
from adaptive_dd.httpd import EXTENSION, Spelled
from adaptive_dd.incoming import ClientGoneError, Incoming
from adaptive_dd.metrics import Metrics
from adaptive_dd.seams import App, Change, Choice, Chooser, Receive, Scope, Send, View
from adaptive_dd.upstream import DiedError, Reply, UnreachableError, UnsendableError, Upstream

log = logging.getLogger(__name__)

ADMIN_PREFIX = "/_dd"
# A 128k-token prompt is about 500 kB, a few images in base64 are megabytes; beyond this a body is relayed unread.
BODY_LIMIT_BYTES = 32 * 1024 * 1024
# A JSON answer longer than this is not changed (annotated, renamed), because it would have to be held back.
ANNOTATE_LIMIT_BYTES = 8 * 1024 * 1024
RETRY_AFTER_S = 2
# Chunks of one answer passed on in a row. A single read may hold hundreds, and none of them lets the loop go on: with
# 64 streams in full flood everybody else waited for seconds.
BURST = 16
# A client that sends this header (with any value) sees a router as it is, aliases and all.
SHOW_ALIASES = b"x-dd-show-aliases"


class Relay:
    """The ASGI app. `admin` serves `/_dd/`; without a chooser everything passes untouched."""

    def __init__(
        self,
        chooser: Chooser | None,
        upstream: Upstream,
        metrics: Metrics,
        admin: App | None = None,
        *,
        annotate: bool = False,
        body_limit_bytes: int = BODY_LIMIT_BYTES,
    ) -> None:
        self.chooser = chooser
        self.upstream = upstream
        self.metrics = metrics
        self.admin = admin
        self.annotate = annotate
        self.body_limit_bytes = body_limit_bytes
        self.reachable = True
        self.view: View | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        if scope["type"] != "http":
            raise RuntimeError(f"the relay serves http, not {scope['type']}")
        path = scope["path"]
        if self.admin is not None and (path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/")):
            # Monitors ask with HEAD; the listening side drops the body of its answer.
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self.admin(asked, receive, send)
            return
        exchange = _Exchange(self, scope, receive, send)
        if wants_websocket(scope["headers"]):
            await exchange.answer_ourselves(501, "this proxy and llama-server speak no websocket")
            return
        if scope["method"] == "CONNECT":  # whatever length it declares, the parser gives it no body
            await exchange.answer_ourselves(501, "this proxy opens no tunnels")
            return
        if unknown_coding(scope["headers"]):
            await exchange.answer_ourselves(501, "the only transfer encoding understood is chunked")
            return
        await exchange.run()

    def found(self, *, reachable: bool, why: str = "") -> None:
        """Say once when the upstream goes, and once when it is back."""
        self.metrics.set("upstream_up", float(reachable))
        if reachable != self.reachable:
            self.reachable = reachable
            if reachable:
                log.info("upstream %s answers again", self.upstream.base_url)
            else:
                log.warning("upstream %s: %s", self.upstream.base_url, why)

    def failed(self, where: str, error: BaseException) -> None:
        """Our own code failed: counted, and said once per place, by where it happened.

        Not by what the error says: that may quote the request.
        """
        if not self.metrics.value("own_failures_total", where=where):
            places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
            log.error("own failure in %s: %s at\n%s", where, type(error).__name__, places)
        self.metrics.inc("own_failures_total", where=where)


class _Whole:
    """Changes a body that is fed whole."""

    def __init__(self, change: Callable[[bytes], bytes]) -> None:
        self._change = change

    def feed(self, chunk: bytes) -> bytes:
        return self._change(chunk) if chunk else b""

    def end(self) -> bytes:
        return b""


def _through(changes: list[Change], data: bytes, *, last: bool = False) -> bytes:
    for change in changes:
        data = change.feed(data) + (change.end() if last else b"")
    return data


async def _held(chunks: AsyncIterator[bytes], limit_bytes: int) -> tuple[bytes, bool]:
    """The body, and whether it ended within the limit; what follows a longer one is still in `chunks`."""
    held, size = list[bytes](), 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > limit_bytes:
            return b"".join(held), False
    return b"".join(held), True


def _now_ms() -> float:
    return time.monotonic() * 1000.0


async def _timed(chunks: AsyncIterator[bytes], tap: TimedTap) -> AsyncIterator[bytes]:
    """The same chunks, with the tap told when each was read, and how long it took until the next one could be."""
    async for chunk in chunks:
        tap.at_ms = _now_ms()
        yield chunk
        tap.held(_now_ms() - tap.at_ms)


class _Exchange:
    def __init__(self, relay: Relay, scope: Scope, receive: Receive, send: Send) -> None:
        self.relay = relay
        self.scope = scope
        self.incoming = Incoming(scope, receive)
        self.send = send
        self.route = route_of(scope["method"], scope["path"]) if relay.chooser is not None else None
        self.choice: Choice | None = None
        self.status = Status.CLIENT_GONE  # what it is when nothing else happens: cancelled, and cut off
        self.http_status = 0
        self.tap: Tap | None = None
        self.sent_ms = 0.0
        self.resent: Placed | None = None
        self.view = self._view()
        self.started = False
        self.ended = False

    # --- the course of an exchange

    async def run(self) -> None:
        self.relay.metrics.inc("requests_total", generating="yes" if self.route else "no")
        try:
            content = await self._body()
        except ClientGoneError:
            self.relay.metrics.inc("client_gone_total")
            return
        work = asyncio.ensure_future(self._work(content))
        watch = asyncio.ensure_future(self.incoming.leaves())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if self.ended:
                await work
        except asyncio.CancelledError:  # the server is shutting down: the answer ends here, visibly broken
            pass
        finally:
            gone = not work.done()
            work.cancel()
            watch.cancel()
            await _ended(work, watch)
        if gone:
            self.relay.metrics.inc("client_gone_total")
        failure = None if work.cancelled() else work.exception()
        if failure is not None:
            self.relay.failed("relay", failure)
        if not self.ended:
            await self._break_off(ours=failure is not None)

    async def _work(self, content: bytes | AsyncIterator[bytes] | None) -> None:
        body = content if isinstance(content, bytes) else None
        try:
            if self.route is not None:
                await self._choose(self.route, body)
            reply = await self._ask_upstream(content)
            if reply is None:
                return
            try:
                await self._relay(reply)
            finally:
                await reply.aclose()
        finally:
            self._finish()

    async def _choose(self, route: Route, body: bytes | None) -> None:
        chooser = self.relay.chooser
        assert chooser is not None
        try:
            self.choice = await chooser.choose(route, self.scope["headers"], body, path=self.scope["path"])
        except Exception as error:
            self.relay.failed("choose", error)

    def _finish(self) -> None:
        if self.choice is None or self.relay.chooser is None:
            return
        choice, resent = self.choice, None
        if self.resent is not None:
            resent = Status.MOVED if self.resent.applied else Status.REFUSED
        told = partial(outcome_of, self.status, arm=choice.arm, http_status=self.http_status, resent=resent)
        alone = choice.context is not None and choice.context.in_flight == 1
        try:
            outcome = told(self.tap, alone=alone)
        except Exception as error:  # or the request would count as on its way for ever
            self.relay.failed("outcome", error)
            outcome = told(None)
        self.relay.chooser.finish(choice, outcome)

    # --- the request

    async def _body(self) -> bytes | AsyncIterator[bytes] | None:
        """The body: bytes where it is to be read, a stream where not, None where there is none.

        Raises ClientGoneError when the client leaves while sending it.
        """
        wanted = self.route is not None and self.route.json_body
        content = await self.incoming.body(wanted=wanted, limit_bytes=self.relay.body_limit_bytes)
        return b"" if content is None and self.route is not None else content

    def _view(self) -> View | None:
        """The view that concerns this request, None where the client sees things as they are."""
        view, scope = self.relay.view, self.scope
        if view is None or self.route is not None or value_of(scope["headers"], SHOW_ALIASES) is not None:
            return None
        return view if view.concerns(scope["method"], scope["path"]) else None

    def _target(self) -> bytes:
        target = self.incoming.target()
        return target if self.view is None else self.view.target_for(self.scope["method"], target)

    async def _ask_upstream(self, content: bytes | AsyncIterator[bytes] | None) -> Reply | None:
        """The upstream's answer, None where we had to answer ourselves."""
        choice = self.choice
        try:
            if choice is None or not isinstance(content, bytes):  # a stream can be sent once only
                return await self._send_once(content)
            return await self._send_placed(choice, choice.retry)
        except UnreachableError as error:
            # After a first try that reached the server, its absence may be that try's doing.
            self.status = Status.ERROR if self.resent is None else Status.CUT
            self.relay.found(reachable=False, why=str(error))
            await self._upstream_absent("llama-server is not reachable; is it running?")
        except DiedError as error:
            self.status = Status.CUT
            self.relay.found(reachable=False, why=str(error))
            await self._upstream_absent("llama-server closed the connection without an answer")
        except UnsendableError:
            self.status = Status.ERROR
            await self.answer_ourselves(400, "this request cannot be passed on: it is not HTTP/1.1")
        except ClientGoneError:
            self.status = Status.CLIENT_GONE
        return None

    async def _send_placed(self, choice: Choice, retry: Placed | None) -> Reply:
        """Send as chosen; where that place is dead or unwilling and nothing was answered yet, try once more."""
        try:
            reply = await self._send_once(choice.body)
        except (DiedError, UnreachableError) as error:
            if retry is None or (isinstance(error, UnreachableError) and retry.upstream is choice.upstream):
                raise
            return await self._send_again(retry)
        if retry is None or reply.status not in choice.unwilling:
            return reply
        await reply.aclose()
        return await self._send_again(retry)

    async def _send_again(self, retry: Placed) -> Reply:
        self.resent = retry
        self.relay.metrics.inc("resent_total")
        return await self._send_once(retry.body, retry.upstream)

    async def _send_once(
        self, content: bytes | AsyncIterator[bytes] | None, upstream: Upstream | None = None
    ) -> Reply:
        if upstream is None:
            upstream = self.choice.upstream if self.choice is not None else self.relay.upstream
        size = len(content) if isinstance(content, bytes) else None
        streams = content is not None and size is None
        headers = to_upstream(self.scope["headers"], body_bytes=size, streams=streams)
        self.sent_ms = _now_ms()
        reply = await upstream.send(self.scope["method"], self._target(), headers, content)
        self.http_status = reply.status
        return reply

    # --- the answer

    async def _relay(self, reply: Reply) -> None:
        self.relay.found(reachable=True)
        if not 200 <= reply.status <= 599:
            self.status = Status.ERROR
            await self.answer_ourselves(502, f"llama-server answered with the unknown status {reply.status}")
            return
        kind = (value_of(reply.headers, b"content-type") or b"").lower()
        stream = kind.startswith(b"text/event-stream")
        plain = value_of(reply.headers, b"content-encoding") in (None, b"identity")
        headers = (
            to_client(reply.headers, status=reply.status, event_stream=stream) + self._decision_headers()
        )
        if self.choice is not None and plain and reply.status < 400 and (stream or b"json" in kind):
            by_arrival = stream and self.choice.by_arrival
            self.tap = TimedTap(self.sent_ms) if by_arrival else Tap(stream=stream)
        chunks = reply.aiter_raw()
        if isinstance(self.tap, TimedTap):
            chunks = _timed(chunks, self.tap)
        try:
            if changes := self._changes(kind, plain=plain):
                await self._pass_changed(chunks, reply.status, headers, changes, stream=stream)
            else:
                await self._start(reply.status, headers)
                await self._pass_all(chunks)
        except DiedError:
            self.status = Status.CUT
            return
        self._judge(reply)
        await self._end()

    def _judge(self, reply: Reply) -> None:
        if self.tap is not None:
            self._listen(self.tap.end)
        failed = reply.status >= 400 or (self.tap is not None and self.tap.error)
        self.status = Status.ERROR if failed else Status.OK

    async def _pass_all(self, chunks: AsyncIterator[bytes]) -> None:
        number = 0
        async for chunk in chunks:
            await self._pass(chunk)
            number += 1
            if number % BURST == 0:
                await asyncio.sleep(0)

    async def _pass(self, chunk: bytes) -> None:
        """The client first, then the tap."""
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self.tap is not None:
            self._listen(self.tap.feed, chunk)

    def _listen(self, hear: Callable[..., None], *chunk: bytes) -> None:
        """Let the tap hear something. What goes wrong there costs us a sample, and no client its answer."""
        try:
            hear(*chunk)
        except Exception as error:
            self.tap = None
            self.relay.failed("tap", error)

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.started = True
        spelled = [(Spelled(name), value) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": spelled})

    async def _end(self, body: bytes = b"") -> None:
        self.ended = True
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def _changes(self, kind: bytes, *, plain: bool) -> list[Change]:
        """What is to be changed in this answer on its way; nothing, for nearly all."""
        stream, changes = kind.startswith(b"text/event-stream"), list[Change]()
        if self.choice is not None and self.choice.rename and plain and (stream or b"json" in kind):
            changes.append(Renamer(*self.choice.rename))
        if self.view is not None and plain and not stream:
            changes.append(_Whole(partial(self.view.shown, self.scope["method"], self.scope["path"])))
        if self.tap is not None and self.relay.annotate:
            note = self._note()
            changes.append(Annotator(note) if stream else _Whole(lambda body: annotated_document(body, note)))
        return changes

    async def _pass_changed(
        self,
        chunks: AsyncIterator[bytes],
        status: int,
        headers: list[Header],
        changes: list[Change],
        *,
        stream: bool,
    ) -> None:
        if not stream:
            held, whole = await _held(chunks, ANNOTATE_LIMIT_BYTES)
            body = _through(changes, held, last=True) if whole else held
            await self._start(status, with_length(headers, len(held), len(body)) if whole else headers)
            if self.tap is not None:
                self._listen(self.tap.feed, held)
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            await self._pass_all(chunks)
            return
        await self._start(status, headers)
        try:
            async for chunk in chunks:
                if self.tap is not None:
                    self._listen(self.tap.feed, chunk)
                await self._send_some(_through(changes, chunk))
        except DiedError:  # what was held back for a change has come, and is the client's
            await self._send_some(_through(changes, b"", last=True))
            raise
        await self._send_some(_through(changes, b"", last=True))

    async def _send_some(self, data: bytes) -> None:
        if data:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    def _decision_headers(self) -> list[Header]:
        if self.choice is None:
            return []
        return [
            (f"x-dd-{name.replace('_', '-')}".encode(), _shown(value)) for name, value in self._note().items()
        ]

    def _note(self) -> dict[str, object]:
        """The decision in the words of the `X-DD-*` headers and of `dynamic_draft`."""
        choice = self.choice
        assert choice is not None
        sent = choice if self.resent is None else self.resent
        decide_us = 0.0 if choice.ticket is None else float(choice.ticket.decide_us)
        return {
            "applied": sent.applied,
            "reason": choice.reason,
            "prompt_tokens": None if choice.context is None else choice.context.prompt_tokens,
            "setting": str(sent.arm),
            "decision_us": round(decide_us, 1),
        }

    # --- when something is wrong

    async def answer_ourselves(self, status: int, message: str, headers: tuple[Header, ...] = ()) -> None:
        body = error_body(self.scope["path"], status, message)
        basic = [
            (b"content-type", b"application/json; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        # The request may not have been read to its end, so the connection cannot be used again.
        await self._start(status, [*basic, (b"connection", b"close"), *headers, *self._decision_headers()])
        await self._end(b"" if self.scope["method"] == "HEAD" else body)

    async def _upstream_absent(self, message: str) -> None:
        self.relay.metrics.inc("upstream_unreachable_total")
        await self.answer_ourselves(502, message, ((b"retry-after", str(RETRY_AFTER_S).encode()),))

    async def _break_off(self, *, ours: bool) -> None:
        """The answer cannot be completed: make that visible, quietly."""
        if not self.started and (ours or self.status is not Status.CLIENT_GONE):
            if self.status is Status.CUT and not ours:
                await self._upstream_absent("llama-server closed the connection in the middle of its answer")
                return
            self.choice = None  # what failed may be in it
            await self.answer_ourselves(502, "the proxy failed to relay this request")
            return
        extension = self.scope.get("extensions", {}).get(EXTENSION)
        if extension is not None:
            extension["abort"]()


async def _ended(*tasks: asyncio.Future[None]) -> None:
    """Wait for cancelled tasks to clean up, also when we are cancelled again meanwhile (a loop that closes does)."""
    while any(not task.done() for task in tasks):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


def _shown(value: object) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return b"unknown" if value is None else str(value).encode()
