"""The relay's view of deciding: a request in, the bytes to send out, and a word with the engine before and after.

    choose   route + headers + body -> Context -> engine.begin -> actuator.place -> Choice
    finish   Choice + Outcome -> engine.finish, and the exact prompt length into the ledger

Everything that can wait is awaited before `begin`; between `begin` and the returned Choice nothing is, so a request
that is cancelled has either no decision or one that the relay will finish. Whatever fails here costs the client
nothing: the request goes out as it came, and the failure is counted and said once per kind.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from adaptive_dd.actuator import Actuator, Fields, Placed
from adaptive_dd.core.asking import edges_that_matter, may_change
from adaptive_dd.core.context import (
    FEATURES_VERSION,
    HINT_HEADER,
    Features,
    SamplingDefaults,
    bounded_hint,
    clean_hint,
    features_of,
    header,
)
from adaptive_dd.core.controller import State, cap_of
from adaptive_dd.core.domain import (
    SERVER,
    Context,
    Decision,
    Deployment,
    Kind,
    Mode,
    Outcome,
    Setting,
    Status,
)
from adaptive_dd.core.ledger import Ledger, Remembered, family_of, learned, predict
from adaptive_dd.core.prompt import Prompt
from adaptive_dd.core.wire import Route, Scan, scan
from adaptive_dd.counting import Asking, Counter, api_prefix
from adaptive_dd.engine import Ticket
from adaptive_dd.metrics import Metrics
from adaptive_dd.upstream import Upstream

log = logging.getLogger("adaptive_dd.chooser")

Header = tuple[bytes, bytes]
# Endpoint, whether streamed, and constraint (text that must fit a schema or a tool is often held back).
Sort = tuple[str, bool, str]

# By how many more answers of a sort told nothing by their arrivals than told something, until the next one is taken to
# tell nothing either; and how far that is counted, so that it can change again.
MUTE, MUTEST = 3, 6
# Reasons under which nothing was chosen: the request goes out as it came.
NOT_CHOSEN = frozenset({"off", "observe", "not-honoured", "no-drafting", "draftless"})


class Deciding(Protocol):
    """The part of `Engine` that choosing needs."""

    @property
    def state(self) -> State:
        """Everything learned about the deployment in use."""

    @property
    def in_flight(self) -> int:
        """Requests generating at this moment."""

    def begin(self, context: Context) -> Ticket:
        """Decide for one request."""

    def finish(self, number: int, outcome: Outcome) -> None:
        """Record how a request ended."""

    def abandon(self, number: int, why: str) -> None:
        """Record that a request ended without an outcome."""


@dataclass(frozen=True, slots=True)
class Note:
    """What must be remembered of a prompt until its exact length is known; `ledger` is the era it belongs to."""

    remembered: Remembered
    era: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What to send, where, and why.

    body       the bytes to send; `original` are the client's
    changed    whether both differ
    ticket     the decision's number and record, None where deciding failed
    arm        the setting that acts as far as we know; SERVER for "as launched"
    reason     a key of REASONS
    applied    whether `arm` acts because we, or the client itself, said so
    placed     how the actuator prepared it: the retry, and the names to hide, are its business
    by_arrival  whether a stream without timings is learned from by when its tokens arrive
    sort       by what it can be told beforehand whether an answer will teach anything
    """

    body: bytes
    original: bytes
    upstream: Upstream
    changed: bool = False
    ticket: Ticket | None = None
    context: Context | None = None
    arm: Setting = SERVER
    reason: str = "failed"
    applied: bool = False
    note: Note | None = None
    placed: Placed | None = None
    by_arrival: bool = False
    sort: Sort = ("", False, "")

    @property
    def retry(self) -> Placed | None:
        """How to try once more."""
        return self.placed.retry if self.placed else None

    @property
    def unwilling(self) -> frozenset[int]:
        """Statuses that call for the retry."""
        return self.placed.unwilling if self.placed else frozenset()

    @property
    def rename(self) -> tuple[tuple[str, ...], str] | None:
        """Aliases to write the public name over in the answer, with that name."""
        return self.placed.rename if self.placed else None


