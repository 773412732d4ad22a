"""Keeping an actuator true while serving: which arms answer, which actuator fits, and loading what is missing.

One background task. It looks every few seconds (and at once when a place failed), and when nobody has been waiting for
a while it has the router load one missing preset. A look is one small request per server; nothing of it wakes a
sleeping model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from adaptive_dd.actuator import Actuator, Fields
from adaptive_dd.config import Config
from adaptive_dd.core.domain import Setting
from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.replicas import Replicas
from adaptive_dd.router import Presets
from adaptive_dd.upstream import Header, Upstream

log = logging.getLogger("adaptive_dd.actuator")

LOOK_S = 5.0
# Loading takes memory and bandwidth from everybody: only after this long without a request.
IDLE_S = 20.0
# How often to see whether somebody came while a preset is loading.
GLANCE_S = 0.1
# Between attempts at the same preset, doubled each time: one that does not fit will not fit in a second either.
FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 3600.0


def actuator_for(
    config: Config, upstream: Callable[[str], Upstream], headers: Iterable[Header]
) -> tuple[Actuator, Presets | None]:
    """The actuator to start with, and the presets that may take over from it. Raises UsageError."""
    if config.arm:
        deep = [arm for arm, _ in config.arm if config.cap is not None and (arm.n_max or 0) > config.cap]
        if deep:
            raise UsageError(
                f"arm: {deep[0]} is deeper than --cap {config.cap}; expected n up to {config.cap}"
            )
        return Replicas({arm: upstream(url) for arm, url in config.arm}, config.baseline), None
    server = upstream(config.upstream)
    if config.actuator == "fields":
        return Fields(server, config.baseline), None
    presets = Presets(server, config.baseline, headers=headers, cap=config.cap)
    if config.actuator == "presets":
        return presets, None
    return Fields(server, config.baseline), presets


class Busy(Protocol):
    """The part of the engine that tells whether somebody is waiting."""

    @property
    def in_flight(self) -> int:
        """Requests generating now."""


class Tend:
    """Looks after one actuator, or picks between two: `presets` takes over from `actuator` once a router has some.

    router()            whether a router is known to answer, so that it is worth asking for presets
    changed(actuator)   called after a look that changed what can be played, and when presets take over
    charged(ms)         called with the time in which a load may have held up requests that came meanwhile
    """

    def __init__(
        self,
        actuator: Actuator,
        busy: Busy,
        *,
        presets: Presets | None = None,
        router: Callable[[], bool] = lambda: True,
        charged: Callable[[float], object] = lambda _: None,
        look_s: float = LOOK_S,
        idle_s: float = IDLE_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.actuator = actuator
        self._busy, self._presets = busy, presets
        self._router, self._charged = router, charged
        self.changed: Callable[[Actuator], object] = lambda _: None
        self._look_s, self._idle_s, self._clock_s = look_s, idle_s, clock_s
        self._idle_since_s: float | None = None
        self._waits: dict[Setting, tuple[float, float]] = {}
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """Look soon: a place failed."""
        self._nudged.set()

    async def run(self) -> None:
        """Look until cancelled. Whatever goes wrong is logged and never reaches a request."""
        while True:
            try:
                await self.look()
                await self.load_one()
            except Exception:
                log.exception("looking after the actuator failed; going on")
            self._nudged.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._nudged.wait()

    async def look(self) -> None:
        """Look once; tell where something changed."""
        changed = await self.actuator.refresh()
        if self._presets is not None and self._presets is not self.actuator and self._router():
            await self._presets.refresh()
            if self._presets.family.presets:
                self.actuator, changed = self._presets, True
                log.info(
                    "a router with presets of %r answers: settings are played as presets",
                    self._presets.family.public,
                )
        if changed:
            self.changed(self.actuator)

    async def load_one(self) -> None:
        """Have one missing preset loaded, where there is room for it and nobody has been waiting for a while."""
        now_s = self._clock_s()
        self._idle_since_s = None if self._busy.in_flight else (self._idle_since_s or now_s)
        if not isinstance(self.actuator, Presets) or self._idle_since_s is None:
            return
        due = [arm for arm in self.actuator.missing() if now_s >= self._waits.get(arm, (0.0, 0.0))[0]]
        if not due or now_s - self._idle_since_s < self._idle_s or not await self.actuator.has_room():
            return
        _, waited_s = self._waits.get(due[0], (0.0, FIRST_WAIT_S / 2.0))
        wait_s = min(2.0 * waited_s, LONGEST_WAIT_S)
        self._waits[due[0]] = (now_s + wait_s, wait_s)
        loading, disturbed_ms = asyncio.ensure_future(self.actuator.load(due[0])), 0.0
        try:
            while not loading.done():
                await asyncio.wait({loading}, timeout=GLANCE_S)
                disturbed_ms += 1000.0 * GLANCE_S if self._busy.in_flight else 0.0
            took_ms = loading.result()
        except UpstreamError as error:
            log.warning("presets: %s; trying again in %.0f s", error, wait_s)
            return
        finally:
            loading.cancel()
            if disturbed_ms:
                self._charged(disturbed_ms)
        log.info("presets: %s loaded in %.1f s", due[0], took_ms / 1000.0)
        self.changed(self.actuator)
