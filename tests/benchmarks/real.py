"""The real thing: policies side by side on one warm llama-server, same prompts, taken in turns.

    python -m tests.benchmarks.real --requests 150 --frontier FILE [--minutes 40] [--write]

Every session of the workload is played by each policy in turn (the order is shuffled anew each time), so heat and
other tenants fall on all alike. What counts is decode time as the server's own `timings` give it. Ratios are of
sums over the same prompts; their intervals come from resampling whole sessions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adaptive_dd.core.domain import SERVER, Setting, parse_setting
from adaptive_dd.core.splice import setting_fields
from tests.benchmarks.real_workload import Request, workload
from tests.real.proxies import RealProxy, proxying
from tests.real.servers import RealServer, call, draft_flags, starting

BUILD, LAUNCH_N = "b9101", 16
FIXED = ("server", "n2,p0.0", "n0", "n8,p0.6")
DOC = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- real-bench -->\n", "<!-- /real-bench -->\n"
RESAMPLES = 2000


@dataclass
class Policy:
    """A way to play: straight to the server with a fixed setting, or through a proxy."""

    name: str
    url: str
    setting: Setting = SERVER
    proxy: RealProxy | None = None
    decode_ms: dict[int, float] = field(default_factory=dict)
    drafted: int = 0
    accepted: int = 0

    def play(self, request: Request) -> None:
        """Send one request and note its decode time."""
        body = {**request.body, **setting_fields(self.setting)}
        timings = call(self.url + request.path, "POST", body)["timings"]
        self.decode_ms[request.number] = timings["predicted_ms"]
        self.drafted += timings.get("draft_n", 0)
        self.accepted += timings.get("draft_n_accepted", 0)


@dataclass(frozen=True)
class Run:
    """What was played: all policies on the same sessions. learned: by policy, the cells that its proxy ended with."""

    policies: Sequence[Policy]
    sessions: Sequence[Sequence[Request]]
    tokens: int
    seconds: float
    learned: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@contextlib.contextmanager
def policies(server: RealServer, frontier: str, skipped: Sequence[str] = ()) -> Iterator[list[Policy]]:
    """Every policy, ready, but for the skipped ones."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        fixed = [name for name in FIXED if name not in skipped]
        made = [Policy(f"fixed {name}", server.url, parse_setting(name)) for name in fixed]
        for name, flags in {
            "static frontier": ("--mode", "static", "--frontier", frontier),
            "adaptive from nothing": ("--mode", "adaptive"),
            "adaptive from the frontier": ("--mode", "adaptive", "--frontier", frontier),
        }.items():
            if name in skipped:
                continue
            # Probing has tests of its own; here it would only put three more minutes before the first request.
            known = ("--no-probe", "--cap", str(LAUNCH_N))
            proxy = stack.enter_context(proxying(server.url, folder / name.replace(" ", "-"), *flags, *known))
            made.append(Policy(name, proxy.url, proxy=proxy))
        yield made


def play(
    server: RealServer,
    frontier: str,
    *,
    count: int,
    tokens: int,
    seed: int,
    minutes: float,
    skipped: Sequence[str] = (),
) -> Run:
    """Play the workload until it is done or the time is up; whole sessions only."""
    order, played, began_s = random.Random(seed), [], time.monotonic()
    with policies(server, frontier, skipped) as made:
        # Cold pages: the first request after a load is slow.
        call(server.url + "/completion", "POST", {"prompt": "Warming up:", "n_predict": 8})
        for session in workload(count, tokens=tokens, seed=seed):
            for policy in order.sample(made, len(made)):
                for request in session:
                    policy.play(request)
            played.append(session)
            left = count - session[-1].number - 1
            print(f"{session[0].kind:6} {session[0].context_tokens:5}  {left} requests to go", flush=True)
            if time.monotonic() - began_s > 60 * minutes:
                print("time is up", flush=True)
                break
        lasted_s = time.monotonic() - began_s
        learned = {one.name: one.proxy.own("state")["cells"] for one in made if one.proxy is not None}
        return Run(made, played, tokens, lasted_s, learned)


def as_policies(run: Run) -> str:
    """What each proxy that learns plays in the end, and at what price."""
    lines = ["| policy | cell | plays | standing | ms/token | the baseline's | answers |", "|" + "---|" * 7]
    for name, cells in run.learned.items():
        for cell in cells if name.startswith("adaptive") else ():
            prices = [cell[key] for key in ("ms_per_token", "baseline_ms_per_token")]
            told = ["-" if ms is None else f"{ms:.0f}" for ms in prices]
            shown = [name, cell["cell"], cell["setting"], cell["status"], *told]
            lines.append("| " + " | ".join([*shown, f"{cell['evidence']:.0f}"]) + " |")
    return "\n".join(lines) + "\n"


def total_s(policy: Policy, requests: Sequence[Request]) -> float:
    """Decode seconds over some requests."""
    return sum(policy.decode_ms[request.number] for request in requests) / 1000.0


def interval(policy: Policy, other: Policy, sessions: Sequence[Sequence[Request]]) -> tuple[float, float]:
    """95% interval of decode time against another policy, from resampled sessions."""
    draw = random.Random(0)
    sums = [(total_s(policy, session), total_s(other, session)) for session in sessions]
    ratios = []
    for _ in range(RESAMPLES):
        some = draw.choices(sums, k=len(sums))
        ratios.append(sum(ours for ours, _ in some) / sum(theirs for _, theirs in some))
    ratios.sort()
    return ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES)]


