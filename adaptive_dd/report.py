"""What was done, as numbers for people: rows of the journal in, tables and JSON-able values out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.table import Table

Row = Mapping[str, Any]  # one row of the view `decisions`

# Decisions that say what the policy holds best, as against trials and orders.
SETTLED = ("frontier", "learned", "baseline", "guard", "frozen")
# A change of choice is told when most of this many settled decisions in a row agree on it.
BLOCK = 20
# Settings of a cell that get a line of their own.
SETTINGS_SHOWN = 8
LOADS = ("alone", "2-3", "4+")


@dataclass(frozen=True, slots=True)
class Used:
    """How a setting was used in a cell, and what was seen of it.

    reasons       how often for each reason             answered   answers with believable timings
    tokens_per_s  generated tokens a second over all answers, as the server reports it
    ms_per_token  decode milliseconds a token after the first
    decide_us     median time that deciding took
    """

    bucket: int
    load: int
    kind: str
    setting: str
    requests: int
    reasons: Mapping[str, int]
    answered: int
    tokens_per_s: float | None
    ms_per_token: float | None
    acceptance: float | None
    decide_us: float


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie, None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def usage(rows: Iterable[Row]) -> list[Used]:
    """Rows of the view `decisions`, summed by cell and setting; the most used setting of a cell first."""
    groups: dict[tuple[int, int, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["bucket"], row["load"], row["kind"], row["setting"]].append(row)
    used = [_used(key, group) for key, group in groups.items()]
    return sorted(used, key=lambda one: (one.bucket, one.load, one.kind, -one.requests))


def _used(key: tuple[int, int, str, str], rows: Sequence[Row]) -> Used:
    answered = [row for row in rows if row["status"] == "ok" and row["predicted_ms"]]
    ms, tokens = _sum(answered, "predicted_ms"), _sum(answered, "predicted_n")
    decoded = tokens - len(answered)  # the first token of an answer belongs to its prompt
    drafted = _sum(answered, "draft_n")
    return Used(
        *key,
        requests=len(rows),
        reasons=dict(Counter(row["reason"] for row in rows).most_common()),
        answered=len(answered),
        tokens_per_s=1000.0 * tokens / ms if ms else None,
        ms_per_token=ms / decoded if decoded > 0 else None,
        acceptance=_sum(answered, "accepted") / drafted if drafted else None,
        decide_us=quantile([row["decide_us"] for row in rows], 0.5) or 0.0,
    )


def _sum(rows: Iterable[Row], name: str) -> float:
    return float(sum(row[name] or 0 for row in rows))


def decide_times(rows: Iterable[Row]) -> dict[str, float | None]:
    """Quantiles of the time that deciding took, in microseconds."""
    times = [row["decide_us"] for row in rows]
    return {"p50": quantile(times, 0.5), "p99": quantile(times, 0.99), "max": max(times, default=None)}


def statuses(rows: Iterable[Row]) -> dict[str, int]:
    """How many decisions ended how."""
    return dict(Counter(row["status"] for row in rows).most_common())


def changes(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """When the settled choice of a cell changed: by blocks of decisions, so that one odd request is no change."""
    by_cell: dict[tuple[int, int, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["reason"] in SETTLED:
            by_cell[row["bucket"], row["load"], row["kind"]].append(row)
    found = []
    for (bucket, load, kind), settled in by_cell.items():
        before = ""
        for start in range(0, len(settled) - BLOCK + 1, BLOCK):
            block = settled[start : start + BLOCK]
            setting, votes = Counter(row["setting"] for row in block).most_common(1)[0]
            if setting != before and votes > BLOCK // 2:
                cell = {"bucket": bucket, "load": load, "kind": kind}
                about = {
                    "number": block[0]["number"],
                    "at_s": block[0]["at_s"],
                    "from": before,
                    "to": setting,
                }
                found.append(cell | about)
                before = setting
    return sorted(found, key=lambda change: change["number"])


# --- for eyes -----------------------------------------------------------------------------------------------


def bucket_text(edges: Sequence[int], bucket: int) -> str:
    """A bucket as a range of prompt tokens: `512-2,047`."""
    low = edges[bucket - 1] if bucket > 0 else 0
    return f"{low:,}-{edges[bucket] - 1:,}" if bucket < len(edges) else f"{low:,}+"


def load_text(load: int) -> str:
    """A load level in words."""
    return LOADS[load] if load < len(LOADS) else str(load)


def time_text(at_s: float | None) -> str:
    """A moment in UTC, to the second; a clock that lied is shown as it was."""
    if at_s is None:
        return "never"
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s"


def number_text(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal. columns: heading to `left` or `right`."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in columns.items():
        made.add_column(
            heading, justify="right" if justify == "right" else "left", no_wrap=heading not in ("why", "cell")
        )
    for row in rows:
        made.add_row(*row)
    return made


def cell_text(edges: Sequence[int], bucket: int, load: int, kind: str) -> str:
    """A cell in words, with the name that `--cell` takes."""
    return f"{bucket_text(edges, bucket)} tokens, {load_text(load)}, {kind}  (b{bucket}.l{load}.{kind})"


def usage_tables(used: Sequence[Used], edges: Sequence[int]) -> list[Table]:
    """What was chosen, why, how often, and what was seen of it: a table for each cell, the rarest settings summed."""
    columns = {"setting": "left", "why": "left"}
    columns |= dict.fromkeys(("requests", "tok/s", "ms/token", "acceptance", "decide us"), "right")
    made = []
    for cell in dict.fromkeys((one.bucket, one.load, one.kind) for one in used):
        here = [one for one in used if (one.bucket, one.load, one.kind) == cell]
        lines = [_used_line(one) for one in here[:SETTINGS_SHOWN]]
        rare = here[SETTINGS_SHOWN:]
        if rare:
            requests = str(sum(one.requests for one in rare))
            lines.append((f"{len(rare)} others", "", requests, "", "", "", ""))
        made.append(table(cell_text(edges, *cell), columns, lines))
    return made


def _used_line(one: Used) -> tuple[str, ...]:
    counted = len(one.reasons) > 1
    return (
        one.setting,
        ", ".join(f"{reason} {count}" if counted else reason for reason, count in one.reasons.items()),
        str(one.requests),
        number_text(one.tokens_per_s),
        number_text(one.ms_per_token, ".2f"),
        number_text(one.acceptance, ".0%"),
        number_text(one.decide_us),
    )


def changes_table(found: Iterable[Mapping[str, Any]], edges: Sequence[int]) -> Table:
    """When choices changed."""
    columns = dict.fromkeys(("since", "request", "change", "cell"), "left")
    lines = [
        (
            time_text(one["at_s"]),
            str(one["number"]),
            f"{one['from'] or 'start'} -> {one['to']}",
            f"{bucket_text(edges, one['bucket'])}, {load_text(one['load'])}, {one['kind']}",
        )
        for one in found
    ]
    return table("Changes over time", columns, lines)
