"""Small closed worlds for the learner's tests: an answer is arithmetic, with noise from a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from adaptive_dd.core import controller
from adaptive_dd.core.acceptance import draft_table, level_of
from adaptive_dd.core.domain import (
    SERVER,
    Context,
    Decision,
    Deployment,
    Frontier,
    Mode,
    Outcome,
    PolicySettings,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.core.events import Began, Decided, Event, Observed
from adaptive_dd.core.rng import Rng, rng_for
from adaptive_dd.core.state import State

N2 = Setting(2, 0.0)


@dataclass(slots=True)
class World:
    """T(n) = base_ms x (1 + per_token x n), geometric acceptance `chance`; `slow` are factors on single settings."""

    base_ms: float = 20.0
    per_token: float = 0.2
    chance: float = 0.8
    tokens: int = 200
    noise: float = 0.01
    launch: Setting = N2
    slow: dict[Setting, float] = field(default_factory=dict)
    everything: float = 1.0

    def answer(self, arm: Setting, rng: Rng) -> Timings:
        """One answer's timings."""
        played = self.launch if arm == SERVER else arm
        depth, cycles, accepted, drafted = played.n_max or 0, 0, 0, 0
        while cycles + accepted < self.tokens:
            run = 0
            while run < depth and rng.random() < self.chance:
                run += 1
            cycles, drafted = cycles + 1, drafted + depth
            accepted += min(run, max(0, self.tokens - cycles - accepted))
        ms = cycles * self.cycle_ms(arm) * (1.0 + self.noise * rng.normal())
        return Timings(100, 10.0, cycles + accepted + 1, ms, draft_n=drafted, draft_n_accepted=accepted)

    def cycle_ms(self, arm: Setting) -> float:
        """Mean cycle time."""
        played = self.launch if arm == SERVER else arm
        factor = self.everything * self.slow.get(arm, 1.0)
        return self.base_ms * (1.0 + self.per_token * (played.n_max or 0)) * factor

    def per_token_ms(self, arm: Setting) -> float:
        """Mean decode time of a token."""
        played = self.launch if arm == SERVER else arm
        table = draft_table(float(played.n_max or 0), 0.0)
        chances = draft_table(1.0, 0.0)
        accepted = sum(self.chance**k for k in range(1, (played.n_max or 0) + 1))
        assert level_of(chances, self.chance) <= 4.8
        assert accepted <= table.accepted[-1] + 1e-9 or not played.n_max
        return self.cycle_ms(arm) / (1.0 + accepted)


@dataclass(slots=True)
class Play:
    """The controller against a world: the state, the events that made it, and what it cost."""

    world: World
    settings: PolicySettings = field(default_factory=lambda: PolicySettings(baseline=N2, cap=8))
    frontier: Frontier = field(default_factory=Frontier)
    context: Context = field(default_factory=lambda: Context(300))
    state: State = field(init=False)
    began: Began = field(init=False)
    events: list[Event] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    took_ms: float = 0.0
    baseline_ms: float = 0.0
    worst_ms: float = 0.0

    def __post_init__(self) -> None:
        """Begin."""
        settings = replace(self.settings, mode=Mode.ADAPTIVE)
        self.began = Began(0.0, Deployment("u"), settings, self.frontier)
        self.state = controller.initial(self.began)

    def tell(self, event: Event) -> None:
        """Apply an event and remember it."""
        self.events.append(event)
        self.state = controller.apply(self.state, event)

    def request(self, number: int) -> Decision:
        """One request and its answer, in expected ms for the account."""
        decision = controller.decide(self.state, self.context, rng_for(self.settings.seed, number))
        self.tell(Decided(float(number), number, self.context, decision, 1.0))
        timings = self.world.answer(decision.arm, rng_for(1000 + self.settings.seed, number))
        self.tell(Observed(float(number), number, Outcome(Status.OK, timings)))
        self.decisions.append(decision)
        tokens = timings.decode_tokens
        self.took_ms += tokens * self.world.per_token_ms(decision.arm)
        self.baseline_ms += tokens * self.world.per_token_ms(self.settings.baseline)
        allowed = (1.0 + self.settings.alpha) * self.baseline_ms + self.settings.c0_ms
        self.worst_ms = max(self.worst_ms, self.took_ms - allowed)
        return decision

    def requests(self, count: int) -> Play:
        """Some more requests."""
        first = self.state.next_number
        for number in range(first, first + count):
            self.request(number)
        return self

    @property
    def relative(self) -> float:
        """Time as a share of the baseline's."""
        return self.took_ms / self.baseline_ms


def answered(lengths: list[int], accepted: float = 0.5) -> State:
    """The state after answers of the baseline of these decode tokens, of which this share were accepted drafts."""
    play = Play(World())
    for number, tokens in enumerate(lengths, start=1):
        decision = Decision(N2, "baseline", 1.0, controller.cell_of(play.state, play.context))
        play.tell(Decided(0.0, number, play.context, decision, 1.0))
        kept = int(accepted * tokens)
        timings = Timings(
            100, 10.0, tokens + 1, 14.0 * tokens, draft_n=2 * (tokens - kept), draft_n_accepted=kept
        )
        play.tell(Observed(0.0, number, Outcome(Status.OK, timings)))
    return play.state
