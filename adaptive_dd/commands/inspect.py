"""`adaptive-dd inspect`: what was chosen, why, how often, and what it earned."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from adaptive_dd import report
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Deployment, Frontier
from adaptive_dd.core.frontier import bucket_edges
from adaptive_dd.errors import UsageError
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.frontier_report import frontier_report
from adaptive_dd.reader import Reader

# Decisions that are looked at: some seconds of work, and more than anybody's last week.
LAST = 20_000


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
    last: Annotated[
        int, typer.Option("--last", help="How many of the latest decisions to count.", min=1)
    ] = LAST,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what was chosen, why, how often, and what it earned; also while a proxy is running."""
    if frontier:
        typer.echo(frontier_report(load_frontier(frontier)), nl=False)
        return
    with closing(Reader(state_dir)) as reader:
        found = gather(reader, deployment, cell, last)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    for part in show(found):
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
        "policy": _policy(resumed.state),
        "decide_us": report.decide_times(rows),
        "statuses": report.statuses(rows),
        "edges": list(edges),
        "usage": [asdict(one) for one in report.usage(rows)],
        "changes": report.changes(rows),
    }


def _cell_of(row: report.Row) -> str:
    return f"b{row['bucket']}.l{row['load']}.{row['kind']}"


def _policy(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {
        "mode": state.settings.mode.value,
        "frozen": state.frozen,
        "baseline": str(state.settings.baseline),
        "listens": state.facts.listens.value,
        "cap": state.facts.cap,
        "open": len(state.open),
    }


# --- for eyes -----------------------------------------------------------------------------------------------


def show(found: dict[str, Any]) -> list[RenderableType]:
    """The parts of the page, in order."""
    edges = found["edges"]
    parts: list[RenderableType] = ["\n".join(_headline(found))]
    used = [report.Used(**one) for one in found["usage"]]
    parts += report.usage_tables(used, edges)
    if found["changes"]:
        parts.append(report.changes_table(found["changes"], edges))
    return parts


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
