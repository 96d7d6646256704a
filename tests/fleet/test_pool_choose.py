"""Which node is chosen: rules that hold whatever the nodes look like."""

from hypothesis import given
from hypothesis import strategies as st

from patchwright.fleet.choose import (
    NodeState,
    Want,
    after_failure,
    after_success,
    choose,
    may_take,
    next_chance,
)

IMAGES = ("a", "b", "c")
A, GOOD, BAD = (Want(name, name) for name in ("a", "good", "bad"))


@st.composite
def nodes(draw):
    cap = draw(st.integers(1, 4))
    state = NodeState(
        url=f"http://node-{draw(st.integers(0, 10**9))}",
        cap=cap,
        busy=draw(st.integers(0, cap)),
        creating=draw(st.integers(0, 1)),
        healthy=draw(st.booleans()),
        draining=draw(st.booleans()),
        images=frozenset(draw(st.sets(st.sampled_from(IMAGES)))),
    )
    for image in draw(st.lists(st.sampled_from(IMAGES), max_size=4)):
        state = after_failure(state, image, draw(st.floats(0, 50)), draw(st.floats(0, 0.99)))
    return state


@given(st.lists(nodes(), max_size=6), st.sampled_from(IMAGES), st.floats(0, 200))
def test_the_choice_can_take_it_and_nobody_is_better(states, image, now):
    chosen = choose(states, Want(image, image), now)
    able = [state for state in states if may_take(state, Want(image, image), now)]
    assert (chosen is None) == (not able)
    if chosen is not None:
        assert chosen.healthy and not chosen.draining and chosen.busy < chosen.cap
        assert image in chosen.images or not any(image in state.images for state in able)
        alike = [state for state in able if (image in state.images) == (image in chosen.images)]
        assert all(chosen.busy / chosen.cap <= state.busy / state.cap for state in alike)


@given(st.lists(nodes(), max_size=6), st.sampled_from(IMAGES), st.floats(0, 200))
def test_when_the_next_chance_comes_somebody_can_be_tried(states, image, now):
    idle = [NodeState(**{**_fields(state), "creating": 0}) for state in states]
    chance = next_chance(idle, Want(image, image))
    assert chance is None or choose(idle, Want(image, image), max(now, chance)) is not None


@given(nodes(), st.sampled_from(IMAGES))
def test_a_success_ends_all_probation_of_its_image(state, image):
    state = after_success(state, image)
    assert image not in state.troubles and not state.streak


def test_the_node_with_the_image_wins_then_the_least_loaded_share():
    far = NodeState(url="http://far", cap=16, busy=0, healthy=True)
    near = NodeState(url="http://near", cap=16, busy=15, healthy=True, images=frozenset({"a"}))
    small = NodeState(url="http://small", cap=2, busy=1, healthy=True)
    big = NodeState(url="http://big", cap=16, busy=2, healthy=True)
    assert choose([far, near], A, 0.0) is near
    assert choose([small, big], A, 0.0) is big


def test_failures_back_off_for_longer_and_longer_up_to_a_bound():
    node, waits = NodeState(url="http://n", cap=4, healthy=True), []
    for _ in range(12):
        node = after_failure(node, "a", 100.0, 0.0)
        waits.append(node.troubles["a"].until - 100.0)
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0] and waits[-1] == 60.0
    assert after_failure(node, "a", 100.0, 0.99).troubles["a"].until > 129.0


def test_one_bad_image_leaves_the_node_to_others_a_second_one_does_not():
    node = after_failure(NodeState(url="http://n", cap=4, healthy=True), "bad", 0.0, 0.0)
    assert may_take(node, GOOD, 0.1) and not may_take(node, BAD, 0.1)
    node = after_failure(node, "worse", 0.0, 0.0)
    assert not may_take(node, GOOD, 0.1) and may_take(node, GOOD, 1.1)
    assert may_take(after_success(node, "good"), GOOD, 0.1)


def test_a_node_on_probation_gets_one_box_at_a_time():
    node = after_failure(NodeState(url="http://n", cap=4, healthy=True), "a", 0.0, 0.0)
    trying = NodeState(**{**_fields(node), "busy": 1, "creating": 1})
    assert may_take(node, A, 2.0) and not may_take(trying, A, 2.0)


def _fields(state):
    return {name: getattr(state, name) for name in NodeState.__dataclass_fields__}
