"""A client on a raw socket, which sees what really came: framing, chunks, times, and whether the end was an end."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Answer:
    """chunks: (seconds since the request, bytes) as they arrived. complete: whether it ended as its framing says."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes = b""
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False
    reset: bool = False

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def value(self, name: str) -> str | None:
        found = self.values(name)
        return found[0] if found else None

    @property
    def json(self) -> object:
        return json.loads(self.body)


class Client:
    """One connection to `port`. Use as a context manager, or close it."""

    def __init__(self, port: int, timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.since = time.monotonic()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave politely (FIN)."""
        self.socket.close()

    def vanish(self) -> None:
        """Leave the hard way (RST)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.since = time.monotonic()
        self.socket.sendall(data)

    def ask(
        self,
        method: str = "POST",
        target: str = "/v1/chat/completions",
        body: bytes | None = b'{"messages": []}',
        *headers: str,
        version: str = "1.1",
    ) -> Answer:
        self.send(request(method, target, body, *headers, version=version))
        return self.answer(method)

    def answer(self, method: str = "POST") -> Answer:
        """Read one answer to its end (or to where it breaks)."""
        answer = self.head()
        try:
            for chunk in self.parts(answer, method):
                answer.chunks.append((time.monotonic() - self.since, chunk))
            answer.complete = True
        except ConnectionResetError:
            answer.reset = True
        except EOFError:
            pass
        answer.body = b"".join(chunk for _, chunk in answer.chunks)
        return answer

    def head(self) -> Answer:
        """Read the head of an answer, past any 1xx."""
        while True:
            while b"\r\n\r\n" not in self.buffer:
                self._more()
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200:
                pairs = [line.partition(":") for line in lines]
                return Answer(status, [(name, value.strip()) for name, _, value in pairs])

    def parts(self, answer: Answer, method: str) -> Iterator[bytes]:
        """The body, as its framing says. Raises EOFError where it breaks off."""
        if method == "HEAD" or answer.status in (204, 304):
            return
        if answer.value("transfer-encoding") == "chunked":
            while size := int(self._until(b"\r\n"), 16):
                yield self._exactly(size)
                self._exactly(2)
            self._exactly(2)
        elif answer.value("content-length") is not None:
            yield self._exactly(int(answer.value("content-length") or 0))
        else:
            if self.buffer:
                data, self.buffer = self.buffer, b""
                yield data
            while data := self.socket.recv(65536):
                yield data

    def answer_body(self, answer: Answer | None = None) -> int:
        """Read a chunked body and forget it; how long it was."""
        answer = answer or Answer(200, [("transfer-encoding", "chunked")])
        return sum(len(part) for part in self.parts(answer, "POST"))

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError
        self.buffer += data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            self._more()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def at_eof(self) -> bool:
        """Whether the other side closes, with nothing more to say."""
        with contextlib.suppress(ConnectionResetError):
            return self.buffer == b"" and self.socket.recv(1) == b""
        return True


def request(method: str, target: str, body: bytes | None, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: proxy", *headers]
    framed = any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers)
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def ask(port: int, *args: object, **more: object) -> Answer:
    """One request on a connection of its own."""
    with Client(port) as client:
        return client.ask(*args, **more)  # type: ignore[arg-type]
