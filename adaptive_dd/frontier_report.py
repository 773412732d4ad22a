"""A frontier as text: static against dynamic, where the baseline stands, and the ladder that would be played."""

from __future__ import annotations

from collections.abc import Sequence

from adaptive_dd.core.domain import Frontier, Setting
from adaptive_dd.core.frontier import (
    WHY,
    Comparison,
    Judged,
    Rung,
    comparison,
    half_width,
    ladder,
    ladder_text,
    merged,
)


def percent(ratio: float) -> str:
    """A ratio of speeds as a gain: 1.174 is `+17.4%`."""
    return f"{100.0 * (ratio - 1.0):+.1f}%"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """Columns padded to their widest cell; those in `left` are set to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = []
    for line in (head, *rows):
        cells = (
            c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _interval(judged: Judged) -> str:
    if judged.low is None or judged.high is None:
        return ""
    return f"{percent(judged.low)} to {percent(judged.high)}"


def _verdict(one: Comparison) -> str:
    if one.why != "unproven":
        return {"proven": "proven", "tie": "tie: the baseline stands"}.get(one.why, WHY[one.why])
    lead = one.judged[0]
    reason = (
        f"marked {lead.row.mark}"
        if lead.row.mark
        else f"lower bound {percent(min(lead.gain, lead.low or 0.0))}"
    )
    return f"{lead.row.setting} is {percent(lead.gain)} on average, not proven ({reason})"


def _compared(one: Comparison) -> tuple[str, ...]:
    static = f"{one.baseline.tok_s:.2f}" if one.baseline else "?"
    played = one.best.row if one.best else one.baseline
    return (
        f"{one.context_tokens:,}",
        one.kind or "any",
        static,
        str(played.setting) if played else "baseline",
        f"{played.tok_s:.2f}" if played else "?",
        percent(one.gain) if one.best else "tie" if one.why == "tie" else "-",
        _interval(one.best) if one.best else "",
        _verdict(one),
    )


def comparison_table(compared: Sequence[Comparison], baseline: Setting) -> str:
    """Static against dynamic, a line for each measured context; columns that say nothing are left out."""
    head = ("context", "kind", f"static {baseline}", "dynamic", "tok/s", "gain", "interval", "verdict")
    rows = [_compared(one) for one in compared]
    idle = {i for i, empty in ((1, "any"), (6, "")) if all(row[i] == empty for row in rows)}
    kept = [i for i in range(len(head)) if i not in idle]
    lefts = [at for at, i in enumerate(kept) if i in (1, 3, 7)]
    return text_table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], left=lefts)


def grid_table(frontier: Frontier) -> str:
    """Every measured row with its spread, as the file has them."""
    head = ("context", "kind", "setting", "tok/s", "+-95%", "samples", "acceptance", "cycle ms", "mark")
    rows = []
    for row in frontier.rows:
        half = half_width(row)
        rows.append((
            f"{row.context_tokens:,}", row.kind or "any", str(row.setting), f"{row.tok_s:.2f}",
            "" if half is None else f"{half:.2f}", "" if row.samples is None else str(row.samples),
            "" if row.acceptance is None else f"{row.acceptance:.2f}",
            "" if row.cycle_ms is None else f"{row.cycle_ms:.2f}", row.mark,
        ))  # fmt: skip
    return text_table(head, rows, left=(1, 2, 8))


def ladder_table(rungs: Sequence[Rung]) -> str:
    """From which prompt length on which setting is played, and why."""
    rows = [
        (f"{r.min_tokens:,}", str(r.setting), percent(r.gain) if r.why == "proven" else "", WHY[r.why])
        for r in merged(rungs)
    ]
    return text_table(("from tokens", "setting", "gain", "why"), rows, left=(1, 3))


def _headline(frontier: Frontier) -> str:
    parts = [
        frontier.model or "unnamed model",
        f"build {frontier.build}" if frontier.build else "",
        f"cap {frontier.cap}" if frontier.cap is not None else "",
        f"{frontier.generated_tokens} generated tokens" if frontier.generated_tokens else "",
    ]
    return "Frontier: " + ", ".join(part for part in parts if part)


def _summary(compared: Sequence[Comparison]) -> str:
    won = [one for one in compared if one.best]
    if not won:
        return (
            f"Verdict: no context of {len(compared)} has a proven winner; the baseline is played everywhere."
        )
    best = max(won, key=lambda one: one.gain)
    where = f"{percent(best.gain)} at {best.context_tokens:,} tokens"
    return f"Verdict: {len(won)} of {len(compared)} contexts have a proven winner, up to {where}."


def _beyond(frontier: Frontier, rungs: Sequence[Rung]) -> str:
    longest = max(row.context_tokens for row in frontier.rows)
    return f"Beyond {longest:,} tokens {rungs[-1].setting} is an extrapolation."


def frontier_report(frontier: Frontier, *, baseline: Setting | None = None, cap: int | None = None) -> str:
    """What `frontier show` and `inspect --frontier` print: comparison, verdict and ladder, ending in a newline."""
    wanted = frontier.baseline if baseline is None else baseline
    rungs = ladder(frontier, baseline=wanted, cap=cap)
    parts = [_headline(frontier) if frontier.rows or not frontier.rules else "Ladder as given"]
    if frontier.rows:
        compared = comparison(frontier, baseline=wanted, cap=cap)
        parts += [comparison_table(compared, wanted), _summary(compared)]
    kinds = sorted({row.kind for row in frontier.rows if row.kind})
    for kind in kinds:
        own = ladder(frontier, baseline=wanted, cap=cap, kind=kind)
        parts += [f"Ladder for {kind} requests", ladder_table(own)]
    title = "Ladder for requests of any kind: a setting must be safe for all of them" if kinds else "Ladder"
    parts += [title, ladder_table(rungs), ladder_text(rungs)]
    if frontier.rows:
        parts.append(_beyond(frontier, rungs))
    return "\n\n".join(parts) + "\n"
