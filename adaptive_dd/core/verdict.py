"""What was found out about a server, in words: one line for the log, warnings and advice for people."""

from __future__ import annotations

from collections.abc import Mapping

from adaptive_dd.core.domain import Listens, ServerFacts
from adaptive_dd.core.identity import Identity
from adaptive_dd.core.listening import Findings

LAUNCH_FLAGS = "--spec-type, --spec-draft-n-max, --spec-draft-n-min, --spec-draft-p-min"

# What a server does with the fields: a clause that goes on from "this server".
DOES: Mapping[Listens, str] = {
    Listens.UNKNOWN: "has not yet shown what it does with per-request draft settings",
    Listens.HONOURS: "honours per-request draft settings",
    Listens.LOWERS_N: "takes per-request n_max alone, and only below its launch value",
    Listens.IGNORES: "ignores per-request draft settings (as mainline llama.cpp does since b9113)",
    Listens.NO_DRAFTING: "drafts nothing at all",
    Listens.DRAFTLESS: "drafts from n-grams, where n_max does not act per request",
}

# What follows for the proxy, and for its user.
MEANS: Mapping[Listens, str] = {
    Listens.UNKNOWN: "learning it from the traffic",
    Listens.HONOURS: "settings are chosen per request",
    Listens.LOWERS_N: "depths are chosen per request, p_min is left alone",
    Listens.IGNORES: f"relaying and measuring only; the launch flags ({LAUNCH_FLAGS}) are the lever",
    Listens.NO_DRAFTING: "relaying only; launch it with a draft model (-md FILE, newer builds also --spec-type)",
    Listens.DRAFTLESS: "relaying and measuring only; the --spec-ngram-* launch flags are the lever",
}


def in_one_line(facts: ServerFacts, *, where: str = "this server") -> str:
    """What the server does and what follows, for the log."""
    known = [f"launched with n_max {facts.cap}"] if facts.cap is not None else []
    known += [f"refuses n_max above {facts.limit}"] if facts.limit is not None else []
    aside = f" ({', '.join(known)})" if known else ""
    return f"{where} {DOES[facts.listens]}{aside}: {MEANS[facts.listens]}"


def warnings_on(who: Identity, found: Findings) -> list[str]:
    """What a user should know beside the verdict, a line each."""
    facts, lines = found.facts, []
    if who.autotune:
        lines.append(
            "the server tunes its draft settings itself (--spec-autotune): two controllers fight; switch one off"
        )
    if "ngram" in facts.spec_type and facts.listens is not Listens.DRAFTLESS:
        lines.append("it drafts from n-grams as well, and those drafts take no n_max per request")
    if "mtp" in facts.spec_type and facts.listens is Listens.IGNORES:
        lines.append("MTP drafting in mainline takes no per-request settings; forks with both exist")
    if facts.listens is Listens.HONOURS and facts.cap == 0:
        lines.append("its launch value is n_max 0, so nothing is drafted unless --cap allows more")
    if found.above_cap == "obeyed":
        lines.append("it does not cap a request at its launch value, so the proxy does (--cap raises it)")
    if who.sleeping:
        lines.append("its model is asleep; probing and counting would wake it")
    if who.router:
        lines.append("it is a router over several models; each has launch flags of its own")
    return lines


def advice_on(found: Findings) -> list[str]:
    """What to do, a line each."""
    facts = found.facts
    if found.trouble and facts.listens is Listens.UNKNOWN:
        return [found.trouble]
    if facts.listens is Listens.IGNORES:
        return [
            f"set the draft depth at launch: {LAUNCH_FLAGS}",
            "or serve several settings at once in router mode (adaptive-dd presets) or from several servers (--arm)",
            "or use a build that honours the fields (llama.cpp up to b9101, ik_llama.cpp)",
        ]
    if facts.listens in (Listens.NO_DRAFTING, Listens.DRAFTLESS):
        return [MEANS[facts.listens].partition("; ")[2]]
    if facts.listens in (Listens.HONOURS, Listens.LOWERS_N):
        return ["adaptive-dd serve --upstream URL chooses the depth of every request"]
    return []
