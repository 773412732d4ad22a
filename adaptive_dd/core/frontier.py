"""The offline frontier as a value: buckets, safe rows, the ladder of chosen settings.

Pure look-ups on `Frontier`; reading and checking files is `frontier_file`'s work.

The safety rule. At each measured context the fastest row that is *safe* is played, else the baseline. A row is safe
when its own measurements put it above the baseline's mean there: by its paired interval where calibration wrote one
(`gain_low` > 1), else by the lower end of the ordinary 95% interval of its mean where `samples` and `sd` are given,
else by its bare `tok_s`. Ties go to the baseline. Where the baseline itself was not measured nothing can be proven, so
the baseline is played. Rows above the cap (the user's, else the file's) are not used: a clamped row is another
setting, which nobody measured.

Against which baseline. The user's, if given, else the file's. With the user's baseline `server` and a file without
`server` rows, the file's own baseline stands in for the launch values when rows are judged, and `server` (identical
bytes) is what is played where no row wins. That is right when the server was launched with the file's baseline; with
other launch values that the file measured, the fastest row is still at least as fast as they are.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from adaptive_dd.core.domain import LARGEST_N, OFF, SERVER, Frontier, FrontierRow, Setting

# Without measurements: powers of four, as decode cost grows slowly with context.
DEFAULT_EDGES = (512, 2048, 8192, 32768, 131072)
# The lower end of an ordinary two-sided 95% interval.
CONFIDENCE = 0.975
NEIGHBOUR_P = (0.0, 0.3, 0.6)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: from `min_tokens` prompt tokens on, play `setting`.

    gain: measured tok/s over the baseline's (1.0 where the baseline is played); why: one of WHY.
    """

    min_tokens: int
    setting: Setting
    gain: float = 1.0
    why: str = "proven"


