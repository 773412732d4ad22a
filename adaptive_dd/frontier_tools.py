"""Joining, comparing and judging frontiers, as values: `frontier merge`, `diff` and `check`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from adaptive_dd.core.domain import Frontier, FrontierRow, Setting
from adaptive_dd.core.frontier import comparison, half_width, ladder
from adaptive_dd.errors import InputFileError
from adaptive_dd.frontier_report import percent, text_table

# A file measured on so few answers proves little, and its gains may be luck.
FEW_SAMPLES = 3
# Beyond so many times the longest measured context the last setting is a guess.
FAR = 4
# Speeds of two files apart by more than both intervals, or by this where there are none, have changed.
CHANGED = 0.02


def merged(parts: Sequence[tuple[str, Frontier]], baseline: Setting | None) -> Frontier:
    """One frontier from several, such as one run for each launch setting.

    Parts are (name, frontier). A cell that several hold is taken from the later one. Gains against another baseline
    are dropped, as they were paired with that. Raises InputFileError for parts of different models or builds.
    """
    name, first = parts[0]
    for other_name, other in parts[1:]:
        for what in ("model", "build", "generated_tokens"):
            ours, theirs = getattr(first, what), getattr(other, what)
            if ours and theirs and ours != theirs:
                raise InputFileError(
                    f"{other_name}: {what} is {theirs!r}, expected {ours!r} as in {name}: speeds of different "
                    f"{'lengths' if what == 'generated_tokens' else f'{what}s'} cannot be compared"
                )
    common = {part.baseline for _, part in parts}
    chosen = baseline or (first.baseline if len(common) == 1 else None)
    if chosen is None:
        found = ", ".join(sorted(str(setting) for setting in common))
        raise InputFileError(
            f"{name}: the files have different baselines ({found}); expected --baseline with one"
        )
    cells: dict[tuple[int, str, Setting], FrontierRow] = {}
    for _, part in parts:
        for row in part.rows:
            cells[row.context_tokens, row.kind, row.setting] = _rebased(row, part.baseline, chosen)
    rows = sorted(cells.values(), key=lambda r: (r.context_tokens, r.kind, r.setting.order))
    caps = [part.cap for _, part in parts if part.cap is not None]
    return replace(
        first,
        rows=tuple(rows),
        baseline=chosen,
        cap=max(caps) if caps else None,
        edges=first.edges if len({part.edges for _, part in parts}) == 1 else None,
        about=tuple(dict(pair for _, part in parts for pair in part.about).items()),
    )


def _rebased(row: FrontierRow, measured_against: Setting, baseline: Setting) -> FrontierRow:
    if measured_against == baseline:
        return row
    return replace(
        row, gain=None, gain_low=None, gain_high=None, mark="" if row.mark == "dropped" else row.mark
    )


def diff_report(old: Frontier, new: Frontier) -> str:
    """What changed from one frontier to another: each cell that both hold, and what is played now."""
    before = {(r.context_tokens, r.kind, r.setting): r for r in old.rows}
    lines = []
    for row in new.rows:
        was = before.get((row.context_tokens, row.kind, row.setting))
        if was is not None:
            ratio = row.tok_s / was.tok_s
            verdict = _changed(was, row)
            lines.append((f"{row.context_tokens:,}", row.kind or "any", str(row.setting), f"{was.tok_s:.2f}",
                          f"{row.tok_s:.2f}", percent(ratio), verdict))  # fmt: skip
    heads = [
        f"{what}: {a or 'not given'} -> {b or 'not given'}"
        for what, a, b in (("model", old.model, new.model), ("build", old.build, new.build))
        if a != b
    ]
    head = ("context", "kind", "setting", "before", "now", "change", "")
    table = text_table(head, lines, left=(1, 2, 6)) if lines else "No cell is in both files."
    return "\n\n".join([*heads, table, _played(old, new)]) + "\n"


def _changed(was: FrontierRow, now: FrontierRow) -> str:
    spreads = (half_width(was), half_width(now))
    apart = abs(now.tok_s - was.tok_s)
    noise = sum(s for s in spreads if s is not None) if None not in spreads else CHANGED * was.tok_s
    if apart <= noise:
        return "within the noise"
    return "faster" if now.tok_s > was.tok_s else "slower"


def _played(old: Frontier, new: Frontier) -> str:
    """The settings played at every context of either file."""

    def best(frontier: Frontier) -> dict[tuple[int, str], str]:
        found = {}
        for one in comparison(frontier):
            setting = one.best.row.setting if one.best else frontier.baseline
            found[one.context_tokens, one.kind] = (
                f"{setting} {percent(one.gain)}" if one.best else f"{setting} (tie)"
            )
        return found

    before, now = best(old), best(new)
    rows = [
        (f"{context:,}", kind or "any", before.get((context, kind), "-"), now.get((context, kind), "-"),
         "" if before.get((context, kind), "-").split()[0] == now.get((context, kind), "-").split()[0] else "changed")
        for context, kind in sorted(before.keys() | now.keys())
    ]  # fmt: skip
    return text_table(("context", "kind", "played before", "played now", ""), rows, left=(1, 2, 3, 4))


def doubts(frontier: Frontier) -> list[str]:
    """What a careful reader would object to in a frontier without faults, a line each."""
    if frontier.rules:
        return ["a ladder states what to play and shows no measurements: nothing in it can be judged"]
    compared = comparison(frontier)
    found = [
        _doubt(c.context_tokens, c.kind, text) for c in compared for text in _of_context(c.why, c.judged)
    ]
    contexts = sorted({row.context_tokens for row in frontier.rows})
    if frontier.rows and not any(row.samples for row in frontier.rows):
        found.append("no row says how many samples it is a mean of, so differences cannot be told from noise")
    elif any(row.samples is not None and row.samples < FEW_SAMPLES for row in frontier.rows):
        found.append(f"some rows are means of fewer than {FEW_SAMPLES} samples")
    for low, high in itertools.pairwise(contexts):
        if high > FAR * FAR * low:
            found.append(f"nothing is measured between {low:,} and {high:,} tokens")
    if contexts and ladder(frontier)[-1].setting != frontier.baseline:
        found.append(f"beyond {contexts[-1]:,} tokens {ladder(frontier)[-1].setting} is an extrapolation")
    over = [
        row for row in frontier.rows if frontier.cap is not None and (row.setting.n_max or 0) > frontier.cap
    ]
    if over:
        found.append(f"{len(over)} rows are above the cap {frontier.cap} and are not used")
    for what in ("model", "build"):
        if not getattr(frontier, what):
            found.append(f"{what} is not given, so `serve` cannot tell whether it fits the server")
    return found


def _doubt(context_tokens: int, kind: str, text: str) -> str:
    return f"at {context_tokens:,} tokens{f' ({kind})' if kind else ''}: {text}"


def _of_context(why: str, judged: Sequence[object]) -> list[str]:
    if why == "no-baseline":
        return ["the baseline was not measured, so nothing is proven and the baseline is played"]
    if why == "unproven":
        return ["a row is faster on average, but not beyond its noise; the baseline is played"]
    return ["only the baseline was measured"] if not judged else []