class Chooser:
    """Chooses for every generating request. salt: makes conversation hashes this installation's own."""

    def __init__(
        self,
        engine: Deciding,
        upstream: Upstream,
        *,
        metrics: Metrics | None = None,
        counter: Counter | None = None,
        salt: bytes = b"",
        actuator: Actuator | None = None,
    ) -> None:
        self._engine = engine
        self.actuator: Actuator = Fields(upstream) if actuator is None else actuator
        self._metrics = metrics or Metrics()
        self._counter = counter or Counter(self._metrics)
        self._salt = salt
        self._hints: set[str] = set()
        self._said: set[str] = set()
        self._deployment: Deployment | None = None
        self._era = 0
        self._mute: dict[Sort, int] = {}  # by how many more taught nothing than something
        self.ledger = Ledger()
        self.sampling_defaults = SamplingDefaults()

    # --- before sending ------------------------------------------------------------------------------------

    async def choose(
        self, route: Route, headers: Iterable[Header], body: bytes | None, *, path: str = ""
    ) -> Choice:
        """Decide what to send for one generating request.

        body: None where it is over the size limit and was not read. path: the request's, for the api prefix.
        Raises nothing but what cancels it.
        """
        headers, original = list(headers), body or b""
        try:
            self._follow_deployment()
            scanned = scan(original) if self._reads(route, body) else Scan()
            context, features = self._context(route, headers, body, scanned)
            document, own = self.actuator.own(original, scanned)
            asking = Asking(document, own, headers, api_prefix(path))
            context, note = await self._with_length(context, features.prompt, asking)
        except Exception as error:
            self._failed("choose", error)
            scanned, note = Scan(), None
            context = Context(None, untouchable="failed", kind=Kind(endpoint=route.endpoint))
        return self._decided(route, context, scanned, original, note)

    def _reads(self, route: Route, body: bytes | None) -> bool:
        return bool(body) and route.json_body and self._engine.state.settings.mode is not Mode.OFF

    def _follow_deployment(self) -> None:
        """Another model or build tokenizes in its own way: what was known of lengths is void."""
        deployment = self._engine.state.deployment
        if deployment != self._deployment:
            self._deployment = deployment
            self._era += 1
            self.ledger = Ledger()
            self._counter.forget()

    def _context(
        self, route: Route, headers: list[Header], body: bytes | None, scanned: Scan
    ) -> tuple[Context, Features]:
        features = features_of(
            route.endpoint,
            scanned.document,
            hint=self._hint(headers),
            defaults=self.sampling_defaults,
            salt=self._salt,
        )
        override, unplaced = self.actuator.wishes(scanned, force=self._engine.state.settings.force)
        dropped = not route.takes_fields and (self.actuator.takes_fields or not route.json_body)
        unheard = "route-drops-fields" if dropped else ""
        context = Context(
            None,
            kind=features.kind,
            conversation=features.conversation,
            max_tokens=features.max_tokens,
            override=override,
            untouchable=unheard or _untouchable(headers, body, scanned, features) or unplaced,
            blind=self._mute.get(_sort(features.kind, scanned), 0) >= MUTE,
            features=FEATURES_VERSION,
        )
        return self.actuator.informed(context), features

    def _hint(self, headers: list[Header]) -> str:
        hint = bounded_hint(clean_hint(header(headers, HINT_HEADER)), self._hints)
        if hint:
            self._hints.add(hint)
        return hint

    async def _with_length(
        self, context: Context, prompt: Prompt, asking: Asking
    ) -> tuple[Context, Note | None]:
        """The context with the prompt's length, which is asked for only where the decision needs it."""
        if prompt.form == "none" or prompt.multimodal:
            return context, None
        prediction = predict(
            self.ledger,
            prompt,
            conversation=context.conversation,
            family=family_of(prompt, context.kind.constraint),
        )
        note = Note(prediction.remembered, self._era)
        edges = edges_that_matter(self._engine.state, context)
        if edges is None or not may_change(edges, prediction):
            if edges is None and not prediction.known:
                return context, note
            source = "sent" if prompt.tokens is not None else "ledger" if prediction.known else "bounded"
            tokens = max(math.ceil(prediction.low), int(prediction.tokens))
            return _measured(context, tokens, source), note
        counted = await self._counter.count(self.actuator.home, context.kind.endpoint, asking)
        if counted is None:
            return context, note
        self._learn(note, counted, None)
        return _measured(context, counted, "counted"), note

    def _decided(
        self, route: Route, context: Context, scanned: Scan, original: bytes, note: Note | None
    ) -> Choice:
        """Decide and splice; nothing is awaited from here on."""
        ticket = None
        try:
            context = self.actuator.informed(replace(context, in_flight=self._engine.in_flight + 1))
            ticket = self._engine.begin(context)
            placed = self._placed(context, scanned, original, ticket.decision)
            self._metrics.inc("decisions_total", reason=ticket.decision.reason)
            self._metrics.inc("prompt_lengths_total", source=context.tokens_source)
            return Choice(
                placed.body,
                original,
                placed.upstream,
                changed=placed.body is not original and placed.body != original,
                ticket=ticket,
                context=context,
                arm=placed.arm,
                reason=ticket.decision.reason,
                applied=placed.applied,
                note=note,
                placed=placed,
                by_arrival=self._by_arrival(route, placed),
                sort=_sort(context.kind, scanned),
            )
        except Exception as error:
            self._failed("decide", error)
            if ticket is not None:
                self._engine.abandon(ticket.number, "not-sent")
            return Choice(original, original, self.actuator.home, context=context)

    def _by_arrival(self, route: Route, placed: Placed) -> bool:
        """Whether the arrivals of an answer can say anything of its arm: one that acts for sure, of known depth."""
        return route.by_arrival and not self.actuator.takes_fields and placed.arm.n_max is not None

    def _placed(self, context: Context, scanned: Scan, original: bytes, decision: Decision) -> Placed:
        """The request as the actuator sends it. What must go out as it came still goes to the baseline's place."""
        state, overridden = self._engine.state, decision.reason == "request-override"
        # `--force` replaces what the client set, but only with something that was chosen.
        as_it_came = overridden or context.untouchable or decision.reason in NOT_CHOSEN
        if self.actuator.takes_fields and as_it_came:
            return Placed(original, self.actuator.home, decision.arm, applied=overridden)
        arm = decision.arm if overridden else decision.arm.clamped(cap_of(state))
        wanted = SERVER if context.untouchable else arm
        return self.actuator.place(original, scanned, wanted, force=state.settings.force)

    # --- after the answer ----------------------------------------------------------------------------------

    def finish(self, choice: Choice, outcome: Outcome) -> None:
        """Tell engine and ledger how it ended. Never raises."""
        try:
            if choice.ticket is not None:
                self._engine.finish(choice.ticket.number, outcome)
            if choice.note is not None and outcome.timings is not None:
                self._learn(choice.note, outcome.timings.prompt_tokens, outcome.timings.predicted_n)
            self._listened(choice, outcome)
            if choice.placed is not None and choice.context is not None:
                self.actuator.finished(choice.placed, choice.context, outcome)
                if outcome.status is Status.MOVED:
                    self.actuator.failed(choice.placed)
        except Exception as error:
            self._failed("finish", error)

    def _listened(self, choice: Choice, outcome: Outcome) -> None:
        """Note whether such an answer teaches anything. One whose arrivals tell nothing may be an exception."""
        before = self._mute.get(choice.sort, 0)
        if outcome.status is Status.OK:
            self._mute[choice.sort] = max(0, before - 1)
        elif outcome.status is Status.NO_TIMINGS:
            self._mute[choice.sort] = MUTE
        elif outcome.status is Status.REJECTED and outcome.inferred:
            self._mute[choice.sort] = min(before + 1, MUTEST)

    def _learn(self, note: Note, prompt_tokens: int, answer_tokens: int | None) -> None:
        if note.era == self._era and prompt_tokens > 0:
            self.ledger = learned(
                self.ledger, note.remembered, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens
            )

    def _failed(self, where: str, error: Exception) -> None:
        self._metrics.inc("own_failures_total", where=where)
        kind = f"{where}: {type(error).__name__}"
        if kind not in self._said:
            self._said.add(kind)
            log.error(
                "%s at %s; the request is served as it came (said once, then only counted)",
                kind,
                _place_of(error),
            )


def _place_of(error: Exception) -> str:
    """Where an error was raised, innermost last. Not its message: that may hold a client's text."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames)


def _measured(context: Context, prompt_tokens: int, source: str) -> Context:
    return replace(context, prompt_tokens=prompt_tokens, tokens_source=source)


def _untouchable(headers: list[Header], body: bytes | None, scanned: Scan, features: Features) -> str:
    if body is None:
        return "too-large"
    if header(headers, b"content-encoding").strip().lower() not in ("", "identity"):
        return "encoded"
    return scanned.untouchable or ("multimodal" if features.prompt.multimodal else "")


def _sort(kind: Kind, scanned: Scan) -> Sort:
    return kind.endpoint, scanned.document.get("stream") is True, kind.constraint
