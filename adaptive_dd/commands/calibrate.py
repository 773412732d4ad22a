"""`adaptive-dd calibrate`: measure which draft setting is fastest at which prompt length."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptive_dd.core.domain import Setting, parse_setting
from adaptive_dd.errors import UsageError

if TYPE_CHECKING:
    from adaptive_dd.calibrate import View

_CONTEXT = re.compile(r"(\d{1,9})(k?)")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
# A prompt needs an end that can be exchanged (see `calibrate.with_other_end`).
SHORTEST_CONTEXT = 16
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_contexts(text: str) -> tuple[int, ...]:
    """`1k,4k,16k` as tokens, k = 1024. Raises UsageError."""
    found: list[int] = []
    for part in text.split(","):
        match = _CONTEXT.fullmatch(part.strip().lower())
        tokens = int(match[1]) * (1024 if match[2] else 1) if match else 0
        if tokens < SHORTEST_CONTEXT:
            raise UsageError(
                f"--contexts: {part.strip()!r} is no prompt length; expected tokens such as 1k,4k,16k, "
                f"at least {SHORTEST_CONTEXT}"
            )
        if found and tokens <= found[-1]:
            raise UsageError(
                f"--contexts: {tokens} comes after {found[-1]}; expected each larger than the one before"
            )
        found.append(tokens)
    return tuple(found)


def parse_budget(text: str) -> float:
    """`90s`, `10m` or `8h` as seconds. Raises UsageError."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--budget: {text!r} is no time; expected such as 90s, 10m or 8h")
    return float(match[1]) * _UNIT_S[match[2]]


def parse_settings(text: str, option: str) -> tuple[Setting, ...]:
    """Settings between blanks or semicolons, as one holds commas itself. Raises UsageError."""
    try:
        found = tuple(
            dict.fromkeys(parse_setting(part) for part in re.split(r"[;\s]+", text.strip()) if part)
        )
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not found:
        raise UsageError(f"{option}: is empty; expected settings such as 'n0; n2,p0.0; n4,p0.25'")
    return found


def parse_kinds(text: str) -> tuple[str, ...]:
    """Kinds between commas; empty for whatever the server samples with. Raises UsageError."""
    from adaptive_dd.calibrate import KINDS

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in found:
        if kind not in KINDS:
            raise UsageError(f"--kinds: {kind!r} is not known; expected greedy, sampled or greedy,sampled")
    return found


def calibrate(
    *,
    upstream: Annotated[str, typer.Option("--upstream", help="URL of the llama-server.")],
    out: Annotated[Path, typer.Option("--out", help="Frontier file to write.")],
    contexts: Annotated[str, typer.Option(help="Prompt lengths in tokens, ascending.")] = "1k,4k,16k",
    settings: Annotated[
        str, typer.Option(help="Settings to compare, such as 'n0; n2,p0.0; n4,p0.25' (default: a wide grid).")
    ] = "",
    baseline: Annotated[str, typer.Option(help="What they are compared with.")] = "server",
    budget: Annotated[str, typer.Option(help="Time to spend: 90s, 10m, 8h.")] = "10m",
    answers: Annotated[
        int, typer.Option(min=0, help="At most so many answers per context (0: no limit).")
    ] = 0,
    prompts: Annotated[str, typer.Option(help="Your own texts: a file, or a folder of files.")] = "",
    tokens: Annotated[int, typer.Option(min=16, max=65536, help="Tokens to generate for each answer.")] = 256,
    kinds: Annotated[str, typer.Option(help="Measure these apart: greedy,sampled.")] = "",
    cap: Annotated[
        int, typer.Option(min=0, max=1024, help="Deepest draft (0: the server's launch value).")
    ] = 0,
    launch_setting: Annotated[
        str,
        typer.Option(help="For a server that ignores request fields: the setting that it was launched with."),
    ] = "",
    margin: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Gains below this are not told apart.")
    ] = 0.02,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other texts and another order.")] = 0,
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="ADAPTIVE_DD_API_KEY", help="Key, where the server wants one.")
    ] = "",
) -> None:
    """Measure on your server which draft setting is fastest at which prompt length."""
    # Here and not above: the other commands need neither numpy nor the bar.
    from adaptive_dd.calibrate import Job
    from adaptive_dd.calibrate import calibrate as measure
    from adaptive_dd.exact_prompts import Generated, Shelf, read_texts
    from adaptive_dd.frontier_report import frontier_report

    shelf: Shelf = read_texts(prompts) if prompts else Generated(seed)
    launched = parse_settings(launch_setting, "--launch-setting") if launch_setting else ()
    if len(launched) > 1:
        raise UsageError(f"--launch-setting: {launch_setting!r} names {len(launched)} settings; expected one")
    job = Job(
        upstream=upstream,
        out=out,
        contexts=parse_contexts(contexts),
        shelf=shelf,
        kinds=parse_kinds(kinds),
        settings=parse_settings(settings, "--settings") if settings else None,
        baseline=parse_settings(baseline, "--baseline")[0],
        budget_s=parse_budget(budget),
        answers=answers or None,
        tokens=tokens,
        cap=cap or None,
        launch_setting=launched[0] if launched else None,
        api_key=api_key,
        seed=seed,
        margin=margin,
    )
    frontier = asyncio.run(measure(job, _view()))
    typer.echo(frontier_report(frontier))
    typer.echo(
        f"Written to {out}. See what it is worth: adaptive-dd frontier show {out} --plot {out.stem}.svg"
    )


def _view() -> View:
    from rich.console import Console

    from adaptive_dd.calibration_view import LiveView, PlainView

    console = Console(file=sys.stderr)
    return LiveView(console) if console.is_terminal else PlainView(lambda text: typer.echo(text, err=True))
