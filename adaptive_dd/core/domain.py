"""The vocabulary: frozen values that every other module speaks in.

Only values and the grammar of a setting live here; nothing decides, parses requests or learns. Units are in the
names. Events are in `core.events`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# --- settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """Draft parameters of one request. None leaves a field at the server's launch value.

    `SERVER` (all None) is "send the request as it came"; `OFF` is no drafting. Written `n4,p0.25,m2`.
    """

    n_max: int | None = None
    p_min: float | None = None
    n_min: int | None = None

    def __str__(self) -> str:
        if self == SERVER:
            return "server"
        parts = []
        if self.n_max is not None:
            parts.append(f"n{self.n_max}")
        if self.p_min is not None:
            parts.append(f"p{self.p_min}")
        if self.n_min is not None:
            parts.append(f"m{self.n_min}")
        return ",".join(parts)

    @property
    def order(self) -> tuple[int, float, int]:
        """A key that sorts settings: by depth, then p, then n_min; SERVER first."""
        unset = -1
        return (
            unset if self.n_max is None else self.n_max,
            unset if self.p_min is None else self.p_min,
            unset if self.n_min is None else self.n_min,
        )

    def clamped(self, cap: int | None) -> Setting:
        """The same setting with n_max (and n_min) no deeper than `cap`."""
        if cap is None or self.n_max is None or self.n_max <= cap:
            return self
        n_min = None if self.n_min is None else min(self.n_min, cap)
        return Setting(cap, self.p_min, n_min)


SERVER = Setting()
OFF = Setting(n_max=0)
# Deeper drafts than any server accepts; a larger number in a file is a typing error, not a setting.
LARGEST_N = 1024

_PART = re.compile(r"n(?P<n>\d{1,4})|p(?P<p>\d*\.?\d+)|m(?P<m>\d{1,4})")
SETTING_GRAMMAR = "n4,p0.25 (n = 0..1024, optional p = 0..1, optional m = n_min up to n), n0 or server"


def parse_setting(text: str) -> Setting:
    """Read `n4,p0.25`, `n0`, `n4,p0.25,m2` or `server`. Raises ValueError that says what was expected."""
    text = text.strip()
    if text == "server":
        return SERVER
    fields: dict[str, str] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or str(match.lastgroup) in fields:
            raise ValueError(f"setting {text!r} is not one of {SETTING_GRAMMAR}")
        fields[str(match.lastgroup)] = match.group(str(match.lastgroup))
    if "n" not in fields:
        raise ValueError(f"setting {text!r} has no n; expected {SETTING_GRAMMAR}")
    n_max = int(fields["n"])
    # Four places: finer ones mean nothing, and would print as 1e-05, which is outside the grammar.
    p_min = round(float(fields["p"]), 4) if "p" in fields else None
    n_min = int(fields["m"]) if "m" in fields else None
    if n_max > LARGEST_N or (p_min is not None and p_min > 1.0) or (n_min is not None and n_min > n_max):
        raise ValueError(f"setting {text!r} is out of range; expected {SETTING_GRAMMAR}")
    if n_max == 0:
        return OFF  # p and m mean nothing without a draft: one arm, not many
    return Setting(n_max, p_min, n_min)


# --- what is known before sending ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """What sort of generation a request asks for, as far as its own fields tell.

    sampling: `greedy` or `sampled`; constraint: `free`, `tools` or `schema`; endpoint: `chat`, `completion`,
    `infill`, `responses`, `messages` or `audio`; hint: the client's `X-DD-Workload`, or empty.
    """

    sampling: str = "sampled"
    constraint: str = "free"
    endpoint: str = "chat"
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.sampling}.{self.constraint}.{self.endpoint}"
        return f"{text}.{self.hint}" if self.hint else text


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of a request before it is sent.

    prompt_tokens      length of the prompt as the server will see it; None where it is not known
    tokens_source      where that came from: one of TOKEN_SOURCES
    in_flight          requests generating at this moment, this one included (at least 1)
    kind               what sort of generation
    conversation       stable hash of the conversation's beginning, empty where there is none
    max_tokens         the client's own limit on generated tokens, None where it set none
    override           draft parameters that the client set itself, None where it set none
    untouchable        reason (of REASONS) why the body must go out as it came, empty where it may be spliced
    arms               settings that can be played at all for this request, None where any up to the cap can
    reprocess          prompt tokens to be processed again because this arm does not hold the conversation's prompt
                       cache, beyond what the best arm would have to; an arm that is not named: none
    prompt_ms_per_token  what processing one prompt token costs, 0.0 where it is not known
    turns              answers of this conversation so far
    blind              the answer will bring no timings, nor arrivals that tell as much: it teaches nothing
    features           under which meaning of kind and conversation this was read (core.context.FEATURES_VERSION);
                       records older than this field were read under the first
    """

    prompt_tokens: int | None
    tokens_source: str = "none"
    in_flight: int = 1
    kind: Kind = Kind()
    conversation: str = ""
    max_tokens: int | None = None
    override: Setting | None = None
    untouchable: str = ""
    arms: tuple[Setting, ...] | None = None
    reprocess: tuple[tuple[Setting, int], ...] = ()
    prompt_ms_per_token: float = 0.0
    turns: int = 0
    blind: bool = False
    features: int = 1


