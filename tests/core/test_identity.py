from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.identity import Identity, identity_from_models, identity_of, spec_type_of

PROPS = {
    "default_generation_settings": {"params": {"speculative.types": "none,draft-mtp"}, "n_ctx": 16384},
    "total_slots": 4,
    "model_alias": "tiny",
    "model_path": "models/tiny.gguf",
    "media_marker": "<__media_abc__>",
    "endpoint_slots": True,
    "build_info": "b11434-abc",
    "is_sleeping": False,
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_what_a_server_says_of_itself_is_read() -> None:
    assert identity_of(PROPS) == Identity(
        model="models/tiny.gguf",
        build="b11434-abc",
        run="<__media_abc__>",
        slots=4,
        n_ctx=16384,
        spec_type="draft-mtp",
        has_slots=True,
    )


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"is_sleeping": True}, True),
        ({"media_marker": "<__media_xyz__>"}, False),
        ({"model_path": "models/other.gguf"}, False),
        ({"build_info": "b2"}, False),
        ({"total_slots": 1}, False),
    ],
)
def test_a_restart_and_a_change_are_told_from_a_nap(change: dict[str, object], same: bool) -> None:
    before, after = identity_of(PROPS), identity_of({**PROPS, **change})
    assert before is not None
    assert after is not None
    assert before.same_run(after) is same


@pytest.mark.parametrize("place", ["top", "settings", "speculative"])
def test_a_server_that_tunes_itself_is_noticed_wherever_it_says_so(place: str) -> None:
    flag = {"spec_autotune": True}
    props: dict[str, object] = {**PROPS}
    if place == "top":
        props |= flag
    elif place == "settings":
        props["default_generation_settings"] = {"params": flag}
    else:
        props["speculative"] = flag
    who = identity_of(props)
    assert who is not None
    assert who.autotune


def test_a_router_is_noticed() -> None:
    who = identity_of({"role": "router", "model_alias": "llama-server", "build_info": "b1"})
    assert who is not None
    assert who.router


def test_without_a_key_the_list_of_models_names_at_least_the_model() -> None:
    assert identity_from_models({"data": [{"id": "tiny.gguf"}]}) == Identity(model="tiny.gguf")
    assert identity_from_models({"data": []}) is None


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"speculative.type": "none"}, ""),
        ({"speculative.type": "ngram-mod"}, "ngram-mod"),
        ({"speculative.types": "none,draft-simple"}, "draft-simple"),
        (None, ""),
        ({"speculative.types": 7}, ""),
    ],
)
def test_the_drafting_types_are_read_in_both_spellings(settings: object, kinds: str) -> None:
    assert spec_type_of(settings) == kinds


@given(JSON | st.dictionaries(st.sampled_from(sorted(PROPS)), JSON))
def test_nothing_that_a_server_may_answer_breaks_the_reader(answer: object) -> None:
    who = identity_of(answer)
    assert who is None or who.slots >= 1
    identity_from_models(answer)
    identity_from_models({"data": answer})


def test_what_the_server_samples_with_by_itself_is_known_where_it_says_so() -> None:
    told = {"default_generation_settings": {"params": {"temperature": 0.0, "top_k": 40}}}
    who = identity_of(told)
    assert who is not None
    assert (who.temperature, who.top_k) == (0.0, 40)
    for odd in ("0", None, True, float("inf"), float("nan")):
        who = identity_of({"default_generation_settings": {"temperature": odd, "top_k": odd}})
        assert who is not None
        assert (who.temperature, who.top_k) == (None, None)
