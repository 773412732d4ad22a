"""Measure a frontier on a real server.

The design of the measurement is `core.measure`; here a server is asked, and time passes. Everything that can be
refused is refused before the first measurement: a server that cannot be told, a busy one, a context beyond its own, an
output that cannot be written. Each answer goes to a journal beside the output as it comes, so that Ctrl-C or a dead
server loses nothing; the same command continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from adaptive_dd import __version__
from adaptive_dd.calibration_log import CalibrationLog, journal_path
from adaptive_dd.calibration_target import Target, meet
from adaptive_dd.core.domain import SERVER, Frontier, Listens, Setting, Timings
from adaptive_dd.core.measure import (
    P_LEVELS,
    Block,
    Plan,
    Record,
    missing,
    next_block,
    rows,
    spent,
    wide_grid,
)
from adaptive_dd.core.standing import CLAIM_CONFIDENCE, Place, Sample
from adaptive_dd.core.wire import parse_timings
from adaptive_dd.errors import StoreError, UpstreamError, UsageError
from adaptive_dd.exact_prompts import Cutter, Shelf
from adaptive_dd.files import write_atomically
from adaptive_dd.frontier_file import dump_frontier
from adaptive_dd.upstream import Upstream
from adaptive_dd.watch import auth

# Sampling fields of each kind; without a kind the server samples as it was launched.
KINDS: Mapping[str, Mapping[str, object]] = {
    "": {},
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8},
}
# Before each measured answer, a short one on the same text with another end: it reads the prompt, into the drafter too,
# and makes the drafter forget the answer before. b9101 hands out what an equal prompt was answered with as a draft
# [its common/speculative.cpp: "pass back the previous results"], which would flatter every setting but the first
# [measured, n8: 14 of 128 drafts accepted, 26 of 30 when asked again, 14 of 128 after another end].
PRIMING_TOKENS = 4
OTHER_END_TOKENS = 4
# Room for an answer, the server's own reserve included.
RESERVE_TOKENS = 16
BUSY_WAIT_S, BUSY_LOOK_S = 120.0, 1.0
# As the server counts, a prompt may be this much off.
LENGTH_SHARE = 0.01
UNKNOWN_CAP = 8


@dataclass(frozen=True, slots=True)
class Job:
    """What the user asked for. settings None: the wide grid up to the cap; see `core.measure.Plan` for the rest."""

    upstream: str
    out: Path
    contexts: tuple[int, ...]
    shelf: Shelf
    kinds: tuple[str, ...] = ("",)
    settings: tuple[Setting, ...] | None = None
    baseline: Setting = SERVER
    budget_s: float | None = None
    answers: int | None = None
    tokens: int = 256
    cap: int | None = None
    launch_setting: Setting | None = None
    api_key: str = ""
    seed: int = 0
    margin: float = 0.02

    @property
    def places(self) -> tuple[Place, ...]:
        """Every context in every kind."""
        return tuple(Place(context, kind) for context in self.contexts for kind in self.kinds)


class View(Protocol):
    """Whoever watches a calibration."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def moved(self, plan: Plan, record: Record) -> None:
        """An answer came, or a block began."""

    def close(self) -> None:
        """It is over."""


async def calibrate(job: Job, view: View) -> Frontier:
    """Measure, write `job.out`, and give the frontier.

    Raises UsageError, InputFileError, UpstreamError or StoreError in one line; what was measured stays in the journal.
    On cancellation (Ctrl-C) the file is written from what there is, before the cancellation goes on.
    """
    _check_output(job.out)
    upstream = Upstream(job.upstream)
    try:
        return await _Calibration(job, view, upstream).run()
    finally:
        view.close()
        await upstream.aclose()


def _check_output(out: Path) -> None:
    """Find out now, not after an hour, that the output cannot be written. Raises UsageError."""
    probe_file = journal_path(out)
    existed = probe_file.exists()
    try:
        if out.is_dir():
            raise IsADirectoryError(21, "is a directory")
        with probe_file.open("ab"):
            pass
        if not existed:
            probe_file.unlink()
        if out.exists():
            with out.open("ab"):
                pass
    except OSError as error:
        raise UsageError(
            f"--out {out}: cannot be written ({error.strerror or error}); expected a file's path"
        ) from None


