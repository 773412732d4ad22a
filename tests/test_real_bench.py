"""The real bench's own parts, on a stand-in server: a run that takes an hour must not end in a typing error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.real import (
    END,
    FIXED,
    Policy,
    Run,
    as_markdown,
    as_medians,
    as_policies,
    interval,
    play,
    write_into,
)
from tests.benchmarks.real_workload import CONTEXTS, KINDS, Request, workload
from tests.fake_llama import FakeLlama
from tests.real.servers import RealServer


@pytest.mark.slow
def test_every_policy_plays_every_request_and_the_report_names_them_all(tmp_path: Path) -> None:
    fake = FakeLlama(launch_n=16)
    with fake.serving() as url, (tmp_path / "log").open("wb") as sink:
        idle = subprocess.Popen(["sleep", "0"], stdout=sink)
        idle.wait()
        server = RealServer("fake", url, (), idle, tmp_path / "log")
        run = play(server, "0:n4,p0.0", count=10, tokens=24, seed=1, minutes=5.0)
    names = [policy.name for policy in run.policies]
    assert names[: len(FIXED)] == [f"fixed {name}" for name in FIXED]
    assert names[len(FIXED) :] == ["static frontier", "adaptive from nothing", "adaptive from the frontier"]
    assert all(policy.decode_ms.keys() == set(range(10)) for policy in run.policies)
    text = as_markdown(run, "a frontier")
    assert all(f"| {name} |" in text for name in names)
    assert list(run.learned) == names[len(FIXED) :]
    learned = as_policies(run)
    assert all(cell["cell"] in learned for cell in run.learned["adaptive from nothing"])
    assert "static" not in learned
    stamps = [body.get("speculative.n_max") for body in fake.bodies]
    # One fixed policy forbids drafting; the static frontier sends its row on every request.
    assert stamps.count(0) >= 10
    assert stamps.count(4) >= 10


def test_the_workload_is_fresh_text_the_same_for_a_seed_and_mixed() -> None:
    first = [request for session in workload(150, tokens=32, seed=1) for request in session]
    again = [request for session in workload(150, tokens=32, seed=1) for request in session]
    other = [request for session in workload(150, tokens=32, seed=2) for request in session]
    assert first == again
    assert first != other
    assert [request.number for request in first] == list(range(150))
    assert len({str(request.body) for request in first}) == 150
    assert {request.kind for request in first} == set(KINDS)
    assert {request.context_tokens for request in first} == set(CONTEXTS)


def played(name: str, ms: float) -> Policy:
    policy = Policy(name, "http://server")
    policy.decode_ms = {number: ms * (1 + number % 3) for number in range(20)}
    return policy


SESSIONS = [[Request(number, "code", 50, "/completion", {})] for number in range(20)]


def test_an_interval_holds_the_ratio_and_is_exact_where_the_ratio_is() -> None:
    low, high = interval(played("ours", 50.0), played("theirs", 100.0), SESSIONS)
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(0.5)


def test_the_best_fixed_policy_is_found_in_hindsight() -> None:
    run = Run([played("fixed server", 100.0), played("fixed n0", 60.0)], SESSIONS, 24, 60.0)
    assert "**fixed n0**" in as_markdown(run, "none")


def test_the_middle_answer_tells_what_one_long_stop_hides() -> None:
    stopped = played("fixed n0", 1000.0)
    stopped.decode_ms[3] = 90_000.0
    text = as_medians(Run([stopped], SESSIONS, 24, 60.0))
    assert "| fixed n0 | 2.00 |" in text
    assert "code (of 20)" in text


def test_a_report_replaces_the_one_before(tmp_path: Path) -> None:
    doc = tmp_path / "benchmarks.md"
    doc.write_text("# Benchmarks\n\ntext\n")
    write_into(doc, "first\n")
    write_into(doc, "second\n")
    text = doc.read_text()
    assert "text" in text
    assert "first" not in text
    assert text.count("second") == text.count(END.strip()) == 1
