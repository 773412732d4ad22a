"""`adaptive-dd demo`: the proxy at work in front of a simulated server."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    *,
    scenario: Annotated[str, typer.Option(help="One scenario of the bench instead of the tour.")] = "",
    requests: Annotated[int, typer.Option(min=1, max=5000, help="Requests to send of that scenario.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the traffic and the noise.")] = 1,
) -> None:
    """Show the proxy at work in front of a simulated llama-server: settings, reasons and gains."""
    typer.echo("adaptive-dd demo: starting a simulated llama-server and the proxy before it ...")
    from adaptive_dd.demo import TOURS, demo_lines

    for line in demo_lines(((scenario, requests),) if scenario else TOURS, seed):
        typer.echo(line)
