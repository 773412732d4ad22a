from __future__ import annotations

import json
import re
from importlib import resources

from adaptive_dd.admin import Panel, admin_app
from adaptive_dd.core.domain import (
    Context,
    Deployment,
    Kind,
    Listens,
    Outcome,
    PolicySettings,
    ServerFacts,
    Setting,
    Status,
    Timings,
)
from adaptive_dd.engine import Engine, MemoryJournal
from adaptive_dd.metrics import Metrics
from adaptive_dd.policy_view import frozen_policy, state_view


def learned(requests: int = 60) -> Engine:
    """An engine that saw one kind of request, in which drafting four deep is twice as fast as the baseline."""
    settings = PolicySettings(baseline=Setting(1, 0.0))
    engine = Engine(MemoryJournal(), Deployment("http://up"), settings=settings)
    engine.found(ServerFacts(Listens.HONOURS, cap=8))
    for _ in range(requests):
        ticket = engine.begin(Context(300, "counted", kind=Kind("greedy")))
        depth = ticket.decision.arm.n_max or 0
        cycles = 240 // (1 + depth)
        timings = Timings(
            prompt_n=300,
            prompt_ms=50.0,
            predicted_n=1 + cycles * (1 + depth),
            predicted_ms=cycles * (20.0 + depth),
            draft_n=cycles * depth,
            draft_n_accepted=cycles * depth,
        )
        engine.finish(ticket.number, Outcome(Status.OK, timings))
    return engine


def test_a_fresh_engine_has_a_view_that_a_strict_json_parser_reads() -> None:
    view = state_view(Engine(MemoryJournal(), Deployment("http://up")))
    assert json.loads(json.dumps(view, allow_nan=False))["summary"]["requests"] == 0


def test_what_was_learned_shows_as_cells_with_gains_and_a_budget() -> None:
    view = json.loads(json.dumps(state_view(learned()), allow_nan=False))
    assert view["summary"]["requests"] == 60
    assert view["summary"]["frontier"] == "none"
    (cell,) = [cell for cell in view["cells"] if cell["cell"].startswith("b0.l0.greedy")]
    assert cell["baseline_ms_per_token"] > 0
    assert cell["setting"] in {arm["setting"] for arm in cell["arms"]}
    assert all(0.0 <= arm["chance"] <= 1.0 and arm["why"] for arm in cell["arms"])
    assert abs(sum(arm["chance"] for arm in cell["arms"]) - 1.0) < 1e-9
    assert view["budget"]["saved_ms"] > 0


def test_the_frozen_policy_says_how_much_of_it_is_proven() -> None:
    policy = json.loads(json.dumps(frozen_policy(learned()), allow_nan=False))
    assert policy["proven"] + policy["unproven"] >= 1
    assert policy["frontier"]["format"] == "adaptive-dd/frontier@1"


def test_the_page_asks_for_fields_that_the_views_have() -> None:
    engine = learned(5)
    app = admin_app(Panel(engine, Metrics(), state_view=state_view))
    assert app is not None
    page = resources.files("adaptive_dd").joinpath("page.html").read_text(encoding="utf-8")
    found = re.search(r"state\.cells, (\[.*?\])", page)
    assert found is not None
    wanted = json.loads(found.group(1))
    cells = state_view(engine)["cells"]
    assert "where" in wanted
    assert all(name in cell for cell in cells for name in wanted)
