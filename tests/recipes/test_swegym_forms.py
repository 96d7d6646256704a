"""SWE-Gym's published forms, against conversions worked out by hand from their rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.recipes.data.conversation import Unfit, plain
from patchwright.recipes.data.swegym import as_log, as_text, from_log, judged, judgement, single_calls


def call(name, arguments, key="c1"):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(key, content, **more):
    return {"role": "tool", "tool_call_id": key, "content": content, **more}


CALLING = plain(
    [
        {"role": "system", "content": "You repair."},
        {"role": "user", "content": [{"type": "text", "text": "Fix "}, {"type": "text", "text": "it."}]},
        {"role": "assistant", "content": None, "tool_calls": [call("execute_bash", '{"command": "ls"}')]},
        result("c1", "mod.py", name="execute_bash"),
        {
            "role": "assistant",
            "content": "Now edit.",
            "tool_calls": [
                call("str_replace_editor", '{"command": "create", "file_text": "a\\nb", "n": 2}', "c2"),
                call("execute_bash", '{"command": "pytest", "quiet": true}', "c3"),
            ],
        },
        result("c2", "done"),
        result("c3", "1 passed"),
        {"role": "assistant", "content": "", "tool_calls": [call("finish", "{}", "c4")]},
    ]
)


def test_calls_become_text_one_a_message_and_results_messages_of_the_user():
    assert as_text(single_calls(CALLING)) == [
        {"role": "system", "content": "You repair."},
        {"role": "user", "content": "Fix it."},
        {
            "role": "assistant",
            "content": "<function=execute_bash>\n<parameter=command>ls</parameter>\n</function>",
        },
        {"role": "user", "content": "EXECUTION RESULT of [execute_bash]:\nmod.py"},
        {
            "role": "assistant",
            "content": "Now edit.\n\n<function=str_replace_editor>\n<parameter=command>create</parameter>\n"
            "<parameter=file_text>\na\nb\n</parameter>\n<parameter=n>2</parameter>\n</function>",
        },
        {"role": "user", "content": "EXECUTION RESULT of [str_replace_editor]:\ndone"},
        {
            "role": "assistant",
            "content": "<function=execute_bash>\n<parameter=command>pytest</parameter>\n"
            "<parameter=quiet>True</parameter>\n</function>",
        },
        {"role": "user", "content": "EXECUTION RESULT of [execute_bash]:\n1 passed"},
        {"role": "assistant", "content": "<function=finish>\n</function>"},
    ]


def test_results_order_the_calls_and_calls_without_a_result_are_dropped():
    both = [call("a", "{}", "x"), call("b", "{}", "y"), call("c", "{}", "z")]
    talk = plain(
        [
            {"role": "assistant", "content": "t", "tool_calls": both},
            result("y", "2", name="b"),
            result("x", "1", name="a"),
        ]
    )
    assert [(m["content"], m.get("tool_calls", [{}])[0].get("id")) for m in single_calls(talk)] == [
        ("", "y"),
        ("2", None),
        ("t", "x"),
        ("1", None),
    ]
    with pytest.raises(Unfit, match="between several calls"):
        single_calls([talk[0], {"role": "user", "content": "go on"}])


def test_what_cannot_be_converted_says_why():
    for arguments, why in (("{", "not JSON"), ("[1]", "no object")):
        with pytest.raises(Unfit, match=why):
            as_text(plain([{"role": "assistant", "content": "", "tool_calls": [call("f", arguments)]}]))
    with pytest.raises(Unfit, match="several calls"):
        as_text([CALLING[4]])
    for broken, why in (({"role": "bot"}, "role 'bot'"), ({"role": "assistant", "tool_calls": [3]}, "name")):
        with pytest.raises(Unfit, match=why):
            plain([broken])


def test_tools_are_described_in_the_system_message():
    schema = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What to run."},
            "n": {"type": "integer"},
        },
        "required": ["command"],
    }
    tool = {"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": schema}}
    system = as_text(CALLING[:1], [tool])[0]["content"]
    assert system.startswith("You repair.\n") and "<function=name_of_the_function>" in system
    assert "---- BEGIN FUNCTION #1: bash ----\nDescription: Runs.\nParameters:\n" in system
    assert "  (1) command (string, required): What to run.\n  (2) n (integer, optional): " in system


def test_the_log_is_that_of_the_published_rows():
    rule = "-" * 100
    talk = plain(
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "one"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "look", "tool_calls": [call("bash", '{"command": "ls"}')]},
            result("c1", "mod.py"),
            {"role": "assistant", "content": "done"},
        ]
    )
    assert as_log(talk) == "\n".join(
        [
            "*** System Message that describes the assistant's behavior ***",
            "S",
            rule,
            "*** Turn 1 - USER ***",
            "one",
            "two",
            rule,
            "*** Turn 1 - ASSISTANT ***",
            "look",
            "### Tool Call 0",
            "<function=bash>",
            "<parameter=command>ls</parameter>",
            "</function>",
            rule,
            "*** Turn 2 - TOOL EXECUTION RESULT ***",
            "mod.py",
            rule,
            "*** Turn 2 - ASSISTANT ***",
            "done",
            rule,
            "",
        ]
    )


text = st.text(st.characters(codec="utf-8", exclude_characters="*"), max_size=40)


@given(text, st.lists(text, min_size=1, max_size=6), st.booleans(), st.booleans())
def test_a_verifiers_row_is_read_back_as_the_conversation_it_was_made_of(system, said, opened, resolved):
    talk = [{"role": ("user", "assistant")[at % 2], "content": words} for at, words in enumerate(said)]
    talk = [{"role": "system", "content": system}, *talk] if opened else talk
    assert from_log(as_log(talk)) == talk
    row = judged(talk, resolved)
    assert [message["role"] for message in row] == ["system", "user", "assistant"]
    assert judgement(row) == (talk, resolved)
    assert judgement(talk) is None
