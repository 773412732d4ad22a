"""The scenarios, built from named rows of public measurements."""

from __future__ import annotations

from adaptive_dd.core.domain import Frontier, FrontierRow, Kind, Setting
from adaptive_dd.core.sim import Content, World, linear_shape
from adaptive_dd.core.traffic import Phase, Scenario, Workload

CODE = Workload("code", Content(0.93, 0.6, 0.2), Kind("greedy"), context=(200, 3000))
PROSE = Workload("prose", Content(0.70, 0.4, 0.3), Kind("sampled"), context=(100, 2000))

DRAFT = Scenario(
    "draft",
    "v0",
    (),
    (
        Phase(
            1, World(((0, 20.0), (65536, 30.0)), linear_shape(1.0, 0.2)), (CODE, PROSE), ((1, 0.7), (2, 0.3))
        ),
    ),
    Frontier(
        (FrontierRow(1000, Setting(4, 0.0), 90.0), FrontierRow(1000, Setting(2, 0.0), 80.0)), Setting(2, 0.0)
    ),
    Setting(2, 0.0),
)
SCENARIOS = {"draft": DRAFT}
