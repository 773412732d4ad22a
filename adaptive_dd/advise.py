"""The adviser: from a journal, or from a calibration, to the launch flags that would serve this traffic best.

Also the two forms of a frozen policy that are for launching: a command line, and a presets file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptive_dd import presets
from adaptive_dd.core.advice import Advice, Compared, Sample, from_frontier, tokens_by_context
from adaptive_dd.core.domain import OFF, SERVER, Frontier, Setting, parse_setting
from adaptive_dd.core.frontier import bucket_edges, ladder

Row = Mapping[str, Any]  # one row of the journal's view `decisions`


def samples_of(rows: Iterable[Row], launch: Setting = SERVER) -> list[Sample]:
    """The answers in a journal that say what a setting costs.

    launch: what SERVER is in this deployment, where that is known. The first token belongs to the prompt.
    """
    found = []
    for row in rows:
        tokens, ms = (row["predicted_n"] or 0) - 1, row["predicted_ms"]
        if row["status"] != "ok" or ms is None or tokens < 1:
            continue
        arm = parse_setting(row["setting"])
        stratum = f"b{row['bucket']}.l{row['load']}.{row['kind']}"
        found.append(Sample(stratum, launch if arm == SERVER else arm, tokens, float(ms)))
    return found


def prompt_lengths(rows: Iterable[Row]) -> dict[int, float]:
    """Decoded tokens by prompt length: the traffic that a calibration is weighed by."""
    lengths: dict[int, float] = defaultdict(float)
    for row in rows:
        if row["prompt_n"] is not None and row["predicted_n"]:
            lengths[int(row["prompt_n"]) + int(row["cache_n"] or 0)] += float(row["predicted_n"])
    return dict(lengths)


def from_calibration(
    frontier: Frontier, baseline: Setting, lengths: Mapping[int, float] | None = None
) -> Advice:
    """Advice from a frontier's rows, weighed by the traffic's prompt lengths where they are known."""
    contexts = sorted({row.context_tokens for row in frontier.rows})
    weights = tokens_by_context(contexts, bucket_edges(frontier), lengths) if lengths and contexts else None
    return from_frontier(frontier, baseline, weights)


def best_fixed(frontier: Frontier) -> Setting:
    """The one setting to launch with, by a frontier's own rows; its baseline where nothing is surely faster."""
    return from_frontier(frontier, frontier.baseline).best


def llama_args(frontier: Frontier, *, spec_type: str = "draft-simple", draft: str = "") -> str:
    """A frontier as the draft flags of one llama-server: those of its best fixed setting."""
    return presets.llama_args(best_fixed(frontier), spec_type=spec_type, draft=draft)


def presets_ini(
    frontier: Frontier,
    *,
    model: str,
    public: str,
    draft: str = "",
    spec_type: str = "draft-simple",
    options: Mapping[str, str] | None = None,
) -> str:
    """A frontier as presets: what its ladder plays anywhere, its baseline, and off. Raises UsageError."""
    baseline = best_fixed(frontier) if frontier.baseline == SERVER else frontier.baseline
    baseline = OFF if baseline == SERVER else baseline
    kinds = dict.fromkeys(["", *(row.kind for row in frontier.rows)])
    played = [rung.setting for kind in kinds for rung in ladder(frontier, baseline=baseline, kind=kind)]
    settings = dict.fromkeys([baseline, OFF, *(arm for arm in played if arm != SERVER)])
    return presets.presets_ini(
        tuple(settings),
        model=model,
        public=public,
        baseline=baseline,
        draft=draft,
        spec_type=spec_type,
        options=options,
    )


# --- for eyes ------------------------------------------------------------------------------------------------


def lines_of(advice: Advice, *, source: str, spec_type: str, draft: str) -> list[str]:
    """The advice in words: what to launch, why, and how every other setting fared."""
    shown = [
        f"{source}: {advice.answers} answers, {advice.settings_met} settings; baseline {advice.baseline}"
    ]
    shown += _verdict(advice)
    if advice.compared:
        shown += ["", *_table(advice.compared)]
    if advice.best != SERVER:
        args = presets.llama_args(advice.best, spec_type=spec_type, draft=draft)
        shown += ["", f"  llama-server -m MODEL.gguf {args}"]
    return shown


def _verdict(advice: Advice) -> list[str]:
    if not advice.compared:
        return [
            f"Nothing can be compared with {advice.baseline}: no other setting was met in the same sort of requests.",
            "Serve for a while with other launch flags (mode observe measures), or run `adaptive-dd calibrate`.",
        ]
    if advice.best == advice.baseline:
        return [f"Keep {advice.baseline}: no other setting is surely faster on this traffic."]
    best = next(one for one in advice.compared if one.arm == advice.best)
    return [
        f"Launch with {advice.best}: {_percent(best.gain)} less decode time than {advice.baseline} "
        f"(90% interval {_percent(best.low)} to {_percent(best.high)}), on {_percent(best.coverage)} of the traffic."
    ]


def _table(compared: Sequence[Compared]) -> list[str]:
    head = f"  {'setting':<14}{'tok/s':>9}{'gain':>9}{'90% interval':>20}{'faster':>9}{'traffic':>9}{'answers':>9}"
    return [head] + [
        f"  {one.arm!s:<14}{one.tokens_per_s:>9.1f}{_percent(one.gain):>9}"
        f"{_percent(one.low) + ' to ' + _percent(one.high):>20}{_percent(one.sure):>9}"
        f"{_percent(one.coverage):>9}{one.answers:>9}"
        for one in compared
    ]


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f}%"
