"""Calibrate a real b9101, then measure what the file is worth on prompts that the calibration did not see.

    python -m tests.benchmarks.calibration_real [--minutes 12] [--rounds 6] [--kinds greedy] [--write]

Part one is `adaptive-dd calibrate` as a user runs it. Part two plays every prompt with the fixed baseline, with the
best single fixed setting of the file, and through `adaptive-dd serve --mode static` with the file: in random order,
each on a prompt that the server has just read, decode time as the server's own `timings` give it. `--write` puts file,
drawing and tables into docs/.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from adaptive_dd.calibrate import KINDS, PRIMING_TOKENS, Job, calibrate, with_other_end
from adaptive_dd.calibration_view import PlainView
from adaptive_dd.core.domain import Frontier, Setting
from adaptive_dd.core.frontier import comparison, ladder
from adaptive_dd.core.wire import setting_fields
from adaptive_dd.exact_prompts import Generated
from adaptive_dd.frontier_file import dump_frontier, load_frontier
from adaptive_dd.frontier_report import comparison_table, grid_table, ladder_table, text_table
from adaptive_dd.plots import draw
from tests.benchmarks.real import call
from tests.real.proxies import proxying
from tests.real.servers import draft_flags, starting

BUILD, LAUNCH_N = "b9101", 16
BASELINE = Setting(2, 0.0)
CONTEXTS = (256, 1024, 4096)
TOKENS = 96
UNSEEN_SEED = 77
DOCS = Path(__file__).parents[2] / "docs"
NAME = "calibration-b9101"
BEGIN, END = "<!-- real-calibration -->\n", "<!-- /real-calibration -->\n"
STATIC = "static, with the file"
RESAMPLES = 4000


@dataclass(frozen=True)
class Played:
    """Decode time of one prompt, by policy."""

    context: int
    kind: str
    ms: dict[str, float]


def best_fixed(frontier: Frontier) -> Setting:
    """The one setting that would have been fastest over all contexts and kinds of the file together."""
    places = {(row.context_tokens, row.kind) for row in frontier.rows}
    times: dict[Setting, dict[tuple[int, str], float]] = {}
    for row in frontier.rows:
        times.setdefault(row.setting, {})[row.context_tokens, row.kind] = 1.0 / row.tok_s
    everywhere = {s: sum(t.values()) for s, t in times.items() if set(t) == places}
    return min(everywhere, key=lambda s: (everywhere[s], s.order))


def body_of(tokens: list[int], kind: str, seed: int, predict: int) -> dict[str, object]:
    return {
        "prompt": tokens, "n_predict": predict, "ignore_eos": True, "cache_prompt": True, "seed": seed, **KINDS[kind],
    }  # fmt: skip


def prime(server: str, tokens: list[int], kind: str, seed: int) -> None:
    """Let the server read the prompt, and the drafter forget what it answered before (see `calibrate`)."""
    body = body_of(with_other_end(tokens), kind, seed, PRIMING_TOKENS)
    call(server + "/completion", "POST", {**body, **setting_fields(Setting(LAUNCH_N, 0.0))})


def play(server: str, proxy: str, fixed: Setting, kinds: Sequence[str], rounds: int) -> list[Played]:
    """Every prompt with every policy, in random order."""
    shelf, draw_order, found = Generated(UNSEEN_SEED), random.Random(5), []
    policies = {
        f"fixed {BASELINE}": (server, BASELINE),
        f"fixed {fixed}": (server, fixed),
        STATIC: (proxy, None),
    }
    for number in range(rounds):
        for context in CONTEXTS:
            for kind in kinds:
                sort = shelf.sorts[number % len(shelf.sorts)]
                text = shelf.take(sort, number * 10 + CONTEXTS.index(context), context * 7 + 200)
                tokens = call(server + "/tokenize", "POST", {"content": text, "add_special": True})["tokens"][
                    :context
                ]
                ms: dict[str, float] = {}
                for name in draw_order.sample(list(policies), len(policies)):
                    url, setting = policies[name]
                    prime(server, tokens, kind, number)
                    fields = setting_fields(setting) if setting is not None else {}
                    answer = call(
                        url + "/completion", "POST", {**body_of(tokens, kind, number, TOKENS), **fields}
                    )
                    ms[name] = answer["timings"]["predicted_ms"]
                found.append(Played(context, kind, ms))
                print(
                    f"{context} {kind or 'any'} {sort}: "
                    + ", ".join(f"{n} {m:.0f} ms" for n, m in ms.items()),
                    flush=True,
                )
    return found


def worth(found: Sequence[Played]) -> str:
    """tok/s by context and policy, and the static file against each fixed setting, with 95% intervals."""
    names = list(dict.fromkeys(name for one in found for name in sorted(one.ms)))
    groups = sorted({(one.context, one.kind) for one in found})
    rows = []
    for context, kind in [*groups, (0, "")]:
        own = [one for one in found if not context or (one.context, one.kind) == (context, kind)]
        speeds = [1000.0 * (TOKENS - 1) * len(own) / sum(one.ms[name] for one in own) for name in names]
        gains = [against(own, name) for name in names if name != STATIC]
        label = f"{context:,} {kind}".strip() if context else "all"
        rows.append((label, str(len(own)), *(f"{speed:.1f}" for speed in speeds), *gains))
    over = [f"{STATIC.split(',', maxsplit=1)[0]} over {name}" for name in names if name != STATIC]
    return text_table(("context", "prompts", *names, *over), rows, left=(0,))


def against(own: Sequence[Played], name: str) -> str:
    """Gain of the static file over a fixed setting: ratio of sums, its interval from resampled prompts."""
    ours, theirs = np.array([o.ms[STATIC] for o in own]), np.array([o.ms[name] for o in own])
    pick = np.random.default_rng(1).integers(0, len(own), (RESAMPLES, len(own)))
    ratios = theirs[pick].sum(axis=1) / ours[pick].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return f"{theirs.sum() / ours.sum() - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--kinds", default="greedy")
    parser.add_argument("--frontier", type=Path, help="a file measured before: only part two")
    parser.add_argument("--out", type=Path, help="where part one leaves its file (default: nowhere)")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    kinds = tuple(given.kinds.split(","))
    with TemporaryDirectory() as folder, starting(BUILD, *draft_flags(LAUNCH_N)) as server:
        out = given.frontier or given.out or Path(folder) / f"{NAME}.json"
        job = Job(
            server.url,
            out,
            CONTEXTS,
            Generated(),
            kinds=kinds,
            baseline=BASELINE,
            budget_s=60.0 * given.minutes,
            tokens=TOKENS,
        )
        if given.frontier:
            frontier = load_frontier(str(out))
        else:
            frontier = asyncio.run(calibrate(job, PlainView(lambda line: print(line, flush=True))))
        fixed = best_fixed(frontier)
        flags = ("--mode", "static", "--frontier", str(out), "--baseline", str(BASELINE))
        with proxying(server.url, Path(folder) / "proxy", *flags) as proxy:
            proxy.wait_for("honours")
            found = play(server.url, proxy.url, fixed, kinds, given.rounds)
    text = report(frontier, found)
    print(text)
    if given.write:
        write(frontier, text)


def report(frontier: Frontier, found: Sequence[Played]) -> str:
    kinds = sorted({row.kind for row in frontier.rows})
    ladders = [f"{kind or 'any kind'}:\n{ladder_table(ladder(frontier, kind=kind))}" for kind in kinds]
    about = dict(frontier.about)
    parts = [
        f"{about['answers']} answers in {float(about['measured_s']) / 60.0:.1f} minutes; cache: {about['cache']}.",
        comparison_table(comparison(frontier), frontier.baseline),
        *ladders,
        grid_table(frontier),
        worth(found),
    ]
    return "\n\n".join(f"```text\n{part}\n```" if "\n" in part else part for part in parts)


def write(frontier: Frontier, text: str) -> None:
    (DOCS / f"{NAME}.json").write_text(dump_frontier(frontier))
    draw(frontier, DOCS / f"{NAME}.svg")
    page = DOCS / "calibration.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{text}\n{END}{after}")


if __name__ == "__main__":
    main()
