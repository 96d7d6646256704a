"""`patchwright show`: which turn said which reply, where the agent dropped, repeated or made up replies."""

from __future__ import annotations

import pytest

from patchwright.recipes.show import said_by
from patchwright.types import Trajectory, Turn


def turn(id: int, text: str, parent: int | None = None, *drift: str) -> Turn:
    return Turn(
        id=id, parent=parent, prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.1,), text=text, drift=drift
    )


def talk(*replies: str | dict) -> tuple[dict, ...]:
    made: list[dict] = [{"role": "system", "content": "s"}]
    for reply in replies:
        said = {"content": reply} if isinstance(reply, str) else reply
        made += [{"role": "user", "content": "go on"}, {"role": "assistant", **said}]
    return tuple(made)


CALL = {"content": "", "tool_calls": [{"function": {"name": "bash", "arguments": "{}"}}]}
CASES = {
    "one chain": ([turn(0, "one"), turn(1, "two", 0)], talk("one", "two"), [0, 1]),
    "a dropped turn": ([turn(0, "no block"), turn(1, "two", None, "dropped_turn")], talk("two"), [1]),
    "a side call": (
        [turn(0, "one"), turn(1, "Title: x", None, "side_call"), turn(2, "x", 0)],
        talk("one", "x"),
        [0, 2],
    ),
    "resampled, the first kept": (
        [turn(0, "done"), turn(1, "done", None, "resampled"), turn(2, "end", 0)],
        talk("done", "end"),
        [0, 2],
    ),
    "a reply of the agent's own": (
        [turn(0, "one"), turn(1, "two")],
        talk("one", "made up", "two"),
        [0, None, 1],
    ),
    "equal replies": ([turn(0, "ok"), turn(1, "ok", 0), turn(2, "ok", 1)], talk("ok", "ok", "ok"), [0, 1, 2]),
    "a summary": ([turn(0, "a"), turn(1, "b", 0), turn(2, "c", None, "compaction")], talk("c"), [2]),
    "calls and thinking": (
        [turn(0, '<think>hm</think>\n<tool_call>{"name": "bash"}'), turn(1, "other()")],
        talk(CALL, "other()"),
        [0, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_reply_is_the_turns_that_said_it(case):
    turns, messages, expected = CASES[case]
    attempt = Trajectory(id="a", task_id="t", turns=tuple(turns), messages=messages)
    found = said_by(attempt)
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    assert [found[index].id if index in found else None for index in replies] == expected
