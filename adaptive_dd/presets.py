"""Settings as llama-server's launch flags, and as the presets of its router mode (an INI file).

Flag names are those of builds since mid-2026 (checked against b11434 in the real tests). The INI has no quotes and no
escapes, and a value ends at the first `;` or `#` [preset.cpp], so a path that holds one cannot be written and is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adaptive_dd.core.aliases import alias_of, read_alias
from adaptive_dd.core.domain import OFF, SERVER, SETTING_GRAMMAR, Setting, parse_setting
from adaptive_dd.errors import UsageError

MARK = "; Presets for llama-server's router mode, written by adaptive-dd."

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What would end a value early, or begin another line.
_UNWRITABLE = re.compile(r"[;#\r\n]")


@dataclass(frozen=True, slots=True)
class SpecType:
    """A way of drafting: its flags for depth, shortest draft and confidence (empty: it has none), and its draft model.

    draft: `needed`, `optional` (the model may carry its own head) or `none`.
    """

    n_flag: str
    m_flag: str = ""
    p_flag: str = ""
    draft: str = "none"


def _model_type(draft: str) -> SpecType:
    return SpecType("spec-draft-n-max", "spec-draft-n-min", "spec-draft-p-min", draft)


SPEC_TYPES: Mapping[str, SpecType] = {
    "draft-simple": _model_type("needed"),
    "draft-mtp": _model_type("optional"),
    "draft-eagle3": _model_type("needed"),
    "draft-dflash": _model_type("needed"),
    "draft-dspark": _model_type("needed"),
    "ngram-mod": SpecType("spec-ngram-mod-n-max", "spec-ngram-mod-n-min"),
    "ngram-simple": SpecType("spec-ngram-simple-size-m"),
    "ngram-map-k": SpecType("spec-ngram-map-k-size-m"),
    "ngram-map-k4v": SpecType("spec-ngram-map-k4v-size-m"),
}

LIST_GRAMMAR = "a list such as off,n2,n4,n8,n8,p0.6 (a p or m belongs to the n before it)"


def parse_settings_list(texts: Iterable[str]) -> tuple[Setting, ...]:
    """Read settings from one or more texts, separated by commas, semicolons or spaces. Raises UsageError."""
    groups: list[list[str]] = []
    for part in re.split(r"[,;\s]+", " ".join(texts).strip()):
        if part[:1] in ("p", "m"):
            if not groups:
                raise UsageError(f"settings: {part!r} has no n before it; expected {LIST_GRAMMAR}")
            groups[-1].append(part)
        elif part:
            groups.append([part])
    if not groups:
        raise UsageError(f"settings: none given; expected {LIST_GRAMMAR}")
    settings = [_one(",".join(group)) for group in groups]
    for at, setting in enumerate(settings):
        if setting in settings[:at]:
            raise UsageError(f"settings: {setting} stands twice; expected each setting once")
    return tuple(settings)


def _one(text: str) -> Setting:
    if text == "off":
        return OFF
    try:
        setting = parse_setting(text)
    except ValueError:
        raise UsageError(f"settings: {text!r} is none; expected off or {SETTING_GRAMMAR}") from None
    if setting == SERVER or (setting == OFF and "," in text):
        raise UsageError(f"settings: {text!r} is no launch setting; expected {LIST_GRAMMAR}")
    return setting


def draft_flags(setting: Setting, spec_type: str) -> dict[str, str]:
    """The launch flags (without dashes) that make a server draft as `setting` says; SERVER leaves all as they are.

    Raises UsageError where this way of drafting cannot be told so.
    """
    if setting == OFF:
        return {"spec-type": "none"}
    kind = _kind(spec_type)
    flags = {"spec-type": spec_type}
    for part, flag, value in (
        ("n", kind.n_flag, setting.n_max),
        ("m", kind.m_flag, setting.n_min),
        ("p", kind.p_flag, setting.p_min),
    ):
        if value is None:
            continue
        if not flag:
            raise UsageError(f"settings: {setting}: {spec_type} has no {part}; expected settings without it")
        flags[flag] = f"{value:g}"
    return flags


def _kind(spec_type: str) -> SpecType:
    if spec_type not in SPEC_TYPES:
        raise UsageError(f"spec-type: {spec_type!r} is unknown; expected one of {', '.join(SPEC_TYPES)}")
    return SPEC_TYPES[spec_type]


def check_draft(spec_type: str, draft: str) -> None:
    """Raise UsageError where a draft model is missing, or given for nothing."""
    wanted = _kind(spec_type).draft
    if wanted == "needed" and not draft:
        raise UsageError(f"draft: not given; expected --draft FILE for {spec_type}")
    if wanted == "none" and draft:
        raise UsageError(f"draft: {spec_type} drafts without a model; expected no --draft")


def presets_ini(
    settings: Sequence[Setting],
    *,
    model: str,
    public: str,
    baseline: Setting,
    draft: str = "",
    spec_type: str = "draft-simple",
    options: Mapping[str, str] | None = None,
) -> str:
    """The presets file: one alias per setting, all loaded at start, the public name leading to the baseline's.

    options: further launch flags (without dashes) for all of them. Raises UsageError for what cannot be written.
    """
    check_draft(spec_type, draft)
    if not _NAME.fullmatch(public):
        raise UsageError(
            f"name: {public!r} cannot be a model's name here; expected letters, digits and ._/+-"
        )
    if baseline not in settings:
        shown = " ".join(str(setting) for setting in settings)
        raise UsageError(f"baseline: {baseline} is none of the settings; expected one of {shown}")
    lines = [MARK, f"; Start with:  llama-server --models-preset THIS_FILE --models-max {len(settings)}"]
    lines += ["version = 1", "", "[*]", _line("model", model)]
    lines += [_line(key, value) for key, value in (options or {}).items()]
    for setting in settings:
        lines += ["", *_section(setting, public, baseline, draft, spec_type)]
    return "\n".join(lines) + "\n"


def _section(setting: Setting, public: str, baseline: Setting, draft: str, spec_type: str) -> list[str]:
    alias = alias_of(public, setting)
    if read_alias(alias) != (public, setting):
        raise UsageError(f"settings: {setting} cannot be written into a name; expected p with few decimals")
    lines = [f"[{alias}]"]
    if setting == baseline:
        lines.append(_line("alias", public))
    if draft and setting != OFF:
        lines.append(_line("model-draft", draft))
    lines += [_line(key, value) for key, value in draft_flags(setting, spec_type).items()]
    return [*lines, "load-on-startup = true"]


def _line(key: str, value: str) -> str:
    if not _KEY.fullmatch(key):
        raise UsageError(f"option: {key!r} is no launch flag; expected one such as ctx-size=8192")
    if not value or value != value.strip() or _UNWRITABLE.search(value):
        raise UsageError(
            f"{key}: {value!r} cannot stand in a presets file; expected no ; # or line end in it"
        )
    return f"{key} = {value}"


def llama_args(setting: Setting, *, spec_type: str = "draft-simple", draft: str = "") -> str:
    """The draft flags of a llama-server command line for one setting. Raises UsageError."""
    flags = draft_flags(setting, spec_type)
    needs = setting not in (OFF, SERVER) and _kind(spec_type).draft == "needed"
    named = {"model-draft": draft or "DRAFT.gguf"} if draft or needs else {}
    shown = {**named, **flags} if setting != OFF else flags
    return " ".join(f"--{flag} {_shell(value)}" for flag, value in shown.items())


def _shell(value: str) -> str:
    return (
        value if re.fullmatch(r"[A-Za-z0-9._/=:@%+,-]+", value) else "'" + value.replace("'", "'\\''") + "'"
    )
