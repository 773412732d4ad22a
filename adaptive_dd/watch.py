"""Watch the server: attach when it comes, notice when it comes back as another, find out what it does.

One background task. It reads `/props` (never `/metrics`, whose gauges reset when read; never anything that wakes a
sleeping model), sends a few probes when nobody else is waiting, and tells the engine which deployment it is and what
was found. Where probing is off, impossible or always crowded out, the traffic tells (`core.overheard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from adaptive_dd.core.domain import Deployment, Listens, ServerFacts, Setting, Timings
from adaptive_dd.core.identity import Identity, identity_from_models, identity_of
from adaptive_dd.core.listening import Answer, Findings
from adaptive_dd.core.overheard import Overheard, facts_from, heard, refused
from adaptive_dd.core.verdict import in_one_line, warnings_on
from adaptive_dd.errors import UpstreamError
from adaptive_dd.probe import BUSY, SLOW, Asker, Headers, probe

log = logging.getLogger("adaptive_dd.watch")

# Between looks at a server that answers. `/props` is a few kilobytes, and a change is not urgent.
POLL_S = 5.0
# Between looks at one that does not: soon at first, because it may just be starting.
SOON_S, LATE_S = 0.25, 5.0
# Between attempts to probe a busy server: it may be busy all day, and the traffic tells meanwhile.
CROWDED_S, CROWDED_LATE_S = 2.0, 60.0
# How often to see whether a client came while a probe is under way; the probe then gives way.
GIVE_WAY_S = 0.05
# Rounds of probing that may run out of their time before the server is taken as too slow to ask.
MOST_SLOW = 3
# Traffic may contradict a probe's verdict: ask again, but not for ever.
MOST_REPROBES = 3


class Watched(Protocol):
    """The part of the engine that watching needs."""

    @property
    def in_flight(self) -> int:
        """Requests generating now."""

    def deploy(self, deployment: Deployment, facts: ServerFacts | None = None) -> object:
        """Another model or build answers now."""

    def found(self, facts: ServerFacts) -> object:
        """The server's behaviour became known."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at the server. who: None where it does not answer; why: the reason, or what stands in the way."""

    who: Identity | None
    loading: bool = False
    needs_key: bool = False
    why: str = ""


def auth(api_key: str) -> Headers:
    """Headers of our own requests: the configured key or none, never a client's."""
    return ((b"authorization", b"Bearer " + api_key.encode()),) if api_key else ()


async def look(asker: Asker, headers: Headers) -> Sight:
    """Look once, as cheaply as can be."""
    try:
        status, body = await asker.ask("GET", "/props", headers=headers)
        if status == 503:
            return Sight(None, loading=True, why="it is still loading its model")
        if (who := identity_of(body)) and status == 200:
            return Sight(who)
        keyless = status in (401, 403)
        status, body = await asker.ask("GET", "/v1/models", headers=headers)
        who = identity_from_models(body) if status == 200 else None
        why = "it needs a key (--api-key) for our own requests" if keyless else ""
        return Sight(who or Identity(), needs_key=keyless, why=why)
    except UpstreamError as error:
        return Sight(None, why=str(error))