TOKEN_SOURCES: Mapping[str, str] = {
    "sent": "the client sent the prompt as tokens",
    "counted": "the server's own counting routes, asked for this request",
    "ledger": "an earlier turn of the same conversation, plus what was added since",
    "bounded": "bytes bound the tokens from both sides within one bucket: a midpoint",
    "timings": "the server's timings, after the answer",
    "none": "not known",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """Where evidence is kept: index of the context bucket x index of the load level x kind."""

    bucket: int
    load: int
    kind: str

    def __str__(self) -> str:
        return f"b{self.bucket}.l{self.load}.{self.kind}"


# --- decisions and outcomes ----------------------------------------------------------------------------------

REASONS: Mapping[str, str] = {
    # the policy chose
    "frontier": "the offline frontier's fastest safe row at this context",
    "learned": "the fastest setting by what was learned, proven faster than the baseline",
    "explore": "a trial that the guard's budget pays for",
    "stays": "the conversation's prompt cache lives here, and a switch would cost more than it gains",
    "refresh": "a request on the baseline, to keep its price fresh",
    "baseline": "the baseline: nothing is known to beat it here",
    "guard": "the baseline: the guard allows nothing else now",
    "frozen": "the frozen policy's setting for this context",
    # the client or the mode chose
    "request-override": "the client set speculative.* itself",
    "observe": "mode observe: sent as it came, and measured",
    "off": "mode off: a pure relay",
    # the server cannot be told
    "not-honoured": "the server ignores per-request draft settings",
    "no-drafting": "the server drafts nothing at all",
    "draftless": "the server drafts from n-grams, where n_max does not act per request",
    "other-model": "the request names another model, which the presets do not cover",
    "route-drops-fields": "this route drops unknown fields, so a setting cannot reach the server",
    # the request cannot be touched
    "no-count": "the prompt's length is not known, so no setting could be chosen",
    "not-json": "the body is not well-formed JSON",
    "not-object": "the body's top level is not a JSON object",
    "duplicate-key": "a speculative.* key stands twice or escaped; what the server reads is not ours to guess",
    "encoded": "the body is content-encoded",
    "too-large": "the body is over the size limit for reading, or has over a thousand fields",
    "multimodal": "images or audio in the prompt; not counted by guess and not stamped",
    "failed": "our own code failed; the request went out as it came",
}

# Why the relay may not splice this request; the subset that `Context.untouchable` may hold.
UNTOUCHABLE = (
    "route-drops-fields",
    "not-honoured",
    "other-model",
    "not-json",
    "not-object",
    "duplicate-key",
    "encoded",
    "too-large",
    "multimodal",
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to send and why.

    propensity is the probability with which `arm` was drawn among the permitted arms (1.0 for a choice that was
    not drawn).
    """

    arm: Setting
    reason: str
    propensity: float
    cell: Cell


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's own account of one answer, validated. `draft_n` 0 means that nothing was drafted.

    by_depth: (depth, drafted, accepted) for each position of a draft, where the server tells (ik_llama.cpp).
    """

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_n: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    by_depth: tuple[tuple[int, int, int], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Prompt length as the server saw it."""
        return self.cache_n + self.prompt_n

    @property
    def decode_tokens(self) -> int:
        """Tokens that decoding paid for: the first one belongs to the prompt pass."""
        return max(0, self.predicted_n - 1)

    @property
    def cycles(self) -> int:
        """Verification cycles: each emits its accepted drafts and one token more."""
        return max(0, self.decode_tokens - self.draft_n_accepted)

    @property
    def acceptance(self) -> float | None:
        """Accepted share of what was drafted, None where nothing was."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens a second, None where there is nothing to divide."""
        if self.predicted_ms <= 0.0 or self.predicted_n <= 0:
            return None
        return 1000.0 * self.predicted_n / self.predicted_ms


class Status(StrEnum):
    """How an exchange ended."""

    OK = "ok"  # complete, with timings (or with arrivals that tell as much: `Outcome.inferred`)
    NO_TIMINGS = "no-timings"  # complete, but the route or the server sent none
    REJECTED = "rejected"  # complete, but the timings cannot be true, or told (`Outcome.rejected` says why)
    ERROR = "error"  # an error status, or an error event inside a stream
    REFUSED = "refused"  # the server refused our fields; the original bytes were sent again and served
    MOVED = "moved"  # the arm's own place did not answer; another arm's place served the request
    CUT = "cut"  # the upstream's connection broke
    CLIENT_GONE = "client-gone"  # the client left


REJECTIONS: Mapping[str, str] = {
    "not-a-number": "a field that must be a number is not one",
    "not-finite": "a field is infinite or not a number (nan)",
    "negative": "a count or a time is negative",
    "missing": "predicted_n, predicted_ms or prompt_n is missing",
    "no-time": "tokens were generated in no time",
    "too-fast": "more tokens a second than any machine makes",
    "too-slow": "minutes for each token: the machine slept, or a clock jumped",
    "accepted-above-drafted": "draft_n_accepted is above draft_n",
    "accepted-above-predicted": "more drafts accepted than tokens generated",
    "too-large": "a count or a time beyond anything real",
    "not-an-object": "timings is not a JSON object",
    # no timings, and the arrivals of the tokens do not tell them
    "held-back": "the stream's events do not account for its tokens: the server held text back",
    "slow-reader": "tokens were read late, because passing them on to the client took too long",
    "blurred": "the arrivals of the tokens do not show where a verification cycle ends",
    "merged": "more tokens arrived at once than a verification cycle can bring",
    "too-long": "the answer has more arrivals than are kept",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to one request.

    timings          the validated timings, None where there are none to trust
    rejected         a key of REJECTIONS when status is REJECTED, else empty
    mean_in_flight   requests generating at the same time, averaged over this answer (at least 1)
    http_status      what the upstream answered, 0 where nothing came
    inferred         the timings (or why there are none) are not the server's own account, but told by when the tokens
                     of a stream arrived; `draft_n` is then what the setting drafts with a p_min of 0, else only what
                     was accepted
    """

    status: Status
    timings: Timings | None = None
    rejected: str = ""
    mean_in_flight: float = 1.0
    http_status: int = 200
    inferred: bool = False


# --- frontier ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrontierRow:
    """One offline measurement. `tok_s` is a mean over `samples` answers with standard deviation `sd` (of one).

    gain, gain_low, gain_high   tok/s over the baseline's on the same texts, and its interval, where it was paired
    cycle_ms                    time of one verification cycle
    kind                        what sort of request: the beginning of a `Kind` (`greedy`), empty for any
    mark                        why the row makes no claim (`too-noisy`, `dropped`), or empty
    """

    context_tokens: int
    setting: Setting
    tok_s: float
    acceptance: float | None = None
    samples: int | None = None
    sd: float | None = None
    kind: str = ""
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    cycle_ms: float | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Frontier:
    """Offline measurements, all cells and not only winners, sorted by context then setting.

    rules   a ladder given as such, (minimal prompt tokens, setting) ascending, instead of rows
    about   what else the file says of its origin (date, version, cache use, ...), as name and text
    """

    rows: tuple[FrontierRow, ...] = ()
    baseline: Setting = SERVER
    edges: tuple[int, ...] | None = None
    model: str = ""
    build: str = ""
    cap: int | None = None
    generated_tokens: int | None = None
    rules: tuple[tuple[int, Setting], ...] = ()
    about: tuple[tuple[str, str], ...] = ()


# --- server and deployment -----------------------------------------------------------------------------------


class Listens(StrEnum):
    """What a server does with per-request draft settings, found out by its behaviour."""

    UNKNOWN = "unknown"
    HONOURS = "honours"  # all three fields
    LOWERS_N = "lowers-n"  # n_max only, and only below the launch value
    IGNORES = "ignores"  # answers 200 and does as launched
    NO_DRAFTING = "no-drafting"  # drafts nothing at all
    DRAFTLESS = "draftless"  # n-gram drafting, where n_max does not act


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of the server. `cap` is its launch n_max as seen; `limit` a value above which it refuses.

    arms: the only settings that can be played, where they are places; None for any up to the cap.
    """

    listens: Listens = Listens.UNKNOWN
    cap: int | None = None
    limit: int | None = None
    spec_type: str = ""
    slots: int = 1
    arms: tuple[Setting, ...] | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The scope of a state: another model, build, launch cap or way of drafting is another state.

    actuator    how settings reach the server, where not by request fields: `presets` or `replicas`
    spec_type   how it drafts, as far as the server tells
    """

    upstream: str
    model: str = ""
    build: str = ""
    cap: int | None = None
    actuator: str = ""
    spec_type: str = ""


class Mode(StrEnum):
    """How much the proxy does."""

    OFF = "off"  # pure relay
    OBSERVE = "observe"  # relay and measure
    STATIC = "static"  # the frontier alone
    ADAPTIVE = "adaptive"  # frontier, learning and guard
    FROZEN = "frozen"  # a frozen policy, no learning


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What the user chose, as far as deciding depends on it.

    alpha     share of the baseline's time that may be lost (0.01 = 1%)
    c0_ms     decode time that may be lost on top, once
    delta     probability with which the promise may fail
    margin    predicted gain below which exploiting does not move (0.02 = 2%)
    """

    mode: Mode = Mode.ADAPTIVE
    baseline: Setting = SERVER
    cap: int | None = None
    force: bool = False
    alpha: float = 0.01
    c0_ms: float = 5000.0
    delta: float = 0.05
    margin: float = 0.02
    seed: int = 0
