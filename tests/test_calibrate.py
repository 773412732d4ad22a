"""Calibrating a server over a real socket: what is measured, refused, kept and written."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from adaptive_dd.calibrate import Job, calibrate
from adaptive_dd.calibration_log import journal_path
from adaptive_dd.core.domain import OFF, SERVER, Frontier, Setting, parse_setting
from adaptive_dd.core.frontier import comparison, ladder
from adaptive_dd.core.measure import Plan, Record
from adaptive_dd.errors import InputFileError, StoreError, UpstreamError, UsageError
from adaptive_dd.exact_prompts import Generated, read_texts
from adaptive_dd.frontier_file import load_frontier
from tests.timed_llama import TimedLlama, TimedRouter

GRID = tuple(parse_setting(text) for text in ("n0", "n1,p0.0", "n2,p0.0", "n4,p0.0", "n8,p0.0"))
BASE = Setting(2, 0.0)


class Watcher:
    """A view that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.moves = 0
        self.closed = False

    def note(self, text: str) -> None:
        self.notes.append(text)

    def moved(self, plan: Plan, record: Record) -> None:
        self.moves += 1

    def close(self) -> None:
        self.closed = True


def job_for(url: str, out: Path, **more: Any) -> Job:
    given: dict[str, Any] = {
        "contexts": (64, 256), "shelf": Generated(), "settings": GRID, "baseline": BASE, "answers": 60, "tokens": 64,
    }  # fmt: skip
    return Job(url, out, **{**given, **more})


def run(llama: TimedLlama, out: Path, **more: Any) -> tuple[Frontier, Watcher]:
    view = Watcher()
    with llama.serving() as url:
        frontier = asyncio.run(calibrate(job_for(url, out, **more), view))
    assert view.closed
    return frontier, view


def measured(llama: TimedLlama) -> list[dict[str, Any]]:
    """Bodies of measured answers: neither probes nor priming."""
    return [b for b in llama.bodies if isinstance(b.get("prompt"), list) and b["n_predict"] == 64]


# --- what is measured


