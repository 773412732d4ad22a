"""What a frontier looks like in print: the research note's comparison, and verdicts that hide nothing."""

from __future__ import annotations

from adaptive_dd.core.domain import SERVER, Frontier, FrontierRow, Setting, parse_setting
from adaptive_dd.core.frontier import comparison, ladder, setting_at
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.frontier_report import frontier_report, grid_table, percent

NOTE = (
    (3946, 120.80, "n4,p0.25", 141.77, "+17.4%"),
    (65536, 74.85, "n4,p0.0", 87.94, "+17.5%"),
    (131072, 54.61, "n2,p0.0", 54.61, "tie"),
    (196608, 49.89, "n2,p0.0", 49.89, "tie"),
    (262144, 33.51, "n2,p0.0", 33.51, "tie"),
)


def test_the_shipped_frontier_reproduces_the_research_notes_comparison_row_by_row() -> None:
    compared = comparison(load_frontier("qwen3.6-35b-rocmfp4"))
    found = []
    for one in compared:
        assert one.baseline is not None
        best = one.best.row if one.best else one.baseline
        gain = percent(one.gain) if one.best else "tie"
        found.append((one.context_tokens, one.baseline.tok_s, str(best.setting), best.tok_s, gain))
    assert tuple(found) == NOTE


def test_the_report_prints_the_research_notes_comparison_row_by_row() -> None:
    report = frontier_report(load_frontier("qwen3.6-35b-rocmfp4"))
    lines = [line.split() for line in report.splitlines()]
    for context_tokens, static, setting, tok_s, gain in NOTE:
        assert [f"{context_tokens:,}", f"{static:.2f}", setting, f"{tok_s:.2f}", gain] in [
            x[:5] for x in lines
        ]
    assert "0:n4,p0.25;16081:n4,p0.0;92682:n2,p0.0" in report


def test_the_shipped_ladder_plays_the_notes_settings_at_the_notes_contexts() -> None:
    rungs = ladder(load_frontier("qwen3.6-35b-rocmfp4"))
    assert [str(setting_at(rungs, c)) for c, *_ in NOTE] == [row[2] for row in NOTE]


def test_against_the_launch_values_a_tie_sends_the_request_as_it_came() -> None:
    report = frontier_report(load_frontier("qwen3.6-35b-rocmfp4"), baseline=SERVER)
    assert "0:n4,p0.25;16081:n4,p0.0;92682:server" in report


def test_a_lead_that_is_not_proven_is_shown_and_not_claimed() -> None:
    base = FrontierRow(100, Setting(2, 0.0), 100.0)
    wide = FrontierRow(100, Setting(4, 0.0), 104.0, samples=3, sd=5.0)
    report = frontier_report(Frontier((base, wide), baseline=Setting(2, 0.0)))
    assert "n4,p0.0 is +4.0% on average, not proven (lower bound -8.4%)" in report
    assert "no context of 1 has a proven winner" in report


def test_a_marked_cell_is_shown_with_its_mark() -> None:
    base = FrontierRow(100, Setting(2, 0.0), 100.0)
    marked = FrontierRow(100, Setting(4, 0.0), 130.0, mark="too-noisy")
    frontier = Frontier((base, marked), baseline=Setting(2, 0.0))
    assert "not proven (marked too-noisy)" in frontier_report(frontier)
    assert "too-noisy" in grid_table(frontier)


def test_each_measured_kind_has_its_own_ladder_in_print() -> None:
    rows = tuple(
        FrontierRow(100, parse_setting(setting), speed, kind=kind)
        for kind, setting, speed in (
            ("greedy", "n2", 100.0), ("greedy", "n8", 200.0), ("sampled", "n2", 20.0), ("sampled", "n8", 10.0),
        )
    )  # fmt: skip
    report = frontier_report(Frontier(rows, baseline=Setting(2)))
    assert "Ladder for greedy requests" in report
    assert "Ladder for sampled requests" in report
    assert report.count("\n          0  n8") == 1


def test_a_ladder_that_was_given_is_printed_as_such() -> None:
    report = frontier_report(load_frontier("0:n4,p0.25;49152:n4,p0.0"), cap=2)
    assert "0:n2,p0.25;49152:n2,p0.0" in report
    assert "extrapolation" not in report
