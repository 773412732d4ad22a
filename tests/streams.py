"""Streams of named events, as `/v1/messages` and `/v1/responses` send them (after raw captures of b9101 and b11434)."""

from __future__ import annotations

import json
from typing import Any

from adaptive_dd.core.arrivals import TimedTap


def named(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def text(word: str = "a") -> bytes:
    """A token of a message."""
    return named("content_block_delta", index=0, delta={"type": "text_delta", "text": word})


def opening(*, prompt_n: object = 5, cache_n: object = 21, model: str = "m.gguf") -> bytes:
    """What comes before a message's first token, at the same time."""
    usage = {"cache_read_input_tokens": cache_n, "input_tokens": prompt_n, "output_tokens": 0}
    head = named("message_start", message={"id": "1", "role": "assistant", "model": model, "usage": usage})
    return head + named("content_block_start", index=0, content_block={"type": "text", "text": ""})


def closing(tokens: object, reason: str = "max_tokens") -> bytes:
    """What comes after a message's last token."""
    end = named("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": tokens})
    return named("content_block_stop", index=0) + end + named("message_stop")


def piece(word: str = "a") -> bytes:
    """A token of a response."""
    return named("response.output_text.delta", item_id="msg_1", delta=word)


def created() -> bytes:
    """What comes before a response's first token."""
    head = {"id": "resp_1", "object": "response", "status": "in_progress"}
    return named("response.created", response=head) + named("response.in_progress", response=head)


def completed(tokens: object, *, prompt: object = 26, cached: object = 21, **beside: Any) -> bytes:
    """What comes after a response's last token. beside: members beside `response`, such as `timings`."""
    details = {"cached_tokens": cached}
    usage = {"input_tokens": prompt, "output_tokens": tokens, "input_tokens_details": details}
    done = named("response.output_text.done", item_id="msg_1", text="a")
    return done + named("response.completed", response={"status": "completed", "usage": usage}, **beside)


def message(tokens: int, **usage: object) -> bytes:
    """A whole message, each token an event."""
    return opening(**usage) + text() * tokens + closing(tokens)  # type: ignore[arg-type]


def response(tokens: int, **more: Any) -> bytes:
    """A whole response, each token an event."""
    return created() + piece() * tokens + completed(tokens, **more)


def tapped(*chunks: tuple[float, bytes], sent_ms: float = 0.0) -> TimedTap:
    """The tap after chunks that were read at these times, in ms."""
    tap = TimedTap(sent_ms)
    for at_ms, chunk in chunks:
        tap.at_ms = at_ms
        tap.feed(chunk)
    tap.end()
    return tap