WHY = {
    "proven": "measured faster than the baseline",
    "given": "a rule of the ladder that the user gave",
    "tie": "no row beats the baseline",
    "unproven": "a row is faster on average, but its lower bound is not above the baseline",
    "no-baseline": "the baseline was not measured here, so nothing can be proven",
    "not-measured": "no row here",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A row against the baseline at its context: ratio of tok/s, with the interval's ends where there is one."""

    row: FrontierRow
    gain: float
    low: float | None
    high: float | None

    @property
    def safe(self) -> bool:
        """Whether the row's own measurements put it above the baseline, and it is not marked as making no claim."""
        return not self.row.mark and (self.gain if self.low is None else min(self.gain, self.low)) > 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Static against dynamic at one measured context (and kind): the baseline's row, the row played, and why.

    judged: every usable row but the baseline's, fastest first.
    """

    context_tokens: int
    kind: str
    baseline: FrontierRow | None
    best: Judged | None
    why: str
    judged: tuple[Judged, ...]

    @property
    def gain(self) -> float:
        """tok/s of what is played over the baseline's."""
        return self.best.gain if self.best is not None else 1.0


# --- buckets -------------------------------------------------------------------------------------------------


def bucket_edges(frontier: Frontier) -> tuple[int, ...]:
    """Where one context bucket ends and the next begins (a prompt of exactly an edge belongs above it)."""
    if frontier.rules:
        return tuple(tokens for tokens, _ in frontier.rules if tokens > 0)
    if frontier.edges is not None:
        return frontier.edges
    contexts = sorted({row.context_tokens for row in frontier.rows})
    if not contexts:
        return DEFAULT_EDGES
    edges = [round(math.sqrt(low * high)) for low, high in itertools.pairwise(contexts)]
    return tuple(sorted({max(edge, low + 1) for edge, low in zip(edges, contexts, strict=False)}))


def bucket_of(edges: tuple[int, ...], prompt_tokens: int) -> int:
    """Index of the bucket (0 .. len(edges)) that holds a prompt of this length."""
    return bisect_right(edges, prompt_tokens)


# --- judging rows --------------------------------------------------------------------------------------------


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for 0.5 < probability < 1.

    G. W. Hill, "Algorithm 396: Student's t-quantiles", CACM 13 (1970): exact for one and two degrees of freedom,
    else within 0.1% for probabilities up to 0.9995. Here because importing scipy.stats costs the proxy tens of
    megabytes.
    """
    tail = 2.0 * (1.0 - probability)
    if freedom == 1:
        return 1.0 / math.tan(tail * math.pi / 2.0)
    if freedom == 2:
        return math.sqrt(2.0 / (tail * (2.0 - tail)) - 2.0)
    n = float(freedom)
    a = 1.0 / (n - 0.5)
    b = (48.0 / a) / a
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * n
    y = (d * tail) ** (2.0 / n)
    if y > a + 0.05:
        x = -NormalDist().inv_cdf(1.0 - tail / 2.0)
        y = x * x
        if freedom < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(a * y * y)
    else:
        inner = ((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0
        y = ((1.0 / inner + 0.5 / (n + 4.0)) * y - 1.0) * (n + 1.0) / (n + 2.0) + 1.0 / y
    return math.sqrt(n * y)


def half_width(row: FrontierRow) -> float | None:
    """Half of the 95% interval of the row's mean, in tok/s; None without samples and sd to tell."""
    if row.samples is None or row.sd is None or row.samples < 2:
        return None
    return t_quantile(CONFIDENCE, row.samples - 1) * row.sd / math.sqrt(row.samples)


def judge(row: FrontierRow, base: FrontierRow, *, paired: bool) -> Judged:
    """`row` against the baseline's row. paired: whether the row's own `gain` was measured against that baseline."""
    if paired and row.gain is not None:
        return Judged(row, row.gain, row.gain_low, row.gain_high)
    ratio, half = row.tok_s / base.tok_s, half_width(row)
    if half is None:
        return Judged(row, ratio, None, None)
    return Judged(row, ratio, (row.tok_s - half) / base.tok_s, (row.tok_s + half) / base.tok_s)


def kind_covers(row_kind: str, kind: str) -> bool:
    """Whether a row measured for `row_kind` speaks for requests of `kind` (`sampled` for `sampled.free.chat`)."""
    return row_kind in ("", kind) or kind.startswith(f"{row_kind}.")


def _rows_for(frontier: Frontier, kind: str) -> list[FrontierRow]:
    """Rows that speak for a kind; at each context only those of the most specific kind that covers it.

    Kind "" (any request) takes rows without a kind where there are some, else all: a setting must then be safe for
    every measured kind.
    """
    if not kind:
        plain = {r.context_tokens for r in frontier.rows if not r.kind}
        return [r for r in frontier.rows if not r.kind or r.context_tokens not in plain]
    covering = [r for r in frontier.rows if kind_covers(r.kind, kind)]
    closest: dict[int, int] = {}
    for row in covering:
        closest[row.context_tokens] = max(closest.get(row.context_tokens, 0), len(row.kind))
    return [r for r in covering if len(r.kind) == closest[r.context_tokens]]


def _baseline_row(frontier: Frontier, rows: Sequence[FrontierRow], baseline: Setting) -> FrontierRow | None:
    for wanted in (baseline, frontier.baseline) if baseline == SERVER else (baseline,):
        for row in rows:
            if row.setting == wanted:
                return row
    return None


def _compare(
    frontier: Frontier, rows: Sequence[FrontierRow], baseline: Setting, cap: int | None
) -> Comparison:
    """Judge the rows of one context and kind."""
    context_tokens, kind = rows[0].context_tokens, rows[0].kind
    base = _baseline_row(frontier, rows, baseline)
    if base is None:
        return Comparison(context_tokens, kind, None, None, "no-baseline", ())
    paired = base.setting == frontier.baseline
    usable = (r for r in rows if r.setting != base.setting and (cap is None or (r.setting.n_max or 0) <= cap))
    others = [judge(row, base, paired=paired) for row in usable]
    ranked = sorted(others, key=lambda j: (-j.gain, j.row.setting.order))
    best = next((j for j in ranked if j.safe), None)
    why = "proven" if best else "unproven" if ranked and ranked[0].gain > 1.0 else "tie"
    return Comparison(context_tokens, kind, base, best, why, tuple(ranked))


def comparison(
    frontier: Frontier, *, baseline: Setting | None = None, cap: int | None = None, kind: str = ""
) -> tuple[Comparison, ...]:
    """Static against dynamic at every measured context, shortest first (and by kind, where rows have one).

    `baseline` and `cap` are the user's; None takes those of the file.
    """
    groups: dict[tuple[int, str], list[FrontierRow]] = {}
    for row in _rows_for(frontier, kind):
        groups.setdefault((row.context_tokens, row.kind), []).append(row)
    wanted = frontier.baseline if baseline is None else baseline
    limit = frontier.cap if cap is None else cap
    return tuple(_compare(frontier, groups[key], wanted, limit) for key in sorted(groups))


# --- the ladder ----------------------------------------------------------------------------------------------


def safe_rows_at(
    frontier: Frontier,
    bucket: int,
    *,
    edges: tuple[int, ...] | None = None,
    baseline: Setting | None = None,
    cap: int | None = None,
    kind: str = "",
) -> tuple[Judged, ...]:
    """The safe rows whose context lies in this bucket, fastest first."""
    limits = bucket_edges(frontier) if edges is None else edges
    here = comparison(frontier, baseline=baseline, cap=cap, kind=kind)
    found = (j for c in here if bucket_of(limits, c.context_tokens) == bucket for j in c.judged if j.safe)
    return tuple(sorted(found, key=lambda j: (-j.gain, j.row.setting.order)))


def measured_ms_per_token(
    frontier: Frontier, bucket: int, *, edges: tuple[int, ...], kind: str = ""
) -> dict[Setting, float]:
    """What a token was measured to take under each setting in a bucket, in ms: the mean over its contexts there.

    Settings that were measured at some of the contexts only are compared on different prompts; calibration measures
    its best ones and the baseline at all of them.
    """
    found: dict[Setting, list[float]] = {}
    for row in _rows_for(frontier, kind):
        if bucket_of(edges, row.context_tokens) == bucket and row.tok_s > 0.0:
            found.setdefault(row.setting, []).append(1000.0 / row.tok_s)
    return {setting: sum(each) / len(each) for setting, each in found.items()}


def _rung(min_tokens: int, here: Sequence[Comparison], baseline: Setting) -> Rung:
    """The setting that is safe at every context (and kind) measured in a bucket, by its mean gain."""
    if not here:
        return Rung(min_tokens, baseline, 1.0, "not-measured")
    safe = [{j.row.setting: j.gain for j in c.judged if j.safe} for c in here]
    common = set(safe[0]).intersection(*safe[1:])
    if not common:
        why = next((c.why for c in here if c.why != "proven"), "unproven")
        return Rung(min_tokens, baseline, 1.0, why)
    scores = {s: math.exp(sum(math.log(g[s]) for g in safe) / len(safe)) for s in common}
    best = min(common, key=lambda s: (-scores[s], s.order))
    return Rung(min_tokens, best, scores[best], "proven")


def _given_ladder(frontier: Frontier, baseline: Setting, cap: int | None) -> tuple[Rung, ...]:
    rungs = [Rung(tokens, setting.clamped(cap), 1.0, "given") for tokens, setting in frontier.rules]
    if rungs[0].min_tokens > 0:
        rungs.insert(0, Rung(0, baseline, 1.0, "not-measured"))
    return tuple(rungs)


def ladder(
    frontier: Frontier,
    *,
    edges: tuple[int, ...] | None = None,
    baseline: Setting | None = None,
    cap: int | None = None,
    kind: str = "",
) -> tuple[Rung, ...]:
    """What to play from which prompt length on: one rung for each bucket, `ladder(f)[bucket_of(edges, n)]`.

    A frontier that was given as rules (a ladder string) keeps its own steps, clamped to the cap, whatever `edges`.
    The last bucket is open: far beyond the longest measured context its setting is an extrapolation.
    """
    wanted = frontier.baseline if baseline is None else baseline
    if frontier.rules:
        return _given_ladder(frontier, wanted, frontier.cap if cap is None else cap)
    limits = bucket_edges(frontier) if edges is None else edges
    compared = comparison(frontier, baseline=wanted, cap=cap, kind=kind)
    by_bucket: dict[int, list[Comparison]] = {}
    for one in compared:
        by_bucket.setdefault(bucket_of(limits, one.context_tokens), []).append(one)
    starts = (0, *limits)
    return tuple(_rung(start, by_bucket.get(i, ()), wanted) for i, start in enumerate(starts))


def rung_at(rungs: Sequence[Rung], prompt_tokens: int) -> Rung:
    """The last rung whose `min_tokens` is not above the prompt's length."""
    return rungs[max(0, bisect_right(rungs, prompt_tokens, key=lambda rung: rung.min_tokens) - 1)]


def setting_at(rungs: Sequence[Rung], prompt_tokens: int) -> Setting:
    """The setting that a ladder plays for a prompt of this length."""
    return rung_at(rungs, prompt_tokens).setting


def merged(rungs: Iterable[Rung]) -> tuple[Rung, ...]:
    """The ladder without steps that change nothing."""
    kept: list[Rung] = []
    for rung in rungs:
        if not kept or kept[-1].setting != rung.setting:
            kept.append(rung)
    return tuple(kept)


def ladder_text(rungs: Iterable[Rung]) -> str:
    """The lab server's policy string, `0:n4,p0.25;49152:n4,p0.0`."""
    return ";".join(f"{rung.min_tokens}:{rung.setting}" for rung in merged(rungs))


def neighbours(setting: Setting, *, cap: int | None = None) -> tuple[Setting, ...]:
    """Settings worth trying near this one: n one and two steps and a doubling away, p in 0, .3, .6 and its own.

    Clipped to the cap; without `setting` itself. `server` has none, as its values are not known here.
    """
    if setting.n_max is None:
        return ()
    n, deepest = setting.n_max, LARGEST_N if cap is None else cap
    depths = {n - 2, n - 1, n, n + 1, n + 2, 2 * n, n // 2}
    clipped = {min(max(0, depth), deepest) for depth in depths}
    levels = {*NEIGHBOUR_P} | ({setting.p_min} if setting.p_min is not None else set())
    found = {OFF if depth == 0 else Setting(depth, p) for depth in clipped for p in levels}
    return tuple(sorted(found - {setting}, key=lambda s: s.order))
