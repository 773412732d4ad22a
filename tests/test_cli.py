"""The command line as a whole: wrong use is one line, help and version are not errors."""

from __future__ import annotations

import pytest

from tests.support.cli import run_here


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("serve", "--nosuch"), "No such option: --nosuch"),
        (("doctor",), "Missing option '--upstream'"),
        (("inspect", "--last", "-1"), "--last"),
        (("freeze", "--out", "x", "--format", "none"), "--format"),
        (("bench", "more"), "more"),
        (("nosuch",), "No such command 'nosuch'"),
        (("frontier", "nosuch"), "No such command 'nosuch'"),
        (("serve",), "upstream: not given"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(args: tuple[str, ...], says: str) -> None:
    done = run_here(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("adaptive-dd: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("serve", "--help"), ("bench", "--list")])
def test_what_was_asked_for_is_printed_and_is_no_error(args: tuple[str, ...]) -> None:
    done = run_here(*args)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_without_a_command_the_help_is_shown() -> None:
    assert "Commands" in run_here().stdout
