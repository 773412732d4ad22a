"""`adaptive-dd simserver`: a scenario behind HTTP, to try clients and the proxy without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from adaptive_dd.bench import scenario_names
from adaptive_dd.core.scenarios import scenario as built
from adaptive_dd.httpd import run_server
from adaptive_dd.simserver import sim_app
from adaptive_dd.simulated import Faults, SimServer


def simserver(
    *,
    scenario: Annotated[
        str, typer.Option(help="The scenario to play; see `adaptive-dd bench --list`.")
    ] = "deep-split",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8080,
    seed: Annotated[int, typer.Option(min=0, help="Seed of its traffic and its noise.")] = 1,
    pace: Annotated[
        float, typer.Option(min=0.0, help="Real seconds per simulated second; 0 does not wait.")
    ] = 1.0,
    error_every: Annotated[int, typer.Option(min=0, help="Answer 500 to every so-manieth request.")] = 0,
) -> None:
    """Serve a simulated llama-server, for trying things out."""
    scenario_names([scenario])
    server = SimServer(built(scenario), seed=seed, pace=pace, faults=Faults(error_every=error_every))
    typer.echo(f"{scenario}: {built(scenario).shows}; http://{host}:{port}")
    run_server(sim_app(server), host, port)
