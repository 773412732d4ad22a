"""`serve` says aloud when it meets another model or build than the frontier was measured on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adaptive_dd.actuator import Fields
from adaptive_dd.core.domain import (
    SERVER,
    Deployment,
    Frontier,
    FrontierRow,
    Listens,
    Mode,
    PolicySettings,
    ServerFacts,
    Setting,
)
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.serve import _Warned


class _Engine:
    def __init__(self, mode: Mode) -> None:
        self.state = SimpleNamespace(settings=PolicySettings(mode=mode))

    def deploy(self, deployment: Deployment, facts: ServerFacts) -> None:
        pass


class _AsItIs:
    def deployment(self, deployment: Deployment) -> Deployment:
        return deployment

    def facts(self, facts: ServerFacts) -> ServerFacts:
        return facts


class _ByNameOnly(_Warned):
    def _compare_settings(self) -> None:
        pass  # needs a whole engine, and is tested with one


def notes_on(model: str, build: str, *, met: Deployment, mode: Mode = Mode.ADAPTIVE) -> list[str]:
    frontier = Frontier((FrontierRow(100, Setting(2), 1.0),), model=model, build=build)
    notes: list[str] = []
    parts: Any = (_Engine(mode), frontier, notes, _AsItIs())
    _ByNameOnly(*parts).deploy(met, ServerFacts(cap=8))
    return notes


MET = Deployment("http://127.0.0.1:8080", "models/a.gguf", "b9101", 8)


@pytest.mark.parametrize(
    ("model", "build"), [("models/a.gguf", "b9101"), ("elsewhere/a.gguf", "b9101"), ("", "")]
)
def test_the_same_model_and_build_are_no_cause_for_a_warning_wherever_they_lie(
    model: str, build: str
) -> None:
    assert notes_on(model, build, met=MET) == []


def test_the_ladder_of_another_build_is_played_all_the_same_and_the_warning_says_so() -> None:
    (note,) = notes_on("", "b8000", met=MET, mode=Mode.STATIC)
    assert note.endswith("this server runs 'b9101': it is played as it is, calibrate again")


def test_another_build_or_model_is_warned_of_by_name() -> None:
    assert (
        "measured on build 'b8000', this server runs 'b9101': its rows are a hint and get no credit, calibrate again"
        in notes_on("", "b8000", met=MET)[0]
    )
    assert (
        "measured on model 'b.gguf', this server runs 'a.gguf'" in notes_on("x/b.gguf", "b9101", met=MET)[0]
    )


@pytest.mark.parametrize(
    ("against", "launched", "baseline", "warned"),
    [
        (Setting(2, 0.0), 16, SERVER, True),
        (Setting(2, 0.0), 2, SERVER, False),
        (Setting(2, 0.0), None, SERVER, False),
        (SERVER, 16, SERVER, False),
        (Setting(2, 0.0), 16, Setting(2, 0.0), False),
    ],
)
def test_a_frontier_measured_against_something_else_than_the_launch_values_is_warned_of(
    against: Setting, launched: int | None, baseline: Setting, warned: bool
) -> None:
    frontier, notes = Frontier((FrontierRow(100, Setting(2), 1.0),), against), list[str]()
    settings = PolicySettings(baseline=baseline)
    engine = Engine(MemoryJournal(), MET, settings=settings, frontier=frontier)
    parts: Any = (engine, frontier, notes, Fields(None))  # type: ignore[arg-type]
    _Warned(*parts).deploy(MET, ServerFacts(Listens.HONOURS, cap=launched))
    assert any("give --baseline n2,p0.0 to play it there" in note for note in notes) is warned
