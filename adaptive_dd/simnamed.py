"""The simulated server's named events: `/v1/messages` and `/v1/responses` as b9101 answers them, without timings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adaptive_dd.core.domain import Timings


class Named(Protocol):
    """One answer in a route's words: its stream piece by piece, or whole."""

    def opening(self) -> bytes:
        """What comes with the first token, before it."""

    def token(self) -> bytes:
        """The next token."""

    def closing(self) -> bytes:
        """What comes after the last one."""

    def whole(self) -> dict[str, Any]:
        """The same, not streamed."""


def event(kind: str, **members: Any) -> bytes:
    """One event with its name and its data."""
    data = json.dumps({"type": kind, **members}, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()


@dataclass(slots=True)
class _Answer:
    model: str
    number: int
    timings: Timings
    sent: int = 0

    def word(self) -> str:
        self.sent += 1
        return f"t{(self.sent - 1) % 97} "

    def text(self) -> str:
        """All of it, whether it was streamed so far or not."""
        return "".join(f"t{i % 97} " for i in range(self.timings.predicted_n))


class _Messages(_Answer):
    """Anthropic's Messages API: what was cached is not in `input_tokens`."""

    def opening(self) -> bytes:
        head = {**self._head(), "content": [], "stop_reason": None, "usage": self._usage(0)}
        block = {"type": "text", "text": ""}
        start = event("message_start", message=head)
        return start + event("content_block_start", index=0, content_block=block)

    def token(self) -> bytes:
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": self.word()})

    def closing(self) -> bytes:
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        usage = {"output_tokens": self.timings.predicted_n}
        end = event("message_delta", delta=delta, usage=usage) + event("message_stop")
        return event("content_block_stop", index=0) + end

    def whole(self) -> dict[str, Any]:
        content = [{"type": "text", "text": self.text()}]
        usage = self._usage(self.timings.predicted_n)
        return {**self._head(), "content": content, "stop_reason": "max_tokens", "usage": usage}

    def _head(self) -> dict[str, Any]:
        return {"id": f"msg-{self.number}", "type": "message", "role": "assistant", "model": self.model}

    def _usage(self, tokens: int) -> Mapping[str, int]:
        read = {"cache_read_input_tokens": self.timings.cache_n, "input_tokens": self.timings.prompt_n}
        return {**read, "output_tokens": tokens}


class _Responses(_Answer):
    """OpenAI's Responses API: `input_tokens` are all of them."""

    def opening(self) -> bytes:
        head = {"id": f"resp-{self.number}", "object": "response", "status": "in_progress"}
        item = {"content": [], "id": "msg-1", "role": "assistant", "status": "in_progress", "type": "message"}
        begun = event("response.created", response=head) + event("response.in_progress", response=head)
        return begun + event("response.output_item.added", item=item)

    def token(self) -> bytes:
        return event("response.output_text.delta", item_id="msg-1", delta=self.word())

    def closing(self) -> bytes:
        done = event("response.output_text.done", item_id="msg-1", text=self.text())
        return done + event("response.completed", response=self.whole())

    def whole(self) -> dict[str, Any]:
        content = [{"type": "output_text", "annotations": [], "logprobs": [], "text": self.text()}]
        message = {"type": "message", "status": "completed", "id": "msg-1", "content": content}
        head = {"id": f"resp-{self.number}", "object": "response", "created_at": 0, "status": "completed"}
        return {**head, "model": self.model, "output": [message], "usage": self._usage()}

    def _usage(self) -> Mapping[str, Any]:
        prompt, answer = self.timings.prompt_tokens, self.timings.predicted_n
        details = {"cached_tokens": self.timings.cache_n}
        counts = {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}
        return {**counts, "input_tokens_details": details}


def in_words_of(endpoint: str, model: str, number: int, timings: Timings) -> Named:
    """An answer in the words of `messages` or `responses`."""
    return (_Messages if endpoint == "messages" else _Responses)(model, number, timings)
