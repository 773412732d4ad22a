"""Request -> what is known of it before sending: the features that a decision may depend on.

Pure and fast: one walk over a parsed body. The prompt's length in tokens and the load are not here; the shell
asks for them and puts them into the `Context`. The set of features has a version, because what was learned under
one meaning of a kind must not be read under another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adaptive_dd.core.domain import Kind
from adaptive_dd.core.prompt import NO_PROMPT, Prompt, read_prompt

FEATURES_VERSION = 1
FEATURES: Mapping[str, str] = {
    "sampling": "greedy when the most probable token is always taken, else sampled",
    "constraint": "schema when a grammar or a JSON schema binds the answer, tools when tools may be called, else free",
    "endpoint": "the route's family: chat, completion, infill, responses, messages or audio",
    "hint": "the client's own X-DD-Workload, if any",
    "conversation": "hash of the conversation's beginning",
    "max_tokens": "the client's own limit on generated tokens",
}

# Requests say nothing about sampling more often than not; then these hold (common.h of every build so far).
DEFAULT_TEMPERATURE = 0.8
DEFAULT_TOP_K = 40

HINT_HEADER = b"x-dd-workload"
# Each hint is a set of cells of its own: a client that sends an identifier as hint must not make a million.
LONGEST_HINT = 24
MOST_HINTS = 16
OTHER_HINT = "other"
_HINT_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")

_LIMIT_FIELDS: Mapping[str, tuple[str, ...]] = {
    # n_predict wins over max_completion_tokens, and that over max_tokens (server-task.cpp).
    "chat": ("n_predict", "max_completion_tokens", "max_tokens"),
    "completion": ("n_predict", "max_completion_tokens", "max_tokens"),
    "infill": ("n_predict", "max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the server does where a request says nothing: its launch flags, as `/props` shows them."""

    temperature: float = DEFAULT_TEMPERATURE
    top_k: int = DEFAULT_TOP_K


@dataclass(frozen=True, slots=True)
class Features:
    """What a request tells about itself."""

    kind: Kind
    prompt: Prompt = NO_PROMPT
    conversation: str = ""
    max_tokens: int | None = None


def _number(value: object, default: float) -> float:
    """The value as llama-server's `json_value` reads it: the default for null and for another type."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return default
    return float(value)


def _samplers(value: object) -> frozenset[str]:
    """Names of the samplers in play, of those that decide about greediness; both where none are named."""
    if isinstance(value, str):
        return frozenset(name for letter, name in (("k", "top_k"), ("t", "temperature")) if letter in value)
    if isinstance(value, list):
        names = {str(name).replace("-", "_") for name in value}
        return frozenset(names | ({"temperature"} if "temp" in names else set()))
    return frozenset({"top_k", "temperature"})


def sampling_of(request: Mapping[str, Any], defaults: SamplingDefaults = SamplingDefaults()) -> str:
    """`greedy` when the most probable token is always taken: temperature <= 0, or top_k 1 (without mirostat)."""
    samplers = _samplers(request.get("samplers"))
    if "temperature" in samplers and _number(request.get("temperature"), defaults.temperature) <= 0.0:
        return "greedy"
    mirostat = _number(request.get("mirostat"), 0.0) != 0.0
    if "top_k" in samplers and not mirostat and _number(request.get("top_k"), defaults.top_k) == 1.0:
        return "greedy"
    return "sampled"


def _asks_for_schema(response_format: object) -> bool:
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")


def constraint_of(request: Mapping[str, Any]) -> str:
    """`schema`, `tools` or `free`; a grammar binds every token, tools only some, so the grammar is named."""
    text = request.get("text")
    if (
        request.get("grammar")
        or request.get("json_schema") is not None
        or _asks_for_schema(request.get("response_format"))
        or (isinstance(text, dict) and _asks_for_schema(text.get("format")))
    ):
        return "schema"
    tools, choice = request.get("tools"), request.get("tool_choice")
    unwanted = choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none")
    return "tools" if isinstance(tools, list) and tools and not unwanted else "free"


def clean_hint(value: str) -> str:
    """A client's hint in lower case, of letters, digits, - and _; anything else gives no hint at all."""
    hint = value.strip().lower()
    return hint if 0 < len(hint) <= LONGEST_HINT and set(hint) <= _HINT_CHARACTERS else ""


def bounded_hint(hint: str, known: set[str] | frozenset[str]) -> str:
    """The hint itself while it is among the first MOST_HINTS, `other` after that."""
    return hint if not hint or hint in known or len(known) < MOST_HINTS else OTHER_HINT


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """The first value of a header, empty where it is missing. name: lower case."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), "")


def _max_tokens(endpoint: str, request: Mapping[str, Any]) -> int | None:
    for field in _LIMIT_FIELDS.get(endpoint, ()):
        value = request.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return value if value > 0 else None  # -1 is no limit
    return None


def conversation_hash(prompt: Prompt, salt: bytes = b"") -> str:
    """A conversation's name: 16 hexadecimal digits of its salted beginning, empty where there is no prompt."""
    if not prompt.beginning:
        return ""
    return hashlib.blake2b(prompt.beginning, digest_size=8, key=salt[:64]).hexdigest()


def features_of(
    endpoint: str,
    request: Mapping[str, Any],
    *,
    hint: str = "",
    defaults: SamplingDefaults = SamplingDefaults(),
    salt: bytes = b"",
) -> Features:
    """What a parsed request to an endpoint of `Kind` tells about itself. hint: cleaned and bounded."""
    prompt = read_prompt(endpoint, request)
    kind = Kind(sampling_of(request, defaults), constraint_of(request), endpoint, hint)
    return Features(
        kind,
        prompt,
        conversation_hash(prompt, salt),
        _max_tokens(endpoint, request),
    )
