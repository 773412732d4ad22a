from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_dd.core.prompt import BEGINNING_BYTES, NO_PROMPT, infill_texts, is_list_of_prompts, read_prompt


def messages(*contents: Any, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)], **fields}


def test_the_next_turn_begins_with_the_bytes_of_the_one_before() -> None:
    before = read_prompt("chat", messages("Hi"))
    after = read_prompt("chat", messages("Hi", "Hello.", "How are you?"))
    assert after.content.startswith(before.content)
    assert after.beginning == before.beginning
    assert (before.messages, after.messages) == (1, 3)


def test_an_edited_message_or_another_tool_is_another_beginning() -> None:
    before = read_prompt("chat", messages("Hi", "Hello.", "Go on"))
    assert not read_prompt("chat", messages("Hi", "Hallo.", "Go on")).content.startswith(before.content)
    with_tools = read_prompt("chat", messages("Hi", "Hello.", "Go on", tools=[{"type": "function"}]))
    assert not with_tools.content.startswith(before.content)
    assert with_tools.beginning == before.beginning  # the same conversation all the same


def test_text_in_parts_reads_like_text_and_moving_cache_marks_are_not_seen() -> None:
    whole = read_prompt("chat", messages("Hi"))
    parts = read_prompt(
        "chat", messages([{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}])
    )
    assert parts.content == whole.content


@pytest.mark.parametrize(
    ("endpoint", "request_"),
    [
        ("chat", messages([{"type": "image_url", "image_url": {"url": "data:..."}}])),
        ("chat", messages([{"type": "text", "text": "Hear"}, {"type": "input_audio", "input_audio": {}}])),
        ("completion", {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}}),
        ("completion", {"prompt": ["Hi", {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}]}),
        ("messages", messages([{"type": "image", "source": {}}])),
        ("messages", messages([{"type": "document", "source": {}}])),
        ("messages", messages([{"type": "tool_result", "content": [{"type": "image", "source": {}}]}])),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}),
    ],
)
def test_pictures_sounds_and_files_are_seen_wherever_they_stand(
    endpoint: str, request_: dict[str, Any]
) -> None:
    assert read_prompt(endpoint, request_).multimodal


def test_text_that_only_speaks_of_pictures_is_text() -> None:
    assert not read_prompt("chat", messages('Use {"type":"image_url"} and multimodal_data')).multimodal


def test_everything_that_a_template_may_render_is_in_the_bytes() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at":"sky"}'}}
    request = {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "blue"},
        ],
        "tools": [{"type": "function", "function": {"name": "look"}}],
    }
    content = read_prompt("chat", request).content
    for text in (b'\\"at\\":\\"sky\\"', b"blue", b'"name":"look"', b"tool_call_id"):
        assert text in content


def test_reasoning_is_known_as_what_a_template_may_drop() -> None:
    kept = read_prompt("chat", {"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Well, well."},
    ]})  # fmt: skip
    assert kept.soft_bytes == kept.live_bytes == len("Well, well.")
    inline = read_prompt("chat", messages("Hi", "<think>Hm.</think>Yes.", "And?"))
    assert inline.soft_bytes == len("<think>Hm.")
    assert inline.live_bytes == 0
    anthropic = read_prompt(
        "messages", messages("Hi", [{"type": "thinking", "thinking": "Hm.", "signature": "x"}])
    )
    assert anthropic.soft_bytes == anthropic.live_bytes > 0


def test_an_answer_to_a_tool_call_is_no_message_of_the_users() -> None:
    result = [{"type": "tool_result", "tool_use_id": "1", "content": "blue"}]
    prompt = read_prompt("messages", messages("Hi", [{"type": "thinking", "thinking": "Hm."}], result))
    assert prompt.live_bytes == prompt.soft_bytes > 0


def test_a_system_prompt_beside_the_messages_belongs_to_the_beginning() -> None:
    first = read_prompt("messages", messages("Hi", system="Be brief."))
    second = read_prompt("messages", messages("Hi", system=[{"type": "text", "text": "Be long."}]))
    assert b"Be brief." in first.beginning
    assert b"Be long." in second.beginning


def test_responses_are_read_from_text_and_from_items() -> None:
    text = read_prompt("responses", {"input": "Hi", "instructions": "Be brief."})
    items = read_prompt(
        "responses",
        {
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "blue"},
            ],
        },
    )
    assert items.content.startswith(text.content)
    assert b"blue" in items.content


def test_a_raw_prompt_is_its_bytes_and_tokens_are_counted_as_sent() -> None:
    text = read_prompt("completion", {"prompt": "é" * 600})
    assert text.content == ("é" * 600).encode()
    assert len(text.beginning) == BEGINNING_BYTES
    assert text.tokens is None
    tokens = read_prompt("completion", {"prompt": [1, 2, 3]})
    assert (tokens.tokens, tokens.beginning) == (3, b"1\x1f2\x1f3")
    mixed = read_prompt("completion", {"prompt": [1, "two", 3]})
    assert mixed.tokens is None
    assert mixed.content == b"1\x1ftwo\x1f3"
    assert read_prompt("completion", {"prompt": {"prompt_string": "Hi"}}).content == b"Hi"


def test_of_a_list_of_prompts_the_longest_counts_and_no_conversation_is_seen() -> None:
    prompt = read_prompt("completion", {"prompt": ["Hi", "Hello there", [1, 2]]})
    assert (prompt.form, prompt.content, prompt.beginning, prompt.tokens) == (
        "list",
        b"Hello there",
        b"",
        None,
    )
    assert read_prompt("completion", {"prompt": [[1, 2, 3], [4]]}).tokens == 3
    assert is_list_of_prompts(["a"])
    assert not is_list_of_prompts([1, "a"])
    assert not is_list_of_prompts("a")


def test_infill_reads_what_stands_around_the_cursor_and_the_other_files() -> None:
    request = {
        "input_prefix": "def f(",
        "input_suffix": "):",
        "prompt": "x",
        "input_extra": [{"filename": "a.py", "text": "A"}, {"text": "B"}, "junk"],
    }
    assert infill_texts(request) == ["def f(", "):", "x", "a.py\n", "A", "tmp\n", "B"]
    assert read_prompt("infill", request).content.startswith(b"def f(")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "prompt", "input", "messages", "prompt_string"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["chat", "completion", "infill", "responses", "messages", "audio"]),
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "input", "system", "tools", "input_extra", "input_prefix"]),
        JSON,
    ),
)
def test_no_request_is_too_odd_to_be_read(endpoint: str, request_: dict[str, Any]) -> None:
    prompt = read_prompt(endpoint, request_)
    assert prompt.tokens is None or prompt.tokens >= 0
    assert 0 <= prompt.live_bytes <= prompt.soft_bytes


@pytest.mark.parametrize("kind", [[], {}, 5, None, True])
def test_a_part_whose_type_is_no_name_is_read_as_it_stands(kind: object) -> None:
    prompt = read_prompt("messages", {"messages": [], "system": {"type": kind, "text": "words"}})
    assert b"words" in prompt.content


def test_half_a_surrogate_does_not_stop_the_reading() -> None:
    assert read_prompt("chat", json.loads('{"messages":[{"role":"user","content":"\\ud800"}]}')) != NO_PROMPT


def test_where_there_is_no_prompt_there_is_none() -> None:
    assert read_prompt("chat", {}) == NO_PROMPT
    assert read_prompt("completion", {"prompt": 5}) == NO_PROMPT
    assert read_prompt("completion", {}) == NO_PROMPT
