"""Does the server listen? Which short requests to send, and what their answers mean.

Echoes lie (no build tells n_max back) and version numbers do too (forks), so the question is put to behaviour:
the same sort of text with and without a setting, and the drafted tokens in `timings` are the answer. Nothing is
sent from here: `next_ask` says what to send after the answers so far, `conclude` what they prove. Both read the
whole tuple of answers, so there is no state to get wrong.

What makes a probe sound:
- "nothing was drafted" proves obedience only where the same text drafts without the setting: predictable text,
  greedy, and a base request first;
- every probe has a text of its own, because a repeated prompt is drafted from what the server remembers of it;
- p_min is tried on sampled text, where a drafter is never certain; on predictable text p = 1.0 passes too;
- nothing above the launch value is sent unless the caller asks for it (`raise_to`): some forks refuse, one that
  asserts instead would die of our curiosity.

Where it misleads: a server that drafts from n-grams *beside* a draft model is called draftless, because n_max
does not switch it off; and the cap of a server that ignores p_min is only a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adaptive_dd.core.domain import OFF, SERVER, Listens, ServerFacts, Setting, Timings

# Tokens per probe: enough cycles to tell a depth from an accident, few enough for a slow machine.
LOOP_TOKENS = 48
NOVEL_TOKENS = 16
# n-gram drafting comes in blocks of 48 tokens by default and only where a whole block still fits.
LONG_TOKENS = 112
# A stamp must at least halve the drafted tokens per cycle to count as obeyed: texts alone differ by less.
OBEYED_SHARE = 0.5
# The launch value's n_max, with nothing too unsure to be drafted, and with everything.
FULL, SURE = Setting(p_min=0.0), Setting(p_min=1.0)
# A depth this far above the launch value is a deeper draft and not an error of our estimate.
DEEPER = 1.2
# More probes than any path below needs; a bound, not a plan.
MOST_PROBES = 20


@dataclass(frozen=True, slots=True)
class Ask:
    """One probe. text: `loop` (predictable), `long` (blocks that repeat) or `novel` (sampled, unpredictable)."""

    name: str
    setting: Setting
    tokens: int = LOOP_TOKENS
    text: str = "loop"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for an ask.

    status     HTTP status
    timings    None where there were none to trust
    message    an error's text
    spec_type  the drafting types that the answer's `generation_settings` named
    """

    ask: Ask
    status: int
    timings: Timings | None = None
    message: str = ""
    spec_type: str = ""

    @property
    def refused(self) -> bool:
        """The server read the request and would not have it."""
        return 400 <= self.status < 500 and self.status not in (401, 403, 404, 408, 429)

    @property
    def drafted(self) -> bool:
        """Something was drafted."""
        return self.timings is not None and self.timings.draft_n > 0


@dataclass(frozen=True, slots=True)
class Findings:
    """What the answers prove.

    facts       for the controller
    n_acts      n_max = 0 stopped the drafting (None: not known)
    p_acts      p_min = 1 thinned it out
    n_min_acts  n_min dropped the short drafts
    above_cap   a value above the launch value was `obeyed`, `capped` or `refused`; empty: not tried
    trouble     why nothing could be found out, one line; empty: all went well
    """

    facts: ServerFacts = field(default_factory=ServerFacts)
    n_acts: bool | None = None
    p_acts: bool | None = None
    n_min_acts: bool | None = None
    above_cap: str = ""
    trouble: str = ""
    probes: int = 0


def depth(timings: Timings) -> float:
    """Drafted tokens per cycle; 0.0 where there was no cycle."""
    return timings.draft_n / timings.cycles if timings.cycles else 0.0


