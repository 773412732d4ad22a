"""Names of presets: how a setting is written into a model's alias, and how aliases stay out of the clients' sight.

llama-server's router mode serves one model under several names, each launched with draft flags of its own. We call
them `NAME@SETTING` (`gemma@off`, `gemma@n8-p0.6`): NAME is what clients see and send. A comma cannot stand in an
alias, because the server splits `--alias` at commas and then calls itself by one of the pieces [b11434], so the
parts of a setting are joined by `-`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adaptive_dd.core.domain import OFF, Setting, parse_setting
from adaptive_dd.core.splice import scan

MARK = "@"
# `loaded` answers at once; `sleeping` has given its memory back and would first have to load.
RESIDENT = "loaded"


def alias_of(public: str, setting: Setting) -> str:
    """The alias that plays `setting` for the model that clients call `public`."""
    token = "off" if setting == OFF else str(setting).replace(",", "-")
    return f"{public}{MARK}{token}"


def read_alias(alias: str) -> tuple[str, Setting] | None:
    """(public name, setting) of an alias, None where it is not one of ours."""
    public, mark, token = alias.rpartition(MARK)
    if not mark or not public:
        return None
    if token == "off":
        return public, OFF
    try:
        setting = parse_setting(token.replace("-", ","))
    except ValueError:
        return None
    return (public, setting) if setting.n_max is not None else None


@dataclass(frozen=True, slots=True)
class Preset:
    """One alias as the router shows it. fault: why it cannot be an arm, empty where it can."""

    alias: str
    setting: Setting
    resident: bool
    failed: bool = False
    spec_type: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All presets of one model. home: the preset that the router itself picks for the public name, if it does."""

    public: str
    presets: tuple[Preset, ...]
    home: str = ""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every alias, arms or not: none of them is for clients' eyes."""
        return tuple(preset.alias for preset in self.presets)


def families_of(models: object) -> tuple[Family, ...]:
    """Read an answer of the router's `/models`: every model that stands there under settings. Never raises."""
    found: dict[str, list[Preset]] = {}
    homes: dict[str, str] = {}
    entries = models.get("data") if isinstance(models, Mapping) else None
    for entry in entries if isinstance(entries, list) else ():
        alias = entry.get("id") if isinstance(entry, Mapping) else None
        read = read_alias(alias) if isinstance(alias, str) else None
        if read is None or not isinstance(alias, str):
            continue
        public, setting = read
        found.setdefault(public, []).append(_preset(alias, setting, entry))
        if public in _strings(entry.get("aliases")):
            homes[public] = alias
    return tuple(Family(public, tuple(presets), homes.get(public, "")) for public, presets in found.items())


def _preset(alias: str, setting: Setting, entry: Mapping[str, object]) -> Preset:
    status = entry.get("status")
    status = status if isinstance(status, Mapping) else {}
    flags = flags_of(_strings(status.get("args")))
    return Preset(
        alias,
        setting,
        resident=status.get("value") == RESIDENT,
        failed=status.get("failed") is True,
        spec_type=flags.get("spec-type", ""),
        fault=_contradiction(setting, flags),
    )


def _strings(value: object) -> tuple[str, ...]:
    return tuple(part for part in value if isinstance(part, str)) if isinstance(value, list) else ()


# Every spelling that builds give these flags back in, by ours.
_SPELLINGS: Mapping[str, str] = {
    "--spec-type": "spec-type",
    "--spec-draft-n-max": "n_max",
    "--draft-max": "n_max",
    "--spec-draft-n-min": "n_min",
    "--draft-min": "n_min",
    "--spec-draft-p-min": "p_min",
    "--draft-p-min": "p_min",
}


def flags_of(args: Sequence[str]) -> dict[str, str]:
    """The draft flags in a command line, under our names (`spec-type`, `n_max`, `n_min`, `p_min`)."""
    flags: dict[str, str] = {}
    for flag, value in itertools.pairwise(args):
        if flag in _SPELLINGS:
            flags[_SPELLINGS[flag]] = value
    return flags


def _contradiction(setting: Setting, flags: Mapping[str, str]) -> str:
    """Why a preset's flags do not do what its name says; empty where they do, or where none are shown.

    A flag that is not given is the build's default, which differs between builds: only what is given is judged.
    """
    if setting == OFF:
        drafts = flags.get("spec-type", "none") != "none" and flags.get("n_max") != "0"
        return f"it drafts ({flags['spec-type']})" if drafts else ""
    if flags.get("spec-type") == "none":
        return "its spec-type is none"
    for name, wanted in (("n_max", setting.n_max), ("n_min", setting.n_min), ("p_min", setting.p_min)):
        if wanted is not None and name in flags and not _equal(flags[name], float(wanted)):
            return f"its {name} is {flags[name]}"
    return ""


