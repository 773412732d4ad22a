from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adaptive_dd.metrics import METRICS, Metrics


def test_what_is_rendered_is_read_back_by_the_prometheus_client() -> None:
    metrics = Metrics()
    metrics.inc("decisions_total", reason='od"d\\\n')
    metrics.inc("decisions_total", 2, reason="learned")
    metrics.set("in_flight", 3)
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render())
        for sample in family.samples
    }
    assert samples[("adaptive_dd_decisions_total", ('od"d\\\n',))] == 1
    assert samples[("adaptive_dd_decisions_total", ("learned",))] == 2
    assert samples[("adaptive_dd_in_flight", ())] == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_never_reaches_a_scrape(value: float) -> None:
    metrics = Metrics()
    metrics.set("saved_seconds", value)
    metrics.inc("decode_seconds_total", value)
    assert "nan" not in metrics.render().lower()
    assert "inf" not in metrics.render().replace("in_flight", "").lower()


def test_a_name_or_a_label_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError):
        Metrics().inc("nonsense")
    with pytest.raises(ValueError, match="takes the labels"):
        Metrics().inc("decisions_total", status="ok")


def test_counter_names_end_in_total_and_gauges_do_not() -> None:
    for name, metric in METRICS.items():
        assert name.endswith("_total") == (metric.kind == "counter"), name


def test_every_metric_of_the_table_is_fed_somewhere() -> None:
    package = Path(__file__).parents[1] / "adaptive_dd"
    code = "\n".join(file.read_text() for file in package.rglob("*.py"))
    unfed = [name for name in METRICS if not any(f'.{call}("{name}"' in code for call in ("inc", "set"))]
    # The journal feeds its own three from what its writer thread counted.
    assert set(unfed) <= {"journal_events_total", "journal_failures_total"}