def test_the_file_names_the_setting_that_is_truly_fastest_and_says_all_that_it_should(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    frontier, view = run(TimedLlama(), out)
    assert load_frontier(str(out)) == frontier
    assert [str(c.best.row.setting) if c.best else "" for c in comparison(frontier)] == ["n8,p0.0", "n8,p0.0"]
    assert (frontier.model, frontier.build, frontier.cap) == ("tiny.gguf", "b0-unknown", 8)
    assert frontier.generated_tokens == 64
    about = dict(frontier.about)
    assert about["version"]
    assert about["date"].count("-") == 2
    assert about["slots"] == "1"
    assert "read once" in about["cache"]
    assert about["complete"] == "yes"
    for row in frontier.rows:
        assert row.samples is not None
        assert row.cycle_ms is not None
        assert row.setting == OFF or 0.4 < (row.acceptance or 0.0) < 0.99
    assert not journal_path(out).exists()
    assert view.moves > 20


def test_a_sign_change_with_context_gives_each_context_its_own_setting(tmp_path: Path) -> None:
    dear = TimedLlama(cycle_ms=lambda context, d: 10.0 * (1.0 + (0.05 if context < 100 else 1.5) * d))
    frontier, _ = run(dear, tmp_path / "f.json")
    assert [str(rung.setting) for rung in ladder(frontier)] == ["n8,p0.0", "n0"]


def test_prompts_have_exactly_the_asked_length_and_no_text_comes_back_in_another_block(
    tmp_path: Path,
) -> None:
    llama = TimedLlama()
    run(llama, tmp_path / "f.json")
    assert {len(p) for p in llama.prompts} == {64, 256}
    by_text: dict[tuple[int, ...], set[int]] = {}
    for body in measured(llama):
        by_text.setdefault(tuple(body["prompt"]), set()).add(body["seed"])
    assert all(len(seeds) == 1 for seeds in by_text.values())
    assert len(by_text) > 10


def test_a_server_that_drafts_from_its_former_answer_flatters_no_setting(tmp_path: Path) -> None:
    # With acceptance at .3 drafting loses; a repeated prompt, drafted from its own answer, would make n8 the winner.
    llama = TimedLlama(chance=0.3, cycle_ms=lambda context, d: 10.0 * (1.0 + 0.2 * d))
    frontier, _ = run(llama, tmp_path / "f.json", contexts=(64,))
    assert [str(rung.setting) for rung in ladder(frontier)] == ["n1,p0.0"]
    assert all((row.acceptance or 0.0) < 0.5 for row in frontier.rows)


def test_every_block_measures_the_baseline_on_the_same_text_and_no_setting_twice(tmp_path: Path) -> None:
    llama = TimedLlama()
    run(llama, tmp_path / "f.json")
    by_text: dict[tuple[int, ...], list[object]] = {}
    for body in measured(llama):
        by_text.setdefault(tuple(body["prompt"]), []).append(body["speculative.n_max"])
    full = list(by_text.values())
    assert all(len(depths) == len(set(depths)) for depths in full)
    assert (
        sum(2 in depths for depths in full) >= len(full) - 2
    )  # the budget may cut one block of each context
    assert len({tuple(depths) for depths in full if len(depths) == 5}) > 1  # in changing order


def test_a_server_that_reads_every_prompt_anew_is_written_down_as_such(tmp_path: Path) -> None:
    frontier, _ = run(TimedLlama(caches=False), tmp_path / "f.json")
    assert dict(frontier.about)["cache"].startswith("0% of prompt tokens")


def test_kinds_are_measured_apart_with_their_own_sampling_fields(tmp_path: Path) -> None:
    llama = TimedLlama()
    frontier, _ = run(llama, tmp_path / "f.json", kinds=("greedy", "sampled"), contexts=(64,), answers=30)
    assert {row.kind for row in frontier.rows} == {"greedy", "sampled"}
    assert {body["temperature"] for body in measured(llama)} == {0.0, 0.8}


def test_the_baseline_server_is_measured_without_any_field(tmp_path: Path) -> None:
    llama = TimedLlama(launch_n=2)
    frontier, _ = run(
        llama, tmp_path / "f.json", baseline=SERVER, settings=GRID[:3], contexts=(64,), answers=30
    )
    assert frontier.baseline == SERVER
    assert any(row.setting == SERVER for row in frontier.rows)
    assert any(not any(k.startswith("speculative") for k in body) for body in measured(llama))


def test_the_default_grid_goes_up_to_the_launch_value_and_not_beyond(tmp_path: Path) -> None:
    llama = TimedLlama(launch_n=4)
    frontier, _ = run(llama, tmp_path / "f.json", settings=None, contexts=(64,), answers=100)
    assert max(row.setting.n_max or 0 for row in frontier.rows) == 4
    assert {row.setting.p_min for row in frontier.rows if row.setting != OFF} == {0.0, 0.3, 0.6}


def test_a_cell_that_is_too_noisy_for_a_claim_is_marked_and_not_hidden(tmp_path: Path) -> None:
    llama = TimedLlama(mood=0.4)
    frontier, _ = run(llama, tmp_path / "f.json", settings=(Setting(3, 0.0),), contexts=(64,), answers=14)
    assert [row.mark for row in frontier.rows if row.setting == Setting(3, 0.0)] == ["too-noisy"]


def test_a_time_budget_is_kept_within_a_tenth(tmp_path: Path) -> None:
    llama = TimedLlama(slowness=1.0, cycle_ms=lambda context, d: 1.5, chance=0.5)
    frontier, _ = run(llama, tmp_path / "f.json", answers=None, budget_s=6.0, margin=0.001)
    assert float(dict(frontier.about)["measured_s"]) == pytest.approx(6.0, rel=0.1, abs=0.51)


def test_a_setting_that_the_server_refuses_is_noted_and_left_out(tmp_path: Path) -> None:
    frontier, view = run(TimedLlama(limit=4), tmp_path / "f.json", cap=8, contexts=(64,))
    assert any("n8,p0.0 at 64: the server refused it (400)" in note for note in view.notes)
    assert {str(row.setting) for row in frontier.rows} == {"n0", "n1,p0.0", "n2,p0.0", "n4,p0.0"}


# --- launch settings


def test_a_server_that_ignores_fields_can_be_measured_one_launch_at_a_time(tmp_path: Path) -> None:
    llama = TimedLlama(launch_n=4, honours=frozenset())
    launched = Setting(4, 0.0)
    frontier, _ = run(llama, tmp_path / "f.json", settings=None, launch_setting=launched, contexts=(64,))
    assert [row.setting for row in frontier.rows] == [launched]
    assert frontier.rows[0].samples is not None
    assert not any(k.startswith("speculative") for body in llama.bodies for k in body)


# --- routers


def test_a_router_with_presets_is_calibrated_by_its_aliases(tmp_path: Path) -> None:
    router = TimedRouter(build="b11434")
    frontier, _ = run(router, tmp_path / "f.json", settings=None, contexts=(64,), answers=40)
    assert [str(row.setting) for row in frontier.rows] == ["n0", "n2,p0.0", "n8,p0.0"]
    assert [str(c.best.row.setting) if c.best else "" for c in comparison(frontier)] == ["n8,p0.0"]
    assert (frontier.model, frontier.build, frontier.cap) == ("gemma", "b11434", 8)
    assert "read once" in dict(frontier.about)["cache"]
    assert not any(k.startswith("speculative") for body in router.bodies for k in body)


def test_the_baseline_server_of_a_router_is_the_preset_that_it_plays_by_itself(tmp_path: Path) -> None:
    router = TimedRouter()
    frontier, _ = run(router, tmp_path / "f.json", settings=None, baseline=SERVER, contexts=(64,), answers=40)
    assert {str(row.setting) for row in frontier.rows} == {"server", "n0", "n8,p0.0"}
    assert frontier.baseline == SERVER


def test_a_setting_that_no_preset_plays_is_refused(tmp_path: Path) -> None:
    said = refused(TimedRouter(), tmp_path / "f.json", UsageError)
    assert (
        "n1,p0.0 is no preset that is loaded; expected of --settings and --baseline: n0, n2,p0.0, n8,p0.0"
        in said
    )


def test_a_router_without_loaded_presets_is_refused(tmp_path: Path) -> None:
    assert "presets loaded are none" in refused(TimedRouter(resident=False), tmp_path / "f.json", UsageError)
    assert "without presets of ours" in refused(TimedRouter(settings=()), tmp_path / "f.json", UsageError)


# --- what is refused, before anything is measured


def refused(llama: TimedLlama, out: Path, error: type[Exception], **more: Any) -> str:
    with pytest.raises(error) as caught:
        run(llama, out, **more)
    assert "\n" not in str(caught.value)
    assert measured(llama) == []
    return str(caught.value)


def test_a_server_that_ignores_the_fields_is_refused_with_what_to_do(tmp_path: Path) -> None:
    said = refused(TimedLlama(honours=frozenset()), tmp_path / "f.json", UsageError)
    assert "ignores per-request draft settings" in said
    assert "--launch-setting" in said
    assert "frontier merge" in said


def test_a_server_that_drafts_nothing_is_refused(tmp_path: Path) -> None:
    assert "drafts nothing at all" in refused(TimedLlama(drafts="none"), tmp_path / "f.json", UsageError)


def test_a_server_that_takes_n_alone_gets_no_p(tmp_path: Path) -> None:
    lowers = {"honours": frozenset({"n_max"}), "lowers_only": True, "launch_n": 4}
    said = refused(TimedLlama(**lowers), tmp_path / "f.json", UsageError, settings=GRID[:3], baseline=SERVER)
    assert said == "--settings: n1,p0.0: the server takes n_max alone; expected settings such as n4"
    frontier, _ = run(
        TimedLlama(**lowers), tmp_path / "f.json", settings=None, baseline=SERVER, contexts=(64,)
    )
    assert {row.setting.p_min for row in frontier.rows} == {None}


def test_a_server_that_wants_a_key_says_so(tmp_path: Path) -> None:
    assert "--api-key" in refused(TimedLlama(key="secret"), tmp_path / "f.json", UpstreamError)
    run(TimedLlama(key="secret"), tmp_path / "f.json", api_key="secret", contexts=(64,), answers=20)


def test_a_busy_server_is_refused(tmp_path: Path) -> None:
    assert "is busy" in refused(TimedLlama(busy=True), tmp_path / "f.json", UpstreamError)


def test_a_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError):
        asyncio.run(calibrate(job_for("http://127.0.0.1:9", tmp_path / "f.json"), Watcher()))


