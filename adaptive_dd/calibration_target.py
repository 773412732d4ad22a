"""The server as a calibration sees it: accepted or refused in one line, and one way to be asked under a setting.

Settings reach it as request fields, as presets of a router (an alias for each), or not at all, when it was launched
with the one setting that is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from adaptive_dd.core.aliases import Family, families_of
from adaptive_dd.core.domain import SERVER, Listens, ServerFacts, Setting
from adaptive_dd.core.identity import Identity, identity_of
from adaptive_dd.core.verdict import DOES
from adaptive_dd.core.wire import setting_fields
from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.probe import Headers, idle_slot, probe
from adaptive_dd.upstream import Upstream
from adaptive_dd.watch import look

# The slowest answer worth waiting for: a long prompt on a slow machine takes minutes before its first token.
ANSWER_S = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server that can be calibrated.

    slot      the slot to use, None where any will do
    launched  it plays the one setting it was launched with, whatever is asked
    aliases   the preset of each setting, where it is a router; the only settings there are
    """

    upstream: Upstream
    headers: Headers
    who: Identity
    facts: ServerFacts
    slot: int | None = None
    launched: bool = False
    aliases: Mapping[Setting, str] = field(default_factory=dict)

    @property
    def model_to_name(self) -> str:
        """The model that our own small calls must name; empty where none is needed."""
        return next(iter(self.aliases.values()), self.who.ask_as)

    async def ask(self, body: Mapping[str, object], setting: Setting) -> tuple[int, object]:
        """One answer of `/completion` under a setting: (status, JSON)."""
        named = self.aliases.get(setting, self.who.ask_as)
        how = {} if self.launched or self.aliases else setting_fields(setting)
        whole = {
            **body,
            **({"model": named} if named else {}),
            **({"id_slot": self.slot} if self.slot is not None else {}),
            **how,
        }
        return await self.upstream.ask("POST", "/completion", whole, self.headers, timeout_s=ANSWER_S)

    async def busy(self) -> bool:
        """Whether somebody else's request is under way. A router does not tell."""
        return not self.aliases and await idle_slot(self.upstream, self.who, self.headers) is False


async def meet(
    upstream: Upstream,
    headers: Headers,
    *,
    longest_tokens: int,
    launch_setting: Setting | None,
    say: Callable[[str], None],
) -> Target:
    """Find out what the server is. Raises UsageError or UpstreamError where it cannot be calibrated.

    longest_tokens: what one slot must hold, prompt and answer.
    """
    sight = await look(upstream, headers)
    if sight.who is None:
        raise UpstreamError(f"{upstream.base_url}: {sight.why or 'does not answer'}")
    if sight.needs_key:
        raise UpstreamError(f"{upstream.base_url}: {sight.why}")
    if sight.who.router:
        target = await _router(upstream, headers, sight.who)
        _check_room(target.who, longest_tokens)
        return target
    _check_room(sight.who, longest_tokens)
    slot = await idle_slot(upstream, sight.who, headers)
    if slot is False:
        raise UpstreamError(f"{upstream.base_url} is busy with other requests; calibrate when it is idle")
    if launch_setting is not None:
        facts = ServerFacts(Listens.IGNORES, launch_setting.n_max, None, sight.who.spec_type, sight.who.slots)
        return Target(upstream, headers, sight.who, facts, slot, launched=True)
    say("asking the server what it does with per-request settings")
    return Target(upstream, headers, sight.who, await _facts(upstream, headers, sight.who), slot)


def _check_room(who: Identity, longest_tokens: int) -> None:
    if who.n_ctx is not None and longest_tokens > who.n_ctx:
        raise UsageError(
            f"--contexts: the longest, with its answer, takes {longest_tokens} tokens, which is beyond the server's "
            f"{who.n_ctx} per slot; expected at most {who.n_ctx}"
        )


async def _facts(upstream: Upstream, headers: Headers, who: Identity) -> ServerFacts:
    """What the server does with settings; raises UsageError where that is nothing to calibrate by."""
    found = await probe(upstream, who, [], nonce=time.time_ns() & 0x7FFFFFFF, headers=headers)
    listens = found.facts.listens
    if listens in (Listens.HONOURS, Listens.LOWERS_N):
        return found.facts
    if listens is Listens.UNKNOWN:
        raise UpstreamError(f"{upstream.base_url}: {found.trouble or DOES[listens]}")
    raise UsageError(
        f"{upstream.base_url} {DOES[listens]}, so settings cannot be compared on it; launch it with presets "
        "(`adaptive-dd presets`) and calibrate the router, or measure one launch after another with "
        "--launch-setting n2,p0.0 and join them with `adaptive-dd frontier merge`"
    )


# --- routers -------------------------------------------------------------------------------------------------


async def _router(upstream: Upstream, headers: Headers, router: Identity) -> Target:
    """The largest family of presets that is loaded, as one server."""
    status, models = await upstream.ask("GET", "/models", headers=headers)
    families = families_of(models) if status == 200 else ()
    if not families:
        raise UsageError(
            f"{upstream.base_url} is a router over several models without presets of ours; expected some as "
            "`adaptive-dd presets` writes them, or the address of a server behind it"
        )
    family = max(families, key=lambda one: (len(one.presets), one.public))
    aliases = {p.setting: p.alias for p in family.presets if p.resident and not p.fault}
    if len(aliases) < 2:
        loaded = ", ".join(aliases.values()) or "none"
        raise UsageError(
            f"{upstream.base_url}: presets loaded are {loaded}; expected at least two to compare"
        )
    first = next(iter(aliases.values()))
    _, props = await upstream.ask("GET", f"/props?model={quote(first)}", headers=headers)
    behind = identity_of(props) or router
    who = replace(
        behind, model=family.public, build=behind.build or router.build, router=False, has_slots=False
    )
    cap = max(setting.n_max or 0 for setting in aliases)
    spec_type = next((p.spec_type for p in family.presets if p.spec_type not in ("", "none")), "")
    facts = ServerFacts(Listens.HONOURS, cap, None, spec_type, behind.slots)
    return Target(upstream, headers, who, facts, aliases=_with_home(family, aliases))


def _with_home(family: Family, aliases: dict[Setting, str]) -> dict[Setting, str]:
    """`server` is the preset that the router itself plays for the public name, where there is one."""
    return {**aliases, SERVER: family.home} if family.home in aliases.values() else aliases
