"""`serve`, wired: every part made from the settings, run until a signal, and put away in order.

Nothing here decides anything. The order matters twice: the port is bound before anything else, so that a clash is one
line and not a half-started proxy; and at the end the relay stops first and the journal last, so that the last
outcomes are still written.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from adaptive_dd import __version__
from adaptive_dd.actuator import Actuator
from adaptive_dd.admin import Panel, admin_app
from adaptive_dd.chooser import Choice, Chooser
from adaptive_dd.config import Config
from adaptive_dd.core.context import SamplingDefaults
from adaptive_dd.core.controller import cap_of
from adaptive_dd.core.domain import SERVER, Deployment, Frontier, Mode, Outcome, ServerFacts, Status
from adaptive_dd.core.identity import Identity
from adaptive_dd.core.state import foreign
from adaptive_dd.core.wire import Route
from adaptive_dd.counting import Counter
from adaptive_dd.engine import Engine
from adaptive_dd.errors import UsageError
from adaptive_dd.frontier_file import load_frontier
from adaptive_dd.httpd import bind, loop_factory, serve_on
from adaptive_dd.journal import StoredJournal
from adaptive_dd.metrics import Metrics
from adaptive_dd.policy_view import frozen_policy, state_view
from adaptive_dd.proxy import Relay
from adaptive_dd.router import Presets
from adaptive_dd.tend import Tend, actuator_for
from adaptive_dd.upstream import Header, Upstream
from adaptive_dd.watch import Watch, auth

log = logging.getLogger("adaptive_dd")


@dataclass(slots=True)
class Proxy:
    """The parts of one proxy."""

    config: Config
    metrics: Metrics
    journal: StoredJournal
    engine: Engine
    upstreams: list[Upstream]
    watch: Watch
    tend: Tend
    relay: Relay
    panel: Panel


def sampling_defaults(who: Identity | None) -> SamplingDefaults:
    """How the server samples by its launch flags, as far as it tells; llama-server's own defaults beyond that."""
    usual = SamplingDefaults()
    if who is None:
        return usual
    return SamplingDefaults(
        usual.temperature if who.temperature is None else who.temperature,
        usual.top_k if who.top_k is None else who.top_k,
    )


class _Told:
    """The chooser, with the watch told of every answer: traffic shows what the server does with the fields."""

    def __init__(self, chooser: Chooser, watch: Watch, tend: Tend) -> None:
        self._chooser, self._watch, self._tend = chooser, watch, tend

    async def choose(
        self, route: Route, headers: list[Header], body: bytes | None, *, path: str = ""
    ) -> Choice:
        """As the chooser does, told what the server samples with where a request says nothing."""
        self._chooser.sampling_defaults = sampling_defaults(self._watch.who)
        return await self._chooser.choose(route, headers, body, path=path)

    def finish(self, choice: Choice, outcome: Outcome) -> None:
        """As the chooser does, then tell."""
        self._chooser.finish(choice, outcome)
        if outcome.status is Status.MOVED or outcome.http_status == 0:
            self._tend.nudge()
        if not self._chooser.actuator.takes_fields:
            return
        if outcome.status is Status.REFUSED:
            self._watch.refused(choice.arm)
        elif outcome.status is Status.OK and outcome.timings is not None and choice.reason != "failed":
            self._watch.heard(choice.arm, outcome.timings)
        elif outcome.status is Status.CUT or outcome.http_status == 0:
            self._watch.nudge()


class _Warned:
    """The engine as the watch sees it: what was found is what the actuator makes of it, with a warning where the
    frontier was measured on another model or build than the one met.
    """

    def __init__(self, engine: Engine, frontier: Frontier, notes: list[str], actuator: Actuator) -> None:
        self._engine, self._frontier, self._notes = engine, frontier, notes
        self._actuator = actuator
        self._found: tuple[Deployment, ServerFacts] | None = None

    def act_by(self, actuator: Actuator) -> None:
        """Settings reach the server in another way from now on, or other ones do."""
        self._actuator = actuator
        self._engine.rebase(actuator.baseline)
        if self._found is not None:
            self.deploy(*self._found)

    @property
    def in_flight(self) -> int:
        """As the engine's."""
        return self._engine.in_flight

    def deploy(self, deployment: Deployment, facts: ServerFacts | None = None) -> None:
        """As the engine does, then compare."""
        self._found = (deployment, facts or ServerFacts())
        deployment = self._actuator.deployment(deployment)
        self._engine.deploy(deployment, self._actuator.facts(self._found[1]))
        other = foreign(self._frontier, deployment)
        if other:
            adaptive = self._engine.state.settings.mode is Mode.ADAPTIVE
            worth = "its rows are a hint and get no credit" if adaptive else "it is played as it is"
            self._say(f"the frontier was {other}: {worth}, calibrate again")
        self._compare_settings()

    def _compare_settings(self) -> None:
        cap = cap_of(self._engine.state)
        deepest = max((row.setting.n_max or 0 for row in self._frontier.rows), default=0)
        if cap is not None and deepest > cap:
            self._say(
                f"the frontier has settings down to n{deepest}, but nothing deeper than n{cap} is sent "
                f"(the launch value, or --cap): give --cap {deepest} to allow them"
            )
        base, launched = self._frontier.baseline, self._engine.state.facts.cap
        stands_in = self._engine.state.settings.baseline == SERVER and base != SERVER
        if stands_in and launched is not None and base.n_max != launched:
            self._say(
                f"the frontier was measured against {base}, this server drafts up to {launched} by itself: where "
                f"nothing beat {base} requests go out as they came; give --baseline {base} to play it there"
            )

    def _say(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)
            log.warning("%s", note)

    def found(self, facts: ServerFacts) -> None:
        """As the engine does."""
        if self._found is not None:
            self._found = (self._found[0], facts)
        self._engine.found(self._actuator.facts(facts))
        self._compare_settings()


