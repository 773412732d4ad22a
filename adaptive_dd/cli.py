"""The command line: one list of commands, each in a file of its own under `commands/`.

A command's module is imported only when that command was asked for (or all of them, for help), so that `serve` starts
without the bench's numerics: 1.2 s and 60 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

import typer

from adaptive_dd import __version__
from adaptive_dd.errors import AdaptiveDDError

# In the order in which help lists them; each is the function (or group) of that name in the module of that name.
COMMANDS = (
    "serve",
    "demo",
    "doctor",
    "calibrate",
    "presets",
    "bench",
    "inspect",
    "freeze",
    "replay",
    "advise",
    "frontier",
)
HIDDEN = ("simserver",)  # for developing against


def _loaded(name: str) -> Any:
    return getattr(import_module(f"adaptive_dd.commands.{name}"), name)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"adaptive-dd {__version__}")
        raise typer.Exit


def _main(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Pick llama-server's draft settings per request, and never fall below a fixed baseline."""


def app_with(names: Iterable[str]) -> typer.Typer:
    """The application with these commands only."""
    made = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    made.callback()(_main)
    for name in names:
        command = _loaded(name)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name, hidden=name in HIDDEN)(command)
    return made


def __getattr__(name: str) -> typer.Typer:
    """`app`: the application with every command."""
    if name == "app":
        return app_with((*COMMANDS, *HIDDEN))
    raise AttributeError(name)


class ListedCommand(NamedTuple):
    """A command as the docs list it."""

    name: str
    help: str


def listed_commands() -> list[ListedCommand]:
    """Every command that a user sees, with its help text."""
    listed = []
    for name in COMMANDS:
        command = _loaded(name)
        if isinstance(command, typer.Typer):
            parts = [one.callback for one in command.registered_commands if one.callback is not None]
            listed += [ListedCommand(f"{name} {part.__name__}", part.__doc__ or "") for part in parts]
        else:
            listed.append(ListedCommand(name, command.__doc__ or ""))
    return listed


# Options and arguments that do not fit: the parent of every such error, whichever click typer brings.
_MISUSE: Any = typer.BadParameter.__base__


def _say_misuse(error: Any) -> None:
    """One line, as for any other wrong input, instead of the framework's box. (Help for no arguments was printed.)"""
    message = " ".join(error.format_message().split())
    if message:
        where = error.ctx.command_path if error.ctx is not None else "adaptive-dd"
        print(f"adaptive-dd: {message.rstrip('.')}; see {where} --help", file=sys.stderr)


def main() -> None:
    """Entry point: one line for an expected error, and its exit code."""
    known = [word for word in sys.argv[1:2] if word in COMMANDS + HIDDEN]
    try:
        code = app_with(known or (*COMMANDS, *HIDDEN))(standalone_mode=False)
    except _MISUSE as error:
        _say_misuse(error)
        raise SystemExit(2) from None
    except AdaptiveDDError as error:
        print(f"adaptive-dd: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    raise SystemExit(code if isinstance(code, int) else 0)
