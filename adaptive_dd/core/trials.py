"""What is held of an arm in a cell, and the evidence for it: a state machine that answers move.

The table is `TRANSITIONS`. Proof is a confidence sequence on the mean log saving: the normal mixture of Robbins (1970)
with a plug-in variance (asymptotic confidence sequences, Waudby-Smith et al. 2024), so one may look after every
answer. Disproof is an e-detector (Shin, Ramdas and Rinaldo 2024): it restarts at one, so an arm that was good for a
long time has no credit to burn. Both mislead when the price itself is wrong; hence the refreshes, and the anchoring
baseline request after every surprise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """What is held of an arm in a cell."""

    CANDIDATE = "candidate"  # unproven: played only where the budget pays
    CREDITED = "credited"  # the frontier's own measurements beat the baseline
    PROMOTED = "promoted"  # proven faster here
    DEMOTED = "demoted"  # proven slower here; a candidate again after a back-off
    QUARANTINED = "quarantined"  # the server failed or refused it; a candidate again after a back-off


class Signal(StrEnum):
    """What moves an arm's standing."""

    PROVEN = "proven faster"
    DISPROVEN = "proven slower"
    REFUSED = "refused or failed"
    WAITED = "back-off over"
    LIED = "the frontier claimed too much"


TRANSITIONS: Mapping[tuple[Standing, Signal], Standing] = {
    (Standing.CANDIDATE, Signal.PROVEN): Standing.PROMOTED,
    (Standing.CREDITED, Signal.PROVEN): Standing.PROMOTED,
    (Standing.CANDIDATE, Signal.DISPROVEN): Standing.DEMOTED,
    (Standing.CREDITED, Signal.DISPROVEN): Standing.DEMOTED,
    (Standing.CREDITED, Signal.LIED): Standing.CANDIDATE,
    (Standing.PROMOTED, Signal.DISPROVEN): Standing.DEMOTED,
    (Standing.CANDIDATE, Signal.REFUSED): Standing.QUARANTINED,
    (Standing.CREDITED, Signal.REFUSED): Standing.QUARANTINED,
    (Standing.PROMOTED, Signal.REFUSED): Standing.QUARANTINED,
    (Standing.DEMOTED, Signal.REFUSED): Standing.QUARANTINED,
    (Standing.QUARANTINED, Signal.REFUSED): Standing.QUARANTINED,
    (Standing.DEMOTED, Signal.WAITED): Standing.CANDIDATE,
    (Standing.QUARANTINED, Signal.WAITED): Standing.CANDIDATE,
}
# Pairs, because the hash of an enum takes longer than two comparisons.
PROVEN = (Standing.CREDITED, Standing.PROMOTED)
BARRED = (Standing.DEMOTED, Standing.QUARANTINED)


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> candidate", "    [*] --> credited: a safe frontier row"]
    lines += [f"    {before} --> {after}: {signal}" for (before, signal), after in TRANSITIONS.items()]
    return "\n".join(lines)


# --- evidence ------------------------------------------------------------------------------------------------

# Prior of the variance of one answer's log saving, and the answers it counts for: texts differ by some 15%.
SAVING_SD, SAVING_LEAN = 0.15, 3.0
# The mixture's width in answers: tightest after some tens of answers (Howard et al. 2021, section 3.5).
MIXTURE = 4.0
# Bet of the e-detector, in units of log saving: best against arms that lose some 10%.
BET = 2.5
# A saving counts for no more than this in either direction: one answer is one answer.
LARGEST_SAVING = 0.7
# Requests until a barred arm may be tried again; doubles each time, up to a limit.
BACK_OFF, LONGEST_BACK_OFF = 100, 3200


def lost(
    against: float, saving: float, weight: float, *, doubt: float, variance: float = SAVING_SD**2
) -> float:
    """Log of the e-detector for "slower" after an answer that saved `saving` (log); doubt: what that may be off."""
    saving = min(max(saving, -LARGEST_SAVING), LARGEST_SAVING)
    return max(0.0, against + weight * (BET * (-saving - doubt) - 0.5 * BET * BET * variance))


@dataclass(frozen=True, slots=True)
class Trial:
    """An arm's standing in a cell and the evidence for it since it has it.

    weight, mean, square   answers, their mean log saving and mean squared deviation
    against                log of the e-detector for "slower"
    until                  number from which a barred arm is a candidate again
    setbacks               times it was barred
    claim                  log gain over the baseline that the frontier's own row claims
    """

    standing: Standing = Standing.CANDIDATE
    weight: float = 0.0
    mean: float = 0.0
    square: float = 0.0
    against: float = 0.0
    until: int = 0
    setbacks: int = 0
    claim: float = 0.0

    def moved(self, signal: Signal, number: int) -> Trial:
        """After a signal; unchanged where the table has no row for it."""
        after = TRANSITIONS.get((self.standing, signal))
        if after is None:
            return self
        if after in BARRED:
            wait = min(LONGEST_BACK_OFF, BACK_OFF * 2**self.setbacks)
            return Trial(after, until=number + wait, setbacks=self.setbacks + 1)
        return Trial(after, self.weight, self.mean, self.square, 0.0, self.until, self.setbacks, self.claim)

    @property
    def variance(self) -> float:
        """Of one answer's log saving."""
        return (SAVING_LEAN * SAVING_SD**2 + self.weight * self.square) / (SAVING_LEAN + self.weight)

    def radius(self, delta: float) -> float:
        """Half width of the confidence sequence of the mean log saving."""
        if self.weight <= 0.0:
            return math.inf
        n = self.weight
        return math.sqrt(
            self.variance * (n + MIXTURE) / (n * n) * math.log((n + MIXTURE) / (MIXTURE * delta**2))
        )

    def heard(self, saving: float, weight: float, *, number: int, delta: float, doubt: float) -> Trial:
        """After one answer that saved `saving` (log). doubt: what the price may be off (log)."""
        saving = min(max(saving, -LARGEST_SAVING), LARGEST_SAVING)
        total = self.weight + weight
        error = saving - self.mean
        mean = self.mean + error * weight / total
        square = self.square + (error * (saving - mean) - self.square) * weight / total
        against = lost(self.against, saving, weight, doubt=doubt, variance=self.variance)
        trial = Trial(self.standing, total, mean, square, against, self.until, self.setbacks, self.claim)
        if trial.against > math.log(1.0 / delta):
            return trial.moved(Signal.DISPROVEN, number)
        if trial.mean - trial.radius(delta) > doubt:
            return trial.moved(Signal.PROVEN, number)
        return trial


NEW = Trial()


def waited(trials: Mapping[str, Trial], number: int) -> Mapping[str, Trial]:
    """Standings of a cell after those whose back-off is over became candidates again."""
    over = {a: t for a, t in trials.items() if t.standing in BARRED and t.until <= number}
    return {**trials, **{a: t.moved(Signal.WAITED, number) for a, t in over.items()}} if over else trials