def last_half(sessions: Sequence[Sequence[Request]]) -> list[Request]:
    """The requests of the second half, when the learner has had its chance."""
    return [request for session in sessions[len(sessions) // 2 :] for request in session]


def as_markdown(run: Run, frontier: str) -> str:
    """The report: machine, totals, kinds, ratios."""
    everything = [request for session in run.sessions for request in session]
    fixed = [policy for policy in run.policies if policy.proxy is None]
    best = min(fixed, key=lambda policy: total_s(policy, everything))
    kinds = sorted({request.kind for request in everything})
    lines = [
        f"{len(everything)} requests in {len(run.sessions)} sessions, {run.tokens} tokens each, every policy on the "
        f"same prompts, taken in turns; {run.seconds / 60:.0f} minutes. {machine()}",
        "",
        f"llama-server {BUILD}, Gemma-3-270M as F32, draft Q2_K of the same model, launched with "
        f"`--spec-draft-n-max {LAUNCH_N}`, one slot, {threads()}. Frontier: {frontier}.",
        "",
        f"Best fixed in hindsight: **{best.name}**.",
        "",
        "| policy | decode s | "
        + " | ".join(f"{kind} s" for kind in kinds)
        + " | against the server's own | against the best fixed | last half, against the best fixed | acceptance |",
        "|---|" + "---|" * (len(kinds) + 5),
    ]
    for policy in run.policies:
        by_kind = [total_s(policy, [r for r in everything if r.kind == kind]) for kind in kinds]
        half = last_half(run.sessions)
        cells = [
            policy.name,
            f"{total_s(policy, everything):.1f}",
            *(f"{seconds:.1f}" for seconds in by_kind),
            _ratio(policy, fixed[0], run.sessions),
            _ratio(policy, best, run.sessions),
            f"{total_s(policy, half) / total_s(best, half):.2f}",
            f"{policy.accepted / policy.drafted:.2f}" if policy.drafted else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def as_medians(run: Run) -> str:
    """The middle answer of each kind: what totals hide where a shared machine stops for a minute."""
    everything = [request for session in run.sessions for request in session]
    kinds = sorted({request.kind for request in everything})
    head = " | ".join(f"{kind} (of {sum(r.kind == kind for r in everything)})" for kind in kinds)
    lines = [f"| median s of an answer | {head} |", "|---|" + "---|" * len(kinds)]
    for policy in run.policies:
        times = [
            [policy.decode_ms[r.number] / 1000.0 for r in everything if r.kind == kind] for kind in kinds
        ]
        lines.append(f"| {policy.name} | " + " | ".join(f"{statistics.median(t):.2f}" for t in times) + " |")
    return "\n".join(lines) + "\n"


def _ratio(policy: Policy, other: Policy, sessions: Sequence[Sequence[Request]]) -> str:
    everything = [request for session in sessions for request in session]
    low, high = interval(policy, other, sessions)
    return f"{total_s(policy, everything) / total_s(other, everything):.2f} ({low:.2f} to {high:.2f})"


def threads() -> str:
    """How many threads the server computes with (`tests.real.servers.command`)."""
    count = os.environ.get("ADAPTIVE_DD_REAL_THREADS", "2")
    return f"{count} thread{'' if count == '1' else 's'}"


def machine() -> str:
    """The machine, as far as it says."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{os.cpu_count()} cores of {line.partition(':')[2].strip()}, {platform.system()}."
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}."


def write_into(doc: Path, text: str) -> None:
    """Replace what stands between the markers, or add it at the end."""
    before = doc.read_text() if doc.exists() else "# Benchmarks\n"
    if BEGIN not in before:
        before += f"\n## On a real server (`make real-bench`)\n\n{BEGIN}{END}"
    head, _, rest = before.partition(BEGIN)
    doc.write_text(head + BEGIN + text + END + rest.partition(END)[2])


def main() -> None:
    """Play, print, and write where asked to."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--requests", type=int, default=150)
    asked.add_argument("--tokens", type=int, default=32, help="length of each answer")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--minutes", type=float, default=120.0, help="stop after the session under way then")
    asked.add_argument(
        "--skip", action="append", default=[], help=f"a policy to leave out, such as {FIXED[-1]}"
    )
    asked.add_argument("--frontier", required=True, help="a frontier file or a ladder string")
    asked.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    asked.add_argument("--raw", type=Path, help="also write every decode time, as JSON")
    told = asked.parse_args()
    # A server left behind would sit on the machine: stop it on a polite kill as on an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # The frontier's name in the docs, not where it lies here.
    named = Path(told.frontier).name if Path(told.frontier).exists() else f"`{told.frontier}`"
    with starting(BUILD, *draft_flags(LAUNCH_N)) as server:
        run = play(
            server,
            told.frontier,
            count=told.requests,
            tokens=told.tokens,
            seed=told.seed,
            minutes=told.minutes,
            skipped=told.skip,
        )
    text = "\n".join((as_markdown(run, named), as_medians(run), as_policies(run)))
    print("\n" + text)
    if told.raw:
        told.raw.write_text(json.dumps({policy.name: policy.decode_ms for policy in run.policies}))
    if told.write:
        write_into(DOC, text)


if __name__ == "__main__":
    main()
