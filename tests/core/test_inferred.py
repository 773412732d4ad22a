"""Timings told by arrivals: exact where cycles can be told apart, and refused by name where they cannot."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.arrivals import Arrivals
from adaptive_dd.core.domain import OFF, REJECTIONS, SERVER, Outcome, Setting, Status, Timings
from adaptive_dd.core.ending import outcome_of
from adaptive_dd.core.inferred import inferred
from tests.fake_upstream import TIMINGS
from tests.streams import closing, completed, created, message, opening, piece, tapped, text

N4, N8, N8P = Setting(4), Setting(8, 0.0), Setting(8, 0.6)


def arrivals(
    sizes: list[int],
    *,
    cycle_ms: float = 80.0,
    jitter: float = 0.0,
    inside_ms: float = 0.0,
    seed: int = 1,
    tokens: int | None = None,
    closed_after_ms: float = 0.2,
) -> Arrivals:
    """A stream whose cycles bring so many tokens each, the first one alone at the beginning.

    jitter: relative spread of a cycle's time. inside_ms: longest gap between tokens of one cycle. tokens: what the
    server counts, where that is another number.
    """
    luck, at, times = random.Random(seed), 1000.0, [1000.0]
    for size in sizes:
        at += cycle_ms * (1.0 + jitter * luck.uniform(-1.0, 1.0))
        late = at
        for number in range(size):
            late += luck.uniform(0.0, inside_ms) if number else 0.0
            times.append(late)
        at = max(at, late - 0.4 * cycle_ms)
    end = times[-1] + closed_after_ms
    counted = 1 + sum(sizes) if tokens is None else tokens
    return Arrivals(900.0, 1000.0, end, 0.0, tuple(times), (1,) * len(times), counted, 5, 21)


def told(seen: Arrivals, arm: Setting = N8) -> Timings:
    found = inferred(seen, arm)
    assert isinstance(found, Timings), found
    return found


cycles_of_8 = st.lists(st.integers(1, 9), min_size=4, max_size=60)


@settings(deadline=None)
@given(cycles_of_8, st.floats(2.0, 400.0), st.floats(0.0, 0.3), st.floats(0.0, 0.006), st.integers(0, 10_000))
def test_cycles_are_recovered_exactly_through_jitter_and_gaps_inside_bursts(
    sizes: list[int], cycle_ms: float, jitter: float, inside: float, seed: int
) -> None:
    seen = arrivals(sizes, cycle_ms=cycle_ms, jitter=jitter, inside_ms=inside * cycle_ms, seed=seed)
    found = told(seen)
    assert (found.cycles, found.decode_tokens) == (len(sizes), sum(sizes))
    assert found.predicted_ms == pytest.approx(seen.times[-1] - seen.opened_ms)
    assert found.draft_n == 8 * len(sizes)
    assert found.draft_n_accepted == sum(sizes) - len(sizes)
    assert (found.prompt_n, found.cache_n, found.prompt_ms) == (5, 21, 0.0)


@settings(deadline=None)
@given(cycles_of_8, st.integers(0, 10_000))
def test_on_a_slow_machine_a_fixed_millisecond_would_miscount_and_a_share_does_not(
    sizes: list[int], seed: int
) -> None:
    # As on the real server: gaps of several ms inside a burst, cycles of some 80 ms.
    seen = arrivals(sizes, cycle_ms=80.0, jitter=0.25, inside_ms=5.0, seed=seed)
    gaps = [b - a for a, b in zip(seen.times, seen.times[1:], strict=False)]
    found = told(seen)
    assert found.cycles == len(sizes)
    if sum(sizes) > 3 * len(sizes):
        assert sum(gap > 1.0 for gap in gaps) > len(sizes)


@settings(deadline=None)
@given(st.integers(5, 200), st.floats(1.0, 200.0), st.floats(0.0, 0.95), st.integers(0, 10_000))
def test_without_drafting_every_token_is_a_cycle_whatever_the_gaps(
    tokens: int, cycle_ms: float, jitter: float, seed: int
) -> None:
    found = told(arrivals([1] * tokens, cycle_ms=cycle_ms, jitter=jitter, seed=seed), OFF)
    assert (found.cycles, found.draft_n, found.draft_n_accepted) == (tokens, 0, 0)


def test_with_a_p_min_short_and_long_cycles_are_told_apart_from_bursts() -> None:
    # A cycle that drafts nothing beside one of eight tokens: a third of its time.
    luck, times, at = random.Random(3), [1000.0], 1000.0
    sizes = [luck.choice((1, 1, 7)) for _ in range(40)]
    for size in sizes:
        at += (30.0 if size == 1 else 90.0) * luck.uniform(0.95, 1.05)
        times += [at + 0.3 * number for number in range(size)]
    seen = Arrivals(900.0, 1000.0, at + 3.0, 0.0, tuple(times), (1,) * len(times), len(times), 5, 0)
    found = told(seen, N8P)
    assert found.cycles == 40
    assert found.draft_n == found.draft_n_accepted == sum(sizes) - 40, "what was drafted is not known"
    assert told(seen, Setting(8)) == found, "nor is it where the p_min is the server's own"


def test_the_last_token_without_text_is_seen_by_the_closing_event() -> None:
    sizes = [3] * 10
    alone = arrivals(sizes, tokens=32, closed_after_ms=80.0)
    assert told(alone).cycles == 11
    inside = arrivals(sizes, tokens=32, closed_after_ms=0.4)
    assert told(inside).cycles == 10


def test_the_first_token_without_text_is_seen_by_the_opening_event() -> None:
    seen = arrivals([3] * 10)
    without = told(replace(seen, times=seen.times[1:], counts=seen.counts[1:]))
    assert without == replace(told(seen), predicted_ms=seen.closed_ms - seen.opened_ms)


def test_a_draft_that_goes_on_behind_the_end_is_counted_as_the_server_does() -> None:
    found = told(arrivals([3] * 20, tokens=1 + 60 + 1 + 5))
    assert (found.cycles, found.decode_tokens) == (20, 66)


def test_a_rare_merged_burst_is_counted_as_the_cycles_it_must_have_been() -> None:
    assert told(arrivals([4] * 30 + [12] + [4] * 10)).cycles == 42


def test_the_time_to_the_first_token_is_the_prompts_only_where_nothing_else_ran() -> None:
    found = inferred(arrivals([3] * 10), N8, alone=True)
    assert isinstance(found, Timings)
    assert found.prompt_ms == 100.0


def test_an_arm_of_unknown_depth_tells_nothing() -> None:
    assert inferred(arrivals([3] * 10), SERVER) is None
    assert inferred(arrivals([3] * 10), Setting(None, 0.5)) is None


def spread(tokens: int) -> Arrivals:
    """Gaps of every length: there is no telling where a cycle ends."""
    luck, times = random.Random(5), [1000.0]
    for _ in range(tokens):
        times.append(times[-1] + 2.0 ** luck.uniform(-2.0, 7.0))
    return Arrivals(900.0, 1000.0, times[-1], 0.0, tuple(times), (1,) * (tokens + 1), tokens + 1, 5, 0)


@pytest.mark.parametrize(
    ("seen", "arm", "why"),
    [
        (spread(100), N8, "blurred"),
        (arrivals([7] * 20), N4, "merged"),
        (replace(arrivals([3] * 20), held_ms=100.0), N8, "slow-reader"),
        (replace(arrivals([3] * 20), complete=False), N8, "too-long"),
        (arrivals([3] * 20, tokens=100), N8, "held-back"),
        (arrivals([3] * 20, tokens=40), N8, "held-back"),
        (arrivals([1] * 50, tokens=40), OFF, "held-back"),
        (replace(arrivals([1] * 50), opened_ms=500.0), OFF, "held-back"),
        (replace(arrivals([3] * 20), opened_ms=500.0), N8, "held-back"),
        (arrivals([3] * 20, cycle_ms=0.0), N8, "no-time"),
        (arrivals([3] * 20, cycle_ms=0.01), N8, "too-fast"),
        (replace(arrivals([3] * 20), output_tokens="61"), N8, "not-a-number"),
        (replace(arrivals([3] * 20), output_tokens=None), N8, "not-a-number"),
        (replace(arrivals([3] * 20), prompt_n=-1), N8, "negative"),
        (replace(arrivals([3] * 20), cache_n=10**9), N8, "too-large"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_told_is_refused_by_name(seen: Arrivals, arm: Setting, why: str) -> None:
    assert inferred(seen, arm) == why
    assert why in REJECTIONS


def test_a_client_that_is_a_little_slow_does_no_harm() -> None:
    assert isinstance(inferred(replace(arrivals([3] * 20), held_ms=50.0), N8), Timings)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0.0, 1e6), max_size=30),
    st.integers(-2, 60),
    st.floats(0.0, 1e6),
    st.sampled_from([OFF, N4, N8P, SERVER]),
)
def test_no_arrivals_make_it_raise_and_what_is_told_is_consistent(
    gaps: list[float], tokens: int, closing_gap: float, arm: Setting
) -> None:
    times, at = [], 0.0
    for gap in gaps:
        at += gap
        times.append(at)
    seen = Arrivals(0.0, 0.0, at + closing_gap, 0.0, tuple(times), (1,) * len(times), tokens, len(times), 0)
    found = inferred(seen, arm, alone=True)
    if isinstance(found, Timings):
        assert 0 <= found.draft_n_accepted <= max(0, found.decode_tokens)
        assert found.draft_n_accepted <= found.draft_n
    elif found is not None:
        assert found in REJECTIONS


# --- as an outcome -------------------------------------------------------------------------------------------


# Twelve cycles of three tokens.
WHOLE = tapped(
    (50.0, opening() + text()),
    *((50.0 + 80.0 * cycle, text() * 3) for cycle in range(1, 13)),
    (1010.3, closing(37)),
)


def test_a_stream_without_timings_is_ok_and_inferred() -> None:
    outcome = outcome_of(Status.OK, WHOLE, N8)
    assert (outcome.status, outcome.inferred, outcome.rejected) == (Status.OK, True, "")
    assert outcome.timings is not None
    assert (outcome.timings.cycles, outcome.timings.predicted_n) == (12, 37)
    assert outcome.timings.predicted_ms == pytest.approx(960.0)


def test_the_servers_own_timings_win() -> None:
    tap = tapped(
        (50.0, created() + piece()), (90.0, piece() * 3), (95.0, completed(4, timings=dict(TIMINGS)))
    )
    outcome = outcome_of(Status.OK, tap, N8)
    assert outcome.timings is not None
    assert (outcome.timings.predicted_n, outcome.inferred) == (64, False)
    wrong = tapped((50.0, created() + piece()), (95.0, completed(1, timings={"predicted_n": -1})))
    assert outcome_of(Status.OK, wrong, N8) == Outcome(Status.REJECTED, rejected="missing")


def test_an_answer_that_another_arm_served_is_not_inferred() -> None:
    assert outcome_of(Status.OK, WHOLE, N8, resent=Status.MOVED) == Outcome(Status.MOVED)


def test_an_answer_that_broke_off_is_not_inferred() -> None:
    assert outcome_of(Status.CUT, WHOLE, N8) == Outcome(Status.CUT)


def test_the_capture_of_special_tokens_without_text_is_refused_where_they_could_hide_cycles() -> None:
    # b9101 wrote two of eight tokens: the others were the end of a turn that its model did not keep.
    tap = tapped((50.0, opening() + text("Say")), (65.0, text(" hello")), (120.0, closing(8)))
    assert outcome_of(Status.OK, tap, N8) == Outcome(Status.REJECTED, rejected="held-back", inferred=True)
    told = outcome_of(Status.OK, tap, OFF)
    assert told.timings is not None, "without drafting every token is a cycle, with an event or without"
    assert (told.timings.cycles, told.timings.predicted_ms) == (7, 70.0)


def test_a_stream_that_says_nothing_of_its_tokens_has_no_timings() -> None:
    assert outcome_of(Status.OK, tapped((1.0, text() * 3)), N8) == Outcome(Status.NO_TIMINGS)
    assert outcome_of(Status.OK, WHOLE, SERVER) == Outcome(Status.NO_TIMINGS)


def test_an_answer_of_one_token_is_told_and_took_no_cycle() -> None:
    outcome = outcome_of(Status.OK, tapped((5.0, message(1))), N8)
    assert outcome.timings is not None
    assert (outcome.timings.cycles, outcome.timings.prompt_tokens) == (0, 26)
