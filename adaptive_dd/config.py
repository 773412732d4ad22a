"""Settings of `serve`: one table that feeds flags, environment, file, validation and docs.

Precedence: flag > `ADAPTIVE_DD_*` environment > TOML file > default. Each value arrives as text (or as a TOML
value), is read by its row's `read`, and a fault becomes one line that names the setting, where the value came from
and what was expected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from adaptive_dd.core.domain import (
    LARGEST_N,
    OFF,
    SERVER,
    SETTING_GRAMMAR,
    Mode,
    PolicySettings,
    Setting,
    parse_setting,
)
from adaptive_dd.errors import UsageError

ENV_PREFIX = "ADAPTIVE_DD_"


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:  # a NaN fails this too
            raise ValueError
        return value

    return read


def _switch(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True}
    values |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError
    return values[text.lower()]


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    if parts.username is not None or parts.password is not None:
        raise ValueError  # it would stand in the log and the journal
    _ = parts.port  # raises ValueError when it is no port
    return text


def _url_or_empty(text: str) -> str:
    return _url(text) if text else ""


def _arm(text: str) -> tuple[Setting, str]:
    named, mark, url = text.partition("=")
    setting = OFF if named.strip() == "off" else parse_setting(named)
    if not mark or setting == SERVER:
        raise ValueError
    return setting, _url(url.strip())


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return read


class Row(NamedTuple):
    """One setting. `expected` completes the sentence "expected ..."; `switch` marks a flag without a value.

    many: it may be given several times (in the environment: separated by spaces or semicolons); its value is a tuple.
    short: another flag for the same setting, or empty.
    """

    default: Any
    read: Callable[[str], Any]
    expected: str
    help: str
    switch: bool = False
    many: bool = False
    short: str = ""


_SWITCH = "true or false"

SETTINGS: Mapping[str, Row] = {
    "upstream": Row(
        "", _url_or_empty, "a URL such as http://127.0.0.1:8080", "The llama-server to put this in front of."
    ),
    "actuator": Row(
        "auto",
        _choice("auto", "fields", "presets", "replicas"),
        "auto, fields, presets or replicas",
        "How a setting reaches the server: request fields, presets of a router, or servers of their own; "
        "auto finds out.",
    ),
    "arm": Row(
        (),
        _arm,
        "a setting and the URL of the server launched with it, such as n4,p0.0=http://127.0.0.1:8081",
        "A server of its own for one setting; give it once for each. The first is the baseline unless one is named.",
        many=True,
    ),
    "host": Row("127.0.0.1", str, "an address to listen on", "Address to listen on."),
    "port": Row(8090, _whole(0, 65535), "a port, 0 to 65535", "Port to listen on (0 picks a free one)."),
    "baseline": Row(
        parse_setting("server"),
        parse_setting,
        SETTING_GRAMMAR,
        "The fixed setting that must never be beaten in the wrong direction; `server` sends requests as they came.",
    ),
    "cap": Row(
        None,
        _whole(0, LARGEST_N),
        f"a whole number, 0 to {LARGEST_N}",
        "Largest n_max that is ever sent (default: the server's launch value, once known).",
    ),
    "frontier": Row(
        "",
        str,
        "a frontier file, the name of a shipped one, or a ladder such as 0:n4,p0.25;49152:n4,p0.0",
        "Offline measurements to start from.",
    ),
    "state_dir": Row(
        Path("state"), Path, "a folder", "Folder of the journal, where what was learned survives a restart."
    ),
    "mode": Row(
        Mode.ADAPTIVE,
        Mode,
        "one of " + ", ".join(Mode),
        "off = pure relay; observe = relay and measure; static = the frontier alone; adaptive = learn, guarded; "
        "frozen = a frozen policy.",
    ),
    "policy": Row("", str, "a policy file that `freeze` wrote", "The policy that mode frozen plays."),
    "force": Row(False, _switch, _SWITCH, "Replace draft fields that the client set itself.", switch=True),
    "annotate": Row(
        False,
        _switch,
        _SWITCH,
        "Splice a `dynamic_draft` object with the decision into answers.",
        switch=True,
    ),
    "alpha": Row(
        0.01,
        _number(0.0, 1.0),
        "a number, 0 to 1",
        "Share of the baseline's decode time that learning may cost (0.01 = 1%).",
    ),
    "c0_s": Row(
        5.0,
        _number(0.0, 86400.0),
        "seconds, 0 to 86400",
        "Decode seconds that learning may cost on top of alpha, once.",
        short="--c0",
    ),
    "delta": Row(
        0.05,
        _number(1e-6, 0.5),
        "a number, 0.000001 to 0.5",
        "Probability with which the promise on alpha and c0 may fail.",
    ),
    "margin": Row(
        0.02,
        _number(0.0, 1.0),
        "a number, 0 to 1",
        "Predicted gain below which the choice does not move (0.02 = 2%).",
    ),
    "seed": Row(0, _whole(0, 2**63 - 1), "a whole number from 0", "Seed of the draws."),
    "probe": Row(
        True,
        _switch,
        _SWITCH,
        "Ask an idle server by a few short requests what it does with draft settings; "
        "without, it is learned from the traffic.",
        switch=True,
    ),
    "api_key": Row(
        "",
        str,
        "a key",
        "Key for our own probes and counts, where the server wants one (better given by environment).",
    ),
    "body_limit_mb": Row(
        64.0,
        _number(0.001, 4096.0),
        "megabytes, 0.001 to 4096",
        "Request bodies above this are relayed unread.",
    ),
    "retention_days": Row(
        90.0,
        _number(0.01, 36500.0),
        "days, 0.01 to 36500",
        "How long journal rows are kept once a snapshot covers them.",
    ),
    "log_level": Row(
        "info",
        _choice("debug", "info", "warning", "error"),
        "debug, info, warning or error",
        "How much is logged.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of `serve`, read and checked. Fields and SETTINGS agree (a test holds them together)."""

    upstream: str
    actuator: str
    arm: tuple[tuple[Setting, str], ...]
    host: str
    port: int
    baseline: Setting
    cap: int | None
    frontier: str
    state_dir: Path
    mode: Mode
    policy: str
    force: bool
    annotate: bool
    alpha: float
    c0_s: float
    delta: float
    margin: float
    seed: int
    probe: bool
    api_key: str
    body_limit_mb: float
    retention_days: float
    log_level: str

    def policy_settings(self) -> PolicySettings:
        """The part of the settings that deciding depends on."""
        return PolicySettings(
            mode=self.mode,
            baseline=self.baseline,
            cap=self.cap,
            force=self.force,
            alpha=self.alpha,
            c0_ms=1000.0 * self.c0_s,
            delta=self.delta,
            margin=self.margin,
            seed=self.seed,
        )


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def read_value(name: str, value: object, source: str) -> Any:
    """Read one value given as text, number or bool. Raises UsageError with one line."""
    row = SETTINGS[name]
    try:
        if row.many:
            given = value if isinstance(value, list | tuple) else re.split(r"[;\s]+", str(value).strip())
            return tuple(row.read(str(one)) for one in given)
        if isinstance(value, dict | list):
            raise ValueError
        return row.read(str(value))
    except (ValueError, OverflowError):
        shown = "(hidden)" if name == "api_key" or "@" in str(value) else repr(value)  # a URL's password
        raise UsageError(f"{name}: {shown} ({source}) is wrong; expected {row.expected}") from None


