"""Frontiers from where a user keeps them: a file, a shipped example by its name, or a ladder string.

A ladder string is the lab server's own policy, `0:n4,p0.25;49152:n4,p0.0`: the last rule with MIN <= prompt tokens
wins.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from adaptive_dd.core.domain import Frontier, Setting
from adaptive_dd.errors import InputFileError
from adaptive_dd.frontier_json import (
    FORMAT,
    LARGEST_CONTEXT,
    Reading,
    add_rule,
    dump_frontier,
    read_frontier,
    read_setting,
    shown,
)

__all__ = [
    "FORMAT",
    "dump_frontier",
    "find_file",
    "load_frontier",
    "parse_ladder",
    "read_frontier",
    "read_text",
    "shipped_names",
]

LARGEST_FILE_BYTES = 32 * 1024 * 1024
FAULTS_SHOWN = 20

_LADDER = re.compile(r"\s*\d+\s*:")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_log = logging.getLogger(__name__)


# --- ladder strings ------------------------------------------------------------------------------------------


def parse_ladder(text: str) -> Frontier:
    """A frontier from `0:n4,p0.25;49152:n4,p0.0`. Raises InputFileError that names the rule and what was expected."""
    reading = Reading("ladder")
    rules: list[tuple[int, Setting]] = []
    for number, part in enumerate((p for p in text.split(";") if p.strip()), start=1):
        low, colon, setting_text = part.partition(":")
        place = f"rule {number}"
        if not colon or not re.fullmatch(r"\d{1,10}", low.strip()) or int(low) > LARGEST_CONTEXT:
            reading.fault(place, f"is {shown(part)}, expected MIN:SETTING such as 49152:n4,p0.0")
            continue
        setting = read_setting(reading, place, setting_text)
        if setting is not None:
            add_rule(reading, rules, place, (int(low), setting))
    if not rules and not reading.faults:
        reading.fault("", "is empty, expected rules such as 0:n4,p0.25;49152:n4,p0.0")
    _refuse(reading)
    return Frontier(rules=tuple(rules))


def _refuse(reading: Reading) -> None:
    """Raise for the faults that were found, each on a line of its own."""
    if not reading.faults:
        return
    more = len(reading.faults) - FAULTS_SHOWN
    lines = reading.faults[:FAULTS_SHOWN] + ([f"{reading.where}: and {more} faults more"] if more > 0 else [])
    raise InputFileError("\n".join(lines))


# --- files ---------------------------------------------------------------------------------------------------


def shipped_folder() -> Path:
    """Where the shipped examples lie: inside an installed package, or in `state/` of a checkout."""
    package = Path(__file__).parent
    installed = package / "frontiers"
    return installed if installed.is_dir() else package.parent / "state" / "frontiers"


def shipped_names() -> tuple[str, ...]:
    """Names of the shipped examples, as `--frontier` takes them."""
    return tuple(sorted(path.stem for path in shipped_folder().glob("*.json")))


def read_text(path: Path) -> str:
    """A text file of sane size. Raises InputFileError in one line."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
        if len(data) > LARGEST_FILE_BYTES:
            raise InputFileError(
                f"{path}: is larger than {LARGEST_FILE_BYTES >> 20} MB, expected a frontier file"
            )
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InputFileError(f"{path}: cannot be read ({error.strerror or error}), expected a file") from None
    except UnicodeDecodeError as error:
        raise InputFileError(f"{path}: is not UTF-8 text (byte {error.start}), expected JSON") from None


def find_file(source: str) -> Path:
    """The file that `source` names: a path, or the name of a shipped example."""
    path = Path(source).expanduser()
    if path.exists() or not _NAME.fullmatch(source):
        return path
    shipped = shipped_folder() / (source if source.endswith(".json") else f"{source}.json")
    if shipped.is_file():
        return shipped
    names = ", ".join(shipped_names()) or "none"
    raise InputFileError(f"{source}: no such file, and no shipped frontier of that name (there are: {names})")


def load_frontier(source: str) -> Frontier:
    """A frontier from a path, the name of a shipped example, or a ladder string.

    Raises InputFileError: a line for each fault, with file, row, field and what was expected. Warnings are logged.
    """
    if _LADDER.match(source):
        return parse_ladder(source)
    path = find_file(source)
    frontier, reading = read_frontier(read_text(path), str(path))
    _refuse(reading)
    for warning in reading.warnings:
        _log.warning("%s", warning)
    return frontier