@dataclass(slots=True)
class _Calibration:
    """One run."""

    job: Job
    view: View
    upstream: Upstream

    async def run(self) -> Frontier:
        job = self.job
        target = await meet(
            self.upstream,
            auth(job.api_key),
            longest_tokens=max(job.contexts) + job.tokens + RESERVE_TOKENS,
            launch_setting=job.launch_setting,
            say=self.view.note,
        )
        plan = plan_of(job, target)
        log = CalibrationLog(journal_path(job.out), key_of(job, plan, target))
        if log.record.samples:
            self.view.note(f"continuing: {len(log.record.samples)} answers were measured before")
        try:
            await self._measure(plan, log, target)
        except BaseException as error:
            self._keep(plan, log, target, error)
            raise
        frontier = frontier_of(job, plan, log.record, target)
        write_atomically(job.out, dump_frontier(frontier))
        log.remove()
        return frontier

    def _keep(self, plan: Plan, log: CalibrationLog, target: Target, error: BaseException) -> None:
        """Write the file from what there is, and say where the journal lies."""
        frontier = frontier_of(self.job, plan, log.record, target, complete=False)
        if frontier.rows and not isinstance(error, StoreError):
            write_atomically(self.job.out, dump_frontier(frontier))
        count = len(log.record.samples)
        self.view.note(f"stopped after {count} answers, kept in {log.path}; the same command continues")

    # --- measuring

    async def _measure(self, plan: Plan, log: CalibrationLog, target: Target) -> None:
        while (block := next_block(plan, log.record)) is not None:
            if not log.record.blocks or block != log.record.blocks[-1]:
                log.begin(block)
            await self._block(plan, log, target, block)

    async def _block(self, plan: Plan, log: CalibrationLog, target: Target, block: Block) -> None:
        started = time.monotonic()
        sorts = self.job.shelf.sorts
        sort = sorts[block.number % len(sorts)]
        number = block.number // len(sorts) * 1000 + plan.places.index(block.place)
        cutter = Cutter(self.upstream, target.headers, target.model_to_name)
        tokens = await cutter.prompt(self.job.shelf, sort, number, block.place.context_tokens)
        deepest = max(block.settings, key=lambda s: s.order)
        for setting in missing(block, log.record):
            if block.number > 0 and spent(plan, log.record, block.place):
                return
            await self._wait_until_idle(target)
            primer = setting if target.aliases else deepest  # a preset is a server of its own
            await self._answer(target, block, primer, with_other_end(tokens), PRIMING_TOKENS)
            timings = await self._answer(target, block, setting, tokens, self.job.tokens)
            wall_ms, started = 1000.0 * (time.monotonic() - started), time.monotonic()
            log.add(Sample(block.place, block.number, setting, timings, wall_ms, sort))
            self.view.moved(plan, log.record)

    async def _wait_until_idle(self, target: Target) -> None:
        """Another request under way would be measured with ours. Raises UpstreamError where it does not end."""
        until = time.monotonic() + BUSY_WAIT_S
        while await target.busy():
            if time.monotonic() > until:
                raise UpstreamError(
                    f"{self.upstream.base_url} became busy with other requests; calibrate when it is idle"
                )
            await asyncio.sleep(BUSY_LOOK_S)

    async def _answer(
        self, target: Target, block: Block, setting: Setting, tokens: list[int], predict: int
    ) -> Timings:
        """One answer's timings. A setting that the server refuses gives timings without tokens, and a note."""
        body = {
            "prompt": tokens,
            "n_predict": predict,
            "ignore_eos": True,
            "cache_prompt": True,
            "stream": False,
            "seed": self.job.seed + block.number,
            **KINDS[block.place.kind],
        }
        status, found = await target.ask(body, setting)
        if 400 <= status < 500 and setting != SERVER and not target.launched:
            self.view.note(f"{setting} at {block.place}: the server refused it ({status})")
            return Timings(0, 0.0, 0, 0.0)
        timings = parse_timings(found.get("timings")) if isinstance(found, Mapping) else "no JSON"
        if status != 200 or isinstance(timings, str):
            raise UpstreamError(f"/completion answered {status}, without usable timings ({timings})")
        self._check_length(block.place, timings)
        return timings

    def _check_length(self, place: Place, timings: Timings) -> None:
        asked, seen = place.context_tokens, timings.prompt_tokens
        # b9101 and others report a fully cached prompt as one token short.
        if abs(seen - asked) > max(2.0, LENGTH_SHARE * asked) and timings.cache_n > 0:
            raise UpstreamError(f"the server counted {seen} prompt tokens where {asked} were sent")


