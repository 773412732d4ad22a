"""What was learned, frozen: a policy that needs no learner, in the form of a frontier.

Pure: a state in, a `Frontier` out. Only what the guard holds proven becomes a claim, so that a frozen policy is never
bolder than the live one; conversations and load, which a frontier does not know, are left behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import mul

from adaptive_dd.core import controller, planning
from adaptive_dd.core.domain import Cell, Frontier, FrontierRow, Setting
from adaptive_dd.core.frontier import bucket_of
from adaptive_dd.core.learned import node_of
from adaptive_dd.core.state import State
from adaptive_dd.core.texts import texts_of
from adaptive_dd.core.trials import BARRED, NEW, PROVEN, Trial

# Answers of an arm in a cell below which its row makes no claim.
MIN_EVIDENCE = 20.0


@dataclass(frozen=True, slots=True)
class Frozen:
    """A policy that needs no learner: a frontier of what was proven. notes: what it does not say, for its owner.

    proven, unproven   cells (bucket and kind) in which a setting beats the baseline, and in which the baseline stays
    """

    frontier: Frontier
    proven: int
    unproven: int
    notes: tuple[str, ...]


def frozen_frontier(state: State, *, min_evidence: float = MIN_EVIDENCE) -> Frozen:
    """The learned policy as a frontier file's rows, with their evidence; the baseline where nothing is proven.

    A row of an arm is a claim only when the guard holds it proven, on at least `min_evidence` answers of its own and
    with an interval above the baseline; all others are written with a mark, which makes no claim. Rows of the frontier
    that the state began with stay in cells that were never learned about.
    """
    chosen: dict[tuple[int, str], Cell] = {}
    for cell, trials in state.guard.trials.items():
        best = chosen.get((cell.bucket, cell.kind))
        if best is None or _evidence(trials) > _evidence(state.guard.trials[best]):
            chosen[cell.bucket, cell.kind] = cell
    rows = [row for row in state.frontier.rows if not _relearned(row, state, chosen)]
    learned = {cell: _rows_of(state, cell, min_evidence) for cell in chosen.values()}
    rows += [row for found in learned.values() for row in found]
    rows.sort(key=lambda row: (row.context_tokens, row.kind, row.setting.order))
    proven = sum(any(_claims(row, state) for row in found) for found in learned.values())
    frontier = Frontier(
        tuple(rows),
        state.arms[0].setting,
        edges=state.edges,
        model=state.deployment.model,
        build=state.deployment.build,
        cap=controller.cap_of(state),
        about=(("origin", "learned"), ("requests", str(state.next_number - 1))),
    )
    return Frozen(frontier, proven, len(learned) - proven, _notes(state, learned, proven, min_evidence))


def for_every_kind(frontier: Frontier) -> Frontier:
    """A frozen frontier for a ladder that knows no kinds: where kinds were learned about, they alone speak."""
    learned = {bucket_of(frontier.edges or (), row.context_tokens) for row in frontier.rows if row.kind}
    rows = [
        r for r in frontier.rows if r.kind or bucket_of(frontier.edges or (), r.context_tokens) not in learned
    ]
    return replace(frontier, rows=tuple(rows))


def _evidence(trials: Mapping[str, Trial]) -> float:
    return sum(trial.weight for trial in trials.values())


def _relearned(row: FrontierRow, state: State, chosen: Mapping[tuple[int, str], Cell]) -> bool:
    return (bucket_of(state.edges, row.context_tokens), row.kind) in chosen


def _rows_of(state: State, cell: Cell, min_evidence: float) -> list[FrontierRow]:
    """A cell as rows: the baseline at its own price, and every arm that was played there."""
    price = planning.price_by_text(state, state.learned, state.guard, cell)
    if price is None:
        return []
    texts = texts_of(state.learned, cell.kind, cell.bucket)
    tok_s = 1000.0 / sum(map(mul, price, texts))
    known = state.guard.prices[node_of(cell.bucket, cell.load)]
    rows = []
    for tokens in _contexts(state, cell.bucket):
        samples = max(1, round(known.weight))
        rows.append(FrontierRow(tokens, state.arms[0].setting, tok_s, samples=samples, kind=cell.kind))
        for arm in state.arms[1:]:
            trial = state.guard.trials[cell].get(arm.name, NEW)
            if trial.weight >= 1.0:
                rows.append(
                    _row(arm.setting, trial, tokens, cell.kind, tok_s, state.settings.delta, min_evidence)
                )
    return rows


def _row(  # noqa: PLR0917 - the columns of one row
    setting: Setting,
    trial: Trial,
    tokens: int,
    kind: str,
    base_tok_s: float,
    delta: float,
    min_evidence: float,
) -> FrontierRow:
    radius = trial.radius(delta)
    mark = (
        ""
        if trial.standing in PROVEN
        else "unproven"
        if trial.standing not in BARRED
        else trial.standing.value
    )
    if trial.weight < min_evidence:
        mark = mark or "too-little-evidence"
    return FrontierRow(
        tokens,
        setting,
        base_tok_s * math.exp(trial.mean),
        samples=round(trial.weight),
        kind=kind,
        gain=math.exp(trial.mean),
        gain_low=math.exp(max(-5.0, trial.mean - radius)),
        gain_high=math.exp(min(5.0, trial.mean + radius)),
        mark=mark,
    )


def _contexts(state: State, bucket: int) -> list[int]:
    """Prompt lengths that stand for a bucket: those that the frontier measured there, else its middle."""
    measured = {row.context_tokens for row in state.frontier.rows}
    inside = sorted(tokens for tokens in measured if bucket_of(state.edges, tokens) == bucket)
    if inside:
        return inside
    low = state.edges[bucket - 1] if bucket > 0 else 0
    if bucket == len(state.edges):
        return [2 * max(low, 256)]
    return [max(low, round(math.sqrt(max(low, 16) * state.edges[bucket])))]


def _claims(row: FrontierRow, state: State) -> bool:
    return (
        row.setting != state.arms[0].setting
        and not row.mark
        and min(row.gain or 0.0, row.gain_low or 0.0) > 1.0
    )


def _notes(
    state: State, learned: Mapping[Cell, list[FrontierRow]], proven: int, min_evidence: float
) -> tuple[str, ...]:
    notes = []
    if not learned:
        notes.append("immature: no setting but the baseline was tried yet; the baseline is kept everywhere")
    elif proven < len(learned):
        cells_ = ", ".join(
            f"b{cell.bucket}.{cell.kind}"
            for cell, rows in learned.items()
            if not any(_claims(row, state) for row in rows)
        )
        notes.append(
            f"{len(learned) - proven} of {len(learned)} cells are not proven (a setting faster than the baseline, on "
            f"{min_evidence:g} answers or more): the baseline is kept in {cells_}"
        )
    loaded = sorted({cell.load for cell in learned if cell.load > 0})
    if loaded:
        notes.append("a policy file knows no load: some cells were measured with several requests at a time")
    return tuple(notes)
