"""The command line: one list of commands, each in a file of its own under `commands/`."""

from __future__ import annotations

import sys

import typer

from adaptive_dd import __version__
from adaptive_dd.errors import AdaptiveDDError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Pick llama-server's draft settings per request, and never fall below a fixed baseline."""
    if show:
        print(f"adaptive-dd {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point: one line for an expected error, and its exit code."""
    try:
        app()
    except AdaptiveDDError as error:
        print(f"adaptive-dd: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
