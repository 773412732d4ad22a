"""`adaptive-dd presets`: write the INI with which llama-server's router mode offers every setting as an alias."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptive_dd.errors import InputFileError, UsageError
from adaptive_dd.files import write_atomically
from adaptive_dd.presets import MARK, SPEC_TYPES, parse_settings_list, presets_ini


def presets(
    *,
    model: Annotated[Path, typer.Option(help="The model (GGUF).")],
    settings: Annotated[
        list[str],
        typer.Option(
            help="Settings to offer: off,n2,n4,n8,n8,p0.6 (a p or m belongs to the n before it); "
            "also separated by spaces or semicolons, or given several times."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the presets; - prints them.")],
    draft: Annotated[
        Path | None, typer.Option(help="The draft model (GGUF), where the type needs one.")
    ] = None,
    spec_type: Annotated[str, typer.Option(help=f"How to draft: {', '.join(SPEC_TYPES)}.")] = "draft-simple",
    name: Annotated[str, typer.Option(help="The model's name for clients (default: the file's).")] = "",
    baseline: Annotated[
        str, typer.Option(help="The setting that the bare name stands for (default: the first).")
    ] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="A launch flag for all presets, such as ctx-size=8192.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is no presets file.")] = False,
) -> None:
    """Write the presets with which llama-server's router mode can be told a setting per request."""
    offered = parse_settings_list(settings)
    chosen = parse_settings_list([baseline])[0] if baseline else offered[0]
    text = presets_ini(
        offered,
        model=str(_existing("model", model)),
        public=name or model.stem,
        baseline=chosen,
        draft=str(_existing("draft", draft)) if draft else "",
        spec_type=spec_type,
        options=_options(option or []),
    )
    if str(out) == "-":
        typer.echo(text, nl=False)
        return
    _check_target(out, force=force)
    write_atomically(out, text)
    typer.echo(f"wrote {out}: {len(offered)} presets of {name or model.stem!r}, baseline {chosen}. Next:\n")
    typer.echo(f"  llama-server --models-preset {out} --models-max {len(offered)}")
    typer.echo("  adaptive-dd serve --upstream http://127.0.0.1:8080 --actuator presets\n")
    typer.echo(
        "Every preset is a process with a context of its own; weights are shared only where they are mapped (CPU)."
    )


def _existing(what: str, path: Path) -> Path:
    if not path.is_file():
        raise InputFileError(f"{what}: {path} is no file; expected a model in GGUF format")
    return path.resolve()


def _options(given: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in given:
        key, mark, value = text.partition("=")
        if not mark or key in options:
            why = "stands twice" if mark else "has no value"
            raise UsageError(f"option: {text!r} {why}; expected FLAG=VALUE such as ctx-size=8192")
        options[key.strip().removeprefix("--")] = value.strip()
    return options


def _check_target(out: Path, *, force: bool) -> None:
    if out.is_dir():
        raise UsageError(f"out: {out} is a folder; expected a file such as {out / 'presets.ini'}")
    if not out.parent.is_dir():
        raise UsageError(f"out: {out.parent} is no folder; expected a file in one that exists")
    if not out.exists() or force:
        return
    try:
        ours = out.read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        ours = False
    if not ours:
        raise UsageError(
            f"out: {out} exists and was not written by this command; expected another name, or --force"
        )
