"""Figures of an evaluation: rates, tokens and cost, from rows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from patchwright.errors import ConfigError
from patchwright.recipes.evaluation import sliced
from patchwright.recipes.figures import Row, figures, table, tokens_of
from patchwright.recipes.presets import load_settings, load_training, names, training_names
from patchwright.recipes.prices import Price, Tokens, load_price
from patchwright.types import Grade, GradeState, Outcome, Trajectory, Turn

R, U, V = Outcome.RESOLVED, Outcome.UNRESOLVED, Outcome.VOID


def rows(**outcomes):
    return [
        Row(task_id=task, run=run, outcome=outcome, patched=outcome is R, steps=4, tokens=Tokens(input=10))
        for task, runs in outcomes.items()
        for run, outcome in enumerate(runs)
    ]


def test_void_attempts_count_as_void_and_nowhere_else():
    found = figures(rows(a=[R, R, V], b=[U, V, V], c=[V, V, V]))
    assert (found.attempts, found.resolved, found.void, found.verdicts) == (9, 2, 6, 3)
    assert found.rate is not None and found.rate.mean == 0.5 and found.rate.tasks == 2
    assert found.void_rate == pytest.approx(2 / 3)
    assert found.pass_at[1] == 0.5 and 4 not in found.pass_at
    assert found.tokens.input == 90, "void attempts cost as well"


@given(st.lists(st.lists(st.sampled_from([R, U, V]), min_size=1, max_size=5), max_size=8))
def test_figures_of_anything_can_be_shown_and_stored(outcomes):
    every = rows(**{f"t{n}": runs for n, runs in enumerate(outcomes)})
    found = figures(every, Price(input=1, output=2))
    assert (found.rate is None) == (found.verdicts == 0)
    assert json.loads(json.dumps(found.record()))["attempts"] == len(every)
    assert found.line()
    shown = Console(file=io.StringIO(), width=200)
    shown.print(table(every))
    assert "all" in shown.file.getvalue()


def test_a_table_has_a_line_for_every_run():
    shown = Console(file=io.StringIO(), width=200)
    shown.print(table(rows(a=[R, U], b=[R, R]), Price(input=100_000, output=0)))
    lines = [line.split() for line in shown.file.getvalue().splitlines() if "/" in line]
    assert [line[0] for line in lines] == ["0", "1", "all"]
    assert "2/2" in lines[0] and "1/2" in lines[1] and "3/4" in lines[2] and "4.00" in lines[2]


def test_recorded_tokens_count_whole_requests_and_what_they_share():
    turns = (
        Turn(id=0, prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(0, 0)),
        Turn(id=1, parent=0, prompt_ids=(6,), completion_ids=(7,), logprobs=(0,)),
        Turn(id=2, prompt_ids=(9, 9), completion_ids=(7,), logprobs=(0,)),
    )
    assert tokens_of(Trajectory(id="a", task_id="t", turns=turns)) == Tokens(
        input=3 + 6 + 2, cached=5, output=4
    )


@pytest.mark.parametrize(
    "usage", [None, 3, {}, {"prompt_tokens": "9"}, {"prompt_tokens": -1}, {"prompt_tokens": True}]
)
def test_an_endpoint_that_counts_nonsense_counts_nothing(usage):
    messages = ({"role": "assistant", "content": "x", "usage": usage}, {"role": "user", "content": "y"})
    assert tokens_of(Trajectory(id="a", task_id="t", messages=messages)) == Tokens()


def test_cheating_is_a_share_of_the_verdicts():
    cheat = Trajectory(
        id="a", task_id="t", grade=Grade(state=GradeState.TESTS_FAILED, findings=("protected: conftest.py",))
    )
    assert figures([Row.of(cheat, 0), *rows(u=[U, V])]).cheat_rate == 0.5


# --- prices, slices, presets ------------------------------------------------------------------


def test_cached_tokens_cost_what_the_table_says(tmp_path: Path):
    file = tmp_path / "prices.toml"
    file.write_text(
        '[models."m/1.5"]\ninput = 2.0\ncached = 0.5\noutput = 10\n[models.n]\ninput = 1\noutput = 1\n'
    )
    tokens = Tokens(input=1_000_000, cached=400_000, output=100_000)
    assert load_price(file, "m/1.5").of(tokens) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 1.0)
    assert load_price(file, "n").of(tokens) == pytest.approx(1.1)
    with pytest.raises(ConfigError, match=r"has no price of 'm/1\.4'; did you mean 'm/1\.5'"):
        load_price(file, "m/1.4")
    file.write_text("[models.n]\ninput = -1\noutput = 1\n")
    with pytest.raises(ConfigError, match=r"`models\.n\.input` in .*prices\.toml is -1"):
        load_price(file, "n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "abcdef"), ("0:5", "abcde"), (":2", "ab"), ("4:", "ef"), ("-2:", "ef"), ("5:99", "f")],
)
def test_a_slice_is_as_in_python(text, expected):
    assert "".join(sliced(list("abcdef"), text)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["3", "a:b", "0:5:2", "-:", "9:", "2:1"])
def test_a_slice_that_names_nothing_is_one_sentence(text):
    with pytest.raises(ConfigError, match=f"`--slice {text}`"):
        sliced(list("abcdef"), text)  # type: ignore[arg-type]


def test_a_preset_lies_under_the_file_and_the_overrides(tmp_path: Path):
    file = tmp_path / "own.toml"
    file.write_text("[line.agent]\nmax_turns = 7\n")
    line = load_settings("swe-rl", file, ["line.concurrency=2"]).line
    assert (line.agent.max_turns, line.agent.exec_timeout, line.concurrency) == (7, 180, 2)
    assert load_settings("", None, []).line.agent.exec_timeout is None
    with pytest.raises(ConfigError, match="`--preset swe_rl` is no preset; did you mean `swe-rl`"):
        load_settings("swe_rl", None, [])
    with pytest.raises(ConfigError, match=r"unknown key `line\.agent\.max_turn`"):
        load_settings("swe-rl", None, ["line.agent.max_turn=2"])


def test_replies_in_the_wrong_form_do_not_end_an_attempt_of_swe_rl_early():
    training = [name for name in training_names("rl") if name.startswith("swe-rl")]
    agents = [load_training("rl", name, None, []).line.agent for name in training]
    for agent in [load_settings("swe-rl", None, []).line.agent, *agents]:
        assert agent.max_format_errors == agent.max_turns == 20
    assert len(agents) == 4


def test_every_preset_is_a_configuration():
    used = {name: load_settings(name, None, []).line.agent.use for name in names()}
    assert used == {
        "mini-swe-agent": "mini-swe-agent",
        "qwen-code": "qwen-code",
        "swe-gym-openhands": "openhands",
        "swe-rl": "bash",
    }
