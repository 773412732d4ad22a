"""Socket options that both of our sides share."""

from __future__ import annotations

import socket

# A peer that lost its power or its network sends no goodbye. Silence is normal here (a long prompt), so only the
# kernel's probes can tell: after 30 s of it, every 10 s, and three unanswered ones are the end.
_WISHED = (("SO_KEEPALIVE", 1), ("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

KEEPALIVE: tuple[tuple[int, int, int], ...] = tuple(
    (socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in _WISHED
    if hasattr(socket, name)  # some systems spell the times otherwise; they keep their own
)
