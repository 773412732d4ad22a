"""How good is a calibration of 200 answers? Simulated servers whose true best setting is known.

    python -m tests.benchmarks.calibration_trial [--seeds 30] [--only NAME,...] [--answers 200] [--journal FILE]

About a second a cell; with a journal, a run that was stopped goes on where it was.

For each scenario, context and seed (a *cell*), the setting that a calibration would have played is compared with the
truth: how much slower than the best setting it is, and whether a winner was named that truly loses more than 1% to the
baseline. Beside it the naive plan: every setting of the same grid measured k times in order, the fastest mean wins.

The cost curves are rows of public measurements (see docs/calibration.md); the texts are four sorts whose acceptance
differs, and every text has its own skill. Drift and a step in the machine's speed run over the whole calibration.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from adaptive_dd.core.domain import Context, Setting
from adaptive_dd.core.measure import Plan, Record, missing, next_block, place_standing, spent, wide_grid
from adaptive_dd.core.sim import Content, Machine, Points, SimRequest, World, linear_shape, machine, noise_for
from adaptive_dd.core.standing import Place, Sample

TOKENS = 256
CONTEXTS = (4096, 65536, 131072)
WITHIN, LOSS = 0.02, 0.01
SKILL = 0.25  # spread of the logit of acceptance between texts of one sort
TRUTH_TEXTS = 60

CODE, PROSE = Content(0.94, 0.6, 0.15), Content(0.72, 0.4, 0.3)
RECORDS, CHAT = Content(0.95, 0.7, 0.1), Content(0.85, 0.5, 0.3)
MIXED = {"code": CODE, "prose": PROSE, "json": RECORDS, "chat": CHAT}
WORDS = {"prose": PROSE, "chat": CHAT}


BASELINE = Setting(2, 0.0)


def steady(_: float) -> float:
    return 1.0


@dataclass(frozen=True, eq=False)
class Trial:
    """A server. mood: factor on all times, by the share of the calibration that has passed."""

    name: str
    world: World
    texts: dict[str, Content]
    baseline: Setting = BASELINE
    cap: int = 8
    mood: Callable[[float], float] = steady

    @property
    def grid(self) -> tuple[Setting, ...]:
        return tuple(dict.fromkeys((self.baseline, *wide_grid(self.cap))))


def server(short_ms: float, long_ms: float, a: float, c: float, **more: object) -> World:
    cliffs = more.pop("cliffs", None)
    points: Points = ((0.0, short_ms), (131072.0, long_ms))
    return World(points, linear_shape(a, c, cliffs=cliffs), **more)  # type: ignore[arg-type]


TRIALS = (
    # T(n)/T(0) = 1.02 + 0.168n (RTX 5090 600 W), 0.97 + 0.241n (400 W), 0.91 + 0.22n (RTX 5060 Ti pair)
    Trial("wide-open", server(13.4, 26.0, 1.02, 0.168), MIXED),
    Trial("power-capped", server(14.0, 27.0, 0.97, 0.241), WORDS),
    # 1.03 + 0.112n up to 8 rows, n12 measured at 3.67 instead of 2.37 (Strix Halo RADV)
    Trial("kernel-cliff", server(84.0, 160.0, 1.03, 0.112, cliffs={9: 1.3}), {"chat": CHAT, "code": CODE}, cap=12),
    # 80/72/96 tok/s at n 2/6/8 on one rig: a hump of cost in the middle
    Trial("valley", server(20.0, 40.0, 1.0, 0.12, cliffs={3: 0.55, 7: -0.35}), {"code": CODE, "json": RECORDS}),
    # drafting pays at 4k and costs at 128k
    Trial(
        "sign-change",
        server(8.0, 30.0, 0.95, 0.12, context_slope=0.12, context_skill=((0.0, 0.0), (131072.0, -0.8))),
        MIXED,
    ),
    Trial("drift", server(26.1, 60.0, 0.91, 0.224), MIXED, mood=lambda passed: 1.0 + 0.3 * passed),
    Trial(
        "thermal-step", server(29.8, 60.0, 0.91, 0.22), {"code": CODE, "prose": PROSE},
        mood=lambda passed: 1.35 if passed > 0.5 else 1.0,
    ),
    # 1.02 + 0.525n (RTX 3060 laptop, MoE with offload)
    Trial("offload", server(43.6, 60.0, 1.02, 0.525), WORDS, baseline=Setting(1, 0.0)),
    # 88 ms against 261-304 ms per cycle with a rejection (models that cannot roll back)
    Trial("rejections", server(60.0, 90.0, 1.0, 0.08, rejection=0.9), MIXED),
    # 0.35 + 1.047n (Apple M3 Ultra): every row costs a whole pass, the baseline is hard to beat
    Trial("row-by-row", server(50.0, 90.0, 0.35, 1.047), MIXED, baseline=Setting(1, 0.0)),
    # 5% from answer to answer, one in fifty disturbed
    Trial("noisy", server(20.0, 40.0, 1.0, 0.17, noise_request=0.05, outliers=0.02), MIXED),
    # hardly anything to be had: 2 to 3% from one p_min alone, at the edge of what 200 answers can prove
    Trial("small-gain", server(20.0, 40.0, 1.0, 0.2, cliffs={3: 0.5}), WORDS),
    # the baseline is the best: a cliff right behind it
    Trial("baseline-best", server(20.0, 40.0, 1.0, 0.1, cliffs={3: 0.9}, draft_step=0.1), MIXED),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One calibration of one context, against the truth.

    gain: what the best setting has over the baseline; loss, naive_loss: how much slower than the best setting each plan
    is; wrong, naive_wrong: whether it named a winner that truly loses to the baseline.
    """

    name: str
    context: int
    seed: int
    gain: float
    loss: float
    naive_loss: float
    wrong: bool
    naive_wrong: bool
    answers: int