class Watch:
    """Follows one upstream for one engine. `run` is the task; the rest may be called from the relay, and is cheap.

    up: whether it answered last time, None before the first look. notes: what people should know, newest last.
    """

    def __init__(
        self,
        upstream_url: str,
        asker: Asker,
        engine: Watched,
        *,
        may_probe: bool = True,
        api_key: str = "",
        cap: int | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self.up: bool | None = None
        self.notes: list[str] = []
        self.who: Identity | None = None
        self.facts = ServerFacts()
        self.found: Findings | None = None
        self._url, self._asker, self._engine = upstream_url, asker, engine
        self._may_probe, self._headers, self._cap, self._poll_s = may_probe, auth(api_key), cap, poll_s
        self._answers: list[Answer] = []
        self._overheard = Overheard()
        self._settled = False
        self._reprobes = self._slow = 0
        self._nudged = asyncio.Event()
        self._said = ""

    # --- from the relay -------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Look soon: something about the server seems to have changed (a connection was refused)."""
        self._nudged.set()

    def heard(self, sent: Setting, timings: Timings) -> None:
        """Learn from one answer to a request that went out with `sent`."""
        self._learn(heard(self._overheard, sent, timings))

    def refused(self, sent: Setting) -> None:
        """Learn that the server refused `sent` and took the request without it."""
        self._learn(refused(self._overheard, sent))

    def _learn(self, now: Overheard) -> None:
        if now == self._overheard:
            return
        self._overheard = now
        facts = facts_from(now, self.facts)
        if facts == self.facts:
            return
        if facts.listens is not self.facts.listens and self._settled and self._may_ask_again():
            self._ask_again()
            return
        turned = facts.listens is not self.facts.listens
        self.facts = facts
        self._engine.found(facts)
        if turned:
            self._tell(in_one_line(facts))

    def _may_ask_again(self) -> bool:
        return self._may_probe and self._reprobes < MOST_REPROBES

    def _ask_again(self) -> None:
        self._reprobes += 1
        self._settled, self._answers, self._overheard = False, [], Overheard()
        self._tell("answers contradict what was found out about this server: asking again")
        self.nudge()

    # --- the task -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled. Whatever goes wrong in here is logged and never reaches the relay."""
        wait_s = crowded_s = 0.0
        while True:
            try:
                wait_s, crowded_s = await self._step(wait_s, crowded_s)
            except Exception:
                log.exception("watching the upstream failed; going on")
                wait_s = LATE_S
            self._nudged.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._nudged.wait()

    async def _step(self, wait_s: float, crowded_s: float) -> tuple[float, float]:
        """One look and what follows from it; gives the next wait and the wait for a crowded server."""
        sight = await look(self._asker, self._headers)
        if sight.who is None:
            self._absent(sight)
            return (SOON_S if sight.loading else min(max(SOON_S, 2 * wait_s), LATE_S)), 0.0
        self._attach(sight.who, sight)
        if self._settled or not self._may_probe or sight.who.sleeping or sight.who.router or sight.needs_key:
            return self._poll_s, 0.0
        found = await self._probe(sight.who)
        self._slow += found is not None and found.trouble == SLOW
        crowded = found is None or found.trouble == BUSY or (found.trouble == SLOW and self._slow < MOST_SLOW)
        if found is None or crowded:
            crowded_s = min(max(CROWDED_S, 2 * crowded_s), CROWDED_LATE_S)
            return crowded_s, crowded_s
        self._conclude(found)
        return self._poll_s, 0.0

    def _absent(self, sight: Sight) -> None:
        if self.up is not False or sight.loading:
            self._tell(f"{self._url} is not ready: {sight.why}", once=True)
        self.up = False

    def _attach(self, who: Identity, sight: Sight) -> None:
        """Note who answers; a new model or build is deployed at once, and a restarted one is asked anew."""
        came_back, self.up = self.up is False, True
        known = self.who
        self.who = who
        if known is not None and known.same_run(who):
            if came_back:
                self._tell(f"{self._url} answers again")
            return
        self._settled, self._answers, self._overheard = False, [], Overheard()
        self._reprobes = self._slow = 0
        if known is None or (known.model, known.build) != (who.model, who.build):
            self.facts = ServerFacts(spec_type=who.spec_type, slots=who.slots)
            self._engine.deploy(self._deployment(who), self.facts)
        what = "attached to" if known is None else "a restarted server answers at"
        self._tell(f"{what} {self._url}: model {who.model or 'not named'}, build {who.build or 'not named'}")
        if sight.needs_key or not self._may_probe:
            why = sight.why or "probing is off"
            self._tell(f"not probing it: {why}; what it does with draft settings is learned from the traffic")

    def _deployment(self, who: Identity, cap: int | None = None) -> Deployment:
        return Deployment(self._url, who.model, who.build, cap, spec_type=who.spec_type)

    async def _probe(self, who: Identity) -> Findings | None:
        """Probe, giving way to clients; None when one came. What was answered so far is kept for the next try."""
        if self._engine.in_flight:
            return None
        asking = asyncio.ensure_future(
            probe(
                self._asker,
                who,
                self._answers,
                nonce=secrets.randbits(31),
                headers=self._headers,
                raise_to=lambda cap: self._cap,
                quiet=lambda: not self._engine.in_flight,
            )
        )
        with _cancelling(asking):
            while not asking.done():
                await asyncio.wait({asking}, timeout=GIVE_WAY_S)
                if self._engine.in_flight and not asking.done():
                    return None
            return asking.result()

    def _conclude(self, found: Findings) -> None:
        self._settled, self.found = True, found
        if found.trouble and found.facts.listens is Listens.UNKNOWN:
            self._tell(f"could not find out what this server does with draft settings: {found.trouble}")
            return
        assert self.who is not None
        self.facts = found.facts
        self._engine.deploy(self._deployment(self.who, found.facts.cap), found.facts)
        self._tell(in_one_line(found.facts))
        for line in warnings_on(replace(self.who, sleeping=False), found):
            self._tell(line)

    def _tell(self, line: str, *, once: bool = False) -> None:
        """Log a line and keep it for `/_dd/health`; with once, not the same one twice in a row."""
        if once and line == self._said:
            return
        self._said = line
        log.info("%s", line)
        self.notes = [*self.notes[-9:], line]


@contextlib.contextmanager
def _cancelling(task: asyncio.Future[Findings]) -> Iterator[None]:
    """Cancel the task on the way out: its connection closes, and the server stops generating."""
    try:
        yield
    finally:
        task.cancel()
