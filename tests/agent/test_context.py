"""Context policies: what stays of a long conversation, by hypothesis and in a loop with a model."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.agent.context import ContextConfig, Size, cut, open_context, shorten
from patchwright.errors import ConfigError

OPENING = [{"role": "system", "content": "s" * 60}, {"role": "user", "content": "u" * 90}]
POLICIES = ["head_tail", "window", "summarise"]


def exchange(number, length):
    mark = f"<{number}>"
    return [
        {"role": "assistant", "content": f"{mark}{'a' * length}"},
        {"role": "user", "content": f"{mark}{'o' * length}"},
    ]


def grown(use, lengths, budget=1000, said="what was learnt", **more):
    """Every request a conversation of such exchanges leads to, and the transcripts that were summed up."""
    policy = open_context(ContextConfig(use=use, budget=budget, **more))
    asked: list[str] = []

    async def ask(shown, transcript):
        asked.append(transcript)
        return said

    async def main():
        exchanges, views = [], []
        for number, length in enumerate(lengths):
            exchanges.append(exchange(number, length))
            views.append(await policy.view(OPENING, exchanges, ask))
        return views

    return asyncio.run(main()), asked, policy


def numbers(view):
    """Which exchanges a request shows, each number once; fails when one is torn."""
    found = [message["content"].partition(">")[0][1:] for message in view[len(OPENING) :]]
    assert found[::2] == found[1::2], "a reply without its answer"
    return [int(number) for number in found[::2]]


lengths = st.lists(st.integers(0, 900), min_size=1, max_size=40)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(0, 500), st.floats(0, 0.99))
def test_a_cut_keeps_the_newest_within_the_room_and_no_less_than_fits(sizes, room, head):
    found = cut(sizes, room, head)
    assert 0 <= found.head <= found.tail <= len(sizes)
    first, last = sizes[: found.head], sizes[found.tail :]
    if sum(sizes) <= room:
        assert found.head == found.tail == len(sizes)
        return
    assert last, "the newest is there"
    assert sum(first) + sum(last) <= max(room, sizes[-1])
    assert sum(first) <= room * head
    dropped = sizes[found.head : found.tail]
    assert len(last) == len(sizes) or sum(first + last) + dropped[-1] > room, (
        "the last ones fill what is left"
    )


@pytest.mark.parametrize("use", POLICIES)
@settings(max_examples=60, deadline=None)
@given(lengths=lengths, budget=st.integers(200, 1500))
def test_requests_show_whole_exchanges_in_order_and_always_the_newest(use, lengths, budget):
    views, _, policy = grown(use, lengths, budget)
    for count, view in enumerate(views, 1):
        shown = numbers(view)
        assert shown == sorted(set(shown)) and shown[-1] == count - 1
        newest = view[-2:]
        assert newest[1] == exchange(count - 1, lengths[count - 1])[1]
        if len(shown) > 1:
            assert policy.size(*view) <= budget
        if len(shown) < count:
            assert f"{count - len(shown)} exchange" in str(view)


@pytest.mark.parametrize("use", POLICIES)
@settings(max_examples=40, deadline=None)
@given(lengths=lengths)
def test_between_two_cuts_requests_extend_each_other(use, lengths):
    views, _, _ = grown(use, lengths)
    for before, after in itertools.pairwise(views):
        same = numbers(after)[:-1] == numbers(before)
        assert (after[: len(before)] == before) == same


@settings(max_examples=40, deadline=None)
@given(lengths=lengths)
def test_what_is_gone_stays_gone(lengths):
    for use in POLICIES:
        gone: set[int] = set()
        for count, view in enumerate(grown(use, lengths)[0], 1):
            left_out = set(range(count)) - set(numbers(view))
            assert gone <= left_out
            gone = left_out


def test_head_and_tail_share_the_room_as_asked():
    views, _, _ = grown("head_tail", [50] * 60, budget=3000, head=0.3, fill=1.0)
    shown = numbers(views[-1])
    head = next(i for i, number in enumerate(shown) if number != i)
    assert head and len(shown) < 60
    assert 0.2 < head / len(shown) < 0.35
    assert numbers(grown("window", [50] * 60, budget=3000)[0][-1])[0] > 0


def test_the_marker_says_how_much_is_missing_and_roles_take_turns():
    for use in POLICIES:
        view = grown(use, [100] * 30)[0][-1]
        roles = [message["role"] for message in view]
        assert roles == ["system", *["user", "assistant"] * 20][: len(roles)]
        [marked] = [message for message in view if "left out here" in message["content"]]
        assert f"[{30 - len(numbers(view))} exchanges left out here" in marked["content"]


def test_none_shows_everything():
    view = grown("none", [900] * 30)[0][-1]
    assert numbers(view) == list(range(30))


def test_a_summary_takes_in_the_one_before_and_all_that_was_left_out():
    views, asked, _ = grown("summarise", [100] * 40, said="fact 42")
    assert len(asked) > 2 and "<summary>\nfact 42\n</summary>" in views[-1][1]["content"]
    assert "fact 42" in asked[1] and "assistant:\n<0>" in asked[0] and "<0>" not in asked[1]
    seen = "".join(asked)
    assert all(f"<{n}>" in seen for n in range(40) if n not in numbers(views[-1]))


def test_a_summary_that_never_came_leaves_the_marker_and_a_long_one_is_bounded():
    silent = grown("summarise", [100] * 30, said="")[0][-1]
    assert "<summary>" not in str(silent) and "left out here" in str(silent)
    views, _, policy = grown("summarise", [100] * 30, said="x" * 100_000)
    assert policy.size(*views[-1]) <= 1000


def test_the_ratio_of_tokens_to_characters_is_learnt():
    size, message = Size(), {"role": "user", "content": "x" * 4000}
    before = size(message)
    size.learn([message], 1008)
    assert before > 1300 and abs(size(message) - 1008) <= 1
    for nonsense in (None, 0, -3, "12", 2.5):
        size.learn([message], nonsense)
    assert abs(size(message) - 1008) <= 1


@given(st.text(max_size=300), st.integers(2, 100))
def test_shortened_text_is_head_and_tail(text, limit):
    short, omitted = shorten(text, limit)
    assert (short == text) == (omitted == 0) == (len(text) <= limit)
    if omitted:
        head, tail = limit // 2, limit - limit // 2
        assert short.startswith(text[:head]) and short.endswith(text[-tail:])
        assert len(text) - omitted == limit


def test_an_unknown_policy_is_one_sentence():
    with pytest.raises(ConfigError, match=r"`context.use` is 'windows'.*did you mean `window`"):
        open_context(ContextConfig(use="windows"))
