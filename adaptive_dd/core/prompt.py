"""The prompt of a request as one canonical string of bytes, read from the request's own fields.

Two turns of one conversation compare by a prefix of these bytes, their length bounds the number of tokens, and
what was added between turns is the bytes after the common prefix. They are not the prompt that the server
renders: a template lies in between, so nothing here claims to be a token count, except where the client sends
tokens. Markers that move between turns without being rendered (`cache_control`) are left out.

The bytes are the user's text: they live as long as one decision and are never stored, only hashed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

# Separators that cannot stand in well-behaved text: ASCII record and unit separator.
RECORD, UNIT = b"\x1e", b"\x1f"
ASSISTANT = RECORD + b"assistant" + UNIT

# How much of a raw prompt tells conversations apart: long enough to pass a few fixed words, short enough that
# the first turn usually has as much, so that the next one still begins the same.
BEGINNING_BYTES = 512
BEGINNING_TOKENS = 128

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_THOUGHT_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"})
_MEDIA_PARTS = frozenset(
    {
        "image_url",
        "input_audio",
        "audio_url",
        "video_url",
        "input_video",
        "image",
        "input_image",
        "input_file",
        "file",
        "document",
        "audio",
        "video",
        "media_marker",
    }
)
# Fields beside the messages that templates render, or that choose how they render. `model` because behind a
# router another model is another tokenizer.
_RENDERED_FIELDS = (
    "model",
    "tools",
    "tool_choice",
    "response_format",
    "json_schema",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_format",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "add_generation_prompt",
    "parallel_tool_calls",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's prompt.

    form         `messages` (a template renders it), `text`, `tokens`, `list` (of prompts), `infill` or `none`
    content      canonical bytes of the prompt; for a list of prompts those of the longest
    beginning    what tells conversations apart: the messages up to the first of the user, or the first bytes
    messages     number of messages, 0 for other forms
    soft_bytes   of `content`, reasoning, which a template may leave out
    live_bytes   of those, what came after the user's last message: once that is answered, a template that kept it
                 may leave it out
    tokens       its exact length where it was sent as tokens, else None
    multimodal   images, audio or files are part of it, so that no text tells its length
    """

    form: str
    content: bytes = b""
    beginning: bytes = b""
    messages: int = 0
    soft_bytes: int = 0
    live_bytes: int = 0
    tokens: int | None = None
    multimodal: bool = False


NO_PROMPT = Prompt("none")


@dataclass(slots=True)
class _Reading:
    """What is gathered while walking over the messages; lives for one call."""

    chunks: list[bytes]
    soft_bytes: int = 0
    live_bytes: int = 0
    multimodal: bool = False

    def thought(self, text: str) -> str:
        size = len(_encoded(text))
        self.soft_bytes += size
        self.live_bytes += size
        return text


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _part_text(part: object, reading: _Reading) -> str:
    if not isinstance(part, dict):
        return part if isinstance(part, str) else _dumped(part)
    kind = part.get("type")
    if not isinstance(kind, str):
        kind = None  # what is no name is none of those below, and may not even be hashable
    if kind in _MEDIA_PARTS:
        reading.multimodal = True
        return ""
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return str(part["text"])
    rest = {key: value for key, value in part.items() if key not in ("cache_control", "signature")}
    if kind == "tool_result":
        text = _content_text(rest.pop("content", None), reading)
        return f"{_dumped(rest)}\n{text}"
    return reading.thought(_dumped(rest)) if kind in _THOUGHT_PARTS else _dumped(rest)


def _content_text(content: object, reading: _Reading) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_part_text(part, reading) for part in content)
    return _part_text(content, reading)


def _add_message(message: object, reading: _Reading) -> str:
    """Gather one message; returns its role."""
    if not isinstance(message, dict):
        reading.chunks.append(RECORD + UNIT + _encoded(_dumped(message)))
        return ""
    role = str(message.get("role") or message.get("type") or "")
    if "content" in message:
        text = _content_text(message["content"], reading)
        if role == "assistant" and "</think>" in text:
            reading.thought(text[: text.index("</think>")])
        others = message.keys() - {"role", "content", "type", "status", "id", "cache_control"}
    else:
        text, others = "", message.keys() - {"role", "status", "id", "cache_control"}
    for key in sorted(others):
        value = message[key]
        added = value if isinstance(value, str) else _dumped(value)
        if key in ("reasoning_content", "reasoning", "thinking") or role == "reasoning":
            reading.thought(added)
        text = f"{text}\n{key}:{added}"
    reading.chunks.append(RECORD + _encoded(role) + UNIT + _encoded(text))
    return role


