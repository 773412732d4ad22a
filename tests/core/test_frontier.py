"""Buckets, the safety rule and the ladder: which setting is played at which prompt length, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from adaptive_dd.core.domain import OFF, SERVER, Frontier, FrontierRow, Setting, parse_setting
from adaptive_dd.core.frontier import (
    DEFAULT_EDGES,
    Rung,
    bucket_edges,
    bucket_of,
    comparison,
    ladder,
    ladder_text,
    measured_ms_per_token,
    neighbours,
    safe_rows_at,
    setting_at,
    t_quantile,
)

BASE = parse_setting("n2,p0.0")


def row(context_tokens: int, setting: str, tok_s: float, **more: object) -> FrontierRow:
    return FrontierRow(context_tokens, parse_setting(setting), tok_s, **more)  # type: ignore[arg-type]


def frontier(*rows: FrontierRow, **more: object) -> Frontier:
    return Frontier(rows, **{"baseline": BASE, **more})  # type: ignore[arg-type]


def played(f: Frontier, **more: object) -> list[str]:
    return [str(rung.setting) for rung in ladder(f, **more)]  # type: ignore[arg-type]


# --- buckets


def test_edges_lie_halfway_between_measured_contexts_on_a_log_scale() -> None:
    f = frontier(row(1000, "n2,p0", 10), row(4000, "n2,p0", 10), row(64000, "n2,p0", 10))
    assert bucket_edges(f) == (2000, 16000)


def test_edges_of_the_file_come_before_computed_ones() -> None:
    f = frontier(row(1000, "n2,p0", 10), row(4000, "n2,p0", 10), edges=(3000,))
    assert bucket_edges(f) == (3000,)


def test_a_frontier_without_rows_has_default_buckets_and_plays_the_baseline_in_all() -> None:
    assert bucket_edges(frontier()) == DEFAULT_EDGES
    assert {r.setting for r in ladder(frontier())} == {BASE}
    assert {r.why for r in ladder(frontier())} == {"not-measured"}


def test_a_prompt_of_exactly_an_edge_belongs_above_it() -> None:
    assert [bucket_of((2000, 16000), n) for n in (0, 1999, 2000, 15999, 16000, 10**7)] == [0, 0, 1, 1, 2, 2]


@given(st.sets(st.integers(1, 10**6), min_size=1, max_size=12))
def test_every_measured_context_has_a_bucket_of_its_own(contexts: set[int]) -> None:
    edges = bucket_edges(frontier(*(row(c, "n2,p0", 10.0) for c in sorted(contexts))))
    assert list(edges) == sorted(set(edges))
    assert len({bucket_of(edges, c) for c in contexts}) == len(contexts) == len(edges) + 1


# --- the safety rule


def test_the_fastest_row_above_the_baseline_is_played() -> None:
    assert played(frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 110), row(1, "n8,p0", 105))) == ["n4,p0.0"]


def test_a_tie_goes_to_the_baseline() -> None:
    f = frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 100))
    assert played(f) == ["n2,p0.0"]
    assert ladder(f)[0].why == "tie"


def test_a_row_that_loses_to_the_baseline_is_never_played() -> None:
    assert played(frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 99.9), row(1, "n0", 20))) == ["n2,p0.0"]


def test_a_row_whose_lower_bound_is_not_above_the_baseline_is_not_safe() -> None:
    base = row(1, "n2,p0", 100)
    wide = frontier(base, row(1, "n4,p0", 104, samples=4, sd=4.0))
    narrow = frontier(base, row(1, "n4,p0", 104, samples=4, sd=0.5))
    assert (played(wide), ladder(wide)[0].why) == (["n2,p0.0"], "unproven")
    assert played(narrow) == ["n4,p0.0"]


def test_the_fastest_safe_row_may_be_slower_than_an_unsafe_one() -> None:
    f = frontier(
        row(1, "n2,p0", 100),
        row(1, "n8,p0", 120, samples=2, sd=15.0),
        row(1, "n4,p0", 110, samples=5, sd=1.0),
    )
    assert played(f) == ["n4,p0.0"]


def test_one_sample_tells_no_spread_so_its_mean_counts() -> None:
    assert played(frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 101, samples=1, sd=9.0))) == ["n4,p0.0"]


def test_a_paired_interval_counts_before_the_spread_of_the_mean() -> None:
    base = row(1, "n2,p0", 100, samples=9, sd=30)
    paired = row(1, "n4,p0", 103, samples=9, sd=30, gain=1.03, gain_low=1.01, gain_high=1.05)
    assert played(frontier(base, paired)) == ["n4,p0.0"]
    assert played(frontier(base, replace(paired, gain_low=0.99))) == ["n2,p0.0"]
    # Against another baseline than the file's the pairing says nothing.
    other = frontier(base, paired, row(1, "n1,p0", 102.9))
    assert played(other, baseline=parse_setting("n1,p0")) == ["n1,p0.0"]


def test_a_marked_row_makes_no_claim() -> None:
    assert played(frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 150, mark="too-noisy"))) == ["n2,p0.0"]


def test_where_the_baseline_was_not_measured_nothing_is_proven() -> None:
    f = frontier(row(1000, "n4,p0", 500), row(4000, "n2,p0", 90), row(4000, "n4,p0", 100))
    assert played(f) == ["n2,p0.0", "n4,p0.0"]
    assert ladder(f)[0].why == "no-baseline"


def test_rows_above_the_cap_are_not_used_and_not_clamped() -> None:
    f = frontier(row(1, "n2,p0", 100), row(1, "n8,p0", 150), row(1, "n4,p0", 110))
    assert played(f, cap=4) == ["n4,p0.0"]
    assert played(f, cap=3) == ["n2,p0.0"]


def test_off_may_win() -> None:
    assert ladder(frontier(row(1, "n2,p0", 10), row(1, "n0", 15)))[0] == Rung(0, OFF, 1.5, "proven")


def test_a_named_baseline_replaces_that_of_the_file() -> None:
    f = frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 110), row(1, "n8,p0", 120))
    assert played(f, baseline=parse_setting("n8,p0")) == ["n8,p0.0"]
    assert played(f, baseline=parse_setting("n4,p0")) == ["n8,p0.0"]


def test_against_server_the_files_own_baseline_stands_in_and_server_is_played_where_nothing_wins() -> None:
    f = frontier(
        row(1000, "n2,p0", 100), row(1000, "n4,p0", 110), row(4000, "n2,p0", 100), row(4000, "n4,p0", 90)
    )
    assert played(f, baseline=SERVER) == ["n4,p0.0", "server"]


def test_measured_server_rows_are_the_baseline_server() -> None:
    f = frontier(row(1, "n2,p0", 100), row(1, "server", 120), row(1, "n4,p0", 110))
    assert played(f, baseline=SERVER) == ["server"]


def test_several_contexts_in_one_bucket_ask_for_a_setting_that_is_safe_at_all_of_them() -> None:
    f = frontier(
        row(1000, "n2,p0", 100),
        row(1000, "n4,p0", 150),
        row(1000, "n3,p0", 110),
        row(2000, "n2,p0", 100),
        row(2000, "n4,p0", 99),
        row(2000, "n3,p0", 105),
        edges=(8000,),
    )
    assert played(f) == ["n3,p0.0", "n2,p0.0"]
    assert [r.why for r in ladder(f)] == ["proven", "not-measured"]


# --- kinds

KINDS = (
    row(1, "n2,p0", 100, kind="greedy"),
    row(1, "n8,p0", 300, kind="greedy"),
    row(1, "n3,p0", 110, kind="greedy"),
    row(1, "n2,p0", 20, kind="sampled"),
    row(1, "n8,p0", 10, kind="sampled"),
    row(1, "n3,p0", 21, kind="sampled"),
)


def test_a_kind_measured_apart_has_a_ladder_of_its_own() -> None:
    f = frontier(*KINDS)
    assert played(f, kind="greedy.free.chat") == ["n8,p0.0"]
    assert played(f, kind="sampled.free.chat") == ["n3,p0.0"]


def test_without_a_kind_a_setting_must_be_safe_for_all_measured_kinds() -> None:
    assert played(frontier(*KINDS)) == ["n3,p0.0"]


def test_a_kind_that_was_not_measured_gets_the_baseline() -> None:
    assert played(frontier(*KINDS[:3]), kind="sampled.free.chat") == ["n2,p0.0"]


def test_rows_without_a_kind_speak_for_every_kind_that_has_none_of_its_own() -> None:
    f = frontier(row(1, "n2,p0", 100), row(1, "n4,p0", 110), *KINDS[:3])
    assert played(f, kind="sampled.free.chat") == ["n4,p0.0"]
    assert played(f, kind="greedy.free.chat") == ["n8,p0.0"]
    assert played(f) == ["n4,p0.0"]


# --- ladders


def test_the_last_rule_with_min_at_most_the_prompt_wins() -> None:
    f = Frontier(rules=((0, parse_setting("n4,p0.25")), (49152, parse_setting("n4,p0.0"))))
    rungs = ladder(f)
    assert [str(setting_at(rungs, n)) for n in (0, 49151, 49152, 10**6)] == [
        "n4,p0.25",
        "n4,p0.25",
        "n4,p0.0",
        "n4,p0.0",
    ]
    assert bucket_edges(f) == (49152,)


def test_rules_that_start_above_zero_leave_the_baseline_below_them() -> None:
    f = Frontier(rules=((1000, parse_setting("n8")),), baseline=BASE)
    assert played(f, cap=4) == ["n2,p0.0", "n4"]


def test_the_ladder_as_text_leaves_out_steps_that_change_nothing() -> None:
    rungs = (Rung(0, BASE), Rung(10, BASE), Rung(20, OFF))
    assert ladder_text(rungs) == "0:n2,p0.0;20:n0"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([100, 1000, 10000]), st.sampled_from([0, 1, 2, 4, 8]), st.floats(1.0, 1000.0)
        ),
        max_size=20,
        unique_by=lambda t: t[:2],
    )
)
def test_no_ladder_ever_holds_a_row_that_loses_to_the_baseline(cells: list[tuple[int, int, float]]) -> None:
    rows = [FrontierRow(c, Setting(n, 0.0) if n else OFF, t) for c, n, t in cells]
    f = frontier(*rows)
    rungs = ladder(f)
    assert len(rungs) == len(bucket_edges(f)) + 1
    speed = {(r.context_tokens, r.setting): r.tok_s for r in rows}
    for context_tokens in {r.context_tokens for r in rows}:
        chosen = setting_at(rungs, context_tokens)
        base = speed.get((context_tokens, BASE))
        assert chosen == BASE or (base is not None and speed[context_tokens, chosen] > base)


# --- look-ups for the learner


def test_safe_rows_of_a_bucket_come_fastest_first() -> None:
    f = frontier(*(row(1, s, t) for s, t in (("n2,p0", 100), ("n4,p0", 110), ("n8,p0", 120), ("n1", 90))))
    assert [str(j.row.setting) for j in safe_rows_at(f, 0)] == ["n8,p0.0", "n4,p0.0"]
    assert safe_rows_at(f, 1) == ()


def test_what_a_token_was_measured_to_take_in_a_bucket_is_the_mean_over_its_contexts() -> None:
    rows = (FrontierRow(100, OFF, 10.0), FrontierRow(200, OFF, 20.0), FrontierRow(9000, OFF, 1.0))
    frontier = Frontier((*rows, FrontierRow(200, Setting(4), 50.0, kind="greedy")), OFF)
    assert measured_ms_per_token(frontier, 0, edges=(4000,), kind="sampled.free.chat") == {OFF: 75.0}
    assert measured_ms_per_token(frontier, 0, edges=(4000,), kind="greedy.free.chat") == {
        OFF: 100.0,
        Setting(4): 20.0,
    }


def test_neighbours_are_one_and_two_steps_and_a_doubling_away_at_three_levels_of_p() -> None:
    near = neighbours(parse_setting("n4,p0.25"))
    assert sorted({s.n_max for s in near}) == [2, 3, 4, 5, 6, 8]
    assert sorted({s.p_min for s in near}) == [0.0, 0.25, 0.3, 0.6]
    assert parse_setting("n4,p0.25") not in near


def test_neighbours_are_clipped_to_the_cap_and_zero_is_off() -> None:
    assert {s.n_max for s in neighbours(parse_setting("n1,p0.0"), cap=2)} == {0, 1, 2}
    assert OFF in neighbours(parse_setting("n1,p0.0"))
    assert sorted({s.n_max for s in neighbours(OFF)}) == [1, 2]
    assert neighbours(SERVER) == ()


def test_a_comparison_says_where_the_baseline_stands() -> None:
    one, two = comparison(
        frontier(
            row(1000, "n2,p0", 100), row(1000, "n4,p0", 110), row(4000, "n2,p0", 50), row(4000, "n0", 40)
        )
    )
    assert (one.why, one.gain, str(one.best.row.setting if one.best else "")) == ("proven", 1.1, "n4,p0.0")
    assert (two.why, two.gain, two.best) == ("tie", 1.0, None)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 300])
@pytest.mark.parametrize("probability", [0.9, 0.95, 0.975, 0.99, 0.9995])
def test_the_quantile_of_t_agrees_with_scipy(probability: float, freedom: int) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=2e-3)
