"""`adaptive-dd inspect`: what was chosen, why, how often, and what it earned."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from adaptive_dd import report
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import REASONS, Deployment, Frontier
from adaptive_dd.core.explain import CellView, budget, cells, decision_view
from adaptive_dd.core.frontier import bucket_edges
from adaptive_dd.core.offpolicy import CHOSEN
from adaptive_dd.errors import UsageError
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.frontier_report import frontier_report
from adaptive_dd.reader import Reader

# Decisions that are looked at: some seconds of work, and more than anybody's last week.
LAST = 20_000

# Columns of what goes into a pipe or a file: enough for the widest table.
WIDTH = 140
# Below this some columns are left out, so that the rest need not be cut.
NARROW = 120


def inspect(
    *,
    frontier: Annotated[
        str, typer.Option("--frontier", help="Print the ladder and comparison of a frontier file instead.")
    ] = "",
    state_dir: Annotated[
        Path, typer.Option("--state-dir", envvar="ADAPTIVE_DD_STATE_DIR", help="Folder of the journal.")
    ] = Path("state"),
    deployment: Annotated[
        int | None,
        typer.Option("--deployment", help="Number of the deployment (default: the one used last)."),
    ] = None,
    cell: Annotated[str, typer.Option("--cell", help="Only this cell, such as b1.l0.greedy.free.chat.")] = "",
    explain: Annotated[
        int | None, typer.Option("--explain", help="Explain one past decision, by its number.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", help="How many of the latest decisions to count.", min=1)
    ] = LAST,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what was chosen, why, how often, and what it earned; also while a proxy is running."""
    if frontier:
        typer.echo(frontier_report(load_frontier(frontier)), nl=False)
        return
    # rich takes 80 columns where there is no terminal, which cuts every heading.
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    narrow = console.width < NARROW
    with closing(Reader(state_dir)) as reader:
        if explain is not None:
            found = explained(reader, explain)
            parts = explained_parts(found, narrow=narrow)
        else:
            found = gather(reader, deployment, cell, last)
            parts = overview_parts(found, narrow=narrow)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for part in parts:
        console.print(part)


def choose_deployment(reader: Reader, wanted: int | None) -> tuple[int, Deployment]:
    """The deployment of that number, or the one used last. Raises UsageError."""
    known = reader.deployments()
    if not known:
        raise UsageError(f"{reader.path}: the journal is empty; expected a proxy to have served with it")
    number = list(known)[-1] if wanted is None else wanted
    if number not in known:
        listed = ", ".join(f"{n} ({d.upstream} {d.model} {d.build})" for n, d in sorted(known.items()))
        raise UsageError(f"--deployment {number}: not in {reader.path}; expected one of {listed}")
    return number, known[number]


def gather(reader: Reader, deployment: int | None, cell: str, last: int) -> dict[str, Any]:
    """Everything that is shown, as JSON-able values."""
    number, which = choose_deployment(reader, deployment)
    resumed = reader.resume(which)
    rows = [row for row in reader.decisions(number, last=last) if not cell or _cell_of(row) == cell]
    if cell and not rows:
        raise UsageError(
            f"--cell {cell}: no decision there; expected bucket.load.kind, as `inspect --json` shows"
        )
    edges = resumed.state.edges if resumed.state else bucket_edges(Frontier())
    return {
        "journal": {"path": str(reader.path), **reader.span(number), "counted": len(rows)},
        "deployment": {"number": number, **asdict(which)},
        "others": [n for n in reader.deployments() if n != number],
        "notes": list(resumed.notes),
        "policy": _policy(resumed.state, cell),
        "decide_us": report.decide_times(rows),
        "statuses": report.statuses(rows),
        "edges": list(edges),
        "usage": [asdict(one) for one in report.usage(rows)],
        "changes": report.changes(rows),
    }


def _cell_of(row: report.Row) -> str:
    return f"b{row['bucket']}.l{row['load']}.{row['kind']}"


def _policy(state: State | None, cell: str) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "mode": state.settings.mode.value,
        "frozen": state.frozen,
        "baseline": str(state.settings.baseline),
        "listens": state.facts.listens.value,
        "cap": state.facts.cap,
        "open": len(state.open),
        "budget": asdict(budget(state)),
        "cells": [cell_json(view) for view in cells(state) if not cell or str(view.cell) == cell],
    }


