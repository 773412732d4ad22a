"""Arms that are places: what presets and replicas share (who holds which conversation), and replicas themselves."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adaptive_dd.actuator import Document, Placed
from adaptive_dd.core.cost import PromptSpeed
from adaptive_dd.core.domain import (
    SERVER,
    Context,
    Deployment,
    Listens,
    Outcome,
    ServerFacts,
    Setting,
    Status,
)
from adaptive_dd.core.wire import Scan, client_override
from adaptive_dd.errors import UpstreamError, UsageError
from adaptive_dd.upstream import Upstream

log = logging.getLogger("adaptive_dd.actuator")

# Conversations remembered: more than any server of this kind keeps prompt caches for.
CONVERSATIONS_KEPT = 2048
# Weight of the newest answer in how much of a prompt a place still held when it was asked again.
KEPT_WEIGHT = 0.2


class Residents:
    """Which arm holds how much of which conversation's prompt, and what a prompt token costs.

    A guess from the answers so far: a server does not tell what it evicts. `cache_n` of each answer corrects it, for
    the conversation at once, and as an average for the arm (many conversations on few slots: little is kept).
    """

    def __init__(self) -> None:
        self.speed = PromptSpeed()
        self._held: OrderedDict[str, dict[Setting, int]] = OrderedDict()
        self._turns: dict[str, int] = {}
        self._kept: dict[Setting, float] = {}

    def held_tokens(self, conversation: str, arm: Setting) -> int:
        """Prompt tokens of a conversation that `arm` probably still holds."""
        return round(self._held.get(conversation, {}).get(arm, 0) * self._kept.get(arm, 1.0))

    def turns(self, conversation: str) -> int:
        """Answers of a conversation so far."""
        return self._turns.get(conversation, 0)

    def reprocess(self, context: Context, arms: Iterable[Setting]) -> tuple[tuple[Setting, int], ...]:
        """Prompt tokens each arm would process beyond what the best placed one would; only where there are any."""
        if context.prompt_tokens is None or context.conversation not in self._held:
            return ()
        held = {arm: min(self.held_tokens(context.conversation, arm), context.prompt_tokens) for arm in arms}
        most = max(held.values(), default=0)
        return tuple((arm, most - tokens) for arm, tokens in held.items() if tokens < most)

    def learn(self, arm: Setting, context: Context, outcome: Outcome) -> None:
        """Note where a conversation lives now, and what the server still held of it."""
        timings, conversation = outcome.timings, context.conversation
        if timings is not None:
            self.speed = self.speed.learned(timings.prompt_n, timings.prompt_ms)
        tokens = timings.prompt_tokens + timings.predicted_n if timings else context.prompt_tokens
        if not conversation or tokens is None:
            return
        held = self._held.pop(conversation, {})
        if timings is not None and (before := held.get(arm, 0)):
            kept = min(1.0, timings.cache_n / before)
            old = self._kept.get(arm, 1.0)
            self._kept[arm] = old + KEPT_WEIGHT * (kept - old)
        self._held[conversation] = {**held, arm: tokens}
        self._turns[conversation] = self.turns(conversation) + 1
        if len(self._held) > CONVERSATIONS_KEPT:
            oldest, _ = self._held.popitem(last=False)
            self._turns.pop(oldest, None)

    def forget(self, arm: Setting) -> None:
        """The arm was loaded anew: it holds nothing."""
        for held in self._held.values():
            held.pop(arm, None)
        self._kept.pop(arm, None)


class ByPlace:
    """An arm is a place. Subclasses say which places answer, and how a request gets there."""

    takes_fields = False
    name = ""

    def __init__(self, baseline: Setting) -> None:
        self.residents = Residents()
        self.baseline = baseline
        self._answering: tuple[Setting, ...] = ()

    def settings(self) -> tuple[Setting, ...]:
        """The arms whose places answer now, the baseline always among them."""
        return self._answering if self.baseline in self._answering else (self.baseline, *self._answering)

    def facts(self, found: ServerFacts) -> ServerFacts:
        """Settings act, whatever the server does with fields, but no others than these; the cap is the deepest."""
        arms = self.all_arms() or (self.baseline,)
        deepest = max(arm.n_max or 0 for arm in arms)
        return replace(found, listens=Listens.HONOURS, cap=deepest, limit=None, arms=arms)

    def all_arms(self) -> tuple[Setting, ...]:
        """Every arm, whether its place answers now or not."""
        raise NotImplementedError

    def deployment(self, found: Deployment) -> Deployment:
        """Another actuator is another deployment: the same setting may cost something else."""
        return replace(found, cap=None, actuator=self.name)

    def wishes(self, scanned: Scan, *, force: bool = False) -> tuple[Setting | None, str]:
        """The client's fields, which no server behind reads: played where there is such an arm, else said."""
        wanted = client_override(scanned)
        if wanted is None or force:
            return None, ""
        return (wanted, "") if wanted in self.settings() else (None, "not-honoured")

    def informed(self, context: Context) -> Context:
        """With the playable arms, and what reaching each would have to process again."""
        arms = self.settings()
        return replace(
            context,
            arms=arms,
            reprocess=self.residents.reprocess(context, arms),
            prompt_ms_per_token=self.residents.speed.ms_per_token,
            turns=self.residents.turns(context.conversation),
        )

    def finished(self, placed: Placed, context: Context, outcome: Outcome) -> None:
        """Note where the conversation lives now."""
        if outcome.http_status != 200:
            return
        moved = outcome.status is Status.MOVED and placed.retry is not None
        self.residents.learn(placed.retry.arm if moved and placed.retry else placed.arm, context, outcome)

    def failed(self, placed: Placed) -> None:
        """Not an arm until the next look finds it again."""
        self._gone(placed.arm)

    def _gone(self, arm: Setting) -> None:
        self._answering = tuple(other for other in self._answering if other != arm)
        self.residents.forget(arm)

    def _found(self, answering: Sequence[Setting]) -> bool:
        """Take over what a look found. True when it changed."""
        changed = set(answering) != set(self._answering)
        for arm in set(self._answering) - set(answering):
            self.residents.forget(arm)
        if changed:
            shown = ", ".join(str(arm) for arm in answering) or "none"
            log.info("%s: arms that answer now: %s", self.name, shown)
        self._answering = tuple(answering)
        return changed

    def _other_than(self, arm: Setting) -> Setting | None:
        """Where to turn when `arm` does not answer: the baseline, else any other."""
        others = [other for other in (self.baseline, *self._answering) if other != arm]
        return others[0] if others else None


