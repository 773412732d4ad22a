"""A real router with presets, and real replicas, through the proxy: what acts, what sticks, what clients see."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Garage
from tests.real.install import binary, model
from tests.real.proxies import RealProxy, proxying
from tests.real.servers import call, draft_flags, free_port, missing, starting
from tests.support.process import run_cli

SETTINGS = ("n0", "n2", "n8", "n8,p0.6")
ALIASES = tuple(f"gemma@{name}" for name in ("off", "n2", "n8", "n8-p0.6"))
# The static policy plays one setting for each length of prompt that `prompt` makes.
LADDER = "0:n0;20:n2;40:n8;60:n8,p0.6"
NUMBERS = {"n0": 3, "n2": 7, "n8": 12, "n8,p0.6": 18}
LOAD_S = 240.0
# As in `servers.command`: two threads wait for each other on a machine that is busy with other work.
THREADS = os.environ.get("ADAPTIVE_DD_REAL_THREADS", "2")


@dataclass(frozen=True)
class Router:
    """A running router: where it is, and its process (the children are the presets)."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def status(self) -> dict[str, str]:
        """What is loaded, by alias."""
        return {entry["id"]: entry["status"]["value"] for entry in call(self.url + "/models")["data"]}

    def wait_until_loaded(self) -> None:
        """Raises AssertionError with the log's end when a preset does not load."""
        ends_s = time.monotonic() + LOAD_S
        while time.monotonic() < ends_s:
            with contextlib.suppress(OSError):
                if all(self.status().get(alias) == "loaded" for alias in ALIASES):
                    return
            time.sleep(0.5)
        raise AssertionError(f"not loaded: {self.log.read_text(errors='replace')[-3000:]}")

    def child(self, alias: str) -> int:
        """Process id of a preset's own server."""
        for listed in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            for child in listed.read_text().split():
                if alias.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
        raise AssertionError(f"no child serves {alias}")


@pytest.fixture(scope="module")
def router(garage: Garage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """b11434 with the presets that our own command wrote, all of them loaded."""
    if reason := missing("b11434"):
        pytest.skip(reason)
    garage.clear()
    folder = tmp_path_factory.mktemp("router")
    made = run_cli(
        *("presets", "--model", str(model("target-f32.gguf")), "--draft", str(model("draft-q2_k.gguf"))),
        *("--settings", "off,n2,n8,n8,p0.6", "--name", "gemma", "--out", str(folder / "presets.ini")),
        *("--option", "ctx-size=4096", "--option", "parallel=1", "--option", f"threads={THREADS}"),
        *("--option", "ubatch-size=64", "--option", "batch-size=256"),
    )
    assert made.returncode == 0, made.stderr
    port, log = free_port(), folder / "log"
    line = [str(binary("b11434")), "--models-preset", str(folder / "presets.ini"), "--models-max", "4"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*line, "--host", "127.0.0.1", "--port", str(port)], stdout=sink, stderr=subprocess.STDOUT
        )
    running = Router(f"http://127.0.0.1:{port}", process, log)
    try:
        running.wait_until_loaded()
        yield running
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def static(router: Router, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProxy]:
    """The proxy, which is told nothing of presets, with a ladder over all four settings."""
    folder = tmp_path_factory.mktemp("static") / "run"
    with proxying(router.url, folder, "--mode", "static", "--frontier", LADDER) as proxy:
        _until(proxy, "presets of 'gemma' answers")
        yield proxy


def _until(proxy: RealProxy, said: str, seconds: float = 60.0) -> None:
    ends_s = time.monotonic() + seconds
    while said not in proxy.log.read_text():
        assert time.monotonic() < ends_s, proxy.log.read_text()
        time.sleep(0.1)


_fresh = iter(range(1000))


def prompt(setting: str, numbers: int = 0) -> str:
    """A prompt of a length that the ladder plays `setting` for, and that was never asked before."""
    start = next(_fresh) * 7 + 100
    return "Count: " + " ".join(str(start + step)[-3:] for step in range(numbers or NUMBERS[setting]))


