"""A client's limit bounds what a trial may cost: every build takes the field that we read, and stops there."""

from __future__ import annotations

from typing import Any

import pytest

from adaptive_dd.core.context import features_of
from tests.real.conftest import Serve
from tests.real.servers import draft_flags

HI = {"messages": [{"role": "user", "content": "Count from one to ninety in words."}]}
PROMPT = {"prompt": "One two three four five"}
LIMITS = ({"max_tokens": 6}, {"max_completion_tokens": 7}, {"n_predict": 8})
BOTH = ({"max_tokens": 9, "max_completion_tokens": 5}, {"max_completion_tokens": 9, "n_predict": 5})


@pytest.mark.parametrize("limits", [*LIMITS, *BOTH], ids=str)
@pytest.mark.parametrize(
    ("endpoint", "path", "asked"),
    [
        ("chat", "/v1/chat/completions", HI),
        ("completion", "/v1/completions", PROMPT),
        ("completion", "/completion", PROMPT),
    ],
)
@pytest.mark.parametrize("build", ["b9101", "b11434"])
def test_the_limit_that_we_read_is_where_the_server_stops(
    serve: Serve, build: str, endpoint: str, path: str, asked: dict[str, Any], limits: dict[str, int]
) -> None:
    server = serve(build, *draft_flags(4, build=build))
    answer = server.call("POST", path, {**asked, **limits, "temperature": 0, "ignore_eos": True})
    assert answer["timings"]["predicted_n"] == features_of(endpoint, limits).max_tokens
