"""Metrics: one table of names, and a small registry that renders the Prometheus text format.

Only names in METRICS can be counted, so a metric that is not documented does not exist. Values that are not
finite are refused at the door: a scrape never shows a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from adaptive_dd.core.events import Abandoned, Observed
from adaptive_dd.core.explain import budget
from adaptive_dd.core.state import State


class Metric(NamedTuple):
    """What a metric counts. labels: the label names it must be given."""

    kind: str  # counter or gauge
    help: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "requests_total": Metric("counter", "Requests relayed, by whether they generate", ("generating",)),
    "decisions_total": Metric("counter", "Decisions by reason", ("reason",)),
    "outcomes_total": Metric("counter", "Ended generating requests by status", ("status",)),
    "samples_rejected_total": Metric(
        "counter", "Answers whose timings cannot be true, or not be told from arrivals, by why", ("why",)
    ),
    "samples_by_arrival_total": Metric(
        "counter", "Answers without timings that were learned from by when their tokens arrived"
    ),
    "own_failures_total": Metric(
        "counter", "Our own code failed; the request was served all the same", ("where",)
    ),
    "resent_total": Metric(
        "counter", "Requests sent again as they came, after the server refused our fields"
    ),
    "count_calls_total": Metric("counter", "Calls to the server's counting routes, by result", ("result",)),
    "prompt_lengths_total": Metric("counter", "Prompt lengths by where they came from", ("source",)),
    "upstream_retries_total": Metric("counter", "Retries after a kept connection had closed under us"),
    "upstream_unreachable_total": Metric("counter", "Requests answered by us because no upstream answered"),
    "client_gone_total": Metric("counter", "Requests whose client left before the end"),
    "in_flight": Metric("gauge", "Generating requests under way"),
    "upstream_up": Metric("gauge", "1 when the upstream answered last time we looked"),
    "server_listens": Metric("gauge", "1 for what the server does with draft settings", ("listens",)),
    "journal_events_total": Metric("counter", "Events written to the journal"),
    "journal_skipped_total": Metric(
        "counter", "Events not recorded (and not learned from): the queue was full"
    ),
    "journal_failures_total": Metric("counter", "Batches that could not be written; tried again later"),
    "journal_lost_total": Metric("counter", "Events learned in memory that the journal could not keep"),
    "drafted_tokens_total": Metric("counter", "Tokens drafted, from timings"),
    "accepted_tokens_total": Metric("counter", "Drafted tokens accepted, from timings"),
    "decoded_tokens_total": Metric("counter", "Tokens generated, from timings or arrivals"),
    "decode_seconds_total": Metric("counter", "Decode time, from timings or arrivals"),
    "decide_seconds_total": Metric("counter", "Time spent deciding"),
    "saved_seconds": Metric("gauge", "Estimated decode time saved against the baseline so far"),
    "budget_seconds": Metric("gauge", "What the guard may still spend on trials"),
}

PREFIX = "adaptive_dd_"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """Counters and gauges by (name, label values)."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def _key(self, name: str, labels: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        wanted = METRICS[name].labels
        if set(labels) != set(wanted):
            raise ValueError(f"metric {name} takes the labels {wanted}, got {tuple(labels)}")
        return name, tuple(labels[label] for label in wanted)

    def inc(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter; an amount that is negative or not finite is dropped."""
        key = self._key(name, labels)
        if math.isfinite(amount) and amount >= 0.0:
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; a value that is not finite is dropped."""
        key = self._key(name, labels)
        if math.isfinite(value):
            self._values[key] = float(value)

    def clear(self, name: str) -> None:
        """Forget every label value of a metric (a gauge of which one label is true at a time)."""
        for key in [key for key in self._values if key[0] == name]:
            del self._values[key]

    def value(self, name: str, **labels: str) -> float:
        """The current value, 0 where nothing was counted."""
        return self._values.get(self._key(name, labels), 0.0)

    def render(self) -> str:
        """The Prometheus text exposition format."""
        lines: list[str] = []
        for name, metric in METRICS.items():
            rows = sorted((key[1], value) for key, value in self._values.items() if key[0] == name)
            if not rows and not metric.labels:
                rows = [((), 0.0)]
            if rows:
                lines += [f"# HELP {PREFIX}{name} {metric.help}", f"# TYPE {PREFIX}{name} {metric.kind}"]
            for values, value in rows:
                pairs = ",".join(f'{k}="{_escape(v)}"' for k, v in zip(metric.labels, values, strict=True))
                lines.append(f"{PREFIX}{name}{{{pairs}}} {value!r}" if pairs else f"{PREFIX}{name} {value!r}")
        return "\n".join(lines) + "\n"


def count_ending(metrics: Metrics, event: Observed | Abandoned) -> None:
    """How one generating request ended, and what its timings add up to."""
    if isinstance(event, Abandoned):
        metrics.inc("outcomes_total", status=event.why)
        return
    outcome = event.outcome
    metrics.inc("outcomes_total", status=outcome.status.value)
    if outcome.rejected:
        metrics.inc("samples_rejected_total", why=outcome.rejected)
    if outcome.timings is not None:
        if outcome.inferred:
            metrics.inc("samples_by_arrival_total")
        else:  # of the others it is not known what was drafted, and a ratio needs both
            metrics.inc("drafted_tokens_total", outcome.timings.draft_n)
            metrics.inc("accepted_tokens_total", outcome.timings.draft_n_accepted)
        metrics.inc("decoded_tokens_total", outcome.timings.predicted_n)
        metrics.inc("decode_seconds_total", outcome.timings.predicted_ms / 1000.0)


def show_standing(metrics: Metrics, state: State, in_flight: int) -> None:
    """The gauges that a state answers by itself; for a scrape, because one of them is a sum over everything."""
    metrics.set("in_flight", in_flight)
    metrics.clear("server_listens")
    metrics.set("server_listens", 1.0, listens=state.facts.listens.value)
    account = budget(state)
    metrics.set("saved_seconds", account.saved_ms / 1000.0)
    metrics.set("budget_seconds", account.headroom_ms / 1000.0)
