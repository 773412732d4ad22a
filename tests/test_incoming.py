"""The client's side of a request, from ASGI messages alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adaptive_dd.httpd import EXTENSION
from adaptive_dd.incoming import ClientGoneError, Incoming

Message = dict[str, Any]
GONE: Message = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def incoming(*messages: Message, headers: tuple[tuple[bytes, bytes], ...] = (), **scope: object) -> Incoming:
    left = list(messages)

    async def receive() -> Message:
        return left.pop(0)

    return Incoming({"headers": list(headers), "path": "/a b", "query_string": b"", **scope}, receive)


CHUNKED = ((b"transfer-encoding", b"chunked"),)


async def read(one: Incoming, *, wanted: bool = True, limit_bytes: int = 8) -> tuple[str, bytes]:
    body = await one.body(wanted=wanted, limit_bytes=limit_bytes)
    if isinstance(body, AsyncIterator):
        return "streamed", b"".join([piece async for piece in body])
    return ("none", b"") if body is None else ("whole", body)


@pytest.mark.parametrize(
    ("wanted", "headers", "found"),
    [
        (True, CHUNKED, ("whole", b"abcd")),
        (False, CHUNKED, ("streamed", b"abcd")),
        (True, ((b"content-length", b"9"),), ("streamed", b"abcd")),
        (True, (), ("none", b"")),
    ],
)
def test_a_body_comes_whole_where_it_is_wanted_and_short_enough(
    wanted: bool, headers: tuple[tuple[bytes, bytes], ...], found: tuple[str, bytes]
) -> None:
    one = incoming(part(b"ab", more=True), part(b"cd"), headers=headers)
    assert asyncio.run(read(one, wanted=wanted)) == found


def test_a_body_over_the_limit_is_not_read_either_where_it_came_in_one_piece() -> None:
    assert asyncio.run(read(incoming(part(b"0123456789"), headers=CHUNKED))) == ("streamed", b"0123456789")
    pieces = incoming(part(b"01234", more=True), part(b"56789"), headers=CHUNKED)
    assert asyncio.run(read(pieces)) == ("streamed", b"0123456789")


def test_what_was_read_of_a_body_that_grows_too_long_comes_first_in_its_stream() -> None:
    parts = [part(b"01234", more=True), part(b"56789", more=True), part(b"", more=True), part(b"end")]
    assert asyncio.run(read(incoming(*parts, headers=CHUNKED))) == ("streamed", b"0123456789end")


@pytest.mark.parametrize("wanted", [True, False])
def test_a_client_that_leaves_while_it_sends_is_gone(wanted: bool) -> None:
    one = incoming(part(b"ab", more=True), GONE, headers=CHUNKED)
    with pytest.raises(ClientGoneError):
        asyncio.run(read(one, wanted=wanted))


def test_leaving_is_looked_for_only_once_the_request_was_read() -> None:
    async def play() -> bool:
        one = incoming(part(b"ab"), GONE, headers=CHUNKED)
        watch = asyncio.ensure_future(one.leaves())
        await asyncio.sleep(0)
        early = watch.done()
        await read(one)
        await asyncio.wait_for(watch, 5.0)
        return early

    assert asyncio.run(play()) is False


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        ({"extensions": {EXTENSION: {"raw_target": b"/a%20b?x=1"}}, "raw_path": b"/other"}, b"/a%20b?x=1"),
        ({"extensions": {EXTENSION: {"raw_target": b"http://h/x"}}, "raw_path": b"/x"}, b"/x"),
        ({"raw_path": b"/a%20b", "query_string": b"y=2"}, b"/a%20b?y=2"),
        ({}, b"/a b"),
    ],
)
def test_the_target_is_what_the_request_line_named(scope: Message, target: bytes) -> None:
    assert incoming(**scope).target() == target