def with_other_end(tokens: list[int]) -> list[int]:
    """As many tokens, the same but for the last few: some of its first ones, backwards, without the very first."""
    return tokens[:-OTHER_END_TOKENS] + tokens[1 : 1 + OTHER_END_TOKENS][::-1]


# --- plan and file -------------------------------------------------------------------------------------------


def plan_of(job: Job, target: Target) -> Plan:
    """The plan for this server. Raises UsageError for settings above the cap."""
    budget_ms = None if job.budget_s is None else 1000.0 * job.budget_s
    if job.launch_setting is not None:
        answers = job.answers or 16
        return Plan(job.places, (), job.launch_setting, budget_ms, answers, job.margin, job.seed)
    known = job.cap if job.cap is not None else target.facts.cap
    cap = UNKNOWN_CAP if known is None else known
    for setting in (*(job.settings or ()), job.baseline):
        if (setting.n_max or 0) > cap:
            raise UsageError(
                f"--settings: {setting} is above the cap {cap}; expected at most n{cap}, or a larger --cap"
            )
    n_alone = target.facts.listens is Listens.LOWERS_N
    for setting in job.settings or ():
        if n_alone and (setting.p_min is not None or setting.n_min is not None):
            raise UsageError(
                f"--settings: {setting}: the server takes n_max alone; expected settings such as n4"
            )
    levels: tuple[float | None, ...] = (None,) if n_alone else P_LEVELS
    grid = wide_grid(cap, levels) if job.settings is None else job.settings
    if target.aliases:
        grid = _preset_grid(job, target)
    return Plan(job.places, grid, job.baseline, budget_ms, job.answers, job.margin, job.seed)


def _preset_grid(job: Job, target: Target) -> tuple[Setting, ...]:
    """The settings that there are presets for. Raises UsageError where one that was asked for is missing."""
    there = tuple(sorted((s for s in target.aliases if s != SERVER), key=lambda s: s.order))
    for setting in (*(job.settings or ()), job.baseline):
        if setting not in target.aliases:
            shown = ", ".join(str(s) for s in there)
            raise UsageError(
                f"{setting} is no preset that is loaded; expected of --settings and --baseline: {shown}"
            )
    alike = {s for s in there if job.baseline == SERVER and target.aliases[s] == target.aliases[SERVER]}
    return tuple(s for s in (job.settings or there) if s not in alike)


def key_of(job: Job, plan: Plan, target: Target) -> dict[str, object]:
    """What makes two calibrations the same one: not the budget, which may be raised to go on."""
    return {
        "model": target.who.model,
        "build": target.who.build,
        "contexts": list(job.contexts),
        "kinds": list(job.kinds),
        "settings": [str(s) for s in plan.settings],
        "baseline": str(plan.baseline),
        "tokens": job.tokens,
        "prompts": job.shelf.name,
        "seed": job.seed,
        "launch": job.launch_setting is not None,
    }


def frontier_of(job: Job, plan: Plan, record: Record, target: Target, *, complete: bool = True) -> Frontier:
    """The frontier that a record proves, with all that a reader of it should know."""
    found = rows(plan, record)
    if job.launch_setting is not None:
        found = tuple(replace(row, mark="") for row in found)
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "version": __version__,
        "slots": str(target.facts.slots),
        "spec_type": target.facts.spec_type,
        "prompts": f"{job.shelf.name} ({', '.join(job.shelf.sorts[:6])})",
        "cache": cache_use(record),
        "interval": f"gain_low and gain_high are each missed with probability {1.0 - CLAIM_CONFIDENCE:.1%}",
        "answers": str(len(record.samples)),
        "measured_s": f"{record.spent_ms / 1000.0:.0f}",
        "complete": "yes" if complete else "no, it was stopped",
    }
    return Frontier(
        rows=found,
        baseline=plan.baseline,
        model=Path(target.who.model).name,
        build=target.who.build,
        cap=job.cap if job.cap is not None else target.facts.cap,
        generated_tokens=job.tokens,
        about=tuple((name, value) for name, value in about.items() if value),
    )


def cache_use(record: Record) -> str:
    """Whether a block's prompt was read once and re-used, or anew for every answer."""
    counted = [s.timings for s in record.samples if s.timings.prompt_tokens > 0]
    if not counted:
        return ""
    share = sum(t.cache_n for t in counted) / sum(t.prompt_tokens for t in counted)
    if share > 0.9:
        return "each block's prompt was read once and re-used by all its settings"
    return f"{share:.0%} of prompt tokens came from the server's cache, the rest was read for every answer"
