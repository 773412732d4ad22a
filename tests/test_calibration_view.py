"""What a calibration shows while it runs: the time left and the best so far, as a bar or as lines."""

from __future__ import annotations

import io

from rich.console import Console

from adaptive_dd.calibration_view import LiveView, PlainView, best_line, share_done, time_left
from adaptive_dd.core.domain import Setting, Timings
from adaptive_dd.core.measure import Block, Plan, Record
from adaptive_dd.core.standing import Place, Sample

HERE = Place(1000)
BASE, DEEP = Setting(2, 0.0), Setting(4, 0.0)
PLAN = Plan((HERE, Place(4000)), (DEEP,), BASE, budget_ms=100_000.0, answers=50)


def record(blocks: int, *, deep_ms: float = 24.0) -> Record:
    made, samples = [], []
    for number in range(blocks):
        made.append(Block(HERE, number, (BASE, DEEP)))
        for setting, ms in ((BASE, 18.0), (DEEP, deep_ms)):
            n = setting.n_max or 0
            timings = Timings(
                1, 1.0, 40 * (n + 1) + 1, 40 * ms * (1 + 0.001 * (number % 3)), 999, 40 * n, 40 * n
            )
            samples.append(Sample(HERE, number, setting, timings, 2500.0, "code"))
    return Record(tuple(made), tuple(samples))


def test_the_share_done_is_that_of_the_budget_that_runs_out_first() -> None:
    assert share_done(PLAN, Record()) == 0.0
    assert share_done(PLAN, record(3)) == 0.15
    assert share_done(PLAN, record(400)) == 1.0


def test_the_time_left_is_said_in_seconds_then_in_minutes() -> None:
    assert time_left(PLAN, Record()) == "time left unknown"
    assert time_left(PLAN, record(3)) == "at most 85 s left"
    assert time_left(Plan((HERE,), (DEEP,), BASE, budget_ms=3_600_000.0), record(3)) == "at most 60 min left"


def test_a_log_has_a_line_for_each_block_with_the_best_so_far_and_how_sure_that_is() -> None:
    lines: list[str] = []
    view = PlainView(lines.append)
    view.note("hello")
    for blocks in (1, 2, 2, 3, 7):
        view.moved(PLAN, record(blocks))
    view.close()
    assert lines[0] == "hello"
    assert len(lines) == 5
    assert lines[1].endswith("1000 tokens: waiting")
    assert "n4,p0.0 +25.0% (at least" in lines[3]
    assert "n4,p0.0 +25.0% (proven), 2 in the race" in lines[4]
    assert "35%, at most 65 s left" in lines[4]


def test_where_the_baseline_is_best_the_line_says_so() -> None:
    view_lines: list[str] = []
    PlainView(view_lines.append).moved(PLAN, record(7, deep_ms=60.0))
    assert view_lines[0].endswith("n2,p0.0 (the baseline), settled")
    assert best_line(None, 0.02) == "waiting"


def test_a_terminal_gets_a_bar_and_a_table() -> None:
    sink = io.StringIO()
    view = LiveView(Console(file=sink, force_terminal=True, width=100))
    view.note("asking the server")
    view.moved(PLAN, record(7))
    view.moved(PLAN, record(8))
    view.close()
    shown = sink.getvalue()
    assert "asking the server" in shown
    assert "calibrating: 35%, at most 65 s left" in shown
    assert "+25.0% (proven)" in shown
