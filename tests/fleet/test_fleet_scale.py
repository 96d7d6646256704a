"""The simulation of large fleets: queues as theory has them, and the measured figures of small ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.fleet.scale import Costs, Place, Site, simulate

IDLE = {"think": 0.0, "work": 0.0, "tests": 0.0, "turns": 10**6}
ONE_MACHINE = Site(boxes=15, nodes=1, cores=2, **IDLE)
"""`bench fleet`: client, pool and nodes share two cores, and nobody thinks."""


def costs(ms):
    """All of a command's work in one place."""
    return Costs(driver=0, turn=0, pool=0, lease=0, node=ms, box=0)


def test_it_reproduces_the_bench_of_real_nodes():
    """docs/fleet.md: 924 commands a second at the nodes, 727 through the pool. The cost of a command in its
    box is set by the first; the second follows from the pool's 0.5 ms, within 5 %."""
    usual = Costs()
    direct = usual.driver + usual.node + usual.box
    assert simulate(ONE_MACHINE, costs(direct), seconds=5).commands == pytest.approx(924, rel=0.01)
    through = simulate(ONE_MACHINE, costs(direct + usual.pool), seconds=5).commands
    assert through == pytest.approx(727, rel=0.05)


@given(st.integers(1, 40), st.integers(1, 8), st.floats(0.5, 20))
@settings(max_examples=25, deadline=None)
def test_without_thinking_every_core_is_busy(boxes, cores, ms):
    """The utilisation law: cores / service time, or as many as there are boxes."""
    site = Site(boxes=boxes, nodes=1, cores=cores, **IDLE)
    found = simulate(site, costs(ms), seconds=4)
    assert found.commands == pytest.approx(min(boxes, cores) / (ms / 1000), rel=0.03)
    assert found.wait_p50 == pytest.approx(ms * max(1, boxes / cores), rel=0.6)


def test_with_few_agents_a_command_waits_for_nobody():
    """The interactive response time law: boxes / (thinking + service)."""
    site = Site(boxes=200, nodes=50, cores=8, think=2.0, work=0.0, tests=0.0, turns=10**6)
    found = simulate(site, Costs(), seconds=100)
    assert found.commands == pytest.approx(200 / 2.0, rel=0.05)
    usual = Costs()
    assert found.wait_p50 == pytest.approx(usual.driver + usual.turn + usual.node + usual.box, rel=0.2)


def test_the_pool_is_spared_by_direct_commands_and_the_driver_by_more_of_them():
    fast = {"think": 3.0, "boxes": 10_000}
    one = simulate(Site(**fast), seconds=20)
    assert one.bottleneck == "driver" and one.driver > 0.99
    through = simulate(Site(**fast, drivers=8, direct=False), seconds=20)
    direct = simulate(Site(**fast, drivers=8), seconds=20)
    assert through.bottleneck == "pool" and through.pool > 0.99
    assert direct.commands > 2 * through.commands and direct.attempts > 2 * through.attempts


def test_attempts_end_and_are_graded():
    site = Site(boxes=100, nodes=10, cores=16, think=1.0, turns=4, work=0.0, tests=2.0)
    found = simulate(site, Costs(lease=1.0), seconds=200)
    each = 4 * 1.0 + 2.0  # seconds of an attempt: thinking four times, and the tests
    assert found.attempts == pytest.approx(100 / each, rel=0.05)
    assert found.commands == pytest.approx(4 * found.attempts, rel=0.05)


def test_the_same_seed_gives_the_same():
    small = Site(boxes=50, nodes=4)
    assert simulate(small, seconds=20, seed=3) == simulate(small, seconds=20, seed=3)
    assert simulate(small, seconds=20, seed=3) != simulate(small, seconds=20, seed=4)


def test_a_place_serves_in_turn():
    place = Place(2)
    assert [place.serve(0.0, 1.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    assert place.serve(5.0, 1.0) == 6.0 and place.share(10.0) == 0.2
