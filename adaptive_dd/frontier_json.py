"""The frontier file's JSON, `adaptive-dd/frontier@1`: read with every fault named, written to compare well by line.

docs/frontier-file.md lists the fields. What JSON lets pass in silence (a field twice, NaN, true for 1) is a fault here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from adaptive_dd.core.domain import SERVER, SETTING_GRAMMAR, Frontier, FrontierRow, Setting, parse_setting

FORMAT = "adaptive-dd/frontier@1"
LARGEST_CONTEXT = 1 << 30


@dataclass(slots=True)
class Reading:
    """What was found while reading one file: faults make it unusable, warnings do not."""

    where: str
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def fault(self, place: str, text: str) -> None:
        """Note a fault at a place of the file."""
        self.faults.append(f"{self.where}: {place}: {text}" if place else f"{self.where}: {text}")

    def warn(self, place: str, text: str) -> None:
        """Note something odd that does not make the file unusable."""
        self.warnings.append(f"{self.where}: {place}: {text}" if place else f"{self.where}: {text}")


# --- checked fields ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Expected:
    """A check of one JSON value and the words for what it wants."""

    words: str
    holds: Callable[[object], bool]


def _integer(low: int, high: int) -> _Expected:
    return _Expected(
        f"a whole number from {low} to {high}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(low: float, high: float, *, words: str) -> _Expected:
    return _Expected(words, lambda v: _is_number(v) and low <= v <= high)  # type: ignore[operator]


_TEXT = _Expected("a text", lambda v: isinstance(v, str))
_RATIO = _number(1e-6, 1e6, words="a number above 0")

_ROW_FIELDS: Mapping[str, _Expected] = {
    "context_tokens": _integer(1, LARGEST_CONTEXT),
    "tok_s": _number(1e-6, 1e6, words="a number above 0 (tokens per second)"),
    "acceptance": _number(0.0, 1.0, words="a number from 0 to 1"),
    "samples": _integer(1, 10**9),
    "sd": _number(0.0, 1e6, words="a number of at least 0 (tokens per second)"),
    "kind": _TEXT,
    "gain": _RATIO,
    "gain_low": _number(0.0, 1e6, words="a number of at least 0"),
    "gain_high": _RATIO,
    "cycle_ms": _number(1e-6, 1e9, words="a number above 0 (milliseconds)"),
    "mark": _TEXT,
}
_NEEDED = ("context_tokens", "setting", "tok_s")
_TOP_KEYS = (
    "format", "model", "server", "baseline", "generated_tokens", "edges", "rows", "rules", "about",
)  # fmt: skip


def shown(value: object) -> str:
    """A value as a fault quotes it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _checked(reading: Reading, place: str, value: object, expected: _Expected) -> bool:
    if not expected.holds(value):
        reading.fault(place, f"is {shown(value)}, expected {expected.words}")
        return False
    return True


def read_setting(reading: Reading, place: str, value: object) -> Setting | None:
    """A setting in the grammar, or a fault and None."""
    if not isinstance(value, str):
        reading.fault(place, f"is {shown(value)}, expected a setting: {SETTING_GRAMMAR}")
        return None
    try:
        return parse_setting(value)
    except ValueError as error:
        reading.fault(place, str(error))
        return None


def _unknown(reading: Reading, place: str, found: Iterable[str], known: Iterable[str]) -> None:
    for key in sorted(set(found) - set(known)):
        reading.warn(place, f"unknown field {shown(key)} is left unread")


# --- the JSON format -----------------------------------------------------------------------------------------


def _row(reading: Reading, number: int, value: object) -> FrontierRow | None:
    place = f"row {number}"
    if not isinstance(value, dict):
        reading.fault(place, f"is {shown(value)}, expected an object")
        return None
    before = len(reading.faults)
    for name in _NEEDED:
        if name not in value:
            reading.fault(f"{place}: {name}", "is missing")
    setting = read_setting(reading, f"{place}: setting", value["setting"]) if "setting" in value else None
    given = {k: v for k, v in value.items() if k in _ROW_FIELDS and v is not None}
    for name, one in given.items():
        _checked(reading, f"{place}: {name}", one, _ROW_FIELDS[name])
    _unknown(reading, place, value, (*_ROW_FIELDS, "setting"))
    if len(reading.faults) > before or setting is None:
        return None
    row = FrontierRow(setting=setting, **given)
    low, high = row.gain_low, row.gain_high
    if row.gain is not None and not (low or row.gain) <= row.gain <= (high or row.gain):
        reading.fault(f"{place}: gain", f"is {row.gain}, expected a number between gain_low and gain_high")
    return row