@dataclass(frozen=True)
class Said:
    """An answer: its headers, its body, and the timings where there were some."""

    headers: dict[str, str]
    body: bytes

    @property
    def timings(self) -> dict[str, Any]:
        if not self.body.startswith(b"data:"):
            found: dict[str, Any] = json.loads(self.body).get("timings", {})
            return found
        events = [json.loads(line[5:]) for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        return next((event["timings"] for event in reversed(events) if "timings" in event), {})

    @property
    def depth(self) -> float:
        """Drafted tokens a cycle."""
        found = self.timings
        cycles = found["predicted_n"] - 1 - found.get("draft_n_accepted", 0)
        return float(found.get("draft_n", 0) / max(1, cycles))


def ask(url: str, path: str, body: dict[str, Any]) -> Said:
    """Any error status is an HTTPError, so it fails the test."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return Said({name.lower(): value for name, value in answer.headers.items()}, answer.read())


def complete(url: str, text: str, **more: Any) -> Said:
    """A greedy completion of 24 tokens."""
    body = {"model": "gemma", "prompt": text, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
    return ask(url, "/v1/completions", body)


@pytest.mark.parametrize("stream", [False, True])
def test_each_request_is_played_by_its_own_preset_as_the_timings_show(
    static: RealProxy, stream: bool
) -> None:
    depth = {}
    for setting in (*SETTINGS, SETTINGS[0]):
        said = complete(static.url, prompt(setting), stream=stream)
        assert (said.headers["x-dd-setting"], said.headers["x-dd-applied"]) == (setting, "true")
        assert b'"model":"gemma"' in said.body
        assert b"gemma@" not in said.body
        depth[setting] = said.depth
    assert depth["n0"] == 0.0
    assert 0.0 < depth["n2"] <= 2.0
    assert 2.0 < depth["n8"] <= 8.0
    assert 0.0 <= depth["n8,p0.6"] <= 8.0


def test_clients_see_one_model_and_the_router_knows_its_public_name(
    static: RealProxy, router: Router
) -> None:
    listed = call(static.url + "/v1/models")
    assert [entry["id"] for entry in listed["data"]] == ["gemma"]
    assert "gemma@" not in json.dumps(listed)
    props = call(static.url + "/props")
    assert props["model_alias"] == "gemma"
    assert props["default_generation_settings"]["n_ctx"] == 4096
    shown = call(static.url + "/v1/models", headers={"X-DD-Show-Aliases": "1"})
    assert {entry["id"] for entry in shown["data"]} == set(ALIASES)
    assert call(router.url + "/tokenize", "POST", {"model": "gemma", "content": "a"})["tokens"]


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_routes_that_drop_fields_are_acted_on(
    static: RealProxy, router: Router, route: str, stream: bool
) -> None:
    before = _last_task(router, "gemma@n8")
    text = prompt("n8", numbers=8)  # a template adds some tokens
    body: dict[str, Any] = {"model": "gemma", "stream": stream}
    if route == "/v1/messages":
        body |= {"max_tokens": 8, "messages": [{"role": "user", "content": text}]}
    else:
        body |= {"max_output_tokens": 8, "input": text}
    said = ask(static.url, route, body)
    assert (said.headers["x-dd-setting"], said.headers["x-dd-applied"]) == ("n8", "true"), said.headers
    assert _last_task(router, "gemma@n8") != before
    assert b"gemma@" not in said.body


def test_streamed_messages_are_told_by_when_their_tokens_arrive(static: RealProxy) -> None:
    for _ in range(3):
        messages = [{"role": "user", "content": prompt("n8", numbers=8)}]
        body = {"model": "gemma", "stream": True, "max_tokens": 40, "temperature": 0, "messages": messages}
        said = ask(static.url, "/v1/messages", body)
        [tokens] = re.findall(rb'"message_delta".*"output_tokens":(\d+)', said.body)
        row = static.newest()
        assert (row["setting"], row["status"], row["inferred"]) == ("n8", "ok", True), row
        assert row["predicted_n"] == int(tokens)
        assert row["draft_n_accepted"] <= 8 * (row["predicted_n"] - 1 - row["draft_n_accepted"])


def _last_task(router: Router, alias: str) -> object:
    """Number of the last request that a preset's own server worked on."""
    return call(f"{router.url}/slots?model={alias.replace('@', '%40')}")[0].get("id_task")


def talk(url: str, name: str, start: str) -> list[tuple[int, int]]:
    """(prompt_n, cache_n) over ten turns of a conversation."""
    messages = [{"role": "user", "content": start}]
    seen = []
    for turn in range(10):
        body = {"model": name, "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        said = ask(url, "/v1/chat/completions", body)
        seen.append((said.timings["prompt_n"], said.timings["cache_n"]))
        answer = json.loads(said.body)["choices"][0]["message"]["content"]
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"And {turn + 1000}?"},
        ]
    return seen


