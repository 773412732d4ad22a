"""The simulated server: its expected times, its draws, and what it does with a setting."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_dd.core.cycles import Content, Cycles, tabulate
from adaptive_dd.core.domain import OFF, SERVER, Context, Listens, Setting, parse_setting
from adaptive_dd.core.sim import (
    FRESH,
    Machine,
    SimRequest,
    Wear,
    World,
    expected_ms,
    generate,
    interpolated,
    linear_shape,
    noise_for,
    played,
    refuses,
)

PLAIN = World(
    base_ms=((0, 20.0),), shape=linear_shape(1.0, 0.2), noise_cycle=0.0, noise_request=0.0, outliers=0.0
)
CODE = Content(0.9)


def request(answer_tokens: int = 200, prompt_tokens: int = 400, **more: object) -> SimRequest:
    return SimRequest(1, Context(prompt_tokens), CODE, answer_tokens, **more)  # type: ignore[arg-type]


def table(arm: Setting, content: Content = CODE) -> Cycles:
    return tabulate(content, 0.0, arm, PLAIN.shape, PLAIN.draft_step)


def test_without_drafting_every_token_costs_one_cycle() -> None:
    assert expected_ms(PLAIN, request(201), OFF) == pytest.approx(200 * 20.0)
    timings = generate(PLAIN, request(201), OFF, noise_for(1, 1))
    assert (timings.predicted_n, timings.draft_n, timings.cycles) == (201, 0, 200)
    assert timings.predicted_ms == pytest.approx(4000.0)


def test_the_first_token_is_free_and_cycles_follow_from_the_timings() -> None:
    timings = generate(PLAIN, request(300), Setting(4, 0.0), noise_for(1, 2))
    assert timings.predicted_n == 300
    assert timings.draft_n == 4 * timings.cycles
    assert timings.predicted_ms == pytest.approx(timings.cycles * 20.0 * 1.8)


@pytest.mark.parametrize("tokens", [2, 9, 300])
@pytest.mark.parametrize("arm", ["n0", "n1", "n4", "n8,p0.6", "n8,p0.6,m4", "n16"])
def test_drawn_times_have_the_expected_mean(arm: str, tokens: int) -> None:
    setting = parse_setting(arm)
    world = World(PLAIN.base_ms, PLAIN.shape, rejection=0.2, rewind=0.1, context_slope=0.3, outliers=0.0)
    content = Content(0.95, 0.4, 0.3)
    asked = SimRequest(1, Context(9000), content, tokens)
    box = Machine(world)
    draws = [box.generate(asked, setting, noise_for(5, i)).predicted_ms for i in range(1000)]
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - box.expected_ms(asked, setting)) < 4 * error


def test_the_same_seed_and_number_draw_the_same_answer() -> None:
    draws = [generate(PLAIN, request(), Setting(4, 0.3), noise_for(3, 9)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != generate(PLAIN, request(), Setting(4, 0.3), noise_for(3, 10))


def test_a_server_plays_its_launch_setting_for_what_is_unset_ignored_or_refused() -> None:
    launch = Setting(6, 0.5, 1)
    honours = World(PLAIN.base_ms, PLAIN.shape, launch=launch, limit=8)
    assert played(honours, SERVER) == launch
    assert played(honours, Setting(3)) == Setting(3, 0.5, 1)
    assert played(honours, OFF) == OFF
    assert refuses(honours, Setting(9))
    assert not refuses(honours, SERVER)
    assert played(honours, Setting(9)) == launch
    ignores = World(PLAIN.base_ms, PLAIN.shape, launch=launch, listens=Listens.IGNORES)
    assert played(ignores, OFF) == launch
    lowers = World(PLAIN.base_ms, PLAIN.shape, launch=launch, listens=Listens.LOWERS_N)
    assert played(lowers, Setting(9, 0.0)) == launch
    assert played(lowers, Setting(2, 0.0)) == Setting(2, 0.5, 1)


def test_load_acts_on_the_base_and_on_what_drafting_adds() -> None:
    world = World(PLAIN.base_ms, PLAIN.shape, load_ms=(1.0, 1.5), load_slope=(1.0, 3.0))
    busy = SimRequest(1, Context(400, in_flight=4), CODE, 201)
    assert expected_ms(world, busy, OFF) == pytest.approx(1.5 * 4000)
    cycles = table(Setting(2, 0.0)).mean_cycles(200)
    assert expected_ms(world, busy, Setting(2, 0.0)) == pytest.approx(cycles * 20 * 1.5 * (1 + 3 * 0.4))


def test_spilled_memory_slows_drafting_alone() -> None:
    spilt = World(PLAIN.base_ms, PLAIN.shape, spill=3.0, spill_context=1000)
    near, far = request(prompt_tokens=900), request(prompt_tokens=1000)
    assert expected_ms(spilt, far, OFF) == expected_ms(spilt, near, OFF)
    assert expected_ms(spilt, far, Setting(2, 0.0)) == pytest.approx(
        3 * expected_ms(spilt, near, Setting(2, 0.0))
    )


def test_heat_grows_with_deep_drafts_only_and_fades() -> None:
    world = World(PLAIN.base_ms, PLAIN.shape, heat_gain=0.2, heat_free=2.0, heat_memory=10.0)
    box, wear = Machine(world), FRESH
    for _ in range(50):
        wear = box.after(wear, request(), Setting(8, 0.0))
    assert wear.heat == pytest.approx(6.0, rel=0.02)
    assert box.expected_ms(request(), Setting(8, 0.0), wear) > 1.5 * box.expected_ms(
        request(), Setting(8, 0.0)
    )
    assert box.expected_ms(request(), OFF, wear) == box.expected_ms(request(), OFF)
    for _ in range(50):
        wear = box.after(wear, request(), Setting(2, 0.0))
    assert wear.heat < 0.1


def test_a_spiteful_world_punishes_moves_away_from_launch() -> None:
    world = World(PLAIN.base_ms, PLAIN.shape, spite=1.0, heat_memory=4.0)
    box = Machine(world)
    assert box.after(FRESH, request(), SERVER).moved == 0.0
    assert box.after(FRESH, request(), Setting(4, 0.0)).moved == pytest.approx(0.25)
    assert box.expected_ms(request(), SERVER, Wear(0.0, 1.0)) == pytest.approx(
        2 * box.expected_ms(request(), SERVER)
    )


def test_a_broken_drafter_makes_drafting_slower_than_none() -> None:
    broken = World(PLAIN.base_ms, PLAIN.shape, skill=-20.0)
    assert expected_ms(broken, request(), Setting(4, 0.0)) > 1.7 * expected_ms(broken, request(), OFF)


def test_interpolation_is_linear_inside_and_flat_outside() -> None:
    points = ((100.0, 1.0), (200.0, 3.0))
    assert [interpolated(points, x) for x in (0, 100, 150, 200, 999)] == [1.0, 1.0, 2.0, 3.0, 3.0]


def test_a_rejection_costs_its_price_and_its_rewind() -> None:
    world = World(PLAIN.base_ms, PLAIN.shape, rejection=0.5, rewind=0.1)
    plain, cycles = expected_ms(PLAIN, request(), Setting(4, 0.0)), table(Setting(4, 0.0))
    extra = cycles.mean_cycles(199) * 20 * (1 - 0.9**4) * (0.5 + 0.4)
    assert expected_ms(world, request(), Setting(4, 0.0)) == pytest.approx(plain + extra)


def test_a_cliff_jumps_and_a_valley_ends() -> None:
    shape = linear_shape(1.0, 0.1, cliffs={4: 0.5, 7: -0.4})
    assert shape[0] == 1.0
    assert shape[3:8] == pytest.approx([1.3, 1.9, 2.0, 2.1, 1.8])


def test_many_at_once_cost_what_each_costs_alone() -> None:
    world = World(
        PLAIN.base_ms,
        PLAIN.shape,
        rejection=0.2,
        rewind=0.1,
        context_slope=0.3,
        spill=2.0,
        spill_context=3000,
    )
    box, arms = Machine(world), (SERVER, OFF, Setting(1, 0.0), Setting(8, 0.6))
    asked = [
        SimRequest(i, Context(900 * i, in_flight=1 + i % 3), Content(0.9, 0.4, 0.2), 4 * i * i, 0.1 * i)
        for i in range(9)
    ]
    singly = [[box.expected_ms(one, arm) for arm in arms] for one in asked]
    assert box.expected_all(asked, arms) == pytest.approx(np.array(singly))
