"""The journal of a calibration, beside its output: a line for each block and each answer, so that nothing is lost.

Lines are appended and flushed to the disk as they come. A run that was cut leaves at most a torn last line, which is
dropped; the same command goes on from there. A journal of another calibration is refused, not mixed in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from adaptive_dd.core.domain import Timings, parse_setting
from adaptive_dd.core.measure import Block, Record
from adaptive_dd.core.standing import Place, Sample
from adaptive_dd.errors import InputFileError, StoreError, UsageError

FORMAT = 1


def journal_path(out: Path) -> Path:
    """Where the journal of an output lies."""
    return out.with_name(out.name + ".partial")


class CalibrationLog:
    """Reads and continues one journal. `key` tells what is calibrated; the same key continues, another is refused."""

    def __init__(self, path: Path, key: Mapping[str, object]) -> None:
        self.path = path
        self.record = Record()
        self._header = {"calibration": FORMAT, "key": json.loads(json.dumps(key))}
        whole = _whole_lines(path)
        self._good_bytes = len(whole)
        if whole:
            first, *rest = whole.decode("utf-8", errors="replace").splitlines()
            _same(path, first, self._header)
            self.record = _record(path, rest)

    def begin(self, block: Block) -> None:
        """A block is to be measured."""
        place = block.place
        self._append({
            "block": block.number, "context_tokens": place.context_tokens, "kind": place.kind,
            "settings": [str(s) for s in block.settings],
        })  # fmt: skip
        self.record = replace(self.record, blocks=(*self.record.blocks, block))

    def add(self, sample: Sample) -> None:
        """An answer was measured. The record holds it even where the disk does not."""
        self.record = replace(self.record, samples=(*self.record.samples, sample))
        self._append(_sample_json(sample))

    def remove(self) -> None:
        """The output is written whole: the journal has done its work."""
        self.path.unlink(missing_ok=True)

    def _append(self, value: Mapping[str, object]) -> None:
        lines = [value] if self._good_bytes else [self._header, value]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            with self.path.open("r+b" if self._good_bytes else "wb") as file:
                file.truncate(self._good_bytes)
                file.seek(self._good_bytes)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            kept = f"{len(self.record.samples)} answers were measured, all but the last are kept"
            raise StoreError(
                f"{self.path} cannot be written ({error.strerror or error}); {kept}: "
                "make room and give the same command again"
            ) from None
        self._good_bytes += len(data)


def _whole_lines(path: Path) -> bytes:
    """Everything up to the last line end; what stands behind it was torn."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputFileError(f"{path}: cannot be read ({error.strerror or error})") from None
    return data[: data.rfind(b"\n") + 1]


def _same(path: Path, line: str, wanted: Mapping[str, Any]) -> None:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if (
        not isinstance(found, dict)
        or found.get("calibration") != FORMAT
        or not isinstance(found.get("key"), dict)
    ):
        raise InputFileError(
            f"{path}: is not the journal of a calibration; move it away or choose another --out"
        )
    key, ours = found["key"], wanted["key"]
    differing = [name for name in ours if key.get(name) != ours[name]]
    if differing:
        name = differing[0]
        raise UsageError(
            f"{path} is the journal of another calibration: {name} was {_short(key.get(name))}, now is "
            f"{_short(ours[name])}; give the same command, or delete that file, or choose another --out"
        )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."


def _record(path: Path, lines: list[str]) -> Record:
    blocks: list[Block] = []
    samples: list[Sample] = []
    for number, line in enumerate(lines, start=2):
        try:
            found = json.loads(line)
            if "block" in found and "settings" in found:
                settings = tuple(parse_setting(s) for s in found["settings"])
                blocks.append(Block(Place(found["context_tokens"], found["kind"]), found["block"], settings))
            else:
                samples.append(_sample(found))
        except (ValueError, KeyError, TypeError):
            raise InputFileError(
                f"{path}: line {number} is damaged; delete it to go on without it, or delete the file to begin anew"
            ) from None
    return Record(tuple(blocks), tuple(samples))


def _sample_json(s: Sample) -> dict[str, object]:
    return {
        "at": s.block, "context_tokens": s.place.context_tokens, "kind": s.place.kind, "setting": str(s.setting),
        "sort": s.sort, "wall_ms": s.wall_ms, "timings": asdict(s.timings),
    }  # fmt: skip


def _sample(found: Mapping[str, Any]) -> Sample:
    return Sample(
        Place(found["context_tokens"], found["kind"]),
        found["at"],
        parse_setting(found["setting"]),
        Timings(**found["timings"]),
        float(found["wall_ms"]),
        found["sort"],
    )
