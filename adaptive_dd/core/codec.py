"""Events and State to JSON and back, with a version.

Encoders and decoders are compiled from type hints, so a new field or a new event needs no line here. A dataclass
becomes an object of its fields, a union of dataclasses an object that carries its class name as `type`, a tuple
a list, a Mapping a list of [key, value] pairs in its own order (keys may be any value, and the order of a fold's
sums survives). Floats are exact. nan is refused in both directions (a state with one would not equal itself), and so
is an infinite value in an event, where it can only be a lie; in a state it may stand for "no limit", as "inf".

Old journals open: a missing field takes its default. Newer ones: an unknown field of an *event* is left out (an
event is a raw fact, and the facts that we know still hold), an unknown field of a *state* is an error (half a state
is no state; it is folded again from its events), unless it is one that states once had (`RETIRED`).
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from adaptive_dd.core.controller import State
from adaptive_dd.core.events import Event

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION = 1
# Fields that states once had and that nothing reads any more: a snapshot with one is still a whole state. Retention may
# have removed the events that it could be folded from.
RETIRED = {"Talk": frozenset({"seen"})}
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)
Json = Any  # what json.loads gives; narrower types buy nothing here


class CodecError(ValueError):
    """A value that cannot be written, or a text that is not what it must be; the message says where."""


class Codec(NamedTuple):
    """How values of one type are written and read."""

    encode: Callable[[Any], Json]
    decode: Callable[[Json], Any]


# --- the three texts of a journal ----------------------------------------------------------------------------


def event_to_json(event: Event) -> str:
    """One event as one line of JSON."""
    return _dump({"v": VERSION, **codec_of(Event).encode(event)})


def event_from_json(text: str) -> Event:
    """Read an event. Raises CodecError."""
    data = _load(text)
    return typing.cast(Event, codec_of(Event).decode(data))


def state_to_json(state: State) -> str:
    """A state as one line of JSON."""
    return _dump({"v": VERSION, "state": codec_of(State, strict=True).encode(state)})


def state_from_json(text: str) -> State:
    """Read a state. Raises CodecError, also where the text has a field that this version does not know."""
    return typing.cast(State, codec_of(State, strict=True).decode(_load(text).get("state")))


def _dump(data: Json) -> str:
    return _ENCODER.encode(data)


def _load(text: str) -> dict[str, Json]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not JSON: {error}") from None
    if not isinstance(data, dict) or not _is_int(data.get("v")):
        raise CodecError("expected an object with a version `v`")
    if data["v"] > VERSION:
        raise CodecError(f"written by a newer version (format {data['v']}, this one reads up to {VERSION})")
    return data


# --- one codec a type ----------------------------------------------------------------------------------------


@cache
def codec_of(hint: Any, *, strict: bool = False) -> Codec:
    """Compile the codec of a type. strict: an unknown field is an error. Raises TypeError for a type without one."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALARS:
        return _UNLIMITED if strict and hint is float else _SCALARS[hint]
    if origin in (typing.Union, types.UnionType):
        return _union(args, strict)
    if origin is tuple:
        return _tuple(args, strict)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(codec_of(args[0], strict=strict), codec_of(args[1], strict=strict))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if _is_dataclass(hint):
        return _dataclass(hint, strict)
    raise TypeError(f"no codec for {hint!r}")


def _is_dataclass(hint: Any) -> TypeGuard[type[DataclassInstance]]:
    return isinstance(hint, type) and is_dataclass(hint)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _scalar(accepts: Callable[[Any], bool], expected: str) -> Codec:
    def check(value: Any) -> Any:
        if accepts(value):
            return value
        raise CodecError(f"expected {expected}, got {value!r:.60}")

    return Codec(check, check)


