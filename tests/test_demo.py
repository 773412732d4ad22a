"""The demonstration, as a newcomer runs it."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys

import pytest

from adaptive_dd.core.traffic import Scenario
from adaptive_dd.demo import HEAD, Seen, demo_lines, rows
from adaptive_dd.errors import UsageError
from adaptive_dd.simulated import Served


def served(expected_ms: float, baseline_ms: float) -> Served:
    return Served(1, True, "n4", "n4", expected_ms, baseline_ms, 101, 1)


def test_a_row_shows_what_the_last_third_played_and_what_it_gained() -> None:
    early = [Seen(0, "greedy", "server", "baseline", served(200.0, 200.0)) for _ in range(4)]
    late = [Seen(0, "greedy", "n4,p0.0", "learned", served(100.0, 200.0)) for _ in range(2)]
    (row,) = rows((1000,), [*early, *late])
    assert row == ("0 to 1,000", "greedy", "6", "n4,p0.0", "learned", "500.0", "1000.0", "+100.0%")
    assert len(row) == len(HEAD)


def test_the_demonstration_says_that_it_is_simulated_and_prints_a_row_for_every_kind() -> None:
    lines = list(demo_lines((("server-default-trap", 24),), seed=1))
    text = "\n".join(lines)
    assert lines[0].startswith("SIMULATED server")
    assert "24 requests through the proxy" in text
    assert any("greedy" in line for line in lines)
    assert any("sampled" in line for line in lines)
    assert "decode time of all 24" in text
    assert logging.getLogger("adaptive_dd").level == logging.NOTSET, "the log's level is put back"


def test_an_unknown_scenario_is_named_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="'nonsense' is not known; expected one of note, "):
        list(demo_lines((("nonsense", 1),), seed=1))


def test_the_tour_plays_scenarios_that_exist() -> None:
    from adaptive_dd.core.scenarios import scenario
    from adaptive_dd.demo import TOURS

    assert all(isinstance(scenario(name), Scenario) for name, _ in TOURS)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_demonstration_that_is_stopped_ends_without_a_traceback(sent: signal.Signals) -> None:
    command = [sys.executable, "-u", "-m", "adaptive_dd", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = next(line for line in process.stdout if line.startswith("SIMULATED"))
        assert "note" in first  # that one is through: in mid-work again
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert said == ""
    assert process.returncode in (130, -sent)
