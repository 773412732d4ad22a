"""How an exchange ended, as an outcome: what the tap found, whether it can be believed, and who served it."""

from __future__ import annotations

from dataclasses import replace

from adaptive_dd.core.arrivals import TimedTap
from adaptive_dd.core.domain import Outcome, Setting, Status, Timings
from adaptive_dd.core.inferred import inferred
from adaptive_dd.core.tap import Tap


def outcome_of(
    status: Status,
    tap: Tap | None,
    arm: Setting,
    *,
    http_status: int = 200,
    resent: Status | None = None,
    alone: bool = False,
) -> Outcome:
    """The outcome of one exchange.

    status: OK where the answer is complete and no error. arm: what acted on it. resent: REFUSED or MOVED where the
    request had to be sent once more. alone: nothing else was generated when it went out.
    """
    if status is not Status.OK:
        return Outcome(status, http_status=http_status)
    if resent is Status.MOVED:
        # Elsewhere another arm served it, and its timings say nothing about the one that was chosen.
        return Outcome(resent, http_status=http_status)
    told = replace(_told(tap, arm, alone), http_status=http_status)
    return told if resent is None else replace(told, status=resent)


def _told(tap: Tap | None, arm: Setting, alone: bool) -> Outcome:
    """What a complete answer says: its own `timings` where it has some, else its arrivals where they were noted."""
    found, by_arrival = tap.result() if tap is not None else None, False
    if found is None and isinstance(tap, TimedTap) and (arrivals := tap.arrivals()) is not None:
        found, by_arrival = inferred(arrivals, arm, alone=alone), True
    if isinstance(found, Timings):
        return Outcome(Status.OK, found, inferred=by_arrival)
    if found is None:
        return Outcome(Status.NO_TIMINGS)
    return Outcome(Status.REJECTED, rejected=found, inferred=by_arrival)
