"""What switching costs, simulated: presets (or replicas) against fields on the same traffic.

The same scenarios and requests as the bench. An arm is a place with a prompt cache of its own, so a request played
elsewhere than its conversation's last one has its prompt processed again, at the world's own price. Three ways:

    fields     one server, any setting up to the cap, no switching cost: what cannot be had on today's mainline
    presets    a few settings, each a place; the decision knows what a switch costs
    careless   the same places, and a decision that does not know

Time is expected decode time plus the prompt time that switching caused, as a share of the baseline's decode time; the
baseline stays in one place and pays nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from adaptive_dd.core import controller
from adaptive_dd.core.arena import answer, baseline_cost, terms_of
from adaptive_dd.core.domain import OFF, Context, Deployment, Outcome, Setting
from adaptive_dd.core.events import Began, Decided, FactsFound, Observed
from adaptive_dd.core.rng import rng_for
from adaptive_dd.core.sim import FRESH, SimRequest, machine
from adaptive_dd.core.traffic import Scenario, traffic
from adaptive_dd.replicas import Residents

WAYS = ("fields", "presets", "careless")
# Settings worth a process each: what issue and docs name, within the cap.
FEW = (OFF, Setting(1, 0.0), Setting(2, 0.0), Setting(4, 0.0), Setting(8, 0.0), Setting(8, 0.6))
# Conversations whose prompts one place holds: enough for all that are open, as one server holds them for the baseline.
HELD = 64


@dataclass(frozen=True, slots=True)
class PlacesScore:
    """One way on one scenario under one seed.

    relative      decode and switching time as a share of the baseline's decode time
    switching     switching time alone, as the same share
    moved         share of further turns that were played elsewhere than the turn before
    worst_ms      the most that the total ever was behind (1 + alpha) x baseline + c0 (negative: never behind)
    """

    scenario: str
    way: str
    seed: int
    relative: float
    switching: float
    moved: float
    worst_ms: float


@dataclass(slots=True)
class _Caches:
    """What each place really holds: the conversations of its last HELD ones."""

    held: dict[Setting, OrderedDict[str, int]] = field(default_factory=dict)
    last: dict[str, Setting] = field(default_factory=dict)

    def serve(self, arm: Setting, request: SimRequest) -> tuple[int, bool]:
        """Prompt tokens processed beyond what one server would have to, and whether the conversation moved."""
        talk, tokens = request.context.conversation, request.context.prompt_tokens or 0
        place = self.held.setdefault(arm, OrderedDict())
        extra = max(0, request.cached_tokens - place.pop(talk, 0))
        place[talk] = tokens + request.answer_tokens
        if len(place) > HELD:
            place.popitem(last=False)
        moved = self.last.get(talk, arm) != arm
        self.last[talk] = arm
        return extra, moved


def arms_of(scenario: Scenario) -> tuple[Setting, ...]:
    """The places of a scenario: its baseline, and the few within its cap."""
    few = {arm for arm in FEW if (arm.n_max or 0) <= scenario.cap} | {scenario.baseline}
    return tuple(sorted(few, key=lambda arm: arm.order))


def play_places(scenario: Scenario, way: str, seed: int, requests: int) -> PlacesScore:
    """Play one way. Outcomes come at once: what is compared is placing, not waiting."""
    terms, arms = terms_of(scenario, seed), None if way == "fields" else arms_of(scenario)
    state = controller.initial(Began(0.0, Deployment("sim", scenario.name), terms.settings, terms.frontier))
    residents, caches, wear, phase = Residents(), _Caches(), FRESH, None
    baseline = baseline_cost(scenario, seed, requests)
    decode = switching = behind = turns = moves = 0.0
    worst = -terms.settings.c0_ms
    for row, request in enumerate(traffic(scenario, seed, requests)):
        now = scenario.phases[scenario.phase_index(request.number)]
        if phase is None or now.facts != phase.facts:
            state = controller.apply(state, FactsFound(0.0, replace(now.facts, arms=arms)))
        phase, box = now, machine(now.world)
        context = _known(request.context, residents, arms, careful=way == "presets")
        decision = controller.decide(state, context, rng_for(seed, request.number))
        state = controller.apply(state, Decided(0.0, request.number, context, decision, 0.0))
        arm, outcome = decision.arm, answer(box, request, decision.arm, seed=seed, wear=wear)
        extra, moved = caches.serve(arm, request) if arms else (0, False)
        outcome = _with_cache(outcome, request, extra)
        residents.learn(arm, context, outcome)
        state = controller.apply(state, Observed(0.0, request.number, outcome))
        took, lost = box.expected_ms(request, arm, wear), extra * now.world.prompt_ms
        decode, switching = decode + took, switching + lost
        turns, moves = turns + (request.cached_tokens > 0), moves + moved
        behind += took + lost - (1.0 + terms.settings.alpha) * float(baseline[row])
        worst = max(worst, behind - terms.settings.c0_ms)
        wear = box.after(wear, request, arm)
    total = float(baseline.sum())
    share = moves / turns if turns else 0.0
    return PlacesScore(
        scenario.name, way, seed, (decode + switching) / total, switching / total, share, worst
    )


def _known(
    context: Context, residents: Residents, arms: tuple[Setting, ...] | None, *, careful: bool
) -> Context:
    if arms is None:
        return context
    if not careful:
        return replace(context, arms=arms, prompt_ms_per_token=1e-9)  # known, and next to nothing
    return replace(
        context,
        arms=arms,
        reprocess=residents.reprocess(context, arms),
        prompt_ms_per_token=residents.speed.ms_per_token,
        turns=residents.turns(context.conversation),
    )


def _with_cache(outcome: Outcome, request: SimRequest, extra: int) -> Outcome:
    """The outcome with what was processed again among the prompt's processed tokens."""
    timings = outcome.timings
    if timings is None or not extra:
        return outcome
    per_token = timings.prompt_ms / max(1, timings.prompt_n)
    again = replace(
        timings,
        prompt_n=timings.prompt_n + extra,
        prompt_ms=timings.prompt_ms + extra * per_token,
        cache_n=max(0, timings.cache_n - extra),
    )
    return replace(outcome, timings=again)


def table(scores: Sequence[PlacesScore]) -> str:
    """Scenarios by ways, as Markdown: time relative to the baseline, switching share and moved turns."""
    lines = [
        "| scenario | " + " | ".join(WAYS) + " | switching | moved | careless moved |",
        "|---|" + "---|" * 6,
    ]
    for name in dict.fromkeys(score.scenario for score in scores):
        of = {way: [s for s in scores if s.scenario == name and s.way == way] for way in WAYS}
        cells = [f"{_mean([s.relative for s in of[way]]):.3f}" for way in WAYS]
        careful, careless = of["presets"], of["careless"]
        cells += [f"{100 * _mean([s.switching for s in careful]):.1f}%"]
        cells += [f"{100 * _mean([s.moved for s in each]):.1f}%" for each in (careful, careless)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
