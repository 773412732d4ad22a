"""Headers across a proxy: what belongs to one connection ends here, what belongs to the message goes on, in its order.

Pure functions on raw pairs. The rules are RFC 9110 section 7.6 (what an intermediary forwards) and RFC 9112 section 6
(one framing per message).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Also the proxy's own business: the host is the upstream's, the framing ours, and `continue` we have said already.
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"http2-settings"}
# No server may send these in a value, and no HTTP server lets them through.
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def value_of(headers: Iterable[Header], wanted: bytes) -> bytes | None:
    """The first value of a header (its name in lower case), without the spaces around it."""
    for name, value in headers:
        if name.lower() == wanted:
            return value.strip(b" \t")
    return None


def has_body(headers: Sequence[Header]) -> bool:
    """Whether a request announces a body, be it an empty one."""
    return any(value_of(headers, name) is not None for name in (b"content-length", b"transfer-encoding"))


def wants_websocket(headers: Sequence[Header]) -> bool:
    """Whether a request asks for a websocket."""
    return b"websocket" in _tokens(headers, b"upgrade") and b"upgrade" in _tokens(headers, b"connection")


def unknown_coding(headers: Sequence[Header]) -> bool:
    """Whether the body is in a transfer coding other than chunks."""
    return (value_of(headers, b"transfer-encoding") or b"chunked").lower() != b"chunked"


def to_upstream(given: Sequence[Header], *, body_bytes: int | None, streams: bool) -> list[Header]:
    """A client's headers as they go to the server, with exactly one framing of the body.

    body_bytes   the body's length where it was read, None where it was not
    streams      the body was not read and is passed on as it comes
    """
    drop = _NOT_SENT | _tokens(given, b"connection")
    # Spaces around a value are no part of it, and the client library refuses them.
    headers = [(name, value.strip(b" \t")) for name, value in given if name.lower() not in drop]
    length = value_of(given, b"content-length")
    if body_bytes is not None:
        headers.append((b"content-length", b"%d" % body_bytes))
    elif streams and length is not None:
        headers.append((b"content-length", length))
    elif streams:
        headers.append((b"transfer-encoding", b"chunked"))
    return headers


def to_client(given: Sequence[Header], *, status: int, event_stream: bool) -> list[Header]:
    """A server's headers as they go to the client.

    An event stream also tells proxies in front not to buffer it, where the server does not say so itself.
    """
    names = {name.lower() for name, _ in given}
    drop = _HOP_BY_HOP | _tokens(given, b"connection")
    # With chunks a length is a lie; with these two statuses there is no body for it to be the length of.
    if b"transfer-encoding" in names or status in (204, 304):
        drop = drop | {b"content-length"}
    headers = [pair for pair in given if pair[0].lower() not in drop and not _CONTROL.search(pair[1])]
    if event_stream and b"x-accel-buffering" not in names:
        headers.append((b"x-accel-buffering", b"no"))
    return headers


def with_length(headers: Sequence[Header], before: int, after: int) -> list[Header]:
    """The headers of a body that was `before` and is now `after` bytes long."""
    old, new = b"%d" % before, b"%d" % after
    return [
        (name, new if name.lower() == b"content-length" and value == old else value)
        for name, value in headers
    ]


def _tokens(headers: Iterable[Header], wanted: bytes) -> frozenset[bytes]:
    values = [value for name, value in headers if name.lower() == wanted]
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))
