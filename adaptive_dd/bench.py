"""The bench: policies against scenarios, and the guarantee against random worlds, in parallel processes.

A task is one scenario (or world) under one seed, played by every policy asked for, so that the references are worked
out once. Results are plain numbers; `bench_report` makes tables, Markdown and plots of them.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from adaptive_dd.core.arena import ControllerPolicy, Maker, baseline_cost, reference, run
from adaptive_dd.core.domain import PolicySettings
from adaptive_dd.core.rivals import RIVALS
from adaptive_dd.core.scenarios import SCENARIOS, scenario
from adaptive_dd.core.worlds import random_world, truthful_world
from adaptive_dd.errors import InputFileError, UsageError

A = TypeVar("A")
B = TypeVar("B")

FORMAT = "adaptive-dd/bench@1"
OURS = "adaptive"
HINDSIGHT = ("best-fixed", "oracle")
POLICIES: Mapping[str, Maker] = {**RIVALS, OURS: ControllerPolicy}
# Points of a curve that are kept for the report.
CURVE_POINTS = 150


@dataclass(frozen=True, slots=True)
class Score:
    """One policy on one scenario under one seed.

    relative         total expected time as a share of the baseline's
    captured         share of the oracle's gain over the whole run, None where the oracle gains under 0.1%
    captured_late    the same over the last half
    requests_to_90   requests before 90% of the gain is captured, None where it never is
    worst_requests   worst moment behind (1 + alpha) x baseline, in mean requests
    oracle_relative  the oracle's total as a share of the baseline's
    """

    scenario: str
    policy: str
    seed: int
    relative: float
    captured: float | None
    captured_late: float | None
    requests_to_90: int | None
    worst_requests: float
    oracle_relative: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """One world of the guarantee: how far the total ever was beyond (1+alpha) x baseline + c0, and the curve.

    beyond_ms     the largest excess (negative: always within)
    at_request    where that was
    baseline_ms   the baseline's total
    relative      total as a share of the baseline's
    curve_ms      the excess over the run, in CURVE_POINTS steps
    """

    world: str
    shows: str
    beyond_ms: float
    at_request: int
    baseline_ms: float
    relative: float
    curve_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A scenario under a seed, for some policies."""

    scenario: str
    seed: int
    policies: tuple[str, ...]
    requests: int
    settings: PolicySettings


def check_names(kind: str, asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names asked for, all known ones where none is. Raises UsageError naming the first that is not."""
    for name in asked:
        if name not in known:
            raise UsageError(f"--{kind} {name}: no such {kind}; expected one of {', '.join(known)}")
    return tuple(asked) or tuple(known)


def scenario_names(asked: Sequence[str]) -> tuple[str, ...]:
    """Scenarios by name, all where none is asked for."""
    return check_names("scenario", asked, tuple(SCENARIOS))


def policy_names(asked: Sequence[str]) -> tuple[str, ...]:
    """Policies by name, all where none is asked for."""
    return check_names("policy", asked, tuple(POLICIES))


def play(task: Task) -> list[Score]:
    """All policies of a task, and the references in hindsight."""
    deployment = scenario(task.scenario)
    known = reference(deployment, task.seed, task.requests)
    oracle = float(known.oracle_ms.sum() / known.baseline_ms.sum())
    scores = []
    for name in task.policies:
        result = run(deployment, POLICIES[name], task.seed, task.requests, task.settings)
        scores.append(
            Score(
                task.scenario,
                name,
                task.seed,
                result.relative,
                result.captured(),
                result.captured(start=task.requests // 2),
                result.requests_until(),
                result.worst_requests(task.settings.alpha),
                oracle,
            )
        )
    fixed = float(known.best_fixed_ms.sum() / known.baseline_ms.sum())
    scores.append(Score(task.scenario, "best-fixed", task.seed, fixed, None, None, None, 0.0, oracle))
    scores.append(Score(task.scenario, "oracle", task.seed, oracle, 1.0, 1.0, 0, 0.0, oracle))
    return scores


@dataclass(frozen=True, slots=True)
class Trial:
    """A random world to try the guarantee on."""

    number: int
    requests: int
    settings: PolicySettings
    truthful: bool


def try_world(trial: Trial) -> Verdict:
    """Play ours in one random world."""
    world = (truthful_world if trial.truthful else random_world)(trial.number)
    result = run(world, ControllerPolicy, trial.number, trial.requests, trial.settings)
    behind = result.behind_ms(trial.settings.alpha) - trial.settings.c0_ms
    step = max(1, len(behind) // CURVE_POINTS)
    return Verdict(
        world.name,
        world.shows,
        float(behind.max()),
        int(behind.argmax()) + 1,
        float(baseline_cost(world, trial.number, trial.requests).sum()),
        result.relative,
        tuple(float(value) for value in behind[::step]),
    )


def results_json(scores: Sequence[Score], requests: int, settings: PolicySettings) -> str:
    """Scores and the terms on which they were played."""
    terms = {"requests": requests, "alpha": settings.alpha, "c0_ms": settings.c0_ms}
    return json.dumps({"format": FORMAT, **terms, "scores": [asdict(score) for score in scores]}, indent=1)


def read_results(path: Path, requests: int, settings: PolicySettings) -> list[Score]:
    """Scores of an earlier bench. Raises InputFileError for a file that is none, or was played on other terms."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        terms = (found["format"], found["requests"], found["alpha"], found["c0_ms"])
        scores = [Score(**score) for score in found["scores"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputFileError(f"{path}: expected results written by bench --json: {error}") from error
    if terms != (FORMAT, requests, settings.alpha, settings.c0_ms):
        raise InputFileError(
            f"{path}: played with {terms[1]} requests, alpha {terms[2]:g}, c0 {terms[3] / 1000:g} s; "
            f"expected {requests}, {settings.alpha:g}, {settings.c0_ms / 1000:g} s"
        )
    return scores


def in_parallel(work: Callable[[A], B], tasks: Sequence[A], jobs: int) -> Iterator[B]:
    """Results as they come, from `jobs` processes (1: this one). Started afresh, so that no thread is copied."""
    if jobs <= 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = [pool.submit(work, task) for task in tasks]
        try:
            for done in as_completed(pending):
                yield done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
