"""The client's side of a request: its target as it was written, its body, and the moment it leaves.

A body that is to be read comes whole, one that is not (or is too long) as a stream: it can then be sent once only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from adaptive_dd.core.headers import has_body, value_of
from adaptive_dd.httpd import EXTENSION
from adaptive_dd.seams import Receive, Scope


class ClientGoneError(Exception):
    """The client left while its request was being read."""


class Incoming:
    """One request as the client sends it."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self._read = asyncio.Event()

    async def leaves(self) -> None:
        """Returns when the client goes; nothing is looked for before its request was read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def body(self, *, wanted: bool, limit_bytes: int) -> bytes | AsyncIterator[bytes] | None:
        """The body: bytes where it is wanted and within the limit, else a stream, None where there is none.

        Raises ClientGoneError when the client leaves while sending it.
        """
        headers = self.scope["headers"]
        if not has_body(headers):
            self._read.set()
            return None
        length = value_of(headers, b"content-length")
        if not wanted or (length is not None and int(length) > limit_bytes):
            return self._stream([])
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= limit_bytes:
            part, more = await self._next_part()
            parts.append(part)
            size += len(part)
        # Over the limit is over the limit, also where all of it had come already.
        if more or size > limit_bytes:
            return self._stream(parts, more=more)
        self._read.set()
        return b"".join(parts)

    async def _next_part(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message.get("body", b""), message.get("more_body", False)

    async def _stream(self, parts: list[bytes], *, more: bool = True) -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        while more:
            part, more = await self._next_part()
            if part:
                yield part
        self._read.set()

    def target(self) -> bytes:
        """What the request line named, byte for byte."""
        extension = self.scope.get("extensions", {}).get(EXTENSION)
        if extension is not None and extension["raw_target"].startswith((b"/", b"*")):
            target: bytes = extension["raw_target"]
            return target
        path: bytes = self.scope.get("raw_path") or self.scope["path"].encode()
        query: bytes = self.scope["query_string"]
        return path + b"?" + query if query else path
