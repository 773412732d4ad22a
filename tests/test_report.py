"""The numbers that people are shown, from rows whose sums are known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from adaptive_dd.report import (
    BLOCK,
    bucket_text,
    changes,
    decide_times,
    number_text,
    quantile,
    time_text,
    usage,
)


def row(number: int, **fields: Any) -> dict[str, Any]:
    plain = {
        "number": number,
        "at_s": float(number),
        "bucket": 1,
        "load": 0,
        "kind": "k",
        "setting": "n2,p0.0",
        "reason": "learned",
        "decide_us": float(number),
        "status": "ok",
        "predicted_n": 11,
        "predicted_ms": 100.0,
        "draft_n": 20,
        "accepted": 5,
    }
    return plain | fields


def test_speed_is_a_ratio_of_sums_and_not_a_mean_of_ratios() -> None:
    used = usage([row(1), row(2, predicted_n=91, predicted_ms=400.0, draft_n=60, accepted=45)])
    assert used[0].tokens_per_s == pytest.approx(1000 * 102 / 500)
    assert used[0].ms_per_token == pytest.approx(500 / 100)
    assert used[0].acceptance == pytest.approx(50 / 80)


def test_the_interval_of_a_speed_holds_the_truth_in_about_95_of_100_samples() -> None:
    held = 0
    for seed in range(200):
        rng = random.Random(seed)
        rows = []
        for number in range(40):
            tokens = rng.randrange(20, 200)
            ms = 10.0 * tokens * rng.lognormvariate(-0.02, 0.2)
            rows.append(row(number, predicted_n=tokens + 1, predicted_ms=ms))
        one = usage(rows)[0]
        assert one.ms_per_token is not None
        assert one.ms_half_width is not None
        held += abs(one.ms_per_token - 10.0) <= one.ms_half_width
    assert 180 <= held <= 198
    assert usage([row(1), row(2)])[0].ms_half_width is None


def test_answers_without_believable_timings_are_requests_but_not_speed() -> None:
    lost = {"predicted_n": None, "predicted_ms": None, "draft_n": None, "accepted": None}
    used = usage([row(1), row(2, status="client-gone", **lost), row(3, status="rejected", **lost)])
    assert (used[0].requests, used[0].answered) == (3, 1)
    nothing = usage([row(1, status="open", **lost)])[0]
    assert (nothing.tokens_per_s, nothing.ms_per_token, nothing.acceptance) == (None, None, None)


def test_the_most_used_setting_of_a_cell_comes_first_with_its_reasons() -> None:
    rows = [row(1, setting="n0", reason="explore"), row(2), row(3), row(4, reason="baseline")]
    used = usage([*rows, row(5, bucket=0)])
    assert [(one.bucket, one.setting) for one in used] == [(0, "n2,p0.0"), (1, "n2,p0.0"), (1, "n0")]
    assert used[1].reasons == {"learned": 2, "baseline": 1}
    assert used[1].decide_us == 3.0


def test_nothing_drafted_has_no_acceptance() -> None:
    assert usage([row(1, draft_n=0, accepted=0)])[0].acceptance is None


def test_deciding_times_have_quantiles() -> None:
    times = decide_times([row(n) for n in range(1, 101)])
    assert times == {"p50": 51.0, "p99": 100.0, "max": 100.0}
    assert decide_times([]) == {"p50": None, "p99": None, "max": None}
    assert quantile([], 0.5) is None


def test_a_change_is_what_most_of_a_block_agrees_on_and_not_one_odd_request() -> None:
    rows = [row(n, setting="n2,p0.0" if n <= 2 * BLOCK else "n4,p0.25") for n in range(1, 4 * BLOCK + 1)]
    rows[3]["setting"] = "n8,p0.0"
    rows.insert(10, row(999, setting="n0", reason="explore"))
    found = changes(rows)
    assert [(c["from"], c["to"], c["number"]) for c in found] == [
        ("", "n2,p0.0", 1),
        ("n2,p0.0", "n4,p0.25", 2 * BLOCK + 1),
    ]


def test_buckets_numbers_and_moments_are_written_for_people() -> None:
    edges = (512, 2048)
    assert [bucket_text(edges, b) for b in range(3)] == ["0-511", "512-2,047", "2,048+"]
    assert (number_text(None), number_text(1.26)) == ("-", "1.3")
    assert (time_text(0.0), time_text(None)) == ("1970-01-01 00:00:00", "never")
    assert time_text(1e18) == "1000000000000000000 s"