def cell_json(view: CellView) -> dict[str, Any]:
    """A cell as JSON-able values, its settings written as everywhere."""
    arms = [{**asdict(arm), "setting": str(arm.setting)} for arm in view.arms]
    return {**asdict(view), "name": str(view.cell), "playing": str(view.playing), "arms": arms}


def explained(reader: Reader, number: int) -> dict[str, Any]:
    """One past decision, in the state that it was made in. Raises UsageError."""
    before = reader.before(number)
    if before is None:
        raise UsageError(
            f"--explain {number}: not in {reader.path} any more; expected a number that `inspect` counts"
        )
    _, state, event = before
    rows = reader.rows("select * from decisions where number = ?", [number])
    return {
        "decision": rows[0] if rows else None,
        "settled": event.decision.reason not in CHOSEN,
        "why": REASONS[event.decision.reason],
        "conversation_known": event.context.conversation in state.learned.talks,
        "edges": list(state.edges),
        "budget": asdict(budget(state)),
        "cell": cell_json(decision_view(state, event.context)),
    }


# --- for eyes -----------------------------------------------------------------------------------------------


def overview_parts(found: dict[str, Any], *, narrow: bool) -> list[RenderableType]:
    """The parts of the page, in order. narrow: fewer columns, so that 80 are enough."""
    edges, policy = found["edges"], found["policy"]
    parts: list[RenderableType] = ["\n".join(_headline(found))]
    if policy and policy["mode"] == "adaptive":
        parts += ["\n".join(report.budget_lines(policy["budget"])), ""]
        parts += [report.cell_table(view, edges, narrow=narrow) for view in policy["cells"]]
    parts += report.usage_tables([report.Used(**one) for one in found["usage"]], edges, narrow=narrow)
    if found["changes"]:
        parts.append(report.changes_table(found["changes"], edges))
    return parts


def explained_parts(found: dict[str, Any], *, narrow: bool) -> list[RenderableType]:
    """A past decision for eyes."""
    row = found["decision"]
    drafted = f"{row['draft_n'] or 0} drafted, {row['accepted'] or 0} accepted"
    if row["inferred"]:
        drafted = "told by when they arrived"
    lines = [
        f"request {row['number']}, {report.time_text(row['at_s'])} UTC: {row['prompt_tokens']} prompt tokens "
        f"({row['tokens_source']}), {row['in_flight']} in flight, {row['kind']}",
        f"sent {row['setting']}: {row['reason']} ({found['why']}), with probability {row['propensity']:.4g}, "
        f"decided in {row['decide_us']:.1f} us",
        f"ended {row['status']}: {report.number_text(row['tokens_per_s'])} tok/s, {row['predicted_n'] or 0} tokens, "
        + drafted,
    ]
    if found["settled"]:
        return ["\n".join([*lines, "Nothing was to be chosen."])]
    if found["conversation_known"]:
        lines.append("Its conversation was known: the text to expect was that of its earlier answers.")
    lines += ["", "As it stood before this decision:", *report.budget_lines(found["budget"]), ""]
    return ["\n".join(lines), report.cell_table(found["cell"], found["edges"], narrow=narrow)]


def _headline(found: dict[str, Any]) -> list[str]:
    which, journal, policy, times = found["deployment"], found["journal"], found["policy"], found["decide_us"]
    lines = [f"{which['upstream']}  {which['model'] or 'model unknown'}  {which['build']}".rstrip()]
    if policy:
        lines.append(
            f"mode {policy['mode']}{', frozen' if policy['frozen'] else ''}; baseline {policy['baseline']}; "
            f"cap {policy['cap'] if policy['cap'] is not None else 'unknown'}; the server {policy['listens']}"
        )
    since, until = report.time_text(journal["from_s"]), report.time_text(journal["to_s"])
    lines.append(
        f"{journal['decisions']} decisions kept, {since} to {until} UTC; {journal['counted']} counted here"
    )
    ended = ", ".join(f"{status} {count}" for status, count in found["statuses"].items())
    lines.append(f"ended: {ended or 'none'}")
    lines.append("deciding took " + ", ".join(f"{k} {report.number_text(v)} us" for k, v in times.items()))
    if found["others"]:
        lines.append(
            f"other deployments in this journal: {', '.join(map(str, found['others']))} (--deployment N)"
        )
    return lines + [f"note: {note}" for note in found["notes"]]
