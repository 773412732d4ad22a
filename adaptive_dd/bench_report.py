"""What the bench found, as tables, Markdown and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from scipy.special import betaincinv

from adaptive_dd.bench import HINDSIGHT, OURS, Score, Verdict
from adaptive_dd.core.scenarios import SCENARIOS
from adaptive_dd.errors import InputFileError, UsageError
from adaptive_dd.files import write_atomically

# A scenario's mean above 1 by more than this is "slower than the baseline".
SLOWER = 0.002
# Below this gain of the oracle a captured share says nothing.
SMALL_GAIN = 0.03

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy over all scenarios and seeds; see the header of `policy_table` for the columns."""

    policy: str
    relative: float
    captured: float | None
    captured_late: float | None
    lowest_late: float | None
    requests_to_90: float | None
    slower: int
    worst_requests: float
    beaten: float | None


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of those that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def by(scores: Sequence[Score], key: Callable[[Score], str]) -> dict[str, list[Score]]:
    """Scores grouped, in order of appearance."""
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(key(score), []).append(score)
    return groups


def summarise(scores: Sequence[Score]) -> list[Summary]:
    """One line per policy, fastest last but for the references."""
    policies = by(scores, lambda score: score.policy)
    lines = [_summary(name, own, policies.get(OURS, [])) for name, own in policies.items()]
    return sorted(lines, key=lambda line: (line.policy in HINDSIGHT, -line.relative))


def _summary(name: str, own: list[Score], ours: list[Score]) -> Summary:
    cells = by(own, lambda score: score.scenario)
    gains = {cell: 1.0 - fmean(s.oracle_relative for s in group) for cell, group in cells.items()}
    late = {
        cell: mean(s.captured_late for s in group)
        for cell, group in cells.items()
        if gains[cell] > SMALL_GAIN
    }
    reached = [_to_90(group) for cell, group in cells.items() if gains[cell] > SMALL_GAIN]
    means = {cell: fmean(s.relative for s in group) for cell, group in cells.items()}
    our_means = {
        cell: fmean(s.relative for s in group) for cell, group in by(ours, lambda s: s.scenario).items()
    }
    pairs = [our_means[cell] <= value + 1e-4 for cell, value in means.items() if cell in our_means]
    known_late = [value for value in late.values() if value is not None]
    return Summary(
        name,
        fmean(means.values()),
        mean(mean(s.captured for s in group) for cell, group in cells.items() if gains[cell] > SMALL_GAIN),
        mean(late.values()),
        min(known_late, default=None),
        median(reached) if reached and name not in HINDSIGHT else None,
        sum(value > 1.0 + SLOWER for value in means.values()),
        max(s.worst_requests for s in own),
        fmean(pairs) if pairs and name != OURS and name not in HINDSIGHT else None,
    )


def _to_90(group: list[Score]) -> float:
    return median(math.inf if s.requests_to_90 is None else float(s.requests_to_90) for s in group)


def number(value: float | None, digits: int = 3) -> str:
    """A figure of a table; a dash where there is none, `never` for infinity."""
    if value is None:
        return "-"
    return "never" if math.isinf(value) else f"{value:.{digits}f}"


def policy_table(scores: Sequence[Score]) -> Table:
    """Policies over all scenarios."""
    header = (
        "policy",
        "relative time",
        "gain captured",
        "in the last half",
        "least of a scenario",
        "requests to 90%",
        "scenarios slower",
        "worst moment (requests)",
        "ours as fast or faster",
    )
    rows = [
        (
            line.policy,
            number(line.relative),
            number(line.captured, 2),
            number(line.captured_late, 2),
            number(line.lowest_late, 2),
            number(line.requests_to_90, 0),
            str(line.slower),
            number(line.worst_requests, 1),
            "-" if line.beaten is None else f"{line.beaten:.0%}",
        )
        for line in summarise(scores)
    ]
    return header, rows


def scenario_table(scores: Sequence[Score]) -> Table:
    """Scenarios: ours in full, the best rival, and the references."""
    header = (
        "scenario",
        "oracle",
        "best fixed",
        "ours",
        "gain captured",
        "in the last half",
        "requests to 90%",
        "worst moment (requests)",
        "best rival",
    )
    rows = []
    for name, group in by(scores, lambda score: score.scenario).items():
        cells = by(group, lambda score: score.policy)
        ours = cells.get(OURS, [])
        rivals = {
            policy: fmean(s.relative for s in own)
            for policy, own in cells.items()
            if policy != OURS and policy not in HINDSIGHT
        }
        best = min(rivals, key=rivals.__getitem__, default="")
        rows.append(
            (
                name,
                number(fmean(s.relative for s in cells["oracle"])),
                number(fmean(s.relative for s in cells["best-fixed"])),
                number(mean(s.relative for s in ours)),
                number(mean(s.captured for s in ours), 2),
                number(mean(s.captured_late for s in ours), 2),
                number(_to_90(ours), 0) if ours and any(s.captured is not None for s in ours) else "-",
                number(max((s.worst_requests for s in ours), default=None), 1),
                f"{best} {rivals[best]:.3f}" if best else "-",
            )
        )
    return header, rows


