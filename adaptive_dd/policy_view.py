"""The learned policy as flat JSON-able values: what `/_dd/state` answers and the page shows."""

from __future__ import annotations

import json
from typing import Any

from adaptive_dd.core.controller import State
from adaptive_dd.core.explain import ArmView, BudgetView, CellView, budget, cells
from adaptive_dd.core.freezing import frozen_frontier
from adaptive_dd.engine import Engine
from adaptive_dd.frontier_file import dump_frontier
from adaptive_dd.report import cell_text


def state_view(engine: Engine) -> dict[str, Any]:
    """The policy as it stands: a summary, the guard's account, and a line for every cell with its arms."""
    state, account = engine.state, budget(engine.state)
    return {
        "mode": state.settings.mode.value,
        "frozen": state.frozen,
        "edges": list(state.edges),
        "summary": _summary(state, account),
        "budget": _budget(account),
        "cells": [_cell(state, view) for view in cells(state)],
    }


def frozen_policy(engine: Engine) -> dict[str, Any]:
    """The policy as `adaptive-dd freeze` would write it now, and what must be said about it."""
    frozen = frozen_frontier(engine.state)
    return {
        "proven": frozen.proven,
        "unproven": frozen.unproven,
        "notes": list(frozen.notes),
        "frontier": json.loads(dump_frontier(frozen.frontier)),
    }


def _summary(state: State, account: BudgetView) -> dict[str, Any]:
    return {
        "requests": state.next_number - 1,
        "saved_s": round(account.saved_ms / 1000.0, 1),
        "saved_percent": None if account.gain is None else round(100.0 * account.gain, 2),
        "may_still_spend_s": round(account.headroom_ms / 1000.0, 1),
        "alarm": account.alarm or "none",
        "frontier": account.frontier
        or ("believed" if state.frontier.rows or state.frontier.rules else "none"),
    }


def _budget(account: BudgetView) -> dict[str, Any]:
    return {
        "saved_ms": account.saved_ms,
        "ref_ms": account.ref_ms,
        "slack_ms": account.slack_ms,
        "reserved_ms": account.reserved_ms,
        "headroom_ms": account.headroom_ms,
        "gain": account.gain,
        "gain_low": account.gain_low,
        "gain_high": account.gain_high,
    }


def _cell(state: State, view: CellView) -> dict[str, Any]:
    now = next((arm for arm in view.arms if arm.setting == view.playing), None)
    return {
        "cell": str(view.cell),
        "where": cell_text(state.edges, view.cell.bucket, view.cell.load, view.cell.kind),
        "setting": str(view.playing),
        "reason": view.reason,
        "ms_per_token": None if now is None else now.expected_ms,
        "baseline_ms_per_token": view.baseline_ms,
        "gain_percent": None if now is None else round(100.0 * now.expected_gain, 2),
        "evidence": 0.0 if now is None else round(now.answers, 1),
        "status": "" if now is None else now.standing,
        "arms": [_arm(arm) for arm in view.arms],
    }


def _arm(arm: ArmView) -> dict[str, Any]:
    return {
        "setting": str(arm.setting),
        "status": arm.standing,
        "expected_ms_per_token": [arm.expected_ms_low, arm.expected_ms, arm.expected_ms_high],
        "expected_gain": arm.expected_gain,
        "answers": arm.answers,
        "saved": [arm.saved_low, arm.saved, arm.saved_high],
        "chance": arm.chance,
        "why": arm.why,
    }