def read_file(path: Path) -> dict[str, object]:
    """The settings of a TOML file, by name. Raises UsageError for what is not a setting."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"config: cannot read {path}: {error.strerror}; expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"config: {path} is not TOML: {error}") from None
    named = {key.replace("-", "_"): value for key, value in values.items()}
    for key in named:
        if key not in SETTINGS:
            raise UsageError(f"config: {path}: {key!r} is no setting; expected one of {', '.join(SETTINGS)}")
    return named


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    *,
    need_upstream: bool = True,
) -> Config:
    """All settings by precedence. flags: those given (None = not given). Raises UsageError with one line."""
    from_file = read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    for name, row in SETTINGS.items():
        if flags.get(name) is not None and flags[name] != []:
            values[name] = read_value(name, flags[name], flag_of(name))
        elif env_of(name) in environ:
            values[name] = read_value(name, environ[env_of(name)], env_of(name))
        elif name in from_file:
            values[name] = read_value(name, from_file[name], str(file))
        else:
            values[name] = row.default
    _check_together(values, need_upstream=need_upstream)
    return Config(**values)


def _check_together(values: Mapping[str, Any], *, need_upstream: bool) -> None:
    _check_arms(values)
    if need_upstream and not values["upstream"] and not values["arm"]:
        raise UsageError(
            f"upstream: not given; expected --upstream or {env_of('upstream')}, {SETTINGS['upstream'].expected}"
        )
    if values["mode"] is Mode.FROZEN and not values["policy"]:
        raise UsageError(
            "policy: mode frozen needs --policy FILE; expected a policy file that `freeze` wrote"
        )
    cap, n_max = values["cap"], values["baseline"].n_max
    if cap is not None and n_max is not None and n_max > cap:
        raise UsageError(f"baseline: {values['baseline']} is deeper than --cap {cap}; expected n up to {cap}")


def _check_arms(values: Mapping[str, Any]) -> None:
    arms, actuator = [setting for setting, _ in values["arm"]], values["actuator"]
    if twice := {str(arm) for arm in arms if arms.count(arm) > 1}:
        raise UsageError(f"arm: {min(twice)} stands twice; expected each setting once")
    if arms and actuator not in ("auto", "replicas"):
        raise UsageError(
            f"arm: servers of their own are no {actuator}; expected --actuator replicas (or auto)"
        )
    if actuator == "replicas" and not arms:
        raise UsageError(f"arm: not given; --actuator replicas expected {SETTINGS['arm'].expected}")
    if arms and values["upstream"]:
        raise UsageError("upstream: given beside --arm; expected one of both")


assert [field.name for field in fields(Config)] == list(SETTINGS)
