"""What the traffic itself proves about a server, where nobody may probe, or after somebody has.

Every answer is a small experiment: a setting went out, `timings` came back. Proof, not statistics, is asked for:

- a request stamped `n0` that drafted, or one stamped n that drafted more than n a cycle, was not obeyed;
- a request stamped `n0` that drafted nothing was obeyed only if unstamped ones do draft;
- an unstamped answer's drafted tokens per cycle are a lower bound of the launch value.

Two proofs decide, because one answer may belong to a server that was replaced a moment ago. "Drafts nothing" is no
proof but a long silence, so one drafted token takes it back.

Where it misleads: p_min cannot be judged from content that changes, so a server that takes n_max alone counts as one
that honours everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from adaptive_dd.core.domain import OFF, SERVER, Listens, ServerFacts, Setting, Timings

# Proofs of the same thing before it is believed.
PROOFS = 2
# An answer shorter than this proves nothing: its only cycles may be the cut-off ones at its end.
LEAST_TOKENS = 16
# n-gram drafters are silent for long; this many decoded tokens without one draft is no drafter at all.
SILENT_TOKENS = 4000
# Some builds count drafts accepted past a stop word, which hides up to this many cycles.
HIDDEN_CYCLES = 2


@dataclass(frozen=True, slots=True)
class Overheard:
    """Counts of what answers have proven so far.

    disobeyed       stamped answers that drafted more than they were told
    stopped         answers to `n0` that drafted nothing
    drafting        unstamped answers that drafted
    silent_tokens   decoded tokens of drafting-allowed answers since the last drafted one
    cap             lower bound of the launch value, None where nothing was drafted yet
    limit           largest n_max not known to be refused, None where nothing was refused
    """

    disobeyed: int = 0
    stopped: int = 0
    drafting: int = 0
    silent_tokens: int = 0
    cap: int | None = None
    limit: int | None = None


def heard(so_far: Overheard, sent: Setting, timings: Timings) -> Overheard:
    """The counts after one more answer to a request that went out with `sent`."""
    if timings.decode_tokens < LEAST_TOKENS:
        return so_far
    if _disobeyed(sent, timings):
        return replace(so_far, disobeyed=so_far.disobeyed + 1, silent_tokens=0)
    if sent == OFF:
        return replace(so_far, stopped=so_far.stopped + 1)
    if timings.draft_n == 0:
        return replace(so_far, silent_tokens=so_far.silent_tokens + timings.decode_tokens)
    so_far = replace(so_far, silent_tokens=0)
    if sent != SERVER:
        return so_far
    return replace(so_far, drafting=so_far.drafting + 1, cap=_higher(so_far.cap, timings))


def refused(so_far: Overheard, sent: Setting) -> Overheard:
    """The counts after the server refused a request because of `sent`, and took it without."""
    if not sent.n_max:
        return so_far
    lower = sent.n_max - 1
    return replace(so_far, limit=lower if so_far.limit is None else min(so_far.limit, lower))


def _disobeyed(sent: Setting, timings: Timings) -> bool:
    if sent.n_max is None:
        return False
    return timings.draft_n > sent.n_max * (timings.cycles + HIDDEN_CYCLES)


def _higher(cap: int | None, timings: Timings) -> int:
    seen = math.ceil(timings.draft_n / (timings.cycles + HIDDEN_CYCLES))
    return seen if cap is None else max(cap, seen)


def facts_from(so_far: Overheard, before: ServerFacts) -> ServerFacts:
    """What is known now. before: what was known (from probes, or nothing)."""
    limits = [limit for limit in (before.limit, so_far.limit) if limit is not None]
    caps = [cap for cap in (before.cap, so_far.cap) if cap is not None]
    return replace(
        before,
        listens=_listens(so_far, before.listens),
        cap=max(caps, default=None),
        limit=min(limits, default=None),
    )


def _listens(so_far: Overheard, before: Listens) -> Listens:
    if so_far.disobeyed >= PROOFS:
        return before if before is Listens.DRAFTLESS else Listens.IGNORES
    if before is Listens.UNKNOWN and so_far.stopped >= PROOFS and so_far.drafting >= PROOFS:
        return Listens.HONOURS
    if before is Listens.UNKNOWN and so_far.silent_tokens >= SILENT_TOKENS:
        return Listens.NO_DRAFTING
    drafts_after_all = before is Listens.NO_DRAFTING and so_far.drafting > 0
    return Listens.UNKNOWN if drafts_after_all else before
