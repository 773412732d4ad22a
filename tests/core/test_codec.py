"""The codec: everything that can be in a journal comes back as it went in, and nothing else comes in."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_dd.core.codec import (
    VERSION,
    CodecError,
    codec_of,
    event_from_json,
    event_to_json,
    state_from_json,
    state_to_json,
)
from adaptive_dd.core.controller import State, fold
from adaptive_dd.core.domain import (
    Cell,
    Context,
    Decision,
    Deployment,
    Frontier,
    FrontierRow,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Abandoned, Began, Decided, Event, Observed
from adaptive_dd.core.learned import Talk

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    bool: st.booleans(),
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False, allow_infinity=False),
    types.NoneType: st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value that a type admits (small ones)."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*[values_of(arg) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(arg) for arg in args])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values_of(args[0]), values_of(args[1]), max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    assert is_dataclass(hint)
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{f.name: values_of(hints[f.name]) for f in fields(hint) if f.init})


@settings(max_examples=300, deadline=None)
@given(values_of(Event))
def test_an_event_comes_back_as_it_went_in(event: Event) -> None:
    back = event_from_json(event_to_json(event))
    assert back == event
    assert type(back) is type(event)


@settings(max_examples=50, deadline=None)
@given(values_of(State))
def test_a_state_comes_back_as_it_went_in(state: State) -> None:
    assert state_from_json(state_to_json(state)) == state


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Other:
    count: int


@dataclass(frozen=True, slots=True)
class Tree:
    by_cell: Mapping[Cell, tuple[float, ...]]
    by_number: Mapping[int, Leaf | None]
    by_pair: Mapping[tuple[str, int], Mapping[Setting, float]]
    either: Leaf | Other
    plain: int | float | str | bool | None
    status: Status
    later: int = 7


@settings(max_examples=200, deadline=None)
@given(values_of(Tree))
def test_any_nest_of_values_comes_back_as_it_went_in(tree: Tree) -> None:
    codec = codec_of(Tree)
    assert codec.decode(json.loads(json.dumps(codec.encode(tree)))) == tree


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_exact_to_the_last_bit_and_keep_their_sign(value: float) -> None:
    back = codec_of(float).decode(json.loads(json.dumps(codec_of(float).encode(value))))
    assert math.copysign(1.0, back) == math.copysign(1.0, value)
    assert back.hex() == value.hex()


def test_a_mapping_keeps_its_order_so_that_sums_over_it_do() -> None:
    codec = codec_of(Mapping[str, float])
    assert list(codec.decode(codec.encode({"b": 1.0, "a": 2.0, "c": 0.0}))) == ["b", "a", "c"]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_infinite_values_and_nan_in_an_event_are_refused_in_both_directions(bad: float) -> None:
    timings = Timings(1, 1.0, 10, bad)
    with pytest.raises(CodecError, match=r"outcome: timings: predicted_ms: expected a finite number"):
        event_to_json(Observed(0.0, 1, Outcome(Status.OK, timings)))
    text = event_to_json(Abandoned(0.5, 1, "lost")).replace("0.5", json.dumps(bad))
    with pytest.raises(CodecError, match="at_s: expected a finite number"):
        event_from_json(text)


def test_in_a_state_an_infinite_value_may_stand_for_no_limit_and_nan_for_nothing() -> None:
    codec = codec_of(tuple[float, ...], strict=True)
    values = (math.inf, -math.inf, 1.5)
    assert codec.encode(values) == ["inf", "-inf", 1.5]
    assert codec.decode(codec.encode(values)) == values
    for bad in (math.nan, "nan", "1.5"):
        with pytest.raises(CodecError, match="a finite number"):
            codec.decode([bad])
    with pytest.raises(CodecError, match="a finite number"):
        codec.encode((math.nan,))


def test_a_number_too_large_for_a_float_is_refused() -> None:
    text = event_to_json(Abandoned(0.5, 1, "lost")).replace("0.5", "1e999")
    with pytest.raises(CodecError, match="finite"):
        event_from_json(text)


@pytest.mark.parametrize(
    ("hint", "bad", "says"),
    [
        (int, True, "a whole number"),
        (int, 1.0, "a whole number"),
        (float, True, "a finite number"),
        (float, "1", "a finite number"),
        (bool, 1, "true or false"),
        (str, None, "text"),
        (Status, "fine", "one of"),
        (Setting, [4], "an object"),
        (tuple[int, ...], {}, "a list"),
        (tuple[int, int], [1], "a list of 2"),
        (Mapping[str, int], [["a"]], "pairs"),
        (Leaf, {"weight": 1.0}, "lacks"),
        (Leaf | Other, {"type": "Tree"}, "`type` among"),
        (Leaf | Other, 5, "`type` among"),
        (int | str, 1.5, "not of any expected type"),
    ],
)
def test_what_is_not_of_the_type_is_an_error_that_says_what_was_expected(
    hint: Any, bad: Any, says: str
) -> None:
    with pytest.raises(CodecError, match=says):
        codec_of(hint).decode(bad)


def test_a_value_of_the_wrong_class_is_not_written() -> None:
    with pytest.raises(CodecError, match="expected Setting"):
        codec_of(Setting).encode(Other(1))


@pytest.mark.parametrize("hint", [object, list[int], Leaf | int, set[int]])
def test_a_type_without_a_codec_is_found_when_it_is_compiled(hint: Any) -> None:
    with pytest.raises(TypeError, match="no codec"):
        codec_of(hint)


def test_a_missing_field_takes_its_default_so_old_journals_open() -> None:
    assert codec_of(Leaf).decode({"name": "a"}) == Leaf("a")
    old = json.dumps({"v": 1, "type": "Observed", "at_s": 1.0, "number": 2, "outcome": {"status": "ok"}})
    assert event_from_json(old) == Observed(1.0, 2, Outcome(Status.OK))


def test_an_unknown_field_is_left_out_of_an_event_and_is_an_error_in_a_state() -> None:
    event = Abandoned(1.0, 2, "lost")
    assert event_from_json(event_to_json(event)[:-1] + ',"colour":"red"}') == event
    data = json.loads(state_to_json(fold(Began(0.0, Deployment("u"), PolicySettings(), Frontier()), [])))
    data["state"]["colour"] = "red"
    with pytest.raises(CodecError, match="colour"):
        state_from_json(json.dumps(data))


def test_a_snapshot_with_a_field_that_states_once_had_is_still_read() -> None:
    """Retention removes events that a snapshot covers: refused, it would take what they taught with it."""
    talk = Talk((0.0,) * 13, 0.4, {"reach": 0.5}, 2.0)
    fresh = fold(Began(0.0, Deployment("u"), PolicySettings(), Frontier()), [])
    state = replace(fresh, learned=replace(fresh.learned, talks={"c": talk}))
    data = json.loads(state_to_json(state))
    data["state"]["learned"]["talks"][0][1]["seen"] = 0.3
    assert state_from_json(json.dumps(data)) == state
    data["state"]["learned"]["talks"][0][1]["sown"] = 0.3
    with pytest.raises(CodecError, match="unknown fields \\['sown'\\]"):
        state_from_json(json.dumps(data))


def test_a_newer_format_is_refused_in_one_clear_line() -> None:
    text = event_to_json(Abandoned(1.0, 2, "lost")).replace(f'"v":{VERSION}', f'"v":{VERSION + 1}')
    with pytest.raises(CodecError, match=r"newer version \(format 2, this one reads up to 1\)"):
        event_from_json(text)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
        ).map(lambda data: json.dumps({"v": 1, "type": "Decided", "context": data})),
    )
)
def test_no_text_whatever_makes_the_decoder_raise_anything_but_its_own_error(text: str) -> None:
    for read in (event_from_json, state_from_json):
        with pytest.raises(CodecError):
            read(text)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(CodecError, match="not JSON"):
        event_from_json("[" * 100_000)


def test_a_decision_with_everything_in_it_is_read_by_people_too() -> None:
    context = Context(3946, "counted", 2, conversation="ab12", override=Setting(4, 0.25))
    event = Decided(12.5, 3, context, Decision(Setting(4, 0.25), "learned", 0.9, Cell(1, 0, "k")), 3.5)
    data = json.loads(event_to_json(event))
    assert data["type"] == "Decided"
    assert data["decision"]["arm"] == {"n_max": 4, "p_min": 0.25, "n_min": None}
    assert data["context"]["prompt_tokens"] == 3946


def test_a_frontier_in_a_first_event_comes_back_whole() -> None:
    rows = (FrontierRow(3946, Setting(4, 0.25), 141.77, acceptance=0.71, samples=5, sd=1.9),)
    began = Began(0.0, Deployment("u", "m", "b", 8), PolicySettings(), Frontier(rows, Setting(2, 0.0)))
    assert event_from_json(event_to_json(began)) == began
