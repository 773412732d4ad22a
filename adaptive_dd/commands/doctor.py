"""`adaptive-dd doctor`: what a server is and what it does with per-request draft settings."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Annotated

import typer

from adaptive_dd.checkup import Checkup, as_json, as_lines, examine
from adaptive_dd.upstream import Upstream
from adaptive_dd.watch import auth


def doctor(
    upstream: Annotated[str, typer.Option("--upstream", help="URL of the llama-server.")],
    api_key: Annotated[
        str, typer.Option("--api-key", envvar="ADAPTIVE_DD_API_KEY", help="Key, where the server wants one.")
    ] = "",
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Send some ten short requests, or only look.")
    ] = True,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find out, by short requests, what a server does with per-request draft settings."""
    checkup = asyncio.run(_examine(upstream, api_key, probe))
    if as_json_:
        typer.echo(json.dumps(as_json(checkup), indent=2))
        return
    for line in as_lines(checkup):
        typer.echo(line)


async def _examine(url: str, api_key: str, may_probe: bool) -> Checkup:
    upstream = Upstream(url)
    try:
        return await examine(upstream, auth(api_key), nonce=secrets.randbits(31), may_probe=may_probe)
    finally:
        await upstream.aclose()