@cache
def truth_of(trial: Trial, context: int) -> dict[Setting, float]:
    made, rng = machine(trial.world), np.random.default_rng(5)
    texts = [
        SimRequest(0, Context(context), content, TOKENS, skill=float(skill))
        for content in trial.texts.values()
        for skill in rng.normal(0.0, SKILL, TRUTH_TEXTS)
    ]
    return {arm: sum(made.expected_ms(text, arm) for text in texts) for arm in trial.grid}


class Server:
    """Answers of a trial at one context, one after another."""

    def __init__(self, trial: Trial, context: int, seed: int, expected: int) -> None:
        self.trial, self.context, self.seed, self.expected = trial, context, seed, expected
        self.made: Machine = machine(trial.world)
        self.count = 0

    def answer(self, setting: Setting, text: int) -> Sample:
        sorts = tuple(self.trial.texts)
        sort = sorts[text % len(sorts)]
        skill = float(noise_for(self.seed * 7919 + 1, text * 1_000_003 + self.context).normal(0.0, SKILL))
        request = SimRequest(
            self.count, Context(self.context), self.trial.texts[sort], TOKENS, skill=skill,
            common=self.trial.mood(self.count / self.expected),
        )  # fmt: skip
        timings = self.made.generate(
            request, setting, noise_for(self.seed * 1000 + self.context % 997, self.count)
        )
        self.count += 1
        return Sample(Place(self.context), text, setting, timings, timings.predicted_ms, sort)


def calibrated(trial: Trial, context: int, seed: int, answers: int) -> tuple[Setting, int]:
    """The setting that a calibration names, and the answers it took."""
    place, server_ = Place(context), Server(trial, context, seed, answers)
    plan = Plan((place,), wide_grid(trial.cap), trial.baseline, answers=answers, seed=seed)
    record = Record()
    while (block := next_block(plan, record)) is not None:
        if not record.blocks or record.blocks[-1] != block:
            record = replace(record, blocks=(*record.blocks, block))
        for setting in missing(block, record):
            if block.number > 0 and spent(plan, record, place):
                break
            sample = server_.answer(setting, block.number)
            record = replace(record, samples=(*record.samples, sample))
    now = place_standing(plan, record, place)
    return (trial.baseline if now is None else now.winner), len(record.samples)


def naive(trial: Trial, context: int, seed: int, answers: int) -> Setting:
    """Each setting k times in order; the fastest mean wins."""
    each = answers // len(trial.grid)
    server_ = Server(trial, context, seed, each * len(trial.grid))
    speed: dict[Setting, float] = {}
    for at, setting in enumerate(trial.grid):
        own = [server_.answer(setting, at * each + k).timings for k in range(each)]
        speed[setting] = sum(t.decode_tokens for t in own) / sum(t.predicted_ms for t in own)
    return max(speed, key=lambda s: (speed[s], s == trial.baseline))


def cell(trial: Trial, context: int, seed: int, answers: int = 200) -> Cell:
    truth = truth_of(trial, context)
    best, base = min(truth.values()), truth[trial.baseline]
    named, count = calibrated(trial, context, seed, answers)
    other = naive(trial, context, seed, answers)

    def wrong(played: Setting) -> bool:
        return played != trial.baseline and truth[played] > (1.0 + LOSS) * base

    return Cell(
        trial.name, context, seed, base / best - 1.0, truth[named] / best - 1.0, truth[other] / best - 1.0,
        wrong(named), wrong(other), count,
    )  # fmt: skip


def summary(name: str, found: list[Cell]) -> str:
    def share(losses: list[float]) -> str:
        return f"{sum(loss <= WITHIN for loss in losses) / len(losses):.1%}"

    ours, theirs = [c.loss for c in found], [c.naive_loss for c in found]
    gains = [c.gain for c in found]
    return (
        f"| {name} | {len(found)} | {min(gains):.1%} to {max(gains):.1%} | {share(ours)} | {share(theirs)} "
        f"| {np.mean(ours):.2%} | {np.mean(theirs):.2%} "
        f"| {sum(c.wrong for c in found)} | {sum(c.naive_wrong for c in found)} "
        f"| {np.mean([c.answers for c in found]):.0f} |"
    )


HEAD = (
    "| server | cells | gain to be had | within 2%: calibrated | naive | mean loss: calibrated | naive "
    "| wrong winners: calibrated | naive | answers |\n|---|---|---|---|---|---|---|---|---|---|"
)


def table(found: list[Cell]) -> str:
    names = list(dict.fromkeys(c.name for c in found))
    lines = [summary(name, [c for c in found if c.name == name]) for name in names]
    return "\n".join([HEAD, *lines, summary("all", found)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--only", default="")
    parser.add_argument("--journal", type=Path)
    given = parser.parse_args()
    journal: Path | None = given.journal
    lines = journal.read_text().splitlines() if journal is not None and journal.exists() else []
    found = [Cell(**json.loads(line)) for line in lines]
    done = {(c.name, c.context, c.seed) for c in found}
    wanted = [t for t in TRIALS if not given.only or t.name in given.only.split(",")]
    for seed in range(given.seeds):
        for trial in wanted:
            for context in CONTEXTS:
                if (trial.name, context, seed) not in done:
                    found.append(cell(trial, context, seed, given.answers))
                    if journal is not None:
                        with journal.open("a") as file:
                            file.write(json.dumps(asdict(found[-1])) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
