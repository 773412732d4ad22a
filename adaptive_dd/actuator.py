"""How a setting reaches the server: one seam, three ways, the same promises.

    Fields     as `speculative.*` in the body: for builds that honour them; any setting up to the cap
    Presets    as the alias of a router's preset, in the body's `model`: the aliases that are loaded  (router.py)
    Replicas   as the server that was launched with it, by its URL: those that answer  (replicas.py)

What the relay and the chooser need of them is `Actuator`; nobody else knows which one is at work. An actuator never
fails a request: what it cannot play goes out as it came, to the baseline's place, and `Placed.applied` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from adaptive_dd.core.aliases import Renamer
from adaptive_dd.core.domain import SERVER, Context, Deployment, Outcome, ServerFacts, Setting
from adaptive_dd.core.wire import Scan, client_override, setting_fields, splice
from adaptive_dd.upstream import Upstream

Document = Mapping[str, object]

# The server's ways of saying that it does not like a field; 500 is what llama-server answers to a value it throws on.
REFUSALS = frozenset({400, 422, 500})


@dataclass(frozen=True, slots=True)
class Placed:
    """A request ready to go out.

    arm       the setting that acts on it, as far as known; SERVER for "as launched"
    applied   whether it acts because we (or the client) said so
    retry     how to try once more, where this place turns out dead or unwilling before a byte of answer came
    unwilling  statuses that call for the retry
    rename    aliases to write the public name over in the answer, with that name; None where there are none to hide
    """

    body: bytes
    upstream: Upstream
    arm: Setting
    applied: bool = False
    retry: Placed | None = None
    unwilling: frozenset[int] = frozenset()
    rename: tuple[tuple[str, ...], str] | None = None

    def renamer(self) -> Renamer | None:
        """A fresh rewriter for the answer, None where nothing has to be rewritten."""
        return None if self.rename is None else Renamer(*self.rename)


class Actuator(Protocol):
    """What choosing and relaying need to know about how settings reach the server."""

    @property
    def name(self) -> str:
        """`fields`, `presets` or `replicas`."""

    @property
    def takes_fields(self) -> bool:
        """Whether a setting acts only on routes that take `speculative.*`."""

    @property
    def home(self) -> Upstream:
        """Where everything goes that no arm was chosen for."""

    def settings(self) -> tuple[Setting, ...] | None:
        """What can be played now; None for any setting up to the cap."""

    @property
    def baseline(self) -> Setting:
        """The baseline: in place of SERVER, what that is here, as soon as it is known."""

    def facts(self, found: ServerFacts) -> ServerFacts:
        """What is true of server and actuator together."""

    def deployment(self, found: Deployment) -> Deployment:
        """The scope of what is learned, by server and actuator together."""

    def wishes(self, scanned: Scan, *, force: bool = False) -> tuple[Setting | None, str]:
        """What the client chose itself (None: nothing), and a reason of REASONS not to place it (empty: none)."""

    def own(self, body: bytes, scanned: Scan) -> tuple[Document, bytes]:
        """The client's request, parsed and as bytes, as our own calls (counting its prompt) must send it to `home`."""

    def informed(self, context: Context) -> Context:
        """The context with what only the actuator knows: playable arms, and what a switch would cost."""

    def place(self, body: bytes, scanned: Scan, arm: Setting, *, force: bool = False) -> Placed:
        """Prepare a request to be played with `arm`. Never raises."""

    def finished(self, placed: Placed, context: Context, outcome: Outcome) -> None:
        """Learn from how it ended. Never raises."""

    def failed(self, placed: Placed) -> None:
        """The place was dead or unwilling, and the retry was taken: do not choose it before the next look."""

    async def refresh(self) -> bool:
        """Look which arms can be played. True when that changed. Never raises for a server that is not there."""


# --- by fields in the body -----------------------------------------------------------------------------------


class Fields:
    """Settings as request fields, for a server that honours them."""

    name = "fields"
    takes_fields = True

    def __init__(self, upstream: Upstream, baseline: Setting = SERVER) -> None:
        self.home = upstream
        self.baseline = baseline

    def settings(self) -> None:
        """Any setting up to the cap."""
        return

    def facts(self, found: ServerFacts) -> ServerFacts:
        """As found: whether fields act is the server's to say."""
        return found

    def deployment(self, found: Deployment) -> Deployment:
        """As found."""
        return found

    def wishes(self, scanned: Scan, *, force: bool = False) -> tuple[Setting | None, str]:
        """The client's own fields."""
        return client_override(scanned), ""

    def own(self, body: bytes, scanned: Scan) -> tuple[Document, bytes]:
        """As it came."""
        return scanned.document, body

    def informed(self, context: Context) -> Context:
        """One server holds every conversation: a switch costs nothing."""
        return context

    def place(self, body: bytes, scanned: Scan, arm: Setting, *, force: bool = False) -> Placed:
        """Splice the arm's fields where the client left them unset."""
        changed = with_setting(body, scanned, arm, force=force)
        if changed == body:
            return Placed(body, self.home, arm, arm != SERVER and arm == client_override(scanned))
        as_it_came = Placed(body, self.home, SERVER)
        return Placed(changed, self.home, arm, applied=True, retry=as_it_came, unwilling=REFUSALS)

    def finished(self, placed: Placed, context: Context, outcome: Outcome) -> None:
        """Nothing to learn."""

    def failed(self, placed: Placed) -> None:
        """A server that refuses fields is the guard's business."""

    async def refresh(self) -> bool:
        """Nothing to look at."""
        return False


def with_setting(body: bytes, scanned: Scan, arm: Setting, *, force: bool) -> bytes:
    """The body with the arm's fields. With force, what the client set beyond them goes back to the launch value."""
    fields: dict[str, int | float | str | None] = {**setting_fields(arm)}
    if force:
        theirs = {member.key for member in scanned.members if member.key.startswith("speculative.")}
        fields = {**dict.fromkeys(theirs), **fields}  # null is read as "not given"
    return splice(body, fields, force=force, scanned=scanned) if fields else body
