"""The engine: numbering, clocks, and that state and journal move together whatever goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from adaptive_dd.core import controller
from adaptive_dd.core.controller import fold
from adaptive_dd.core.domain import (
    Context,
    Deployment,
    Listens,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Abandoned, Began, Decided, Event, FreezeSet, ModeSet, Observed
from adaptive_dd.engine import RECENT, Engine, MemoryJournal
from adaptive_dd.metrics import Metrics

HERE = Deployment("http://up", "model", "b1")
CONTEXT = Context(prompt_tokens=1000, tokens_source="counted")
OK = Outcome(Status.OK, Timings(1000, 50.0, 100, 2000.0, draft_n=120, draft_n_accepted=60))


@dataclass
class Ticks:
    """A clock that moves when it is told to."""

    now_ns: int = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, ms: float) -> None:
        self.now_ns += int(ms * 1e6)


def make(journal: MemoryJournal | None = None, ticks: Callable[[], int] | None = None) -> Engine:
    return Engine(journal or MemoryJournal(), HERE, ticks_ns=ticks or Ticks(), wall_s=lambda: 1000.0)


def folded(journal: MemoryJournal, scope: int = 0) -> controller.State:
    began, *rest = journal.of(scope)
    assert isinstance(began, Began)
    return fold(began, rest)


def kinds(journal: MemoryJournal, scope: int = 0) -> list[type[Event]]:
    return [type(event) for event in journal.of(scope)]


def test_a_request_leaves_a_decision_and_an_outcome_in_the_journal() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    ticket = engine.begin(CONTEXT)
    assert (ticket.number, ticket.recorded, engine.in_flight) == (1, True, 1)
    engine.finish(ticket.number, OK)
    assert engine.in_flight == 0
    assert kinds(journal) == [Began, Decided, Observed]
    assert engine.state == folded(journal)


def test_the_state_is_the_fold_of_the_journal_whatever_happens() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    for status in Status:
        engine.finish(engine.begin(CONTEXT).number, Outcome(status))
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    engine.set_mode(Mode.OBSERVE)
    engine.freeze(True)
    engine.abandon(engine.begin(CONTEXT).number, "not-sent")
    engine.begin(CONTEXT)
    assert engine.state == folded(journal)
    assert len(engine.state.open) == 1


def test_deciding_takes_the_time_that_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks()
    decide = controller.decide

    def slow(*args: object) -> object:
        ticks.pass_ms(0.007)
        return decide(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "decide", slow)
    assert make(ticks=ticks).begin(CONTEXT).decide_us == 7.0


def test_the_load_is_averaged_over_each_answer() -> None:
    ticks, journal = Ticks(), MemoryJournal()
    engine = make(journal, ticks)
    alone = engine.begin(CONTEXT)
    ticks.pass_ms(300)
    second = engine.begin(CONTEXT)
    ticks.pass_ms(100)
    engine.finish(alone.number, OK)
    ticks.pass_ms(300)
    engine.finish(second.number, OK)
    means = [event.outcome.mean_in_flight for event in journal.of(0) if isinstance(event, Observed)]
    assert means == pytest.approx([1.25, 1.25])


def test_an_answer_in_no_time_has_a_load_of_one() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    engine.finish(engine.begin(CONTEXT).number, OK)
    assert [e.outcome.mean_in_flight for e in journal.of(0) if isinstance(e, Observed)] == [1.0]


def test_a_full_journal_changes_neither_state_nor_rows_and_is_counted() -> None:
    journal, metrics = MemoryJournal(limit=1), Metrics()
    engine = Engine(journal, HERE, metrics=metrics)
    before = engine.state
    first, second = engine.begin(CONTEXT), engine.begin(CONTEXT)
    engine.finish(first.number, OK)
    assert (first.recorded, second.recorded) == (False, False)
    assert first.number != second.number
    assert engine.state == before == folded(journal)
    assert metrics.value("journal_skipped_total") == 2


def test_endings_and_what_their_timings_say_are_counted() -> None:
    metrics, ticks = Metrics(), Ticks()
    engine = Engine(MemoryJournal(), HERE, metrics=metrics, ticks_ns=ticks)
    numbers = [engine.begin(CONTEXT).number for _ in range(4)]
    engine.finish(numbers[0], OK)
    engine.finish(numbers[0], OK)
    engine.finish(numbers[1], Outcome(Status.REJECTED, rejected="too-fast"))
    engine.finish(numbers[2], Outcome(Status.CLIENT_GONE))
    engine.abandon(numbers[3], "not-sent")
    for status in ("ok", "rejected", "client-gone", "not-sent"):
        assert metrics.value("outcomes_total", status=status) == 1, status
    assert metrics.value("samples_rejected_total", why="too-fast") == 1
    assert metrics.value("drafted_tokens_total") == 120
    assert metrics.value("accepted_tokens_total") == 60
    assert metrics.value("decoded_tokens_total") == 100
    assert metrics.value("decode_seconds_total") == 2.0


def test_the_time_of_deciding_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, ticks = Metrics(), Ticks()
    engine = Engine(MemoryJournal(), HERE, metrics=metrics, ticks_ns=ticks)
    decide = controller.decide

    def slow(*args: object) -> object:
        ticks.pass_ms(3.0)
        return decide(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "decide", slow)
    engine.begin(CONTEXT)
    assert metrics.value("decide_seconds_total") == pytest.approx(0.003)


def test_an_outcome_without_room_is_closed_as_lost_when_there_is_room_again() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    ticket = engine.begin(CONTEXT)
    journal.limit = len(journal.events)
    engine.finish(ticket.number, OK)
    assert list(engine.state.open) == [ticket.number]
    journal.limit = None
    engine.finish(engine.begin(CONTEXT).number, OK)
    assert engine.state.open == {}
    assert Abandoned(1000.0, ticket.number, "lost") in journal.of(0)
    assert engine.state == folded(journal)


def test_the_first_event_of_a_deployment_is_never_skipped() -> None:
    journal = MemoryJournal(limit=0)
    engine = make(journal)
    assert not engine.begin(CONTEXT).recorded
    journal.limit = None
    assert engine.begin(CONTEXT).recorded
    assert kinds(journal) == [Began, Decided]
    assert engine.state == folded(journal)


def test_unknown_and_second_endings_are_tolerated() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    ticket = engine.begin(CONTEXT)
    for _ in range(2):
        engine.finish(ticket.number, OK)
        engine.abandon(ticket.number, "lost")
    engine.finish(99, OK)
    assert kinds(journal).count(Observed) == 1
    assert (engine.unknown_finishes, engine.in_flight) == (4, 0)


def test_deciding_that_raises_changes_nothing_and_is_the_callers_to_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = MemoryJournal()
    engine = make(journal)
    with monkeypatch.context() as patch:
        patch.setattr(controller, "decide", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.begin(CONTEXT)
    assert (engine.in_flight, kinds(journal)) == (0, [Began])
    assert engine.begin(CONTEXT).recorded


def test_an_outcome_that_cannot_be_applied_is_counted_said_once_and_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal, metrics = MemoryJournal(), Metrics()
    engine = Engine(journal, HERE, metrics=metrics)
    whole = controller.apply

    def broken(state: controller.State, event: Event) -> controller.State:
        if isinstance(event, Observed):
            raise ArithmeticError("a formula broke")
        return whole(state, event)

    monkeypatch.setattr(controller, "apply", broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            engine.finish(engine.begin(CONTEXT).number, OK)
    assert metrics.value("own_failures_total", where="engine") == 3
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
    assert engine.state.open == {}
    assert engine.state == folded(journal)


def test_finish_never_raises_even_when_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    ticket = engine.begin(CONTEXT)
    monkeypatch.setattr(controller, "apply", lambda *_: 1 / 0)
    engine.finish(ticket.number, OK)
    engine.abandon(ticket.number, "lost")
    assert engine.in_flight == 0


def test_a_client_that_left_before_the_timings_is_abandoned_and_after_them_observed() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    engine.finish(engine.begin(CONTEXT).number, Outcome(Status.CLIENT_GONE))
    engine.finish(engine.begin(CONTEXT).number, Outcome(Status.CLIENT_GONE, OK.timings))
    ended = [event for event in journal.of(0) if isinstance(event, Abandoned | Observed)]
    assert ended[0] == Abandoned(1000.0, 1, "client-gone")
    assert isinstance(ended[1], Observed)


def test_another_deployment_has_its_own_state_and_a_late_answer_goes_home() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    old = engine.begin(CONTEXT)
    engine.deploy(Deployment("http://up", "model", "b2"), ServerFacts(Listens.IGNORES))
    new = engine.begin(CONTEXT)
    assert new.number != old.number
    engine.finish(old.number, OK)
    engine.finish(new.number, OK)
    assert [type(e) for e in journal.of(0)] == [Began, Decided, Observed]
    assert engine.state == folded(journal, 1)
    assert engine.state.facts.listens is Listens.IGNORES
    engine.deploy(HERE)
    assert engine.state == folded(journal, 0)


def test_the_same_deployment_and_facts_again_add_no_event() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    engine.deploy(HERE, ServerFacts(Listens.HONOURS))
    events = len(journal.events)
    engine.deploy(HERE, ServerFacts(Listens.HONOURS))
    engine.set_mode(Mode.ADAPTIVE)
    engine.freeze(False)
    assert len(journal.events) == events


def test_a_mode_and_a_freeze_set_while_running_follow_to_another_deployment() -> None:
    journal = MemoryJournal()
    engine = make(journal)
    engine.set_mode(Mode.OFF)
    engine.freeze(True)
    engine.deploy(Deployment("http://up", "other"))
    assert (engine.state.settings.mode, engine.state.frozen) == (Mode.OFF, True)
    engine.deploy(HERE)
    assert (engine.state.settings.mode, engine.state.frozen) == (Mode.OFF, True)
    assert kinds(journal, 0) == [Began, ModeSet, FreezeSet]


def test_a_restart_takes_up_the_state_closes_what_was_open_and_never_reuses_a_number() -> None:
    journal = MemoryJournal()
    first = make(journal)
    first.finish(first.begin(CONTEXT).number, OK)
    lost = first.begin(CONTEXT)
    again = make(journal)
    assert [(r.decided.number, type(r.ended)) for r in again.recent(9)] == [
        (lost.number, Abandoned),
        (lost.number - 1, Observed),
    ], "a look at the decisions goes back beyond the restart"
    assert again.state.open == {}
    assert journal.of(0)[-1] == Abandoned(1000.0, lost.number, "lost")
    assert again.begin(CONTEXT).number == lost.number + 1
    assert again.state == folded(journal)


def test_a_restart_with_other_settings_says_so_in_the_journal() -> None:
    journal = MemoryJournal()
    make(journal)
    settings = PolicySettings(baseline=Setting(2, 0.0))
    engine = Engine(journal, HERE, settings=settings)
    assert kinds(journal) == [Began, Began]
    assert engine.state.settings == settings


def test_recent_decisions_come_newest_first_and_are_bounded() -> None:
    engine = make()
    for _ in range(RECENT + 5):
        engine.finish(engine.begin(CONTEXT).number, OK)
    last = engine.begin(CONTEXT)
    records = engine.recent(3)
    assert [r.decided.number for r in records] == [last.number, last.number - 1, last.number - 2]
    assert records[0].ended is None
    assert isinstance(records[1].ended, Observed)
    assert len(engine.recent(10**6)) == RECENT
    assert engine.recent(-1) == []
