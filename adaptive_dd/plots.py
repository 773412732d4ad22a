"""A frontier drawn: static against dynamic over context, and the whole grid as small multiples.

matplotlib is an extra (`pip install 'adaptive_dd[plot]'`), so it is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_dd.core.domain import Frontier, FrontierRow, Setting
from adaptive_dd.core.frontier import Comparison, comparison, half_width
from adaptive_dd.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Endings that matplotlib writes without further libraries.
ENDINGS = (".svg", ".png", ".pdf")
STATIC, DYNAMIC, OTHER = "#7a7a7a", "#0b6e4f", "#c2d9d0"
LEVELS = ("#1f4e79", "#2e8b57", "#c0702a", "#7b3fa0", "#888888")
COLUMNS = 3


def check_ending(path: Path) -> None:
    """Raise UsageError for a file that cannot be drawn, before any work is done."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {path}: is no drawing; expected a name that ends in {', '.join(ENDINGS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--plot: matplotlib is not installed; expected pip install 'adaptive_dd[plot]'"
        ) from None


def draw(frontier: Frontier, path: Path, *, baseline: Setting | None = None, cap: int | None = None) -> None:
    """Write the drawing of a frontier with rows. Raises UsageError where it cannot be written."""
    check_ending(path)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure(frontier, baseline, cap)
    FigureCanvasAgg(figure)
    # Without a date and with names that depend on nothing, so that the same frontier gives the same file.
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        with rc_context({"svg.hashsalt": "adaptive-dd"}):
            figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot be written ({error.strerror or error})") from None


def _figure(frontier: Frontier, baseline: Setting | None, cap: int | None) -> Figure:
    from matplotlib.figure import Figure

    kinds = sorted({row.kind for row in frontier.rows}) or [""]
    places = sorted({(row.context_tokens, row.kind) for row in frontier.rows})
    grid_rows = -(-len(places) // COLUMNS)
    deepest = max((row.setting.n_max or 0) for row in frontier.rows)
    figure = Figure(figsize=(11.0, 3.6 * len(kinds) + 2.6 * grid_rows + 0.4), layout="constrained")
    ratios = [3.6] * len(kinds) + [2.6] * grid_rows
    spec = figure.add_gridspec(len(kinds) + grid_rows, COLUMNS, height_ratios=ratios)
    for at, kind in enumerate(kinds):
        rows = tuple(row for row in frontier.rows if row.kind == kind)
        own = Frontier(rows, frontier.baseline, frontier.edges, cap=frontier.cap)
        compared = comparison(own, baseline=baseline, cap=cap)
        _over_context(figure.add_subplot(spec[at, :]), compared, kind)
    for at, (context, kind) in enumerate(places):
        axes = figure.add_subplot(spec[len(kinds) + at // COLUMNS, at % COLUMNS])
        _over_depth(
            axes,
            [r for r in frontier.rows if (r.context_tokens, r.kind) == (context, kind)],
            baseline or frontier.baseline,
        )
        axes.set_xlim(-0.5, deepest + 0.5)
        axes.set_title(f"{context:,} tokens{f', {kind}' if kind else ''}", fontsize=9)
    figure.suptitle(
        " · ".join(part for part in (frontier.model, frontier.build) if part) or "frontier", fontsize=11
    )
    return figure


def _over_context(axes: Axes, compared: Sequence[Comparison], kind: str) -> None:
    """Static against dynamic tok/s, with the gain and the setting written at each proven winner."""
    known = [one for one in compared if one.baseline is not None]
    at = list(range(len(known)))
    static = [one.baseline.tok_s for one in known if one.baseline is not None]
    dynamic = [one.best.row if one.best else one.baseline for one in known]
    speeds = [row.tok_s for row in dynamic if row is not None]
    spread = [(half_width(row) or 0.0) if row is not None else 0.0 for row in dynamic]
    name = str(known[0].baseline.setting) if known and known[0].baseline else "baseline"
    axes.bar([x - 0.2 for x in at], static, 0.38, color=STATIC, label=f"static {name}")
    axes.bar(
        [x + 0.2 for x in at], speeds, 0.38, color=DYNAMIC, label="dynamic",
        yerr=spread if any(spread) else None, ecolor="#333333", capsize=3,
    )  # fmt: skip
    for x, one, speed, half in zip(at, known, speeds, spread, strict=True):
        said = f"{one.best.row.setting}\n{100.0 * (one.gain - 1.0):+.1f}%" if one.best else "tie"
        axes.annotate(said, (x + 0.2, speed + half), ha="center", va="bottom", fontsize=8, xytext=(0, 2),
                      textcoords="offset points")  # fmt: skip
    axes.set_xticks(at, [f"{one.context_tokens:,}" for one in known])
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel(f"tok/s{f' ({kind})' if kind else ''}")
    axes.margins(y=0.22)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    _plain(axes)


def _over_depth(axes: Axes, rows: Sequence[FrontierRow], baseline: Setting) -> None:
    """tok/s over draft depth, a line for each p_min, at one context."""
    levels = sorted(
        {row.setting.p_min for row in rows if row.setting.n_max}, key=lambda p: (p is not None, p)
    )
    off = [row for row in rows if row.setting.n_max == 0]
    for level, colour in zip(levels, LEVELS * (1 + len(levels) // len(LEVELS)), strict=False):
        line = [r for r in rows if r.setting.n_max and r.setting.p_min == level]
        depths = [r.setting.n_max or 0 for r in line]
        label = "p as launched" if level is None else f"p {level:g}"
        axes.errorbar(depths, [r.tok_s for r in line], yerr=[half_width(r) or 0.0 for r in line], color=colour,
                      marker="o", markersize=3.5, linewidth=1.2, elinewidth=0.8, label=label)  # fmt: skip
    for row in off:
        axes.axhline(row.tok_s, color=STATIC, linewidth=1.0, linestyle=":", label="off")
    for row in rows:
        if row.setting.n_max is None:
            axes.axhline(row.tok_s, color="#333333", linewidth=1.0, linestyle="--", label="server")
        elif row.setting == baseline:
            axes.plot(
                [row.setting.n_max], [row.tok_s], marker="s", markersize=8, fillstyle="none", color="#333333"
            )
    axes.set_xlabel("draft depth n", fontsize=8)
    axes.set_ylabel("tok/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_ylim(0.0, 1.2 * max(row.tok_s for row in rows))
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=7, loc="lower left", ncols=2)
    _plain(axes)


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
