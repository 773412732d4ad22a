"""`adaptive-dd serve`: put the proxy in front of a llama-server. Its flags are the rows of config.SETTINGS."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import typer

from adaptive_dd.config import SETTINGS, Row, env_of, flag_of, resolve


def _parameter(name: str, row: Row) -> inspect.Parameter:
    shown = "off" if row.default is False else "on" if row.default is True else str(row.default)
    text = f"{row.help} [{env_of(name)}; default: {shown or 'none'}]"
    annotation: Any = bool | None if row.switch else list[str] | None if row.many else str | None
    names = [flag_of(name), row.short] if row.short else [flag_of(name)]
    option = typer.Option(None, *names, help=text, show_default=False)
    if row.switch:
        option = typer.Option(
            None, f"{flag_of(name)}/--no-{flag_of(name)[2:]}", help=text, show_default=False
        )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def serve(**flags: Any) -> None:
    """Put the proxy in front of a llama-server."""
    from adaptive_dd.serve import serve_forever

    file = flags.pop("config", None)
    raise typer.Exit(serve_forever(resolve(flags, os.environ, file)))


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=typer.Option(None, "--config", help="A TOML file with any of these settings."),
    annotation=Path | None,
)
_PARAMETERS = [_CONFIG, *(_parameter(name, row) for name, row in SETTINGS.items())]
# Typer reads a command's options off its signature; this one is made from the table.
serve.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