# A server that is going, or coming; an error of the request itself would be the same everywhere.
UNWILLING = frozenset({500, 502, 503, 504})
# A server that does not say it is well within this is treated as gone; the next look is soon.
HEALTH_S = 2.0


class Replicas(ByPlace):
    """Settings as servers, each launched with its own. The first one is the baseline, unless another is configured."""

    name = "replicas"

    def __init__(self, upstreams: Mapping[Setting, Upstream], baseline: Setting = SERVER) -> None:
        if not upstreams:
            raise UsageError("arm: not given; expected at least one, such as --arm off=http://127.0.0.1:8080")
        if baseline != SERVER and baseline not in upstreams:
            shown = " ".join(str(arm) for arm in upstreams)
            raise UsageError(f"baseline: {baseline} is none of the arms; expected one of {shown}")
        super().__init__(next(iter(upstreams)) if baseline == SERVER else baseline)
        self._upstreams = dict(upstreams)
        self._answering = tuple(upstreams)
        self._models: dict[Setting, Mapping[str, object]] = {}
        self._wanted: Mapping[str, object] = {}  # the model of the baseline's server, once it was seen
        self._strangers: set[Setting] = set()

    def all_arms(self) -> tuple[Setting, ...]:
        """As given."""
        return tuple(self._upstreams)

    @property
    def home(self) -> Upstream:
        """The baseline's server; while that is down, another one."""
        arm = (
            self.baseline if self.baseline in self._answering else next(iter(self._answering), self.baseline)
        )
        return self._upstreams[arm]

    def own(self, body: bytes, scanned: Scan) -> tuple[Document, bytes]:
        """As it came: every server knows the model by the same name."""
        return scanned.document, body

    def place(self, body: bytes, scanned: Scan, arm: Setting, *, force: bool = False) -> Placed:
        """The arm's server; the baseline's for what is no arm."""
        played = arm if arm in self._upstreams else self.baseline
        other = self._other_than(played)
        retry = None if other is None else Placed(body, self._upstreams[other], other, applied=True)
        return Placed(body, self._upstreams[played], played, applied=True, retry=retry, unwilling=UNWILLING)

    async def refresh(self) -> bool:
        """Ask every server whether it is well, all at once, and leave out what runs another model."""
        well = await asyncio.gather(*(_is_well(upstream) for upstream in self._upstreams.values()))
        answering = [arm for arm, answers in zip(self._upstreams, well, strict=True) if answers]
        # One that went may come back as something else.
        self._models = {arm: model for arm, model in self._models.items() if arm in answering}
        new = [arm for arm in answering if not self._models.get(arm)]
        told = await asyncio.gather(*(_model_of(self._upstreams[arm]) for arm in new))
        self._models |= dict(zip(new, told, strict=True))
        return self._found([arm for arm in answering if self._same_model(arm)])

    def _same_model(self, arm: Setting) -> bool:
        """False where a server is known to run another model than the baseline's did."""
        self._wanted = self._wanted or self._models.get(self.baseline, {})
        own = self._models.get(arm, {})
        other = sorted(key for key in own if key in self._wanted and own[key] != self._wanted[key])
        if other and arm not in self._strangers:
            shown = ", ".join(f"{key} {own[key]} (baseline: {self._wanted[key]})" for key in other)
            log.warning(
                "replicas: %s at %s runs another model: %s; not used",
                arm,
                self._upstreams[arm].base_url,
                shown,
            )
        self._strangers = self._strangers | {arm} if other else self._strangers - {arm}
        return not other


# What tells two models apart, whatever their files are called; `size` tells two quantisations apart.
MODEL_META = ("n_params", "n_vocab", "n_embd", "size")


async def _model_of(upstream: Upstream) -> Mapping[str, object]:
    """What `/v1/models` says of the model's own figures; nothing where it does not (other servers, no model yet)."""
    try:
        _, body = await upstream.ask("GET", "/v1/models", timeout_s=HEALTH_S)
    except UpstreamError:
        return {}
    data = body.get("data") if isinstance(body, Mapping) else None
    first = data[0] if isinstance(data, list) and len(data) == 1 else None
    meta = first.get("meta") if isinstance(first, Mapping) else None
    return {key: meta[key] for key in MODEL_META if key in meta} if isinstance(meta, Mapping) else {}


async def _is_well(upstream: Upstream) -> bool:
    try:
        status, _ = await upstream.ask("GET", "/health", timeout_s=HEALTH_S)
    except UpstreamError:
        return False
    return status == 200
