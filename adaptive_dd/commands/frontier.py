"""`adaptive-dd frontier show|merge|diff|ladder|check`: what a frontier says, and whether to believe it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptive_dd.core.domain import SERVER, Setting, parse_setting
from adaptive_dd.core.frontier import ladder as ladder_of
from adaptive_dd.core.frontier import ladder_text
from adaptive_dd.errors import InputFileError, UsageError
from adaptive_dd.files import write_atomically
from adaptive_dd.frontier_file import dump_frontier, find_file, load_frontier, read_frontier, read_text
from adaptive_dd.frontier_report import frontier_report, grid_table
from adaptive_dd.frontier_tools import diff_report, doubts, merged

frontier = typer.Typer(no_args_is_help=True, help="Show, join, compare and judge frontier files.")

Source = Annotated[str, typer.Argument(help="A frontier file, a shipped example's name, or a ladder string.")]
Baseline = Annotated[str, typer.Option(help="Compare with this setting instead of the file's own baseline.")]
Cap = Annotated[int, typer.Option(min=0, help="Leave out settings deeper than this (0: the file's own cap).")]


def _setting(text: str) -> Setting | None:
    if not text:
        return None
    try:
        return parse_setting(text)
    except ValueError as error:
        raise UsageError(f"--baseline: {error}") from None


@frontier.command()
def show(
    source: Source,
    baseline: Baseline = "",
    cap: Cap = 0,
    grid: Annotated[bool, typer.Option("--grid", help="Print every measured cell as well.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw it as well: a name ending in .svg or .png.")] = None,
) -> None:
    """Static against dynamic at each context, the verdict, and the ladder that would be played."""
    from adaptive_dd.plots import check_ending, draw

    if plot is not None:
        check_ending(plot)
    found = load_frontier(source)
    against, limit = _setting(baseline), cap or None
    typer.echo(frontier_report(found, baseline=against, cap=limit), nl=False)
    if grid and found.rows:
        typer.echo("\n" + grid_table(found))
    if plot is not None:
        if not found.rows:
            raise UsageError(
                f"--plot: {source} is a ladder without measurements; expected a frontier with rows"
            )
        draw(found, plot, baseline=against, cap=limit)
        typer.echo(f"\nDrawn to {plot}")


@frontier.command()
def merge(
    sources: Annotated[
        list[str], typer.Argument(help="Frontier files; a later one's cells replace an earlier's.")
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    baseline: Annotated[str, typer.Option(help="The baseline of the joined file.")] = "",
) -> None:
    """Join frontiers, such as one for each launch setting of a server that ignores request fields."""
    parts = [(source, load_frontier(source)) for source in sources]
    for source, part in parts:
        if part.rules:
            raise InputFileError(f"{source}: is a ladder without measurements, expected a frontier with rows")
    joined = merged(parts, _setting(baseline))
    write_atomically(out, dump_frontier(joined))
    typer.echo(frontier_report(joined), nl=False)
    typer.echo(f"\nWritten to {out}")


@frontier.command()
def diff(
    old: Annotated[str, typer.Argument(help="The earlier frontier.")],
    new: Annotated[str, typer.Argument(help="The later frontier.")],
) -> None:
    """What changed between two frontiers, such as two builds of a server."""
    typer.echo(diff_report(load_frontier(old), load_frontier(new)), nl=False)


@frontier.command()
def ladder(source: Source, baseline: Baseline = "", cap: Cap = 0) -> None:
    """Print the policy string of the lab's own server: 0:n4,p0.25;49152:n4,p0.0."""
    found = load_frontier(source)
    against = _setting(baseline)
    rungs = ladder_of(found, baseline=against, cap=cap or None)
    if any(rung.setting == SERVER for rung in rungs):
        raise UsageError(
            f"{source}: its ladder holds `server`, which only we know; expected --baseline with a setting"
        )
    typer.echo(ladder_text(rungs))


@frontier.command()
def check(source: Source) -> None:
    """Judge a file, above all one written by hand: faults (exit 2), warnings, and what to doubt."""
    if ":" in source and not Path(source).exists():
        found, warnings = load_frontier(source), []
    else:
        path = find_file(source)
        found, reading = read_frontier(read_text(path), str(path))
        if reading.faults:
            raise InputFileError("\n".join(reading.faults))
        warnings = reading.warnings
    for warning in warnings:
        typer.echo(f"warning: {warning}")
    for doubt in doubts(found):
        typer.echo(f"doubt: {doubt}")
    typer.echo(
        f"{source}: no faults, {len(found.rows) or len(found.rules)} {'rows' if found.rows else 'rules'}"
    )
