"""The tables in the docs, made from the tables in the code.

    python -m tests.docs_tables        (make docs) rewrites every marked table; a test holds them equal

A marked table stands between `<!-- table:NAME -->` and `<!-- /table -->`. What a command prints (always the
same, by its seed) stands likewise between `<!-- output:NAME -->` and `<!-- /output -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from adaptive_dd import cli
from adaptive_dd.admin import ENDPOINTS, LISTENS_TEXT
from adaptive_dd.config import SETTINGS, env_of, flag_of
from adaptive_dd.core import trials
from adaptive_dd.core.domain import REASONS, REJECTIONS, TOKEN_SOURCES
from adaptive_dd.demo import TOURS, demo_lines
from adaptive_dd.metrics import METRICS, PREFIX

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- table:(?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- /table -->)", re.DOTALL)


PRINTED = re.compile(
    r"(<!-- output:(?P<name>[a-z-]+) -->\n)```text\n(?P<body>.*?)```\n(<!-- /output -->)", re.DOTALL
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _two(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    return table(head, ((f"`{name}`", text) for name, text in rows.items()))


def settings() -> str:
    def default(value: object) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return "" if value is None or value == "" else f"`{value}`"

    rows = (
        (f"`{flag_of(n)}`", f"`{env_of(n)}`", default(r.default), r.help, r.expected)
        for n, r in SETTINGS.items()
    )
    return table(("flag", "environment", "default", "what it does", "expected"), rows)


def metrics() -> str:
    rows = (
        (f"`{PREFIX}{name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for name, metric in METRICS.items()
    )
    return table(("metric", "kind", "labels", "what it counts"), rows)


def commands() -> str:
    rows = {f"adaptive-dd {c.name}": (c.help or "").split("\n")[0] for c in cli.listed_commands()}
    return _two(("command", "what it does"), rows)


def guard_states() -> str:
    rows = (
        (f"`{before}`", str(signal), f"`{after}`") for (before, signal), after in trials.TRANSITIONS.items()
    )
    drawn = f"```mermaid\n{trials.diagram()}\n```\n"
    return drawn + "\n" + table(("from", "when", "to"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "metrics": metrics,
    "commands": commands,
    "guard": guard_states,
    "endpoints": lambda: _two(("endpoint", "what it answers"), ENDPOINTS),
    "reasons": lambda: _two(("reason", "meaning"), REASONS),
    "rejections": lambda: _two(("why", "meaning"), REJECTIONS),
    "token-sources": lambda: _two(("source", "meaning"), TOKEN_SOURCES),
    "listens": lambda: _two(
        ("what the server does", "said as"), {k.value: v for k, v in LISTENS_TEXT.items()}
    ),
}


OUTPUTS: Mapping[str, Callable[[], str]] = {"demo": lambda: "\n".join(demo_lines(TOURS, seed=1)) + "\n"}


def doc_files() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def renewed(text: str) -> str:
    """The text with every marked table made anew."""
    return MARKED.sub(lambda match: match.group(1) + TABLES[match.group("name")]() + match.group(4), text)


def reprinted(text: str) -> str:
    """The text with every printed output made anew: this runs the commands."""
    return PRINTED.sub(
        lambda match: f"{match.group(1)}```text\n{OUTPUTS[match.group('name')]()}```\n{match.group(4)}", text
    )


def main() -> None:
    for path in doc_files():
        before = path.read_text(encoding="utf-8")
        after = reprinted(renewed(before))
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"renewed {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
