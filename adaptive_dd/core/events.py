"""Events: everything that ever changes a state, in the order in which it happened.

`State == fold(apply, journal)`: a state is these values and nothing else. An event carries raw facts (timings,
contexts), never rewards, so that a changed formula can be learned again from history. `at_s` is the shell's wall
clock, told to the core; the core must survive a clock that jumps.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptive_dd.core.domain import (
    Context,
    Decision,
    Deployment,
    Frontier,
    Mode,
    Outcome,
    PolicySettings,
    ServerFacts,
)


@dataclass(frozen=True, slots=True)
class Began:
    """The first event of a state, and the one that a restart with other settings or another frontier adds."""

    at_s: float
    deployment: Deployment
    settings: PolicySettings
    frontier: Frontier


@dataclass(frozen=True, slots=True)
class FactsFound:
    """The server's behaviour became known, or changed."""

    at_s: float
    facts: ServerFacts


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was made for request `number`. decide_us: how long deciding took, in microseconds."""

    at_s: float
    number: int
    context: Context
    decision: Decision
    decide_us: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Request `number` ended and its outcome is known."""

    at_s: float
    number: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Request `number` ended without an outcome worth learning from. why: a Status value, or `lost`, `not-sent`."""

    at_s: float
    number: int
    why: str


@dataclass(frozen=True, slots=True)
class ModeSet:
    """The mode was changed while running."""

    at_s: float
    mode: Mode


@dataclass(frozen=True, slots=True)
class FreezeSet:
    """Learning was frozen (True) or thawed (False) while running."""

    at_s: float
    frozen: bool


@dataclass(frozen=True, slots=True)
class Charged:
    """Time was spent that the baseline alone would not have needed, beside any answer. why: for people."""

    at_s: float
    ms: float
    why: str


Event = Began | FactsFound | Decided | Observed | Abandoned | ModeSet | FreezeSet | Charged