def _only_tool_results(message: object) -> bool:
    """Anthropic's way of answering a tool call: a user's message that no user wrote."""
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def _from_messages(request: Mapping[str, Any], system: object, messages: Sequence[object]) -> Prompt:
    header = {key: request[key] for key in _RENDERED_FIELDS if request.get(key) is not None}
    reading = _Reading([_encoded(_dumped(header))])
    if system:
        _add_message({"role": "system", "content": system}, reading)
    end_of_beginning = 0
    for message in messages:
        if _add_message(message, reading) == "user" and not _only_tool_results(message):
            end_of_beginning = end_of_beginning or len(reading.chunks)
            reading.live_bytes = 0
    return Prompt(
        "messages",
        b"".join(reading.chunks),
        b"".join(reading.chunks[1 : end_of_beginning or 2]),
        messages=len(reading.chunks) - 1,
        soft_bytes=reading.soft_bytes,
        live_bytes=reading.live_bytes,
        multimodal=reading.multimodal,
    )


def _one_raw(prompt: object) -> Prompt:
    """A prompt that no template touches: a string, tokens, both mixed, or an object around a string."""
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            return Prompt("text", multimodal=True)
        prompt = prompt.get("prompt_string")
    if isinstance(prompt, str):
        content = _encoded(prompt)
        return Prompt("text", content, content[:BEGINNING_BYTES])
    if not isinstance(prompt, list):
        return NO_PROMPT
    if str not in set(map(type, prompt)):
        # Numbers alone are counted as they stand; written out they would only tell conversations apart.
        beginning = UNIT.join(str(part).encode() for part in prompt[:BEGINNING_TOKENS])
        return Prompt("tokens", beginning=beginning, tokens=len(prompt))
    # A number is written out: it takes at least one byte, so that bytes still bound the tokens from above.
    content = UNIT.join(_encoded(part if isinstance(part, str) else str(part)) for part in prompt)
    return Prompt("text", content, content[:BEGINNING_BYTES])


def is_list_of_prompts(prompt: object) -> bool:
    """Whether llama-server reads this as several prompts: an array in which no number stands."""
    return isinstance(prompt, list) and not any(isinstance(part, int | float) for part in prompt)


def _from_raw(prompt: object) -> Prompt:
    if not is_list_of_prompts(prompt):
        return _one_raw(prompt)
    assert isinstance(prompt, list)
    several = [replace(_one_raw(part), form="list", beginning=b"") for part in prompt]
    if any(one.multimodal for one in several):
        return Prompt("list", multimodal=True)
    if several and all(one.tokens is not None for one in several):
        return max(several, key=lambda one: one.tokens or 0)
    return max(
        (replace(one, tokens=None) for one in several), key=lambda one: len(one.content), default=NO_PROMPT
    )


def infill_texts(request: Mapping[str, Any]) -> list[str]:
    """The texts of an infill request in the order prefix, suffix, prompt, then name and text of each extra."""

    def text(value: object) -> str:
        return value if isinstance(value, str) else ""

    texts = [text(request.get(key)) for key in ("input_prefix", "input_suffix", "prompt")]
    extras = request.get("input_extra")
    for extra in extras if isinstance(extras, list) else ():
        if isinstance(extra, dict):
            texts += [f"{text(extra.get('filename')) or 'tmp'}\n", text(extra.get("text"))]
    return texts


def _from_infill(request: Mapping[str, Any]) -> Prompt:
    content = UNIT.join(_encoded(text) for text in infill_texts(request))
    return Prompt("infill", content, content[:BEGINNING_BYTES])


def read_prompt(endpoint: str, request: Mapping[str, Any]) -> Prompt:
    """The prompt of a parsed request to an endpoint of `Kind`; `NO_PROMPT` where there is none to read."""
    if endpoint == "infill":
        return _from_infill(request)
    if endpoint == "completion":
        return _from_raw(request.get("prompt"))
    if endpoint == "responses":
        given = request.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        return _from_messages(request, request.get("instructions"), items if isinstance(items, list) else ())
    messages = request.get("messages")
    if not isinstance(messages, list):
        return NO_PROMPT
    return _from_messages(request, request.get("system") if endpoint == "messages" else None, messages)
