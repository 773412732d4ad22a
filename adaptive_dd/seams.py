"""The relay's seams: what it asks of the parts that decide, show and change. Whoever fits may be put in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from adaptive_dd.actuator import Placed
from adaptive_dd.core.domain import Context, Outcome, Setting
from adaptive_dd.core.headers import Header
from adaptive_dd.core.wire import Route
from adaptive_dd.upstream import Upstream

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Choice(Protocol):
    """What to send for one generating request, and why."""

    @property
    def body(self) -> bytes: ...  # noqa: D102
    @property
    def ticket(self) -> Any: ...  # noqa: D102
    @property
    def context(self) -> Context | None: ...  # noqa: D102
    @property
    def arm(self) -> Setting: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102
    @property
    def upstream(self) -> Upstream: ...  # noqa: D102
    @property
    def applied(self) -> bool: ...  # noqa: D102
    @property
    def by_arrival(self) -> bool: ...  # noqa: D102
    @property
    def retry(self) -> Placed | None: ...  # noqa: D102
    @property
    def unwilling(self) -> frozenset[int]: ...  # noqa: D102
    @property
    def rename(self) -> tuple[tuple[str, ...], str] | None: ...  # noqa: D102


class View(Protocol):
    """A server that is shown to clients otherwise than it is, on routes that do not generate."""

    def concerns(self, method: str, path: str) -> bool:
        """Whether anything about this request or its answer is changed."""

    def target_for(self, method: str, target: bytes) -> bytes:
        """The request target to send instead."""

    def shown(self, method: str, path: str, body: bytes) -> bytes:
        """The answer's body to show instead."""


class Chooser(Protocol):
    """Who decides. `choose` may raise; `finish` never does."""

    async def choose(
        self, route: Route, headers: list[Header], body: bytes | None, *, path: str = ""
    ) -> Choice:
        """Decide. `body` is None where it is too large to read, or no JSON by its route."""
        ...

    def finish(self, choice: Any, outcome: Outcome) -> None:
        """Exactly once for each choice."""
        ...


class Change(Protocol):
    """Changes an answer on its way. `feed` gives what can go out now, `end` the rest."""

    def feed(self, chunk: bytes) -> bytes: ...  # noqa: D102
    def end(self) -> bytes: ...  # noqa: D102
