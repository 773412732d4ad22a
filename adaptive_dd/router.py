"""Presets: settings as aliases of a llama-server in router mode, and the router seen as one model.

What is rewritten, and why: `model` in generating requests (the alias picks the setting), `"model":"ALIAS"` in their
answers, the entries of the family in the model list, and `model=` in the query of GET routes that are about one model
(a client that asks for the public name, or for none, gets the baseline's). A client that names an alias itself gets
what it asked for, unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote

from adaptive_dd.actuator import Document, Placed
from adaptive_dd.core.aliases import Family, Preset, as_public, families_of, one_model
from adaptive_dd.core.domain import SERVER, Deployment, Setting
from adaptive_dd.core.wire import Scan, replace_value
from adaptive_dd.errors import UpstreamError
from adaptive_dd.replicas import ByPlace
from adaptive_dd.upstream import Header, Upstream

log = logging.getLogger("adaptive_dd.actuator")

# What the router says for a preset that is gone (400 "not loaded", 500 "proxy error") or is coming (503).
UNWILLING = frozenset({400, 500, 502, 503, 504})
# GET routes of the router that want a model named, where one server would not.
ABOUT_ONE_MODEL = (b"/props", b"/slots", b"/metrics", b"/lora-adapters")
# A large model from a slow disk takes minutes; longer than this, and something is wrong.
LOAD_S = 600.0
LOAD_POLL_S = 0.25


class Presets(ByPlace):
    """Settings as presets of a llama-server in router mode, chosen by the body's `model`.

    public: the model's name for clients; empty for the only one that has presets, or the one that has most.
    """

    name = "presets"

    def __init__(
        self,
        upstream: Upstream,
        baseline: Setting = SERVER,
        *,
        public: str = "",
        headers: Iterable[Header] = (),
        cap: int | None = None,
    ) -> None:
        super().__init__(baseline)
        self._cap = cap
        self.home = upstream
        self.family = Family(public, ())
        self._configured, self._wanted = baseline, public
        self._headers = tuple(headers)
        self._arms: dict[Setting, Preset] = {}
        self._said: set[str] = set()

    def all_arms(self) -> tuple[Setting, ...]:
        """Those whose presets do what they are called."""
        return tuple(self._arms)

    def deployment(self, found: Deployment) -> Deployment:
        """With the model behind the presets, and how they draft: a router's own properties name neither."""
        kinds = sorted({preset.spec_type for preset in self._arms.values()} - {"", "none"})
        named = self.family.public or found.model
        return replace(super().deployment(found), model=named, spec_type=",".join(kinds) or found.spec_type)

    async def refresh(self) -> bool:
        """Ask the router which presets it has and which are loaded."""
        try:
            status, models = await self.home.ask("GET", "/models", headers=self._headers)
        except UpstreamError:
            return self._found(())
        return self._read(families_of(models)) if status == 200 else self._found(())

    def _read(self, families: Sequence[Family]) -> bool:
        fitting = [family for family in families if self._wanted in ("", family.public)]
        if not fitting:
            self._say(
                f"the router has no presets{f' of {self._wanted!r}' if self._wanted else ''}; see `adaptive-dd presets`"
            )
            return self._found(())
        self.family = max(fitting, key=lambda family: (len(family.presets), family.public))
        for preset in self.family.presets:
            if fault := self._fault(preset):
                self._say(f"preset {preset.alias!r} is no arm: {fault}")
        self._arms = {preset.setting: preset for preset in self.family.presets if not self._fault(preset)}
        self._settle_baseline()
        return self._found([arm for arm, preset in self._arms.items() if preset.resident])

    def _fault(self, preset: Preset) -> str:
        too_deep = self._cap is not None and (preset.setting.n_max or 0) > self._cap
        return preset.fault or (f"it is deeper than the cap {self._cap}" if too_deep else "")

    def _settle_baseline(self) -> None:
        """As configured; else the preset that the router itself plays for the public name, else the first one."""
        if self._configured in self._arms:
            return
        if self._configured != SERVER:
            shown = " ".join(str(arm) for arm in self._arms)
            self._say(f"baseline {self._configured} is none of the presets ({shown})")
        at_home = [arm for arm, preset in self._arms.items() if preset.alias == self.family.home]
        self.baseline = next(iter([*at_home, *self._arms]), SERVER)

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.warning("presets: %s", line)

    def _alias(self, arm: Setting) -> str:
        """The alias that plays an arm; the baseline's for SERVER and for what is no arm; empty: none known."""
        preset = self._arms.get(arm) or self._arms.get(self.baseline)
        return preset.alias if preset else ""

    def wishes(self, scanned: Scan, *, force: bool = False) -> tuple[Setting | None, str]:
        """An alias that the client names is its own choice; a model beside the family is none of ours."""
        named = _model_of(scanned)
        for preset in self.family.presets:
            if preset.alias == named:
                return preset.setting, ""
        if self.family.presets and named not in ("", self.family.public):
            return None, "other-model"
        return super().wishes(scanned, force=force)

    def own(self, body: bytes, scanned: Scan) -> tuple[Document, bytes]:
        """For the baseline's preset, as the router wants a name that it knows."""
        placed = self.place(body, scanned, self.baseline)
        if placed.body is body:
            return scanned.document, body
        return {**scanned.document, "model": self._alias(self.baseline)}, placed.body

    def place(self, body: bytes, scanned: Scan, arm: Setting, *, force: bool = False) -> Placed:
        """Write the arm's alias over the public name in `model` (or add it where it is missing)."""
        named, read = _model_of(scanned), scanned.close > 0 and not scanned.untouchable
        if not read or not self._arms or named not in ("", self.family.public):
            pinned = [preset.setting for preset in self.family.presets if preset.alias == named]
            return Placed(body, self.home, pinned[0] if pinned else SERVER, bool(pinned))
        played = arm if arm in self._arms else self.baseline
        other = self._other_than(played)
        placed = self._placed(body, scanned, played)
        if other is None:
            return placed
        return replace(placed, retry=self._placed(body, scanned, other), unwilling=UNWILLING)

    def _placed(self, body: bytes, scanned: Scan, arm: Setting) -> Placed:
        hidden, public = (self.family.aliases, self.family.public), self.family.public
        if self._alias(arm) == self.family.home and scanned.document.get("model") == public:
            return Placed(
                body, self.home, arm, applied=True, rename=hidden
            )  # the router knows what that means
        try:
            changed = replace_value(body, "model", self._alias(arm), scanned=scanned)
        except ValueError:  # `model` stands twice: which one counts is not ours to guess
            return Placed(body, self.home, SERVER, rename=hidden)
        return Placed(changed, self.home, arm, applied=True, rename=hidden)

    # --- what clients see of the router

    def concerns(self, method: str, path: str) -> bool:
        """Whether a request that does not generate, or its answer, has something to hide."""
        told = path.endswith("/models") or path.encode().endswith(ABOUT_ONE_MODEL)
        return method == "GET" and told and bool(self._arms)

    def target_for(self, method: str, target: bytes) -> bytes:
        """The request target with the baseline's alias as `model`, for GET routes that need one and name none."""
        path, _, query = target.partition(b"?")
        if method != "GET" or not path.endswith(ABOUT_ONE_MODEL) or not self._arms:
            return target
        alias = quote(self._alias(self.baseline), safe="").encode()
        parts = [part for part in query.split(b"&") if part]
        named = [part for part in parts if part.startswith(b"model=")]
        if named and unquote(named[0].removeprefix(b"model=").decode("latin-1")) != self.family.public:
            return target
        return path + b"?" + b"&".join([part for part in parts if part not in named] + [b"model=" + alias])

    def shown(self, method: str, path: str, body: bytes) -> bytes:
        """An answer of the router with the aliases out of sight: the model list, and what is about one model."""
        if method != "GET" or not self._arms:
            return body
        alias = self._alias(self.baseline)
        if path.endswith("/models"):
            return one_model(body, self.family, alias)
        return as_public(body, alias, self.family.public) if path.encode().endswith(ABOUT_ONE_MODEL) else body

    # --- loading, which costs

    def missing(self) -> tuple[Setting, ...]:
        """Arms whose preset is not loaded and has not failed."""
        return tuple(
            arm for arm, preset in self._arms.items() if arm not in self._answering and not preset.failed
        )

    async def has_room(self) -> bool:
        """Whether the router can load one more preset without unloading another."""
        try:
            status, props = await self.home.ask("GET", "/props", headers=self._headers)
        except UpstreamError:
            return False
        most = props.get("max_instances") if status == 200 and isinstance(props, dict) else None
        return isinstance(most, int) and (most <= 0 or len(self._answering) < most)

    async def load(self, arm: Setting, *, clock_s: Callable[[], float] = time.monotonic) -> float:
        """Have the router load an arm's preset, and wait for it: the milliseconds that took.

        Raises UpstreamError when the router will not, or when it takes longer than LOAD_S. Call it only when nobody
        is waiting: loading takes memory, and time from every other preset.
        """
        alias, began_s = self._alias(arm), clock_s()
        status, _ = await self.home.ask("POST", "/models/load", {"model": alias}, self._headers)
        if status != 200:
            raise UpstreamError(f"the router will not load {alias!r} (status {status})")
        while clock_s() - began_s < LOAD_S:
            await self.refresh()
            if arm in self._answering:
                return 1000.0 * (clock_s() - began_s)
            if arm in self._arms and self._arms[arm].failed:
                break
            await asyncio.sleep(LOAD_POLL_S)
        raise UpstreamError(f"{alias!r} did not load within {LOAD_S:g} s")


def _model_of(scanned: Scan) -> str:
    """The model that a body names; empty where it names none, or something that is no name."""
    named = scanned.document.get("model")
    return named if isinstance(named, str) else ""
