"""Presets against fields on the same simulated traffic: the table of docs/actuators.md.

    python -m tests.benchmarks.places [--requests 400] [--seed 1] [--scenario NAME ...]

Simulated: times are expected ones of the bench's worlds, and a place holds the prompts of its last 64 conversations.
"""

from __future__ import annotations

import argparse

from adaptive_dd.bench_places import WAYS, PlacesScore, play_places, table
from adaptive_dd.core.scenarios import SCENARIOS, scenario


def main() -> None:
    """Play every scenario in every way, and print the table as it is in the docs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", action="append", default=[], choices=list(SCENARIOS))
    given = parser.parse_args()
    scores: list[PlacesScore] = []
    for name in given.scenario or SCENARIOS:
        scores += [play_places(scenario(name), way, given.seed, given.requests) for way in WAYS]
        print(f"{name} done", flush=True)
    print(table(scores))
    for way in WAYS:
        over = [score for score in scores if score.way == way and score.worst_ms > 0.0]
        worst = max(over, key=lambda one: one.worst_ms, default=None)
        at_most = "" if worst is None else f", by {worst.worst_ms / 1000.0:.1f} s at most ({worst.scenario})"
        mean = sum(score.relative for score in scores if score.way == way) / (len(scores) // len(WAYS))
        print(
            f"{way}: {mean:.3f} on average; over the budget at some moment in {len(over)} scenarios{at_most}"
        )


if __name__ == "__main__":
    main()
