"""`adaptive-dd advise`: the launch flags that would serve this traffic best, where no setting can be sent."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adaptive_dd.advise import from_calibration, lines_of, prompt_lengths, samples_of
from adaptive_dd.core.advice import Advice, Sample, from_samples
from adaptive_dd.core.domain import SERVER, Deployment, Setting, parse_setting
from adaptive_dd.errors import InputFileError, UsageError
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.presets import draft_flags
from adaptive_dd.reader import Reader

LAST = 20_000


def advise(
    *,
    frontier: Annotated[
        str,
        typer.Option(help="A calibration over launch settings; weighed by the journal's prompts, if any."),
    ] = "",
    state_dir: Annotated[
        Path, typer.Option(envvar="ADAPTIVE_DD_STATE_DIR", help="Folder of the journal.")
    ] = Path("state"),
    baseline: Annotated[
        str,
        typer.Option(help="What to compare with (default: the launch setting, or the frontier's baseline)."),
    ] = "",
    spec_type: Annotated[str, typer.Option(help="How the server drafts.")] = "draft-simple",
    draft: Annotated[str, typer.Option(help="The draft model, for the command line shown.")] = "",
    last: Annotated[int, typer.Option(min=1, help="How many of the latest decisions to look at.")] = LAST,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which llama-server launch flags would serve this traffic best, by how much, and how sure that is."""
    draft_flags(Setting(1), spec_type)  # names an unknown spec type
    wanted = _setting(baseline)
    if frontier:
        advice, source = _by_frontier(frontier, state_dir, wanted, last), frontier
    else:
        advice, source = _by_journal(state_dir, wanted, last), str(state_dir)
    if as_json:
        found = {**asdict(advice), "baseline": str(advice.baseline), "best": str(advice.best)}
        found["compared"] = [{**asdict(one), "arm": str(one.arm)} for one in advice.compared]
        typer.echo(json.dumps(found, indent=2))
        return
    for line in lines_of(advice, source=source, spec_type=spec_type, draft=draft):
        typer.echo(line)


def _setting(text: str) -> Setting | None:
    try:
        return parse_setting(text) if text else None
    except ValueError as error:
        raise UsageError(f"baseline: {error}") from None


def _by_journal(state_dir: Path, wanted: Setting | None, last: int) -> Advice:
    """All deployments of the model used last: other launch flags are other deployments."""
    with closing(Reader(state_dir)) as reader:
        known = reader.deployments()
        if not known:
            raise UsageError(f"{reader.path}: the journal is empty; expected a proxy to have served with it")
        newest = list(known.values())[-1]
        samples: list[Sample] = []
        for number, which in known.items():
            if (which.upstream, which.model) == (newest.upstream, newest.model):
                samples += samples_of(reader.decisions(number, last=last), _launch(which))
    return from_samples(samples, _launch(newest) if wanted is None else wanted)


def _launch(deployment: Deployment) -> Setting:
    """What SERVER is in a deployment: its launch depth, where that was found out."""
    return SERVER if deployment.cap is None else Setting(deployment.cap)


def _by_frontier(source: str, state_dir: Path, wanted: Setting | None, last: int) -> Advice:
    found = load_frontier(source)
    baseline = found.baseline if wanted is None else wanted
    if not any(row.setting == baseline for row in found.rows):
        met = " ".join(dict.fromkeys(str(row.setting) for row in found.rows)) or "nothing"
        raise UsageError(
            f"baseline: {baseline} is not measured in {source}; expected --baseline with one of {met}"
        )
    try:
        with closing(Reader(state_dir)) as reader:
            rows = [row for number in reader.deployments() for row in reader.decisions(number, last=last)]
    except InputFileError:
        rows = []
    return from_calibration(found, baseline, prompt_lengths(rows))