def test_a_context_beyond_the_servers_is_refused(tmp_path: Path) -> None:
    said = refused(TimedLlama(n_ctx=300), tmp_path / "f.json", UsageError)
    assert said.startswith(
        "--contexts: the longest, with its answer, takes 336 tokens, which is beyond the server's 300"
    )


def test_a_setting_above_the_cap_is_refused(tmp_path: Path) -> None:
    said = refused(TimedLlama(launch_n=4), tmp_path / "f.json", UsageError)
    assert "--settings: n8,p0.0 is above the cap 4" in said


def test_an_output_that_cannot_be_written_is_found_before_measuring(tmp_path: Path) -> None:
    said = refused(TimedLlama(), tmp_path / "no" / "such" / "f.json", UsageError)
    assert "--out" in said
    assert "cannot be written" in said
    assert "cannot be written" in refused(TimedLlama(), tmp_path, UsageError)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found_before_measuring(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert "Permission denied" in refused(TimedLlama(), tmp_path / "f.json", UsageError)


def test_prompt_files_that_are_too_short_are_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("only a few words")
    said = refused(
        TimedLlama(), tmp_path / "f.json", InputFileError, shelf=read_texts(str(tmp_path / "short.txt"))
    )
    assert said == "prompts short.txt: holds 4 tokens, expected at least 64 for that context"


# --- interruption


def after(count: int, what: Any) -> Any:
    def hook(llama: TimedLlama) -> None:
        if len(llama.bodies) >= count:
            what(llama)

    return hook


def test_a_server_that_dies_loses_nothing_and_the_same_command_continues(tmp_path: Path) -> None:
    out = tmp_path / "f.json"

    def die(llama: TimedLlama) -> None:
        raise ConnectionAbortedError

    dying = TimedLlama(hook=after(40, die))
    with pytest.raises(UpstreamError):
        run(dying, out)
    kept = journal_path(out).read_text().splitlines()
    answers = sum('"timings"' in line for line in kept)
    assert answers > 10
    assert load_frontier(str(out)).rows
    assert dict(load_frontier(str(out)).about)["complete"].startswith("no")

    again = TimedLlama()
    frontier, view = run(again, out)
    assert any(f"continuing: {answers} answers" in note for note in view.notes)
    assert dict(frontier.about)["answers"] == str(answers + len(measured(again)))
    assert not journal_path(out).exists()


def test_ctrl_c_writes_what_there_is_and_the_same_command_continues(tmp_path: Path) -> None:
    out = tmp_path / "f.json"

    reached = threading.Event()

    async def interrupted(url: str) -> None:
        task = asyncio.ensure_future(calibrate(job_for(url, out), Watcher()))
        await asyncio.to_thread(reached.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    llama = TimedLlama(slowness=0.02, hook=after(45, lambda llama: reached.set()))
    with llama.serving() as url:
        asyncio.run(interrupted(url))
    assert load_frontier(str(out)).rows
    before = sum('"timings"' in line for line in journal_path(out).read_text().splitlines())
    assert before >= 15
    run(TimedLlama(), out)
    assert not journal_path(out).exists()


def test_a_resumed_run_measures_the_same_blocks_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    whole, cut = (
        TimedLlama(),
        TimedLlama(hook=after(20, lambda llama: (_ for _ in ()).throw(ConnectionAbortedError()))),
    )
    run(whole, tmp_path / "a.json", contexts=(64,))
    with pytest.raises(UpstreamError):
        run(cut, tmp_path / "b.json", contexts=(64,))
    rest = TimedLlama()
    run(rest, tmp_path / "b.json", contexts=(64,))

    def order(llama: TimedLlama) -> list[tuple[int, int]]:
        return [(body["seed"], body["speculative.n_max"]) for body in measured(llama)]

    assert 5 < len(order(cut)) < len(order(whole))
    assert order(cut) + order(rest) == order(whole)


def test_the_journal_of_another_calibration_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    with pytest.raises(UpstreamError):
        run(TimedLlama(hook=after(30, lambda llama: (_ for _ in ()).throw(OSError()))), out)
    said = refused(TimedLlama(), out, UsageError, contexts=(64, 128))
    assert "is the journal of another calibration: contexts was [64, 256], now is [64, 128]" in said


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    with pytest.raises(UpstreamError):
        run(TimedLlama(hook=after(30, lambda llama: (_ for _ in ()).throw(OSError()))), out)
    with journal_path(out).open("ab") as file:
        file.write(b'{"at": 3, "context_')
    frontier, _ = run(TimedLlama(), out)
    assert dict(frontier.about)["complete"] == "yes"


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    with pytest.raises(UpstreamError):
        run(TimedLlama(hook=after(30, lambda llama: (_ for _ in ()).throw(OSError()))), out)
    lines = journal_path(out).read_text().splitlines()
    journal_path(out).write_text("\n".join([*lines[:3], "{}", *lines[4:]]) + "\n")
    assert "line 4 is damaged" in refused(TimedLlama(), out, InputFileError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line_and_what_was_kept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "f.json"
    real = os.fsync
    calls = iter(range(10**9))

    def full(handle: int) -> None:
        if next(calls) > 20:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError) as caught, TimedLlama().serving() as url:
        asyncio.run(calibrate(job_for(url, out), Watcher()))
    said = str(caught.value)
    assert "No space left on device" in said
    assert "make room and give the same command again" in said
    assert "\n" not in said
    monkeypatch.undo()
    kept = [json.loads(line) for line in journal_path(out).read_text().splitlines()]
    assert sum("timings" in line for line in kept) >= 10
    frontier, _ = run(TimedLlama(), out)
    assert dict(frontier.about)["complete"] == "yes"