def _is_finite(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _encode_unlimited(value: Any) -> Json:
    if type(value) is float and math.isinf(value):
        return "inf" if value > 0.0 else "-inf"
    return _SCALARS[float].encode(value)


def _decode_unlimited(data: Json) -> Any:
    return float(data) if data in ("inf", "-inf") else _SCALARS[float].decode(data)


_UNLIMITED = Codec(_encode_unlimited, _decode_unlimited)
_SCALARS: dict[Any, Codec] = {
    str: _scalar(lambda value: isinstance(value, str) and not isinstance(value, Enum), "text"),
    bool: _scalar(lambda value: isinstance(value, bool), "true or false"),
    int: _scalar(_is_int, "a whole number"),
    float: _scalar(_is_finite, "a finite number"),
    types.NoneType: _scalar(lambda value: value is None, "null"),
}


def _enum(hint: type[Enum]) -> Codec:
    def decode(data: Json) -> Enum:
        try:
            return hint(data)
        except ValueError:
            raise CodecError(f"expected one of {[e.value for e in hint]}, got {data!r:.60}") from None

    return Codec(lambda value: value.value, decode)


def _tuple(args: tuple[Any, ...], strict: bool) -> Codec:
    if len(args) == 2 and args[1] is Ellipsis:
        encode, decode = codec_of(args[0], strict=strict)
        return Codec(
            lambda value: [encode(item) for item in value],
            lambda data: tuple([decode(item) for item in _list(data)]),
        )
    codecs = [codec_of(arg, strict=strict) for arg in args]

    def fixed(data: Json) -> tuple[Any, ...]:
        if len(_list(data)) != len(codecs):
            raise CodecError(f"expected a list of {len(codecs)}, got {len(data)}")
        return tuple([codec.decode(item) for codec, item in zip(codecs, data, strict=True)])

    return Codec(
        lambda value: [codec.encode(item) for codec, item in zip(codecs, value, strict=True)],
        fixed,
    )


def _mapping(key: Codec, value: Codec) -> Codec:
    def decode(data: Json) -> dict[Any, Any]:
        pairs = _list(data)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise CodecError("expected [key, value] pairs")
        return {key.decode(k): value.decode(v) for k, v in pairs}

    return Codec(lambda mapping: [[key.encode(k), value.encode(v)] for k, v in mapping.items()], decode)


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise CodecError(f"expected a list, got {data!r:.60}")
    return data


def _union(args: tuple[Any, ...], strict: bool) -> Codec:
    """`X | None`, plain values (`int | str`), or dataclasses told apart by `type`."""
    members = [arg for arg in args if arg is not types.NoneType]
    if len(members) == 1:
        encode, decode = codec_of(members[0], strict=strict)
        return Codec(
            lambda value: None if value is None else encode(value),
            lambda data: None if data is None else decode(data),
        )
    if len(members) == len(args) and all(_is_dataclass(member) for member in members):
        return _tagged({member.__name__: codec_of(member, strict=strict) for member in members})
    if all(member in _SCALARS for member in members):
        return _first_of([_SCALARS[arg] for arg in args])
    raise TypeError(f"no codec for a union of {args!r}")


def _tagged(codecs: dict[str, Codec]) -> Codec:
    def decode(data: Json) -> Any:
        name = data.get("type") if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in codecs:
            raise CodecError(f"expected a `type` among {sorted(codecs)}, got {name!r:.60}")
        return codecs[name].decode({key: item for key, item in data.items() if key not in ("type", "v")})

    def encode(value: Any) -> Json:
        name = type(value).__name__
        return {"type": name, **codecs[name].encode(value)}

    return Codec(encode, decode)


def _first_of(codecs: list[Codec]) -> Codec:
    def check(value: Any) -> Any:
        for codec in codecs:
            try:
                return codec.encode(value)
            except CodecError:
                continue
        raise CodecError(f"not of any expected type: {value!r:.60}")

    return Codec(check, check)


def _dataclass(hint: type[DataclassInstance], strict: bool) -> Codec:
    hints = typing.get_type_hints(hint)
    parts = [(field.name, codec_of(hints[field.name], strict=strict)) for field in fields(hint) if field.init]
    names = {name for name, _ in parts}
    known = names | RETIRED.get(hint.__name__, frozenset())
    needed = {
        f.name for f in fields(hint) if f.init and f.default is MISSING and f.default_factory is MISSING
    }

    def encode(value: Any) -> Json:
        if type(value) is not hint:
            raise CodecError(f"expected {hint.__name__}, got {value!r:.60}")
        return {name: _at(name, codec.encode, getattr(value, name)) for name, codec in parts}

    def decode(data: Json) -> Any:
        if not isinstance(data, dict):
            raise CodecError(f"expected an object ({hint.__name__}), got {data!r:.60}")
        if not needed <= data.keys():
            raise CodecError(f"{hint.__name__} lacks {sorted(needed - data.keys())}")
        if strict and not data.keys() <= known:
            raise CodecError(f"{hint.__name__} has unknown fields {sorted(data.keys() - known)}")
        return hint(**{name: _at(name, codec.decode, data[name]) for name, codec in parts if name in data})

    return Codec(encode, decode)


def _at(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except CodecError as error:
        raise CodecError(f"{name}: {error}") from None
