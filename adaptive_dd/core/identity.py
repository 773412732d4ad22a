"""Who answers behind the upstream's address, as far as the server tells: its `/props`, or `/v1/models` without a key.

Build strings are no help alone (many builds call themselves `b0-unknown`), so a restart is told from a value that
every process draws anew (`media_marker`), and a change from anything in here that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself.

    model      path of the model, else its alias
    build      build string
    run        drawn anew by each process; empty where the build has none
    slots      requests that it can work on at once
    n_ctx      context size of one slot, None where it does not say
    spec_type  how it drafts, as far as told (`draft-simple`, `draft-mtp`, `ngram-mod`, ...)
    sleeping   its model is unloaded for now; asking more would wake it
    router     it hands requests to other servers, one per model
    has_slots  `/slots` may be asked
    autotune   it tunes its own draft settings (a second controller)
    ask_as     model name that our own requests must carry, empty where none is needed
    temperature, top_k  what it samples with where a request says nothing, None where it does not say
    """

    model: str = ""
    build: str = ""
    run: str = ""
    slots: int = 1
    n_ctx: int | None = None
    spec_type: str = ""
    sleeping: bool = False
    router: bool = False
    has_slots: bool = False
    autotune: bool = False
    ask_as: str = ""
    temperature: float | None = None
    top_k: int | None = None

    def same_run(self, other: Identity) -> bool:
        """Whether the same process, with the same model, answers: what sleeps and what slots do does not count."""
        ours = (self.model, self.build, self.run, self.slots, self.n_ctx, self.router)
        return ours == (other.model, other.build, other.run, other.slots, other.n_ctx, other.router)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        return None  # a NaN fails the comparison, too
    return float(value)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def spec_type_of(settings: object) -> str:
    """The drafting types named in `generation_settings`, without `none`; empty where nothing is named."""
    given = _mapping(settings)
    named = _text(given.get("speculative.types")) or _text(given.get("speculative.type"))
    kinds = [kind.strip() for kind in named.split(",")]
    return ",".join(kind for kind in kinds if kind and kind != "none")


def _autotune(props: Mapping[str, object], settings: Mapping[str, object]) -> bool:
    """A flag of that name set anywhere that a server shows its flags; ik_llama.cpp is the one that has it."""
    places = (props, settings, _mapping(props.get("speculative")), _mapping(props.get("params")))
    return any("autotune" in key and bool(place[key]) for place in places for key in place)


def identity_of(props: object) -> Identity | None:
    """Read an answer of `/props`; None when it is not one."""
    if not isinstance(props, Mapping):
        return None
    defaults = _mapping(props.get("default_generation_settings"))
    settings = _mapping(defaults.get("params")) or defaults
    known = ("build_info", "total_slots", "model_path", "default_generation_settings", "role")
    if not any(key in props for key in known):
        return None
    return Identity(
        model=_text(props.get("model_path")) or _text(props.get("model_alias")),
        build=_text(props.get("build_info")),
        run=_text(props.get("media_marker")),
        slots=_count(props.get("total_slots")) or 1,
        n_ctx=_count(defaults.get("n_ctx")),
        spec_type=spec_type_of(settings),
        sleeping=props.get("is_sleeping") is True,
        router=props.get("role") == "router",
        has_slots=props.get("endpoint_slots") is True,
        autotune=_autotune(props, settings),
        temperature=_number(settings.get("temperature")),
        top_k=None if (top_k := _number(settings.get("top_k"))) is None else int(top_k),
    )


def identity_from_models(models: object) -> Identity | None:
    """Read an answer of `/v1/models`, which needs no key: only the first model's name; None when it is not one."""
    entries = _mapping(models).get("data")
    if not isinstance(entries, list) or not entries:
        return None
    name = _text(_mapping(entries[0]).get("id"))
    return Identity(model=name) if name else None