def guarantee_lines(verdicts: Sequence[Verdict], *, alpha: float, c0_ms: float, delta: float) -> list[str]:
    """The share of worlds that ever exceeded the promise, with its interval, and the worst world."""
    broken = [v for v in verdicts if v.beyond_ms > 0.0]
    worst = max(verdicts, key=lambda v: v.beyond_ms / v.baseline_ms)
    high = float(betaincinv(len(broken) + 1, max(1, len(verdicts) - len(broken)), 0.975))
    low = float(betaincinv(len(broken), len(verdicts) - len(broken) + 1, 0.025)) if broken else 0.0
    share = len(broken) / len(verdicts)
    excess = worst.beyond_ms / worst.baseline_ms
    return [
        f"{len(verdicts)} worlds; promise: total <= {1 + alpha:g} x baseline + {c0_ms / 1000:g} s at every moment",
        f"exceeded in {len(broken)} ({share:.2%}, 95% interval {low:.2%} to {high:.2%}); allowed {delta:.0%}",
        f"mean relative time {fmean(v.relative for v in verdicts):.3f}",
        f"worst: {worst.world} ({worst.shows}): {worst.beyond_ms / 1000:+.2f} s at request {worst.at_request}, "
        f"{excess:+.2%} of the baseline's total; its total in the end {worst.relative:.3f} of the baseline's",
        "its excess over the run (s): " + spark(worst.curve_ms),
    ]


def spark(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text, with its ends."""
    bars = "▁▂▃▄▅▆▇█"
    step = max(1, len(values) // width)
    shown = values[::step]
    low, high = min(shown), max(shown)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    drawn = "".join(bars[int((value - low) * scale)] for value in shown)
    return f"{low / 1000:+.1f} .. {high / 1000:+.1f}  {drawn}"


def plain(table: Table) -> str:
    """A table as aligned text."""
    header, rows = table
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def markdown(table: Table) -> str:
    """A table as Markdown."""
    header, rows = table
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ("---",) * len(header), *rows))


def what_scenarios_show() -> str:
    """The scenarios as a Markdown table with their sources."""
    rows = [(name, entry.shows, ", ".join(entry.sources)) for name, entry in SCENARIOS.items()]
    return markdown((("scenario", "what it shows", "rows of data"), rows))


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name:begin -->` and `<!-- name:end -->` of a file, and leave the rest as it is.

    A file without the markers gets the section at its end; one that does not exist is made. Raises InputFileError for
    a file that cannot be read or has one marker without the other.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(f"{path}: cannot be read as text: {error}") from error
    if (begin in old) != (end in old) or old.find(end) < old.find(begin):
        raise InputFileError(f"{path}: expected {begin} before {end}, found one without the other")
    section = f"{begin}\n{text.strip()}\n{end}"
    if begin in old:
        head, rest = old.split(begin, 1)
        new = head + section + rest.split(end, 1)[1]
    else:
        new = f"{old.rstrip()}\n\n{section}\n".lstrip("\n")
    write_atomically(path, new)


def plot_scores(scores: Sequence[Score], path: Path) -> None:
    """Relative time by scenario: every rival a grey dot, ours and the references in colour."""
    figure, axes = _figure(9.0, 0.3 * len({s.scenario for s in scores}) + 1.5)
    names = list(by(scores, lambda score: score.scenario))
    for policy, own in by(scores, lambda score: score.policy).items():
        cells = by(own, lambda score: score.scenario)
        xs = [fmean(s.relative for s in cells[name]) for name in names if name in cells]
        ys = [names.index(name) for name in names if name in cells]
        look = {OURS: ("tab:blue", 40), "oracle": ("tab:green", 25), "best-fixed": ("tab:orange", 20)}
        colour, size = look.get(policy, ("0.7", 12))
        axes.scatter(xs, ys, s=size, color=colour, label=policy if policy in look else None, zorder=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(1.0, color="0.3", linewidth=0.8)
    axes.set_xlim(right=1.5)
    axes.set_xlabel("decode time relative to the fixed baseline (grey: rivals)")
    axes.legend(loc="lower right")
    figure.savefig(path)


def plot_guarantee(verdicts: Sequence[Verdict], path: Path) -> None:
    """The excess over the promise of every world, as a share of the baseline's total; the worst in colour."""
    figure, axes = _figure(9.0, 5.0)
    ordered = sorted(verdicts, key=lambda v: v.beyond_ms / v.baseline_ms)
    for verdict in ordered:
        worst = verdict is ordered[-1]
        share = [100.0 * value / verdict.baseline_ms for value in verdict.curve_ms]
        axes.plot(share, color="tab:red" if worst else "0.8", linewidth=1.5 if worst else 0.5)
    axes.axhline(0.0, color="0.3", linewidth=0.8)
    axes.set_ylim(bottom=max(-30.0, axes.get_ylim()[0]))
    axes.set_xlabel("share of the run")
    axes.set_ylabel("beyond the promise, % of the baseline's total")
    axes.set_title(f"worst: {ordered[-1].world}")
    figure.savefig(path)


def _figure(width: float, height: float):  # type: ignore[no-untyped-def]  # matplotlib is an extra
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'adaptive_dd[plot]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
