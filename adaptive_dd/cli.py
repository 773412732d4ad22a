"""The command line: one list of commands, each in a file of its own under `commands/`."""

from __future__ import annotations

import sys
from typing import NamedTuple

import typer

from adaptive_dd import __version__
from adaptive_dd.commands.advise import advise
from adaptive_dd.commands.bench import bench
from adaptive_dd.commands.calibrate import calibrate
from adaptive_dd.commands.demo import demo
from adaptive_dd.commands.doctor import doctor
from adaptive_dd.commands.freeze import freeze
from adaptive_dd.commands.frontier import frontier
from adaptive_dd.commands.inspect import inspect
from adaptive_dd.commands.presets import presets
from adaptive_dd.commands.replay import replay
from adaptive_dd.commands.serve import serve
from adaptive_dd.commands.simserver import simserver
from adaptive_dd.errors import AdaptiveDDError

COMMANDS = (serve, demo, doctor, calibrate, presets, bench, inspect, freeze, replay, advise)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in COMMANDS:
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(frontier, name="frontier")
app.command("simserver", hidden=True)(simserver)  # for developing against


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"adaptive-dd {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Pick llama-server's draft settings per request, and never fall below a fixed baseline."""


class ListedCommand(NamedTuple):
    """A command as the docs list it."""

    name: str
    help: str


def listed_commands() -> list[ListedCommand]:
    """Every command that a user sees, with its help text."""
    single = [ListedCommand(command.__name__.rstrip("_"), command.__doc__ or "") for command in COMMANDS]
    group = [
        ListedCommand(f"frontier {c.callback.__name__}", c.callback.__doc__ or "")
        for c in frontier.registered_commands
        if c.callback is not None
    ]
    return single + group


def main() -> None:
    """Entry point: one line for an expected error, and its exit code."""
    try:
        app()
    except AdaptiveDDError as error:
        print(f"adaptive-dd: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
