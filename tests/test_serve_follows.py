"""`serve` and a server that ignores the fields, comes late, or comes back as another one: the whole process."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.fake_llama import FakeLlama
from tests.support.process import ServeProcess, serve_process

BODY = {"messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 24, "temperature": 0}
NOTE = "0:n4,p0.25"  # a ladder that always has something to send


def chat(proxy: ServeProcess) -> dict[str, str]:
    """The X-DD headers of one answer."""
    request = urllib.request.Request(
        proxy.url + "/v1/chat/completions", json.dumps(BODY).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {
            name.lower(): value for name, value in answer.headers.items() if name.lower().startswith("x-dd-")
        }


def health(proxy: ServeProcess) -> dict[str, Any]:
    found = proxy.get("/_dd/health")
    assert isinstance(found, dict)
    return found


def test_a_server_that_ignores_the_fields_is_said_once_everywhere_and_no_longer_stamped(
    tmp_path: Path,
) -> None:
    server = FakeLlama(honours=frozenset())
    with (
        server.serving() as url,
        serve_process(url, tmp_path, "--mode", "static", "--frontier", NOTE, "--baseline", "n2") as proxy,
    ):
        proxy.wait_until_said("ignores per-request draft settings")
        server.bodies.clear()
        for _ in range(5):
            told = chat(proxy)
            assert (told["x-dd-reason"], told["x-dd-applied"]) == ("not-honoured", "false")
        assert health(proxy)["listens"] == "ignores"
        assert "ignores" in health(proxy)["says"]
        assert [body for body in server.bodies if any(key.startswith("speculative") for key in body)] == []
        said = [line for line in proxy.lines if "ignores per-request draft settings" in line]
        assert len(said) == 1


def test_a_server_that_honours_the_fields_is_stamped_with_the_frontiers_setting(tmp_path: Path) -> None:
    server = FakeLlama(launch_n=8)
    with (
        server.serving() as url,
        serve_process(url, tmp_path, "--mode", "static", "--frontier", NOTE, "--baseline", "n2") as proxy,
    ):
        proxy.wait_until_said("honours per-request draft settings")
        server.bodies.clear()
        told = chat(proxy)
        assert (told["x-dd-reason"], told["x-dd-setting"], told["x-dd-applied"]) == (
            "frontier",
            "n4,p0.25",
            "true",
        )
        stamped = [body for body in server.bodies if "messages" in body]
        assert {k: v for k, v in stamped[-1].items() if k not in BODY} == {
            "speculative.n_max": 4,
            "speculative.p_min": 0.25,
        }


def test_a_server_that_comes_late_is_attached_and_one_that_comes_back_as_another_build_is_asked_again(
    tmp_path: Path,
) -> None:
    server = FakeLlama(status=503)
    with (
        server.serving() as url,
        serve_process(url, tmp_path, "--mode", "static", "--frontier", NOTE) as proxy,
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            chat(proxy)
        assert caught.value.code == 503
        assert json.loads(caught.value.read())["error"]["message"] == "Loading model"
        caught.value.close()
        server.status = 200
        proxy.wait_until_said("honours per-request draft settings")
        first = health(proxy)
        assert first["upstream_up"] is True
        server.build, server.run, server.honours = "b2-other", "<__media_two__>", frozenset()
        proxy.wait_until_said("ignores per-request draft settings", timeout_s=60)
        assert health(proxy)["build"] == "b2-other"
        assert health(proxy)["listens"] == "ignores"
