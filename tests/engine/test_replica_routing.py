"""Where requests go: the pure core of `engine/replicas.py`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patchwright.engine.routing import BLOCK, CROWD, Router

NAMES = ("a", "b", "c")
PROMPT = st.lists(st.integers(0, 3), max_size=4 * BLOCK)


@given(st.lists(st.tuples(st.sampled_from(NAMES), PROMPT), max_size=20), PROMPT)
def test_what_is_known_of_a_replica_is_the_longest_prefix_it_was_sent(sent, prompt):
    router = Router()
    for name, other in sent:
        router.begin(name, other)
        router.end(name)
    for name in NAMES:
        shared = [_shared(other, prompt) for where, other in sent if where == name]
        assert router.cached(name, prompt) == max(shared, default=0)


def _shared(one, other):
    """Tokens both begin with, in whole blocks."""
    most = min(len(one), len(other)) // BLOCK
    return max((n * BLOCK for n in range(most + 1) if one[: n * BLOCK] == other[: n * BLOCK]), default=0)


@given(PROMPT, st.lists(PROMPT, max_size=10), st.lists(st.sampled_from(NAMES), max_size=30))
def test_nobody_is_chosen_while_another_costs_less(prompt, known, under_way):
    router = Router()
    for number, other in enumerate(known):
        router.begin(NAMES[number % 3], other)
        router.end(NAMES[number % 3])
    for name in under_way:
        router.begin(name, [])

    def cost(name):
        return len(prompt) - router.cached(name, prompt) + CROWD * router.under_way(name)

    assert cost(router.choose(prompt, NAMES)) == min(map(cost, NAMES))


@given(st.lists(st.sampled_from(NAMES), max_size=50))
def test_what_begins_and_ends_leaves_nothing_under_way(names):
    router = Router()
    for name in names:
        router.begin(name, [])
    for name in names:
        router.end(name)
    assert {router.under_way(name) for name in NAMES} == {0}


def test_a_conversation_returns_until_its_replica_is_crowded():
    router, talk = Router(), list(range(4 * CROWD))
    router.begin("a", talk)
    router.end("a", [*talk, *range(64)])
    assert router.cached("a", [*talk, *range(64), 9]) == 4 * CROWD + 64
    for _ in range(3):
        router.begin("a", [])
        assert router.choose([*talk, 1], NAMES[:2]) == "a"
    for _ in range(2):
        router.begin("a", [])
    assert router.choose([*talk, 1], NAMES[:2]) == "b"


def test_equals_take_turns_and_what_is_forgotten_is_new():
    router = Router()
    order = []
    for number in range(6):
        name = router.choose([number], NAMES)
        order.append(name)
        router.begin(name, [number])
        router.end(name)
    assert sorted(order) == sorted(NAMES * 2)
    router.begin("a", [5] * BLOCK)
    router.forget("a")
    assert router.cached("a", [5] * BLOCK) == 0


def test_memory_is_bounded_and_the_ends_of_what_was_unused_longest_go_first():
    router = Router(most_blocks=4)
    router.begin("a", [1] * (3 * BLOCK))
    router.begin("a", [2] * (3 * BLOCK))
    assert router.cached("a", [2] * (3 * BLOCK)) == 3 * BLOCK
    assert router.cached("a", [1] * (3 * BLOCK)) == BLOCK
