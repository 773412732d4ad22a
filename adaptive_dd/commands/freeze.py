"""`adaptive-dd freeze`: what was learned, as a policy file that needs no learner."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adaptive_dd import __version__
from adaptive_dd.advise import llama_args, presets_ini
from adaptive_dd.commands.inspect import choose_deployment
from adaptive_dd.core.controller import State
from adaptive_dd.core.domain import Frontier
from adaptive_dd.core.freezing import MIN_EVIDENCE, Frozen, for_every_kind, frozen_frontier
from adaptive_dd.core.frontier import Comparison, comparison, ladder, ladder_text
from adaptive_dd.errors import StoreError, UsageError
from adaptive_dd.files import write_atomically
from adaptive_dd.frontier_file import dump_frontier
from adaptive_dd.presets import SPEC_TYPES
from adaptive_dd.reader import Reader


class Format(StrEnum):
    """What is written."""

    FRONTIER = "frontier"  # a frontier file with the evidence: for `serve --policy` and `--frontier`
    DD_POLICY = "dd-policy"  # the ladder string of the lab's own server
    LLAMA_ARGS = "llama-args"  # the draft flags of the best fixed setting, for llama-server's command line
    PRESETS = "presets"  # presets for llama-server's router mode: every setting that is played, and off


def freeze(
    *,
    out: Annotated[Path, typer.Option("--out", help="The file to write (`-` for the terminal).")],
    state_dir: Annotated[
        Path, typer.Option("--state-dir", envvar="ADAPTIVE_DD_STATE_DIR", help="Folder of the journal.")
    ] = Path("state"),
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="A frontier file with its evidence, a ladder string, or llama-server flags or presets.",
        ),
    ] = Format.FRONTIER,
    kind: Annotated[
        str,
        typer.Option("--kind", help="For a ladder string: the kind of request, such as greedy.free.chat."),
    ] = "",
    min_evidence: Annotated[
        float,
        typer.Option("--min-evidence", help="Answers that a setting needs in a cell to be a claim.", min=0),
    ] = MIN_EVIDENCE,
    deployment: Annotated[
        int | None,
        typer.Option("--deployment", help="Number of the deployment (default: the one used last)."),
    ] = None,
    spec_type: Annotated[
        str, typer.Option("--spec-type", help="For flags and presets: how to draft (default: as it was).")
    ] = "",
    draft: Annotated[str, typer.Option("--draft", help="For flags and presets: the draft model.")] = "",
    model: Annotated[str, typer.Option("--model", help="For presets: the model.")] = "",
    name: Annotated[
        str, typer.Option("--name", help="For presets: the model's name for clients (default: the file's).")
    ] = "",
) -> None:
    """Freeze what was learned to a policy file: proven settings only, the baseline everywhere else."""
    with closing(Reader(state_dir)) as reader:
        _, which = choose_deployment(reader, deployment)
        state = reader.resume(which).state
    if state is None:
        raise StoreError(f"{state_dir}: the state of {which.upstream} cannot be read")
    frozen = frozen_frontier(state, min_evidence=min_evidence)
    if form in (Format.LLAMA_ARGS, Format.PRESETS):
        how = spec_type or (which.spec_type if which.spec_type in SPEC_TYPES else "draft-simple")
        text = _launched(frozen.frontier, form, spec_type=how, draft=draft, model=model, name=name)
    else:
        text = _text(frozen, form, kind)
    if str(out) == "-":
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text)
    for line in _said(state, frozen, out):
        typer.echo(line, err=True)


def _launched(frontier: Frontier, form: Format, *, spec_type: str, draft: str, model: str, name: str) -> str:
    if form is Format.LLAMA_ARGS:
        return llama_args(frontier, spec_type=spec_type, draft=draft) + "\n"
    if not model:
        raise UsageError("--model: not given; expected the model's file with --format presets")
    public = name or Path(model).stem
    return presets_ini(frontier, model=model, public=public, draft=draft, spec_type=spec_type)


def _text(frozen: Frozen, form: Format, kind: str) -> str:
    frontier = replace(frozen.frontier, about=(*frozen.frontier.about, ("version", __version__)))
    if form is Format.FRONTIER:
        if kind:
            raise UsageError(
                "--kind: a frontier file holds every kind; expected only with --format dd-policy"
            )
        return dump_frontier(frontier)
    known = sorted({row.kind for row in frontier.rows if row.kind})
    if kind and kind not in known:
        raise UsageError(
            f"--kind {kind}: not among what was learned; expected one of {', '.join(known) or 'none'}"
        )
    return ladder_text(ladder(for_every_kind(frontier) if not kind else frontier, kind=kind)) + "\n"


def _said(state: State, frozen: Frozen, out: Path) -> list[str]:
    """What the owner of the file should know."""
    lines = [
        f"frozen after {state.next_number - 1} requests: {frozen.proven} cells with a setting proven faster than "
        f"{frozen.frontier.baseline}, {frozen.unproven} without"
    ]
    for kind in sorted({row.kind for row in frozen.frontier.rows}):
        lines += [
            _won_text(one) for one in comparison(frozen.frontier, kind=kind) if one.best and one.kind == kind
        ]
    lines += [f"note: {note}" for note in frozen.notes]
    return lines if str(out) == "-" else [*lines, f"written: {out}"]


def _won_text(one: Comparison) -> str:
    assert one.best is not None
    best = one.best
    interval = (
        "" if best.low is None or best.high is None else f" ({best.low - 1:+.1%} to {best.high - 1:+.1%})"
    )
    evidence = f"{best.row.samples} answers" if best.row.samples else "as the frontier has it"
    where = f"{one.context_tokens:,} tokens, {one.kind or 'any other kind'}"
    return f"  {where}: {best.row.setting}, {best.gain - 1:+.1%} tok/s{interval}, {evidence}"
