"""Fields into a JSON body without re-serialising it: every byte that is not ours stays as the client sent it.

One changed byte can ruin a server's prompt cache, so the body is only ever cut at known places. `scan` proves the
body to be one well-formed JSON object and finds where its top-level members stand, in bytes; `splice` and
`replace_value` cut there. Whatever is doubtful (not valid UTF-8, deeper or longer than the parser takes, a
`speculative.*` key that stands twice or in disguise) makes the body untouchable, with a reason.

The parser is the standard library's C scanner, called once per top-level member: 500 kB take about 2 ms. It is more
lenient than the server's in two points, closed here: NaN and Infinity, and escaped lone surrogates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from adaptive_dd.core.domain import Setting

FIELD_PREFIX = "speculative."
# The nested spelling is read by no mainline build, yet a client that sends it means something.
NESTED_FIELD = "speculative"
BOM = b"\xef\xbb\xbf"

# Real requests have some tens of fields. Each costs microseconds here, while everybody else waits.
MOST_MEMBERS = 1000

_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Member:
    """One top-level member. `escaped` when its key is not written plainly; the span is that of the value, in bytes."""

    key: str
    value: object
    start: int
    end: int
    escaped: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """What is known of a body: its top-level members, and where its closing brace is.

    `untouchable` is a reason of REASONS, or empty. `document` is the parsed object, the last of equal keys counting.
    """

    untouchable: str = ""
    members: tuple[Member, ...] = ()
    close: int = 0
    document: Mapping[str, object] = field(default_factory=dict)

    def members_of(self, key: str) -> list[Member]:
        """Every member whose decoded key is `key`, in order."""
        return [member for member in self.members if member.key == key]


def scan(body: bytes) -> Scan:
    """Prove `body` to be one JSON object and find its top-level members. Never raises for bad input."""
    try:
        text = body.decode("utf-8")
        members, close = _walk(text, 1 if body.startswith(BOM) else 0)
    except _NotAnObjectError:
        return Scan("not-object")
    except _TooManyError:
        return Scan("too-large")
    except (ValueError, RecursionError):  # not UTF-8, not JSON, an int of absurd length, or nested too deep
        return Scan("not-json")
    if _has_lone_surrogate(body, members):
        return Scan("not-json")
    if not body.isascii():
        members, close = _in_bytes(text, members, close)
    document = {member.key: member.value for member in members}
    return Scan(_doubt(members), tuple(members), close, document)


class _NotAnObjectError(Exception):
    """Well-formed so far, but the top level is something else than an object."""


class _TooManyError(Exception):
    """More top-level members than are looked at."""


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
# The C scanner behind json.loads: one value at a position, and where it ends. It is not in the type stubs.
_scan_once: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]
_scan_string: Callable[[str, int, bool], tuple[str, int]] = _decoder.parse_string  # type: ignore[attr-defined]


def _value(text: str, at: int) -> tuple[object, int]:
    try:
        value, end = _scan_once(text, at)
    except StopIteration:
        raise ValueError("a value was expected") from None
    return value, end


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _walk(text: str, start: int) -> tuple[list[Member], int]:
    """Members with spans in characters, and where the closing brace is.

    Raises ValueError, _NotAnObjectError, _TooManyError.
    """
    at = _skip(text, start)
    if text[at : at + 1] != "{":
        _, end = _value(text, at)
        _expect_end(text, end)
        raise _NotAnObjectError
    members: list[Member] = []
    at = _skip(text, at + 1)
    if text[at : at + 1] != "}":
        at = _walk_members(text, at, members)
    _expect_end(text, at + 1)
    return members, at


def _walk_members(text: str, at: int, members: list[Member]) -> int:
    while len(members) < MOST_MEMBERS:
        if text[at : at + 1] != '"':
            raise ValueError("a key was expected")
        key, key_end = _scan_string(text, at + 1, True)
        colon = _skip(text, key_end)
        if text[colon : colon + 1] != ":":
            raise ValueError("a colon was expected")
        start = _skip(text, colon + 1)
        value, end = _value(text, start)
        members.append(Member(key, value, start, end, escaped=key_end - at - 2 != len(key)))
        at = _skip(text, end)
        mark = text[at : at + 1]
        if mark == "}":
            return at
        if mark != ",":
            raise ValueError("a comma or a closing brace was expected")
        at = _skip(text, at + 1)
    raise _TooManyError


def _expect_end(text: str, at: int) -> None:
    if _skip(text, at) != len(text):
        raise ValueError("something stands behind the JSON value")


def _in_bytes(text: str, members: list[Member], close: int) -> tuple[list[Member], int]:
    """The same members with spans counted in bytes of UTF-8."""
    moved: list[Member] = []
    chars = size = 0
    for member in members:
        size += len(text[chars : member.start].encode())
        start = size
        size += len(text[member.start : member.end].encode())
        chars = member.end
        moved.append(Member(member.key, member.value, start, size, member.escaped))
    return moved, size + len(text[chars:close].encode())


def _has_lone_surrogate(body: bytes, members: list[Member]) -> bool:
    """Half of an escaped pair: the server refuses it, Python's parser lets it pass but cannot encode it again."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return False
    try:
        json.dumps([(member.key, member.value) for member in members], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _doubt(members: list[Member]) -> str:
    """`duplicate-key` where it cannot be known which of the client's draft parameters the server would read."""
    seen: set[str] = set()
    for member in members:
        if not member.key.startswith(FIELD_PREFIX):
            if member.key == NESTED_FIELD:
                return "duplicate-key"
            continue
        if member.escaped or member.key in seen:
            return "duplicate-key"
        seen.add(member.key)
    return ""


# --- what the client chose -----------------------------------------------------------------------------------


def client_override(scanned: Scan) -> Setting | None:
    """The draft parameters that the client set itself, None where it set none.

    A value that the server would not take as a number (null, a string) leaves that parameter at None, as the server
    does; the request still counts as an override. Of keys that stand twice the last one is reported.
    """
    keys = [member.key for member in scanned.members if member.key.startswith(FIELD_PREFIX)]
    if not keys:
        return None
    values = {key.removeprefix(FIELD_PREFIX): scanned.document[key] for key in keys}
    return Setting(_whole(values.get("n_max")), _number(values.get("p_min")), _whole(values.get("n_min")))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 <= value <= 1.0 else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -(2**31) <= value < 2**31:
        return None
    return max(0, int(value))  # the server clamps a negative depth to none


def setting_fields(setting: Setting) -> dict[str, int | float]:
    """The request fields that say `setting`, only those that it sets."""
    fields = {"n_max": setting.n_max, "n_min": setting.n_min, "p_min": setting.p_min}
    return {FIELD_PREFIX + name: value for name, value in fields.items() if value is not None}


# --- cutting -------------------------------------------------------------------------------------------------


def splice(
    body: bytes,
    fields: Mapping[str, int | float | str | None],
    *,
    force: bool = False,
    scanned: Scan | None = None,
) -> bytes:
    """`body` with `fields` set before its final brace, where the client left them unset.

    With `force` the client's own values of these keys are replaced where they stand. An untouchable body comes back
    as it is (with `force`, one whose only fault is a doubtful key is spliced all the same).
    """
    found = scan(body) if scanned is None else scanned
    if found.untouchable and not (force and found.untouchable == "duplicate-key"):
        return body
    present = {member.key for member in found.members}
    missing = {key: value for key, value in fields.items() if key not in present}
    edits: list[tuple[int, int, bytes]] = []
    if force:
        edits = [(m.start, m.end, _json(fields[m.key])) for m in found.members if m.key in fields]
    if missing:
        text = b",".join(_json(key) + b":" + _json(value) for key, value in missing.items())
        edits.append((found.close, found.close, b"," + text if found.members else text))
    return _cut(body, edits)


def replace_value(body: bytes, key: str, value: str, *, scanned: Scan | None = None) -> bytes:
    """`body` with the value of the one top-level member `key` replaced, or the member added where it is missing.

    Raises ValueError where the body is no object or the key stands more than once.
    """
    found = scan(body) if scanned is None else scanned
    if found.untouchable not in ("", "duplicate-key"):
        raise ValueError(f"the body is {found.untouchable}")
    members = found.members_of(key)
    if len(members) > 1:
        raise ValueError(f"{key!r} stands {len(members)} times")
    if not members:
        text = _json(key) + b":" + _json(value)
        return _cut(body, [(found.close, found.close, b"," + text if found.members else text)])
    return _cut(body, [(members[0].start, members[0].end, _json(value))])


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _cut(body: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    if not edits:
        return body
    parts: list[bytes] = []
    at = 0
    for start, end, text in edits:
        parts += [body[at:start], text]
        at = end
    parts.append(body[at:])
    return b"".join(parts)
