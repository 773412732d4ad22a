"""What was done, as numbers for people: rows of the journal in, tables and JSON-able values out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
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
EXPECTED = "expected ms/token"
# Columns that a narrow terminal does without.
USAGE_WIDE = frozenset({"ms/token", "decide us"})
CELL_WIDE = frozenset({"standing", "chance"})
LOADS = ("alone", "2-3", "4+")


@dataclass(frozen=True, slots=True)
class Used:
    """How a setting was used in a cell, and what was seen of it.

    reasons       how often for each reason             answered   answers with believable timings
    tokens_per_s  generated tokens a second over all answers, as the server reports it
    ms_per_token  decode milliseconds a token after the first, and half of its 95% interval
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
    ms_half_width: float | None
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
    per_token, half_width = _ms_per_token(answered)
    drafted = _sum(answered, "draft_n")
    return Used(
        *key,
        requests=len(rows),
        reasons=dict(Counter(row["reason"] for row in rows).most_common()),
        answered=len(answered),
        tokens_per_s=1000.0 * tokens / ms if ms else None,
        ms_per_token=per_token,
        ms_half_width=half_width,
        acceptance=_sum(answered, "accepted") / drafted if drafted else None,
        decide_us=quantile([row["decide_us"] for row in rows], 0.5) or 0.0,
    )


def _ms_per_token(answered: Sequence[Row]) -> tuple[float | None, float | None]:
    """Ratio of sums, and half of its 95% interval (linearised; None below three answers).

    The first token of an answer belongs to its prompt.
    """
    pairs = [(row["predicted_ms"], row["predicted_n"] - 1) for row in answered]
    decoded = sum(tokens for _, tokens in pairs)
    if decoded <= 0:
        return None, None
    ratio = sum(ms for ms, _ in pairs) / decoded
    if len(pairs) < 3:
        return ratio, None
    squares = sum((ms - ratio * tokens) ** 2 for ms, tokens in pairs) * len(pairs) / (len(pairs) - 1)
    return ratio, 1.96 * math.sqrt(squares) / decoded


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


def usage_tables(used: Sequence[Used], edges: Sequence[int], *, narrow: bool = False) -> list[Table]:
    """What was chosen, why, how often, and what was seen of it: a table for each cell, the rarest settings summed.

    narrow: for a terminal of 80 columns, without what can be worked out from the rest or is the same for all.
    """
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
        made.append(table(cell_text(edges, *cell), *_without(columns, lines, USAGE_WIDE if narrow else ())))
    return made


def _without(
    columns: Mapping[str, str], lines: Iterable[Sequence[str]], left_out: Container[str]
) -> tuple[Mapping[str, str], list[Sequence[str]]]:
    """The table without some of its columns."""
    kept = [at for at, heading in enumerate(columns) if heading not in left_out]
    return {h: side for h, side in columns.items() if h not in left_out}, [
        [line[at] for at in kept] for line in lines
    ]


def _used_line(one: Used) -> tuple[str, ...]:
    counted = len(one.reasons) > 1
    return (
        one.setting,
        ", ".join(f"{reason} {count}" if counted else reason for reason, count in one.reasons.items()),
        str(one.requests),
        number_text(one.tokens_per_s),
        number_text(one.ms_per_token, ".2f")
        + ("" if one.ms_half_width is None else f" ±{one.ms_half_width:.2f}"),
        number_text(one.acceptance, ".0%"),
        number_text(one.decide_us),
    )


def budget_lines(budget: Mapping[str, Any]) -> list[str]:
    """The guard's account in words."""
    gain = budget["gain"]
    lines = [
        f"promise: never behind the baseline by more than {budget['alpha']:.1%} + {budget['c0_ms'] / 1000:g} s, "
        f"with probability {1.0 - budget['delta']:.0%}"
    ]
    if gain is None:
        return [*lines, "gain: nothing measured against the baseline yet"]
    lines.append(
        f"gain: {gain:+.1%} of the baseline's time ({budget['gain_low']:+.1%} to {budget['gain_high']:+.1%}), "
        f"{budget['saved_ms'] / 1000:+.1f} s on {budget['ref_ms'] / 1000:.1f} s"
    )
    room = budget["headroom_ms"] / 1000
    left = f"{room:.1f} s left for trials" if room > 0.0 else f"nothing left for trials ({-room:.1f} s short)"
    lines.append(f"budget: {left}, {budget['reserved_ms'] / 1000:.1f} s reserved by requests on their way")
    if budget["alarm"]:
        lines.append(f"alarm: {budget['alarm']}")
    if budget["frontier"]:
        lines.append(f"frontier: {budget['frontier']}")
    return lines


def cell_table(view: Mapping[str, Any], edges: Sequence[int], *, narrow: bool = False) -> Table:
    """A cell of the policy: what is expected of each arm, what its answers prove, and why it is played or not.

    narrow: for a terminal of 80 columns, without standings, intervals and chances.
    """
    cell, price = view["cell"], view["baseline_ms"]
    title = f"{cell_text(edges, cell['bucket'], cell['load'], cell['kind'])}: {view['playing']} ({view['reason']})"
    if price is not None:
        title += f"; the baseline's price {price:.2f} ms/token"
    columns = {"setting": "left", "standing": "left"}
    columns |= dict.fromkeys((EXPECTED, "gain", "answers", "saved", "chance"), "right")
    lines: list[tuple[str, ...]] = [
        (
            arm["setting"],
            arm["standing"],
            _expected_text(arm, narrow=narrow),
            f"{arm['expected_gain']:+.1%}",
            f"{arm['answers']:.0f}",
            _saved_text(arm, narrow=narrow),
            f"{arm['chance']:.1%}" if arm["chance"] else "",
            arm["why"],
        )
        for arm in _worth_showing(view["arms"])
    ]
    left = len(view["arms"]) - len(lines)
    if left:
        lines.append((f"{left} others", *[""] * 7))
    columns = {**columns, "why": "left"}
    return table(title, *_without(columns, lines, CELL_WIDE if narrow else ()))


def _worth_showing(arms: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The baseline, what is played, what was tried, and the likeliest of the rest."""
    heard = [arm for arm in arms if arm["chance"] or arm["answers"] >= 1.0 or arm["standing"] != "candidate"]
    rest = [arm for arm in arms if arm not in heard]
    return [arm for arm in arms if arm in heard or arm in rest[: max(0, SETTINGS_SHOWN - len(heard))]]


def _expected_text(arm: Mapping[str, Any], *, narrow: bool) -> str:
    interval = "" if narrow else f" ({arm['expected_ms_low']:.2f}-{arm['expected_ms_high']:.2f})"
    return f"{arm['expected_ms']:.2f}{interval}"


def _saved_text(arm: Mapping[str, Any], *, narrow: bool) -> str:
    if arm["saved"] is None:
        return "-"
    if narrow:
        return f"{arm['saved']:+.1%}"
    low = "below -100%" if arm["saved_low"] is None else f"{arm['saved_low']:+.0%}"
    return f"{arm['saved']:+.1%} ({low} to {arm['saved_high']:+.0%})"


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