def frontier_for(config: Config) -> Frontier:
    """The frontier that the mode plays: the policy's rows when frozen, else the measured ones."""
    source = config.policy if config.mode is Mode.FROZEN else config.frontier
    return load_frontier(source) if source else Frontier()


def _salt(state_dir: Path) -> bytes:
    """What makes conversation hashes this installation's own; kept beside the journal, else made anew."""
    path = state_dir / "salt"
    with contextlib.suppress(OSError):
        if not path.exists():
            state_dir.mkdir(parents=True, exist_ok=True)
            path.write_bytes(secrets.token_bytes(16))
        return path.read_bytes()
    return hashlib.blake2b(str(state_dir).encode()).digest()[:16]


def assemble(config: Config) -> Proxy:
    """Make every part. Raises UsageError and InputFileError; a journal that cannot be opened is only said."""
    frontier, metrics = frontier_for(config), Metrics()
    upstreams: list[Upstream] = []

    def upstream(url: str) -> Upstream:
        upstreams.append(Upstream(url, on_retry=lambda: metrics.inc("upstream_retries_total")))
        return upstreams[-1]

    actuator, presets = actuator_for(config, upstream, auth(config.api_key))
    home = actuator.home
    journal = StoredJournal(config.state_dir, metrics=metrics, retention_days=config.retention_days)
    journal.start()
    engine = Engine(
        journal,
        actuator.deployment(Deployment(home.base_url)),
        settings=replace(config.policy_settings(), baseline=actuator.baseline),
        frontier=frontier,
        metrics=metrics,
    )
    notes: list[str] = []
    if config.mode is Mode.STATIC and not config.frontier:
        notes.append("mode static without --frontier: every request gets the baseline")
    warned = _Warned(engine, frontier, notes, actuator)
    watch = Watch(
        home.base_url,
        home,
        warned,
        may_probe=config.probe and config.mode is not Mode.OFF and actuator.takes_fields,
        api_key=config.api_key,
        cap=config.cap,
    )
    counter = Counter(metrics, own_headers=tuple(auth(config.api_key)))
    salt = _salt(config.state_dir)
    chooser = Chooser(engine, home, metrics=metrics, counter=counter, salt=salt, actuator=actuator)
    tend = Tend(
        actuator,
        engine,
        presets=presets,
        router=lambda: watch.who is not None and watch.who.router,
        charged=lambda ms: engine.charge(ms, "a preset was loading"),
    )
    panel = Panel(engine, metrics, lambda: watch.up, journal.health, state_view, frozen_policy, notes)
    relay = Relay(
        _Told(chooser, watch, tend),
        home,
        metrics,
        admin_app(panel),
        annotate=config.annotate,
        body_limit_bytes=int(config.body_limit_mb * 1e6),
    )

    def act_by(now: Actuator) -> None:
        chooser.actuator, relay.upstream = now, now.home
        relay.view = now if isinstance(now, Presets) else None
        warned.act_by(now)

    tend.changed = act_by
    return Proxy(config, metrics, journal, engine, upstreams, watch, tend, relay, panel)


@contextlib.asynccontextmanager
async def running(proxy: Proxy) -> AsyncIterator[Proxy]:
    """Watch the upstream and tend the actuator while the body runs, then put everything away."""
    tasks = [asyncio.create_task(proxy.watch.run()), asyncio.create_task(proxy.tend.run())]
    try:
        yield proxy
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in proxy.upstreams:
            await upstream.aclose()
        proxy.journal.close()


def _first_lines(config: Config, listening: socket.socket) -> Iterable[str]:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    servers = config.upstream or " ".join(f"{arm}={url}" for arm, url in config.arm)
    yield f"adaptive-dd {__version__}: http://{shown}:{port} -> {servers}"
    yield f"mode {config.mode.value}, baseline {config.baseline}; look at http://{shown}:{port}/_dd/"


def serve_forever(config: Config) -> int:
    """Serve until a signal. The exit code."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    for noisy in ("httpx2", "httpcore2", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listening = bind(config.host, config.port)
    try:
        for url in (config.upstream, *(url for _, url in config.arm)):
            if url and _same_place(listening, url):
                raise UsageError(f"upstream: {url} is the proxy itself; expected the llama-server's address")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(config, listening))
    finally:
        listening.close()
    return 0


async def _serve(config: Config, listening: socket.socket) -> None:
    async with running(assemble(config)) as proxy:
        for line in (*_first_lines(config, listening), *proxy.panel.notes):
            log.info("%s", line)
        await serve_on(listening, proxy.relay)


def _same_place(listening: socket.socket, upstream: str) -> bool:
    parts, (host, port) = urlsplit(upstream), listening.getsockname()[:2]
    return (parts.hostname, parts.port or 80) in ((host, port), ("localhost", port))