def test_a_conversation_of_ten_turns_sticks_and_its_cache_grows_as_it_does_directly(
    router: Router, tmp_path: Path
) -> None:
    opening = " ".join(f"{word} follows {word + 1}," for word in range(200, 232))
    direct = talk(router.url, "gemma@off", "Directly: " + opening)
    with proxying(router.url, tmp_path / "run", "--actuator", "presets") as proxy:
        _until(proxy, "arms that answer now")
        through = talk(proxy.url, "gemma", "Through it: " + opening)
        played = [row["setting"] for row in reversed(proxy.own("decisions?last=20")["decisions"])]
    # One move, while the conversation is young, may pay; then it stays, and grows as it does without the proxy.
    moves = [turn for turn, (was, now) in enumerate(itertools.pairwise(played), start=1) if was != now]
    assert len(played) == 10
    assert len(moves) <= 1, (played, through)
    for turn, ((processed, cached), (directly, cached_directly)) in enumerate(
        zip(through, direct, strict=True)
    ):
        if turn not in moves:
            assert processed <= directly + 16, (turn, through, direct)
            assert cached >= cached_directly - 40, (turn, through, direct)


@pytest.mark.parametrize("stream", [False, True])
def test_killing_one_child_costs_no_client_an_error(static: RealProxy, router: Router, stream: bool) -> None:
    os.kill(router.child("gemma@n8"), signal.SIGKILL)
    for _ in range(3):
        said = complete(static.url, prompt("n8"), stream=stream, max_tokens=8)
        assert said.timings["predicted_n"] == 8
        assert b"gemma@" not in said.body
    call(router.url + "/models/load", "POST", {"model": "gemma@n8"}) if router.status()[
        "gemma@n8"
    ] == "unloaded" else None
    router.wait_until_loaded()


def test_unloading_one_alias_costs_no_client_an_error(static: RealProxy, router: Router) -> None:
    call(router.url + "/models/unload", "POST", {"model": "gemma@n2"})
    for _ in range(3):
        said = complete(static.url, prompt("n2"), max_tokens=8)
        assert said.timings["predicted_n"] == 8
    if router.status()["gemma@n2"] == "unloaded":
        call(router.url + "/models/load", "POST", {"model": "gemma@n2"})
    router.wait_until_loaded()


def test_two_plain_servers_of_the_older_build_are_replicas(garage: Garage, tmp_path: Path) -> None:
    garage.clear()
    with starting("b9101", drafter=False) as plain, starting("b9101", *draft_flags(8)) as drafting:
        arms = ("--arm", f"off={plain.url}", "--arm", f"n8={drafting.url}")
        with _replicating(tmp_path / "run", *arms, "--mode", "static", "--frontier", "0:n0;20:n8") as proxy:
            shallow, deep = (complete(proxy.url, prompt(setting)) for setting in ("n0", "n8"))
            assert (shallow.headers["x-dd-setting"], shallow.depth) == ("n0", 0.0)
            assert deep.headers["x-dd-setting"] == "n8"
            assert 2.0 < deep.depth <= 8.0
            drafting.process.kill()
            for stream in (False, True):
                said = complete(proxy.url, prompt("n8"), stream=stream)
                assert (said.headers["x-dd-setting"], said.depth) == ("n0", 0.0)


@contextlib.contextmanager
def _replicating(folder: Path, *flags: str) -> Iterator[RealProxy]:
    with proxying("", folder, *flags) as proxy:
        yield proxy