def launch_depths(timings: Timings) -> frozenset[int]:
    """The values of n_max that one answer allows whose drafts were all as long as they may be (p_min 0).

    b9101 counts whole drafts, except that the very last token gets none: draft_n is a multiple of the cycles or
    of one less, and now and then of both. Others count what is left of a draft that would run over the end of the
    answer: the mean rounded up is then a lower bound, and all there is.
    """
    cycles, drafted = timings.cycles, timings.draft_n
    if drafted == 0 or cycles == 0:
        return frozenset({0})
    whole = {drafted // count for count in (cycles, cycles - 1) if count > 0 and drafted % count == 0}
    return frozenset(whole) or frozenset({math.ceil(drafted / cycles)})


def launch_depth(timings: Sequence[Timings]) -> frozenset[int]:
    """The values that all answers allow; where they allow none in common, the largest lower bound."""
    allowed = [launch_depths(each) for each in timings]
    common = frozenset.intersection(*allowed) if allowed else frozenset()
    return common or frozenset({max(math.ceil(depth(each)) for each in timings)} if timings else ())


def _found(answers: Sequence[Answer], name: str) -> Answer | None:
    return next((answer for answer in answers if answer.ask.name == name), None)


def _obeyed(answer: Answer | None, base: Answer | None) -> bool | None:
    """Whether a stamp thinned the drafts out against a base; None where that cannot be said."""
    if answer is None or base is None or not base.drafted or base.timings is None:
        return None
    if answer.refused:
        return False
    if answer.timings is None:
        return None
    return depth(answer.timings) <= OBEYED_SHARE * depth(base.timings)


def _n_acts(answers: Sequence[Answer]) -> bool | None:
    """True once n_max = 0 stopped drafts that came without it (or n_max > 0 started some)."""
    if (asked := _found(answers, "asked")) is not None and asked.drafted:
        return True
    if not any(answer.drafted and answer.ask.setting == SERVER for answer in answers):
        return None
    offs = [answer for answer in answers if answer.ask.setting == OFF and (answer.timings or answer.refused)]
    stopped = [not answer.drafted and not answer.refused for answer in offs]
    return stopped[0] if stopped and len(set(stopped)) == 1 else None


def never_above(cap: int) -> int | None:
    """The default of `raise_to`: nothing above the launch value."""
    return None


def next_ask(
    answers: Sequence[Answer],
    *,
    raise_to: Callable[[int], int | None] = never_above,
    thorough: bool = False,
) -> Ask | None:
    """The next probe after these answers, None when there is nothing left to find out.

    raise_to: from the launch value to a value above it that is worth trying (a user's `--cap`), or None.
    thorough: also find out whether n_min acts.
    """
    done = {answer.ask.name for answer in answers}
    if "base" not in done:
        return Ask("base", SERVER)
    if _trouble(answers) or len(answers) >= MOST_PROBES:
        return None
    step = _basic(answers, done)
    if step is None and _n_acts(answers):
        step = _finer(answers, done, thorough) or _above(answers, raise_to)
    return step


def _basic(answers: Sequence[Answer], done: set[str]) -> Ask | None:
    """Does n_max act at all?"""
    if _is_drafted(answers, "base"):
        asks = [Ask("off", OFF)]
        if "off" in done and not _n_acts(answers):
            asks += [Ask("off-again", OFF), Ask("plain", SERVER, text="novel")]
    else:
        asks = [Ask("asked", Setting(4, 0.0))]
        if not _is_drafted(answers, "asked"):
            asks.append(Ask("long", SERVER, LONG_TOKENS, "long"))
        if _is_drafted(answers, "long"):
            asks.append(Ask("long-off", OFF, LONG_TOKENS, "long"))
    return next((ask for ask in asks if ask.name not in done), None)


def _is_drafted(answers: Sequence[Answer], name: str) -> bool:
    answer = _found(answers, name)
    return answer is not None and answer.drafted


def _finer(answers: Sequence[Answer], done: set[str], thorough: bool) -> Ask | None:
    """n_max acts: does p_min, what is the launch value, does n_min?"""
    if "full" not in done:
        return Ask("full", FULL, NOVEL_TOKENS, "novel")
    if "sure" not in done:
        return Ask("sure", SURE, NOVEL_TOKENS, "novel")
    again = f"full-{sum(name.startswith('full') for name in done) + 1}"
    if _p_acts(answers) and len(launch_depth(_full(answers))) > 1 and again != "full-5":
        # An odd number more, or the same coincidence comes back.
        return Ask(again, FULL, NOVEL_TOKENS + 3, "novel")
    depth_asked = min(8, _cap(answers) or 0)
    if thorough and _p_acts(answers) and depth_asked >= 2:
        # A p_min that lets some drafts be short, without and with n_min that drops the short ones.
        for name, n_min in (("some", None), ("whole", depth_asked)):
            if name not in done:
                return Ask(name, Setting(depth_asked, 0.3, n_min), NOVEL_TOKENS, "novel")
    return None


def _above(answers: Sequence[Answer], raise_to: Callable[[int], int | None]) -> Ask | None:
    """A value above the launch value, then the limit between what was accepted and what was refused."""
    cap = _cap(answers)
    higher = None if cap is None else raise_to(cap)
    if cap is None or higher is None or higher <= cap:
        return None
    accepted, refused = _limits(answers, cap)
    if _found(answers, "above") is None:
        # Room for three cycles: the last may be cut short, and one alone cannot be told from the launch value.
        return Ask("above", Setting(higher, 0.0), 2 * higher + 8)
    if refused is None or refused - accepted <= 1:
        return None
    middle = (accepted + refused) // 2
    return Ask(f"limit-{middle}", Setting(middle, 0.0), 2)


def _limits(answers: Sequence[Answer], cap: int) -> tuple[int, int | None]:
    """(largest n_max known to be accepted, smallest known to be refused)."""
    tried = [(a.ask.setting.n_max, a) for a in answers if a.ask.setting.n_max]
    smallest = min((n for n, answer in tried if answer.refused), default=None)
    accepted = [n for n, answer in tried if answer.status == 200] + [cap]
    return max((n for n in accepted if smallest is None or n < smallest), default=0), smallest


def _full(answers: Sequence[Answer]) -> list[Timings]:
    """Timings of the answers whose drafts were as long as the launch value allows."""
    return [answer.timings for answer in answers if answer.ask.setting == FULL and answer.timings is not None]


def _p_acts(answers: Sequence[Answer]) -> bool | None:
    return _obeyed(_found(answers, "sure"), _found(answers, "full"))


def _n_min_acts(answers: Sequence[Answer]) -> bool | None:
    """Whether n_min dropped the short drafts: only whole ones were left, and far fewer tokens than without it."""
    some, whole = _found(answers, "some"), _found(answers, "whole")
    if some is None or whole is None or some.timings is None or whole.timings is None:
        return None
    n_max = some.ask.setting.n_max or 1
    if some.timings.draft_n % n_max == 0:
        return None
    if whole.timings.draft_n % n_max != 0:
        return False
    return _obeyed(whole, some) or None


def _cap(answers: Sequence[Answer]) -> int | None:
    """The launch value of n_max as seen, None where no answer shows it."""
    full = _full(answers)
    if full and _p_acts(answers) is not False:
        return max(launch_depth(full))
    untouched = (SERVER, FULL, SURE) if full else (SERVER,)
    seen = [a.timings for a in answers if a.ask.setting in untouched and a.timings is not None]
    if full:
        return max(launch_depth(seen))
    return max((math.ceil(depth(timings)) for timings in seen), default=None)


def _above_cap(answers: Sequence[Answer], cap: int | None) -> str:
    above = _found(answers, "above")
    if above is None or cap is None:
        return ""
    if above.refused:
        return "refused"
    if above.timings is None or (above.ask.setting.n_max or 0) < DEEPER * DEEPER * cap:
        return ""
    return "obeyed" if depth(above.timings) > DEEPER * cap else "capped"


def _trouble(answers: Sequence[Answer]) -> str:
    """Why probing cannot go on, one line; empty where it can."""
    base, last = answers[0], answers[-1]
    if last.status in (401, 403):
        return "the server needs a key (--api-key) before it can be asked"
    if last.status == 503:
        return "the server is still loading its model"
    if base.status != 200:
        return f"a plain completion was answered with {base.status}{base.message and ': ' + base.message}"
    if base.timings is None:
        return "answers carry no timings; this does not look like a llama-server"
    if last.status >= 500 or last.status in (0, 404, 408, 429):
        return (
            f"probe {last.ask.name!r} was answered with {last.status}{last.message and ': ' + last.message}"
        )
    return ""


def conclude(answers: Sequence[Answer], *, spec_type: str = "", slots: int = 1) -> Findings:
    """What the answers prove. spec_type, slots: what the server told of itself, if it did."""
    if not answers:
        return Findings(ServerFacts(spec_type=spec_type, slots=slots))
    n_acts, p_acts, cap = _n_acts(answers), _p_acts(answers), _cap(answers)
    spec_type = spec_type or next((answer.spec_type for answer in answers if answer.spec_type), "")
    listens = _listens(answers, n_acts, p_acts, spec_type)
    limit = None
    if cap is not None:
        accepted, refused = _limits(answers, cap)
        limit = accepted if refused is not None else None
    if listens in (Listens.UNKNOWN, Listens.NO_DRAFTING, Listens.DRAFTLESS):
        cap = None
    return Findings(
        facts=ServerFacts(listens=listens, cap=cap, limit=limit, spec_type=spec_type, slots=slots),
        n_acts=n_acts,
        p_acts=p_acts,
        n_min_acts=_n_min_acts(answers),
        above_cap=_above_cap(answers, cap),
        trouble=_trouble(answers),
        probes=len(answers),
    )


def _listens(answers: Sequence[Answer], n_acts: bool | None, p_acts: bool | None, spec_type: str) -> Listens:
    if n_acts:
        return Listens.UNKNOWN if p_acts is None and _trouble(answers) else _how_far(p_acts)
    if not any(answer.drafted for answer in answers):
        return Listens.NO_DRAFTING if _found(answers, "long") is not None else Listens.UNKNOWN
    if n_acts is None:
        return Listens.UNKNOWN
    plain = _found(answers, "plain")
    only_repeats = plain is not None and plain.timings is not None and not plain.drafted
    blocks = _found(answers, "long-off") is not None
    return Listens.DRAFTLESS if "ngram" in spec_type or only_repeats or blocks else Listens.IGNORES


def _how_far(p_acts: bool | None) -> Listens:
    """p_min that does not act marks the forks that take n_max alone."""
    return Listens.LOWERS_N if p_acts is False else Listens.HONOURS
