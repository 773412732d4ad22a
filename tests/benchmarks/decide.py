"""How long a decision takes: `decide` alone, and `begin` (decide, number, event, state, journal queue) as a whole.

    python -m tests.benchmarks.decide [--count N]

Measured in one run, one after the other, on the shipped frontier in mode static and on a learned state in mode
adaptive. Percentiles in microseconds, as a markdown table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from adaptive_dd.core import controller
from adaptive_dd.core.domain import Context, Deployment, Kind, Mode, Outcome, PolicySettings, Status, Timings
from adaptive_dd.core.events import Decided
from adaptive_dd.core.rng import rng_for
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.frontier_file import load_frontier


def percentiles(samples_ns: list[int]) -> tuple[float, float]:
    ordered = sorted(samples_ns)
    return ordered[len(ordered) // 2] / 1000.0, ordered[int(len(ordered) * 0.99)] / 1000.0


def timed(count: int, work: Callable[[int], object]) -> tuple[float, float]:
    samples = []
    for number in range(count):
        start = time.perf_counter_ns()
        work(number)
        samples.append(time.perf_counter_ns() - start)
    return percentiles(samples)


def contexts(count: int) -> list[Context]:
    kinds = (Kind("greedy"), Kind("sampled"), Kind("sampled", "tools"))
    return [
        Context(200 * (n % 700) + 10, "ledger", kind=kinds[n % 3], conversation=f"{n % 50:x}")
        for n in range(count)
    ]


def timings_for(number: int) -> Timings:
    return Timings(
        prompt_n=20,
        prompt_ms=9.0,
        predicted_n=129,
        predicted_ms=1000.0 + number % 7,
        draft_n=160,
        draft_n_accepted=88,
    )


def rows(mode: Mode, count: int) -> list[tuple[str, tuple[float, float]]]:
    frontier = load_frontier("qwen3.6-35b-rocmfp4")
    journal = MemoryJournal()
    engine = Engine(
        journal,
        Deployment("http://bench"),
        settings=PolicySettings(mode=mode, baseline=frontier.baseline),
        frontier=frontier,
    )
    work = contexts(count)
    for number, context in enumerate(work[:500]):
        engine.finish(engine.begin(context).number, Outcome(Status.OK, timings_for(number)))
    state = engine.state
    decide = timed(count, lambda n: controller.decide(state, work[n], rng_for(7, n)))
    event = Decided(1.0, state.next_number, work[0], controller.decide(state, work[0], rng_for(7, 1)), 1.0)
    applied = timed(count, lambda _: controller.apply(state, event))
    begin: list[int] = []
    finish: list[int] = []
    for number, context in enumerate(work):
        before = time.perf_counter_ns()
        ticket = engine.begin(context)
        between = time.perf_counter_ns()
        engine.finish(ticket.number, Outcome(Status.OK, timings_for(number)))
        begin.append(between - before)
        finish.append(time.perf_counter_ns() - between)
    return [
        (f"{mode.value}: `decide` with its draw", decide),
        (f"{mode.value}: the state after the decision", applied),
        (f"{mode.value}: `begin` (decide and record)", percentiles(begin)),
        (f"{mode.value}: `finish` (apply and record)", percentiles(finish)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    count = parser.parse_args().count
    print("| what | p50 us | p99 us |\n|---|---|---|")
    for mode in (Mode.STATIC, Mode.ADAPTIVE):
        for name, (p50, p99) in rows(mode, count):
            print(f"| {name} | {p50:.1f} | {p99:.1f} |")


if __name__ == "__main__":
    main()
