"""`adaptive-dd bench`: policies against scenarios, and the guarantee against random worlds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from adaptive_dd.bench import (
    HINDSIGHT,
    POLICIES,
    Score,
    Task,
    Trial,
    Verdict,
    in_parallel,
    play,
    policy_names,
    read_results,
    results_json,
    scenario_names,
    try_world,
)
from adaptive_dd.bench_report import (
    guarantee_lines,
    markdown,
    plain,
    plot_guarantee,
    plot_scores,
    policy_table,
    replace_section,
    scenario_table,
    what_scenarios_show,
)
from adaptive_dd.core.domain import PolicySettings
from adaptive_dd.core.scenarios import SCENARIOS
from adaptive_dd.errors import UsageError
from adaptive_dd.files import write_atomically

A = TypeVar("A")
B = TypeVar("B")


def bench(
    *,
    scenario: Annotated[
        list[str] | None, typer.Option(help="A scenario by name; repeat for more. Default: all.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="A policy by name; repeat for more. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per scenario.")] = 10,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed, or the first random world.")] = 1,
    requests: Annotated[int, typer.Option(min=20, help="Requests per run.")] = 1500,
    jobs: Annotated[int, typer.Option(min=0, help="Parallel processes; 0: one per core.")] = 0,
    alpha: Annotated[
        float, typer.Option(min=0.0, help="Share of the baseline's time that may be lost.")
    ] = 0.01,
    c0: Annotated[float, typer.Option(min=0.0, help="Seconds that may be lost on top.")] = 5.0,
    guarantee: Annotated[
        int, typer.Option(min=0, help="Try the promise in so many random worlds instead.")
    ] = 0,
    truthful: Annotated[
        bool, typer.Option(help="With --guarantee: worlds with a truthful frontier.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write tables into this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them here (.svg or .png).")] = None,
    reuse: Annotated[
        list[Path] | None, typer.Option("--with", help="Add the results of an earlier --json.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List scenarios and policies, and stop.")] = False,
) -> None:
    """Play policies on simulated servers, or try the guarantee in random worlds."""
    if list_:
        _list()
        return
    if truthful and not guarantee:
        raise UsageError("--truthful belongs to --guarantee N")
    settings = PolicySettings(alpha=alpha, c0_ms=1000.0 * c0)
    jobs = jobs or os.cpu_count() or 1
    for path in (json_file, markdown_file, plot):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path}: no such directory {path.parent}")
    if guarantee:
        trials = [Trial(first_seed + i, requests, settings, truthful) for i in range(guarantee)]
        verdicts = list(_watched(try_world, trials, jobs, "worlds"))
        _report_guarantee(verdicts, settings, json_file, markdown_file, plot, truthful=truthful)
        return
    names, policies = scenario_names(scenario or []), policy_names(policy or [])
    tasks = [Task(name, first_seed + i, policies, requests, settings) for name in names for i in range(seeds)]
    replaced = {(task.scenario, task.seed, name) for task in tasks for name in (*task.policies, *HINDSIGHT)}
    earlier = [score for path in reuse or [] for score in read_results(path, requests, settings)]
    done = [score for score in earlier if (score.scenario, score.seed, score.policy) not in replaced]
    done += [score for scores in _watched(play, tasks, jobs, "runs") for score in scores]
    known = list(SCENARIOS)
    done.sort(key=lambda score: (known.index(score.scenario) if score.scenario in known else -1, score.seed))
    if json_file:
        write_atomically(json_file, results_json(done, requests, settings))
    played = len({score.seed for score in done})
    heading = (
        f"{requests} requests, {played} {'seed' if played == 1 else 'seeds'}, alpha {alpha:g}, c0 {c0:g} s"
    )
    _report(done, markdown_file, plot, heading=heading)


def _watched(work: Callable[[A], B], tasks: Sequence[A], jobs: int, what: str) -> list[B]:
    """All results, with a bar on a terminal and a line per tenth elsewhere."""
    console = Console(stderr=True)
    results = in_parallel(work, tasks, min(jobs, len(tasks)))
    if console.is_terminal:
        return list(track(results, what, total=len(tasks), console=console))
    done: list[B] = []
    for result in results:
        done.append(result)
        if len(done) * 10 // len(tasks) > (len(done) - 1) * 10 // len(tasks):
            typer.echo(f"{len(done)} of {len(tasks)} {what}", err=True)
    return done


def _list() -> None:
    typer.echo(
        plain((("scenario", "what it shows"), [(name, entry.shows) for name, entry in SCENARIOS.items()]))
    )
    typer.echo("\npolicies: " + ", ".join(POLICIES))


def _report(scores: Sequence[Score], markdown_file: Path | None, plot: Path | None, *, heading: str) -> None:
    if plot:
        plot_scores(scores, plot)
    if markdown_file:
        parts = (
            heading + ".",
            markdown(policy_table(scores)),
            markdown(scenario_table(scores)),
            what_scenarios_show(),
        )
        replace_section(markdown_file, "bench", "\n\n".join(parts))
    typer.echo(heading)
    typer.echo(plain(policy_table(scores)) + "\n")
    typer.echo(plain(scenario_table(scores)))


def _report_guarantee(
    verdicts: Sequence[Verdict],
    settings: PolicySettings,
    json_file: Path | None,
    markdown_file: Path | None,
    plot: Path | None,
    *,
    truthful: bool,
) -> None:
    lines = guarantee_lines(verdicts, alpha=settings.alpha, c0_ms=settings.c0_ms, delta=settings.delta)
    if json_file:
        write_atomically(json_file, json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
    if plot:
        plot_guarantee(verdicts, plot)
    if markdown_file:
        text = "\n".join(["```", *lines, "```"])
        replace_section(markdown_file, "guarantee-truthful" if truthful else "guarantee", text)
    typer.echo("\n".join(lines))