def _equal(text: str, wanted: float) -> bool:
    try:
        return abs(float(text) - wanted) < 1e-6
    except ValueError:
        return False


# --- out of sight --------------------------------------------------------------------------------------------

# Spaces around a colon that are still recognised; llama-server writes none.
_MOST_SPACES = 4
_SPACES = b" \t\r\n"


class Renamer:
    """Writes the public name over an alias in `"model":"ALIAS"`, in a stream that may be cut anywhere.

    Nothing else changes: the key must stand unescaped, so a text that quotes such a member (inside a JSON string every
    quote carries a backslash) stays as it is. Holds back at most one such member; `end` gives out what is left.
    """

    def __init__(self, aliases: Iterable[str], public: str) -> None:
        self._names = tuple(sorted((_quoted(alias) for alias in aliases), key=len, reverse=True))
        self._public = _quoted(public)
        gap = rb"[ \t\r\n]{0,%d}" % _MOST_SPACES
        names = b"|".join(re.escape(name) for name in self._names)
        self._pattern = re.compile(rb'((?<!\\)"model"%b:%b)(?:%b)' % (gap, gap, names)) if names else None
        longest = max((len(name) for name in self._names), default=0)
        self._window = len(b'"model":') + 2 * _MOST_SPACES + longest
        self._held = b""
        self._before = b""

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes; what of them (and of those held) can go out."""
        if self._pattern is None:
            return chunk
        data = self._before + self._held + chunk
        out, at = self._renamed(data, len(self._before))
        keep = self._unfinished(data, at)
        self._before, self._held = data[keep - 1 : keep], data[keep:]
        return out + data[at:keep]

    def end(self) -> bytes:
        """The bytes still held."""
        rest, self._held = self._held, b""
        return rest

    def _renamed(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Everything from `at` up to the end of the last whole member, and where that end is."""
        assert self._pattern is not None
        out: list[bytes] = []
        for match in self._pattern.finditer(data, at):
            out += [data[at : match.end(1)], self._public]
            at = match.end()
        return b"".join(out), at

    def _unfinished(self, data: bytes, start: int) -> int:
        """Where the part at the end begins that may become a member to rename."""
        at = data.find(b'"', max(start, len(data) - self._window))
        while at >= 0:
            if self._may_begin(data[at:]):
                return at
            at = data.find(b'"', at + 1)
        return len(data)

    def _may_begin(self, tail: bytes) -> bool:
        key = b'"model"'
        if len(tail) < len(key):
            return key.startswith(tail)
        rest = _without_gap(tail[len(key) :]) if tail.startswith(key) else b"x"
        if not rest.startswith(b":"):
            return not rest
        name = _without_gap(rest[1:])
        return any(len(name) < len(full) and full.startswith(name) for full in self._names)


def _quoted(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _without_gap(data: bytes) -> bytes:
    return data[:_MOST_SPACES].lstrip(_SPACES) + data[_MOST_SPACES:]


def one_model(document: bytes, family: Family, shown: str) -> bytes:
    """The router's list of models with one entry of the family left, `shown`, under its public name.

    Other models stay, byte for byte. Anything that is not such a list comes back as it is.
    """
    spans = _entries(document)
    if not spans:
        return document
    hidden = set(family.aliases) - {shown}
    parts = [
        as_public(document[start:end], shown, family.public) if name == shown else document[start:end]
        for start, end, name in spans
        if name not in hidden
    ]
    return document[: spans[0][0]] + b",".join(parts) + document[spans[-1][1] :]


def as_public(text: bytes, alias: str, public: str) -> bytes:
    """`text` with the alias, wherever it stands as a whole word, replaced by the public name."""
    word = rb"(?<![\w.@-])%b(?![\w.@-])" % re.escape(_quoted(alias)[1:-1])
    return re.sub(word, lambda _: _quoted(public)[1:-1], text)


_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[ \t\r\n]*")


def _entries(document: bytes) -> list[tuple[int, int, str]]:
    """(start, end, id) in bytes of every entry of the top-level `data`; empty where there is no such list."""
    found = scan(document).members_of("data")
    if len(found) != 1 or not isinstance(found[0].value, list):
        return []
    text = document[found[0].start : found[0].end].decode()
    base, at, spans = found[0].start, _skip(text, 1), []
    for entry in found[0].value:
        _, end = _DECODER.raw_decode(text, at)
        start_bytes = base + len(text[:at].encode())
        name = entry.get("id") if isinstance(entry, Mapping) else None
        spans.append((start_bytes, base + len(text[:end].encode()), name if isinstance(name, str) else ""))
        at = _skip(text, _skip(text, end) + 1)
    return spans


def _skip(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match else at
