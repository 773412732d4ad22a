"""`adaptive-dd replay`: decide a journal again and compare; value another policy on it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive_dd.commands.inspect import choose_deployment
from adaptive_dd.core.codec import state_to_json
from adaptive_dd.core.domain import Deployment, Mode, Setting, parse_setting
from adaptive_dd.core.events import Decided
from adaptive_dd.core.offpolicy import samples_of, value
from adaptive_dd.core.replay import Change, Verified, redecided, verify
from adaptive_dd.errors import UsageError
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.reader import History, Reader

# Draws of a policy that draws, for each decision: enough that its own luck is small beside the journal's.
DRAWS = 8


def replay(
    journal: Annotated[
        Path, typer.Argument(help="The journal: a database, or the state folder that holds it.")
    ],
    *,
    deployment: Annotated[
        int | None,
        typer.Option("--deployment", help="Number of the deployment (default: the one used last)."),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="Value this policy: a setting, a frontier or policy file, or a ladder string."
        ),
    ] = "",
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Value the learner with this alpha.", min=0.0, max=1.0)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify that a journal, decided and applied again, gives the same; or value another policy on it."""
    with closing(Reader(journal)) as reader:
        number, which = choose_deployment(reader, deployment)
        history = reader.history(number)
    found: dict[str, Any] = {
        "journal": str(journal),
        "deployment": asdict(which),
        "notes": list(history.notes),
    }
    if policy or alpha is not None:
        found["valued"] = _valued(history, which, policy, alpha)
    verified = verify(history.start.state if history.start else None, history.events, mark=history.covered)
    found["verified"] = _verified_view(history, verified)
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))
    if not found["verified"]["same"]:
        raise typer.Exit(1)


# --- verifying ----------------------------------------------------------------------------------------------


def _verified_view(history: History, verified: Verified) -> dict[str, Any]:
    live = None
    if history.last is not None and history.covered > 0 and verified.marked is not None:
        live = state_to_json(verified.marked) == state_to_json(history.last.state)
    return {
        "same": verified.different == 0 and verified.skipped == 0 and live is not False,
        "from": "the first event" if history.start is None else f"a snapshot at row {history.start.event_id}",
        "events": verified.events,
        "skipped": verified.skipped,
        "decisions": verified.decisions,
        "different": verified.different,
        "live_state_same": live,
        "differences": [
            {
                "number": one.number,
                "recorded": _decision_text(one.recorded),
                "again": "deciding failed" if one.again is None else _decision_text(one.again),
            }
            for one in verified.differences
        ],
    }


def _decision_text(decision: Any) -> str:
    return f"{decision.arm} ({decision.reason}, {decision.propensity:.6g}, {decision.cell})"


# --- valuing ------------------------------------------------------------------------------------------------


def _valued(history: History, which: Deployment, policy: str, alpha: float | None) -> dict[str, Any]:
    if policy and alpha is not None:
        raise UsageError(
            "--policy and --alpha: expected one of the two, as a policy that is given has no alpha"
        )
    samples = samples_of(history.events)
    result = value(samples, _target(history, policy, alpha))
    if result is None:
        raise UsageError(f"the journal of {which.upstream} has no answered decisions to value a policy on")
    name = policy or f"the learner with alpha {alpha}"
    return {"policy": name, **asdict(result)}


def _target(history: History, policy: str, alpha: float | None) -> dict[int, tuple[Setting, ...]]:
    """What the policy draws for each decision."""
    setting = _setting(policy)
    if setting is not None:
        return {event.number: (setting,) for event in history.events if isinstance(event, Decided)}
    start = history.start.state if history.start else None
    if policy:
        change = Change(mode=Mode.FROZEN, frontier=load_frontier(policy))
        return dict(redecided(start, history.events, change, draws=1))
    return dict(redecided(start, history.events, Change(alpha=alpha), draws=DRAWS))


def _setting(policy: str) -> Setting | None:
    try:
        return parse_setting(policy)
    except ValueError:
        return None


# --- for eyes -----------------------------------------------------------------------------------------------


def _lines(found: dict[str, Any]) -> list[str]:
    which, verified = found["deployment"], found["verified"]
    lines = [f"{which['upstream']}  {which['model'] or 'model unknown'}  {which['build']}".rstrip()]
    lines += [f"note: {note}" for note in found["notes"]]
    lines.append(
        f"{verified['events']} events from {verified['from']}: {verified['decisions']} decisions made again, "
        f"{verified['different']} differ; {verified['skipped']} events could not be applied"
    )
    live = {True: "the same, bit for bit", False: "NOT the same", None: "not there to compare with"}
    lines.append(f"the live state's last snapshot: {live[verified['live_state_same']]}")
    lines += [
        f"  {d['number']}: recorded {d['recorded']}, again {d['again']}" for d in verified["differences"]
    ]
    if "valued" in found:
        lines += ["", *_valued_lines(found["valued"])]
    return lines


def _valued_lines(valued: dict[str, Any]) -> list[str]:
    lines = [
        f"{valued['policy']}: what it would have cost on {valued['answers']} answers (95% intervals)",
        f"  as recorded      {valued['recorded_ms_per_token']:8.3f} ms/token",
    ]
    for name, estimate in (("doubly robust", valued["robust"]), ("self-normalised", valued["weighed"])):
        lines.append(f"  {name:<16} " + (_estimate_text(estimate) if estimate else "nothing to weigh"))
    lines.append(
        f"  effective answers {valued['effective']:.0f}; it would have sent the same in {valued['agreeing']:.0%}; "
        f"{valued['certain']:.0%} were certain for another setting"
    )
    lines += [f"  warning: {warning}" for warning in valued["warnings"]]
    return lines


def _estimate_text(e: dict[str, float]) -> str:
    return (
        f"{e['ms_per_token']:8.3f} ms/token ({e['low']:.3f} to {e['high']:.3f}); "
        f"time saved {e['gain']:+.1%} ({e['gain_low']:+.1%} to {e['gain_high']:+.1%})"
    )
