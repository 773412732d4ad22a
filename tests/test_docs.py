"""The docs are true: tables equal the code's, links lead somewhere, and the commands they show run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adaptive_dd import cli
from adaptive_dd.chooser import MUTE
from adaptive_dd.core import arrivals, inferred
from tests.docs_tables import MARKED, PRINTED, ROOT, TABLES, doc_files, renewed, reprinted

TEXTS = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in doc_files()}
names = pytest.mark.parametrize("path", TEXTS, ids=str)


@names
def test_a_marked_table_equals_the_table_in_the_code(path: Path) -> None:
    assert renewed(TEXTS[path]) == TEXTS[path], "run `make docs`"


@pytest.mark.slow
def test_the_output_that_the_docs_show_is_what_the_commands_print() -> None:
    shown = [path for path, text in TEXTS.items() if PRINTED.search(text)]
    assert shown == [Path("README.md")]
    for path in shown:
        assert reprinted(TEXTS[path]) == TEXTS[path], "run `make docs`"


def test_every_table_of_the_code_stands_somewhere_in_the_docs() -> None:
    shown = {match.group("name") for text in TEXTS.values() for match in MARKED.finditer(text)}
    assert shown == set(TABLES)


@names
def test_a_link_to_a_file_leads_to_a_file(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXTS[path]):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / path.parent / target).exists(), target


def test_what_the_docs_say_of_arrivals_is_what_the_code_does() -> None:
    text = TEXTS[Path("docs/actuators.md")]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) >= {
        *("held-back", "blurred", "merged", "slow-reader", "too-long")
    }
    assert f"{inferred.SILENT_SHARE:.0%} of the others" in text
    assert f"more than {inferred.HELD_SHARE:.0%} of the time" in text
    assert f"in more than {inferred.MERGED_SHARE:.0%} of them" in text
    assert f"more than {arrivals.MOST_BURSTS:,} arrivals" in text
    assert inferred.VALLEYS[0] == 0.1
    assert MUTE == 3


def shown_commands() -> list[tuple[Path, str]]:
    found = []
    for path, text in TEXTS.items():
        for block in re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL):
            joined = block.replace("\\\n", " ")
            found += [(path, line.removeprefix("$ ").strip()) for line in joined.splitlines()]
    return [(path, line) for path, line in found if line.startswith("adaptive-dd ")]


@pytest.mark.parametrize(("path", "line"), shown_commands(), ids=str)
def test_a_command_shown_in_the_docs_exists_with_the_flags_shown(path: Path, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[
        : next((i for i, word in enumerate(words) if word in ("|", ">", "&", "&&", ";")), len(words))
    ]
    commands = [word for word in words if not word.startswith("-")]
    runner, head = CliRunner(), [commands[0]]
    text = runner.invoke(cli.app, [*head, "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    if "COMMAND [ARGS]" in text and len(commands) > 1:
        head.append(commands[1])
        text = runner.invoke(
            cli.app, [*head, "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}
        ).output
    assert "Usage" in text, text
    for word in words:
        if word.startswith("--") and word != "--version":
            assert re.search(rf"{re.escape(word.split('=')[0])}\b", text), (
                f"{word} is no flag of {' '.join(head)}"
            )


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@names
def test_a_make_target_named_in_the_docs_exists(path: Path) -> None:
    assert set(re.findall(r"`make ([a-z-]+)", TEXTS[path])) <= make_targets()


def test_every_phony_target_is_a_target() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name for line in phony for name in line.split()} == make_targets()


@names
def test_the_docs_name_no_registry_host_and_no_path_of_a_machine(path: Path) -> None:
    for word in ("/work/", "/root/", "/tmp/", "pypi.org", "/opt/"):
        assert word not in TEXTS[path]
