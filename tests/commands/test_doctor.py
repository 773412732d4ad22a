from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace

import pytest

from adaptive_dd.cli import main
from tests.fake_llama import FakeLlama


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """(exit code, output, error output) of `adaptive-dd doctor`."""
    monkeypatch.setattr(sys, "argv", ["adaptive-dd", "doctor", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


CASES = {
    "honours": (FakeLlama(launch_n=4), ["honours", "n_max acts, p_min acts, n_min", "may go above it"]),
    "refuses": (FakeLlama(launch_n=4, limit=6), ["honours", "refuses n_max above 6", "above 6 is refused"]),
    "lowers": (
        FakeLlama(honours=frozenset({"n_max"}), lowers_only=True),
        ["n_max alone, and only below", "p_min does not act", "taken as the launch value"],
    ),
    "ignores": (FakeLlama(honours=frozenset()), ["ignores", "n_max does not act", "--spec-draft-n-max"]),
    "mtp": (FakeLlama(honours=frozenset(), names_types="none,draft-mtp"), ["draft-mtp", "MTP"]),
    "nothing": (FakeLlama(drafts="none"), ["drafts nothing at all", "-md FILE"]),
    "ngrams": (FakeLlama(drafts="ngram", names_types="ngram-mod"), ["n-grams", "--spec-ngram"]),
    "autotune": (FakeLlama(extra_props={"spec_autotune": True}), ["--spec-autotune", "two controllers"]),
    "asleep": (FakeLlama(sleeping=True), ["asleep", "has not yet shown"]),
    "router": (FakeLlama(extra_props={"role": "router"}), ["router over several models"]),
    "busy": (FakeLlama(busy=True), ["the server is busy"]),
    "strange": (FakeLlama(timings=False), ["does not look like a llama-server"]),
    "locked": (FakeLlama(key="k"), ["needs a key"]),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_server_is_described(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake, words = CASES[name]
    with replace(fake, asked=[], bodies=[]).serving() as url:
        code, out, err = run(monkeypatch, capsys, "--upstream", url)
    assert (code, err) == (0, "")
    for word in words:
        assert word in out


def test_json_says_the_same_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeLlama(launch_n=4, slots=2).serving() as url:
        code, out, _ = run(monkeypatch, capsys, "--upstream", url, "--json")
    said = json.loads(out)
    assert code == 0
    assert (said["listens"], said["cap"], said["slots"], said["context_tokens"]) == ("honours", 4, 2, 8192)
    assert said["counting"]["/tokenize"] is True
    assert said["counting"]["/v1/chat/completions/input_tokens"] is False
    assert said["timings"]["/completion"] == {"json": True, "stream": True}
    assert said["timings"]["/v1/messages"] == {"json": None, "stream": None}
    assert said["above_launch_value"] == "obeyed"


def test_a_key_is_used_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeLlama(key="sesame").serving() as url:
        code, out, err = run(monkeypatch, capsys, "--upstream", url, "--api-key", "sesame")
    assert code == 0
    assert "honours" in out
    assert "sesame" not in out + err


def test_without_probing_nothing_is_generated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeLlama()
    with fake.serving() as url:
        _, out, _ = run(monkeypatch, capsys, "--upstream", url, "--no-probe")
    assert fake.bodies == []
    assert "not probed" in out


def test_an_unreachable_server_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        code, out, err = run(monkeypatch, capsys, "--upstream", url)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert url in err


def test_a_loading_server_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeLlama(status=503).serving() as url:
        code, _, err = run(monkeypatch, capsys, "--upstream", url)
    assert code == 1
    assert "loading" in err


def test_a_bad_url_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "--upstream", "nonsense")
    assert code == 2
    assert "upstream" in err
