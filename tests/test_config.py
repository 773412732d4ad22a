from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from adaptive_dd.config import SETTINGS, Config, env_of, flag_of, resolve
from adaptive_dd.core.domain import Mode, Setting
from adaptive_dd.errors import UsageError

URL = {"upstream": "http://127.0.0.1:8080"}


def test_the_table_and_the_config_value_name_the_same_settings() -> None:
    assert [field.name for field in fields(Config)] == list(SETTINGS)


def test_a_flag_wins_over_the_environment_and_that_over_the_file_and_that_over_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.toml"
    file.write_text('port = 3\nhost = "file"\nbaseline = "n2,p0.0"\nalpha = 0.5\n')
    env = {"ADAPTIVE_DD_PORT": "2", "ADAPTIVE_DD_HOST": "env"}
    config = resolve({**URL, "port": "1"}, env, file)
    assert (config.port, config.host, config.alpha) == (1, "env", 0.5)
    assert config.baseline == Setting(2, 0.0)
    assert config.mode is Mode.ADAPTIVE


BAD = {
    "upstream": "ftp://x",
    "actuator": "magic",
    "arm": "n4",
    "port": "70000",
    "baseline": "n2,q3",
    "cap": "-1",
    "mode": "fast",
    "alpha": "nan",
    "c0_s": "-1",
    "delta": "0",
    "margin": "two",
    "seed": "1.5",
    "force": "perhaps",
    "annotate": "2",
    "probe": "",
    "body_limit_mb": "0",
    "retention_days": "inf",
    "log_level": "loud",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_one_line_that_names_setting_source_and_expectation(name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'{name} = "{BAD[name]}"\n')
    sources = (({name: BAD[name]}, {}, None), ({}, {env_of(name): BAD[name]}, None), ({}, {}, file))
    for (flags, env, path), source in zip(sources, (flag_of(name), env_of(name), str(file)), strict=True):
        with pytest.raises(UsageError) as caught:
            resolve(({} if name == "upstream" else URL) | flags, env, path)
        text = str(caught.value)
        assert text.startswith(f"{name}: ")
        assert source in text
        assert SETTINGS[name].expected in text
        assert "\n" not in text


def test_a_key_is_never_shown_in_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('api_key = ["secret"]\n')
    with pytest.raises(UsageError) as caught:
        resolve(URL, {}, file)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({}, "upstream: not given"),
        ({**URL, "mode": "frozen"}, "--policy"),
        ({"arm": ["n4=http://a", "n4=http://b"]}, "n4 stands twice"),
        ({"arm": ["n4=http://a"], "actuator": "presets"}, "arm: servers of their own are no presets"),
        ({**URL, "actuator": "replicas"}, "arm: not given"),
        ({**URL, "arm": ["n4=http://a"]}, "upstream: given beside --arm"),
        ({"arm": ["server=http://a"]}, "arm: "),
        ({**URL, "baseline": "n9", "cap": "4"}, "deeper than --cap 4"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(flags: dict[str, str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        resolve(flags, {})


def test_a_file_that_is_missing_not_toml_or_has_an_unknown_name_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("= 3")
    (tmp_path / "unknown.toml").write_text("prot = 3")
    for name, part in (
        ("none.toml", "cannot read"),
        ("bad.toml", "not TOML"),
        ("unknown.toml", "'prot' is no setting"),
    ):
        with pytest.raises(UsageError, match=part):
            resolve(URL, {}, tmp_path / name)


def test_arms_are_read_in_order_from_flags_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('arm = ["off=http://one:1", "n4,p0.0=http://two:2"]\n')
    wanted = ((Setting(0), "http://one:1"), (Setting(4, 0.0), "http://two:2"))
    assert resolve({"arm": ["off=http://one:1", "n4,p0.0=http://two:2"]}, {}).arm == wanted
    assert resolve({}, {"ADAPTIVE_DD_ARM": "off=http://one:1;  n4,p0.0=http://two:2"}).arm == wanted
    assert resolve({"arm": []}, {}, file).arm == wanted
    assert resolve(URL, {}).arm == ()


def test_an_upstream_with_a_password_in_it_is_refused_as_it_would_stand_in_log_and_journal() -> None:
    with pytest.raises(UsageError, match="upstream"):
        resolve({"upstream": "http://user:hunter2@127.0.0.1:8080"}, {}, None)


@pytest.mark.parametrize(
    "flags",
    [{"upstream": "http://u:hunter2@h:1"}, {"arm": ["n2=http://u:hunter2@h:1"]}, {"upstream": "u:hunter2@h"}],
)
def test_a_password_in_an_address_is_not_repeated_in_the_error(flags: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags, {}, None)
    assert "hunter2" not in str(caught.value)