def _rows(reading: Reading, value: object) -> tuple[FrontierRow, ...]:
    if not isinstance(value, list):
        reading.fault("rows", f"is {shown(value)}, expected a list of objects")
        return ()
    seen: dict[tuple[int, Setting, str], int] = {}
    rows = []
    for number, one in enumerate(value, start=1):
        row = _row(reading, number, one)
        if row is None:
            continue
        first = seen.setdefault((row.context_tokens, row.setting, row.kind), number)
        if first != number:
            text = f"{row.setting} at {row.context_tokens} tokens stands in row {first} already"
            reading.fault(f"row {number}", f"{text}; expected each setting once per context and kind")
        rows.append(row)
    return tuple(sorted(rows, key=lambda r: (r.context_tokens, r.kind, r.setting.order)))


def _edges(reading: Reading, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    ok = isinstance(value, list) and all(_integer(1, LARGEST_CONTEXT).holds(edge) for edge in value)
    if not ok or list(value) != sorted(set(value)):  # type: ignore[call-overload]
        reading.fault(
            "edges", f"is {shown(value)}, expected whole numbers of tokens, each above the one before"
        )
        return None
    return tuple(value)  # type: ignore[arg-type]


def _rules(reading: Reading, value: object) -> tuple[tuple[int, Setting], ...]:
    if not isinstance(value, list) or not value:
        reading.fault("rules", f"is {shown(value)}, expected a list of objects with min_tokens and setting")
        return ()
    rules: list[tuple[int, Setting]] = []
    for number, one in enumerate(value, start=1):
        place = f"rule {number}"
        if not isinstance(one, dict) or not {"min_tokens", "setting"} <= one.keys():
            reading.fault(place, f"is {shown(one)}, expected an object with min_tokens and setting")
            continue
        setting = read_setting(reading, f"{place}: setting", one["setting"])
        fits = _checked(reading, f"{place}: min_tokens", one["min_tokens"], _integer(0, LARGEST_CONTEXT))
        if setting is not None and fits:
            add_rule(reading, rules, place, (one["min_tokens"], setting))
    return tuple(rules)


def add_rule(
    reading: Reading, rules: list[tuple[int, Setting]], place: str, rule: tuple[int, Setting]
) -> None:
    """Add (minimal prompt tokens, setting); a rule that does not start above the one before is a fault."""
    if rules and rule[0] <= rules[-1][0]:
        reading.fault(
            place, f"starts at {rule[0]} tokens, expected more than the {rules[-1][0]} of the rule before"
        )
    rules.append(rule)


def _about(reading: Reading, value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        reading.fault("about", f"is {shown(value)}, expected an object of names and texts")
        return ()
    return tuple((name, one if isinstance(one, str) else json.dumps(one)) for name, one in value.items())


def _server(reading: Reading, value: object) -> tuple[str, int | None]:
    if not isinstance(value, dict):
        reading.fault("server", f'is {shown(value)}, expected an object such as {{"build": "...", "cap": 8}}')
        return "", None
    _unknown(reading, "server", value, ("build", "cap"))
    build, cap = value.get("build"), value.get("cap")
    build_ok = build is None or _checked(reading, "server: build", build, _TEXT)
    cap_ok = cap is None or _checked(reading, "server: cap", cap, _integer(0, 1024))
    return (build or "") if build_ok else "", cap if cap_ok else None


def _frontier(reading: Reading, top: object) -> Frontier:
    if not isinstance(top, dict):
        reading.fault(
            "", f"is {shown(top)} at the top, expected an object with the fields format, baseline and rows"
        )
        return Frontier()
    if top.get("format") != FORMAT:
        found = shown(top["format"]) if "format" in top else "missing"
        reading.fault("format", f"is {found}, expected {shown(FORMAT)}")
        return Frontier()
    _unknown(reading, "top level", top, _TOP_KEYS)
    if "rows" not in top and "rules" not in top:
        reading.fault("rows", "is missing, expected a list of measured rows")
    baseline = (
        read_setting(reading, "baseline", top["baseline"]) if top.get("baseline") is not None else SERVER
    )
    build, cap = _server(reading, top.get("server", {}))
    tokens, model = top.get("generated_tokens"), top.get("model")
    tokens_ok = tokens is None or _checked(reading, "generated_tokens", tokens, _integer(1, LARGEST_CONTEXT))
    model_ok = model is None or _checked(reading, "model", model, _TEXT)
    return Frontier(
        rows=_rows(reading, top.get("rows", [])),
        baseline=SERVER if baseline is None else baseline,
        edges=_edges(reading, top.get("edges")),
        model=(model or "") if model_ok else "",
        build=build,
        cap=cap,
        generated_tokens=tokens if tokens_ok else None,
        rules=_rules(reading, top["rules"]) if "rules" in top else (),
        about=_about(reading, top.get("about", {})),
    )


class _BadJsonError(ValueError):
    """A JSON text that the standard would take in silence, or not at all."""


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJsonError(f"field {shown(twice)} stands twice in one object, expected once")
    return found


def _no_constant(text: str) -> object:
    raise _BadJsonError(f"{text} is no number that JSON knows, expected a finite one")


def read_frontier(text: str, where: str) -> tuple[Frontier, Reading]:
    """The frontier in a JSON text and all that was found; its value means nothing where there are faults."""
    reading = Reading(where)
    try:
        top = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reading.fault(f"line {error.lineno}", f"is not JSON ({error.msg}), expected {FORMAT}")
        return Frontier(), reading
    except RecursionError:
        reading.fault("", f"is nested too deeply, expected {FORMAT}")
        return Frontier(), reading
    except ValueError as error:  # ours, or a number of more digits than Python reads
        reading.fault("", str(error))
        return Frontier(), reading
    frontier = _frontier(reading, top)
    if frontier.rows and not any(row.setting == frontier.baseline for row in frontier.rows):
        reading.warn("baseline", f"no row measures {frontier.baseline}, so no row can be proven to beat it")
    return frontier, reading


# --- writing -------------------------------------------------------------------------------------------------


def _row_json(row: FrontierRow) -> str:
    values: dict[str, object] = {"context_tokens": row.context_tokens, "setting": str(row.setting)}
    for name in _ROW_FIELDS:
        value = getattr(row, name)
        if name != "context_tokens" and value is not None and value != "":
            values[name] = value
    return json.dumps(values)


def dump_frontier(frontier: Frontier) -> str:
    """The file's text, a row on each line; `read_frontier` gives the same frontier back."""
    server = {"build": frontier.build, **({} if frontier.cap is None else {"cap": frontier.cap})}
    lines = [
        f'  "format": {json.dumps(FORMAT)}',
        f'  "model": {json.dumps(frontier.model)}',
        f'  "server": {json.dumps(server)}',
        f'  "baseline": {json.dumps(str(frontier.baseline))}',
    ]
    if frontier.generated_tokens is not None:
        lines.append(f'  "generated_tokens": {frontier.generated_tokens}')
    if frontier.about:
        lines.append(f'  "about": {json.dumps(dict(frontier.about))}')
    if frontier.edges is not None:
        lines.append(f'  "edges": {json.dumps(frontier.edges)}')
    if frontier.rules:
        rules = [{"min_tokens": tokens, "setting": str(setting)} for tokens, setting in frontier.rules]
        lines.append(_list_json("rules", [json.dumps(rule) for rule in rules]))
    if frontier.rows or not frontier.rules:
        lines.append(_list_json("rows", [_row_json(row) for row in frontier.rows]))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _list_json(name: str, items: list[str]) -> str:
    body = "".join(f"\n    {item}," for item in items).rstrip(",")
    return f'  "{name}": [{body}\n  ]' if items else f'  "{name}": []'
