"""The house plan: a module may import only from rows above its own, and the core touches no world."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "adaptive_dd"

# Top row = ground floor. A name ending in "/" stands for every module in that folder.
ROWS: tuple[tuple[str, ...], ...] = (
    ("__init__", "core/__init__", "errors", "core/domain", "core/rng"),
    ("core/events", "core/cycles", "core/splice", "core/prompt", "core/pieces"),
    (
        "core/wire",
        "core/headers",
        "core/context",
        "core/frontier",
        "core/ledger",
        "core/listening",
        "core/identity",
        "core/overheard",
        "core/sim",
        "core/aliases",
        "core/cost",
        "core/acceptance",
        "core/regression",
    ),
    (
        "core/tap",
        "core/annotate",
        "core/verdict",
        "core/learned",
        "core/traffic",
        "core/paired",
        "core/surface",
        "core/trials",
    ),
    ("core/texts", "core/grid"),
    ("core/estimator",),
    ("core/guard", "core/machines", "core/standing", "core/outlook", "core/arrivals"),
    ("core/field",),
    ("core/policy", "core/measure", "core/scenarios", "core/inferred"),
    ("core/state", "core/seeding", "core/ending"),
    ("core/planning", "core/placement"),
    ("core/learning",),
    ("core/controller", "core/worlds"),
    (
        "core/asking",
        "core/codec",
        "core/replay",
        "core/offpolicy",
        "core/freezing",
        "core/explain",
        "core/arena",
        "core/advice",
        "frontier_json",
    ),
    (
        "core/rivals/",
        "simulated",
        "simnamed",
        "config",
        "files",
        "migrations",
        "metrics",
        "sockets",
        "frontier_file",
        "frontier_report",
        "prompts/",
        "data/",
        "presets",
    ),
    ("resume",),
    ("store", "calibration_log", "calibration_view", "upstream", "simserver", "httpd"),
    ("reader",),
    ("journal",),
    ("engine", "counting", "probe"),
    ("actuator", "exact_prompts"),
    ("replicas",),
    ("router",),
    ("chooser", "watch", "seams", "tend"),
    ("incoming",),
    ("calibration_target",),
    (
        "proxy",
        "admin",
        "checkup",
        "calibrate",
        "bench",
        "bench_places",
        "plots",
        "frontier_tools",
        "advise",
        "report",
    ),
    ("policy_view",),
    ("serve", "bench_report"),
    ("demo",),
    ("commands/",),
    ("cli",),
    ("__main__",),
)

WORLD = {
    "time",
    "datetime",
    "socket",
    "os",
    "io",
    "logging",
    "random",
    "sqlite3",
    "asyncio",
    "pathlib",
    "threading",
}


def modules() -> list[str]:
    return sorted(str(p.relative_to(PACKAGE).with_suffix("")) for p in PACKAGE.rglob("*.py"))


def row_of(module: str) -> int | None:
    for number, row in enumerate(ROWS):
        for name in row:
            if module == name or (name.endswith("/") and module.startswith(name)):
                return number
    return None


def imported(module: str) -> set[str]:
    """Top-level names and, for our own package, module paths that a module imports (anywhere in it)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            base = node.module or ""
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def our_imports(module: str) -> set[str]:
    known = set(modules())
    paths = {name.removeprefix("adaptive_dd.").replace(".", "/") for name in imported(module)}
    return {path for path in paths if path in known and path != module}


def test_every_module_has_a_room_in_the_house_plan() -> None:
    assert [m for m in modules() if row_of(m) is None] == []


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_rows_above_its_own(module: str) -> None:
    own = row_of(module)
    if own is None:
        pytest.skip("has no row: the test above fails for it")
    same_folder_ok = any(name.endswith("/") and module.startswith(name) for name in ROWS[own])
    for other in our_imports(module):
        row = row_of(other)
        allowed = row is not None and (row < own or (row == own and same_folder_ok))
        assert allowed, f"{module} (row {own}) imports {other} (row {row})"


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("core/")])
def test_the_core_imports_no_clock_socket_file_or_log(module: str) -> None:
    touched = {name.split(".")[0] for name in imported(module)} & WORLD
    assert touched == set()
