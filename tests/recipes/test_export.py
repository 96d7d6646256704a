"""`patchwright export` on runs written on the spot: what is chosen, and what other programs read of it."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from patchwright.errors import ConfigError
from patchwright.recipes.data.export import Request, export_artifacts, export_rows
from patchwright.recipes.data.hub import export_hub
from patchwright.recipes.data.selection import Benchmark, Candidate, Chosen, Selection, balance, select
from patchwright.recipes.data.trajectories import import_trajectories, tools_of
from patchwright.recipes.progress import View
from patchwright.render import CHATML
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks
from patchwright.tasks.sources.read import read
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer
from patchwright.types import Exec, Failure, Grade, GradeState, Outcome, Step, Task, Tests, Trajectory, Turn

ISSUE = "Fix mod.py: f(2) returns 3, expected 4, and so does f(3)."
QUIET = View(Console(quiet=True))


def attempt(name, task, outcome, turns=2, said="edit", **changes):
    """Turns of three tokens: two context, one sampled; the messages to them."""
    good = Grade(state=GradeState.RESOLVED if outcome == "resolved" else GradeState.TESTS_FAILED)
    texts = [f"{said} {at}" for at in range(turns)]
    talk = [{"role": "system", "content": "S"}, {"role": "user", "content": f"Repair:\n{ISSUE} ({task})"}]
    for at, text in enumerate(texts):
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": f"out {at}"}]
    made = Trajectory(
        id=name,
        task_id=task,
        group=f"g-{task}",
        turns=tuple(
            Turn(
                id=at,
                parent=at - 1 if at else None,
                prompt_ids=(5, 6),
                completion_ids=(7 + at,),
                logprobs=(-0.5,),
                text=text,
            )
            for at, text in enumerate(texts)
        ),
        messages=tuple(talk[:-1]),
        steps=(Step(command="ls", exec=Exec(code=0, output="mod.py\n")),),
        patch="diff --git a/mod.py b/mod.py\n",
        exit="submitted",
        grade=None if outcome == "void" else good,
        failure=Failure(kind="SandboxError", message="gone", stage="agent") if outcome == "void" else None,
    )
    return replace(made, **changes)


ATTEMPTS = [
    attempt("a-0", "A", "resolved", turns=4, said="long"),
    attempt("a-1", "A", "resolved", turns=2),
    attempt("a-2", "A", "resolved", turns=2),  # the same as a-1
    attempt("a-3", "A", "resolved", turns=3, said="mid"),
    attempt("a-4", "A", "unresolved", said="bad"),
    attempt("b-0", "B", "resolved", turns=9, said="very long"),
    attempt("b-1", "B", "void"),
    attempt("c-0", "C", "resolved", said="cheat"),
    attempt("d-0", "D", "unresolved", said="worse"),
]
ATTEMPTS[7] = replace(
    ATTEMPTS[7], grade=Grade(state=GradeState.RESOLVED, findings=("protected: conftest.py",))
)


@pytest.fixture
def run(tmp_path):
    return stored(tmp_path / "runs" / "one", ATTEMPTS)


def stored(path, attempts):
    with Run.create_or_open(path, {"made": "here"}) as opened:
        opened.put_many(attempts, stage="rollout", step=0, version=0)
        opened.seal("rollout", 0)
    return path


def exported(run, out, kind="sft", **wanted):
    export_rows(Request(kind=kind, runs=(run,), **wanted), out, QUIET)
    return rows_of(out)


def rows_of(out):
    if out.suffix == ".parquet":
        return pq.read_table(out).to_pylist()
    return [json.loads(line) for line in out.read_text().splitlines()]


def ids(rows):
    return [row["trajectory_id"] for row in rows]


def test_rejection_sampling_keeps_good_short_different_attempts(run, tmp_path):
    out = tmp_path / "rows.jsonl"
    assert ids(exported(run, out)) == ["a-0", "a-1", "a-3", "b-0"]
    capped = exported(run, out, selection=Selection(per_task=2))
    assert ids(capped) == ["a-1", "a-3", "b-0"], "fewest turns first"
    short = exported(run, out, selection=Selection(max_tokens=12))
    assert ids(short) == ["a-0", "a-1", "a-3"], "nine turns of three tokens are too long"
    assert "c-0" in ids(exported(run, out, selection=Selection(suspects=True)))
    (row,) = exported(run, out, selection=Selection(max_tokens=6))
    assert row["messages"][2] == {"role": "assistant", "content": "edit 0"}
    assert (row["task_id"], row["run"], row["turns"], row["resolved"]) == ("A", "one", 2, True)


def test_benchmarks_are_left_out_by_id_and_by_issue(run, tmp_path):
    def bench(name, prompt):
        task = Task(id=name, prompt=prompt, tests=Tests(command="true", fail_to_pass=("t",)))
        dump_tasks(tmp_path / "bench.jsonl", [task])
        return str(tmp_path / "bench.jsonl")

    out = tmp_path / "rows.jsonl"
    assert ids(exported(run, out, benchmark=bench("a", "other"))) == ["b-0"], "whatever the case of an id"
    with pytest.raises(ConfigError, match=r"no attempt is left to write \(6 in the benchmark"):
        exported(run, out, benchmark=bench("z", ISSUE.upper().replace(" ", "\n")))
    assert len(exported(run, out, benchmark=bench("z", "Fix mod.py"))) == 4, "too short to tell tasks apart"


def test_parquet_and_jsonl_hold_the_same_rows_and_datasets_would_see_one_schema(run, tmp_path):
    calls = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]
    talk = (
        {"role": "user", "content": "x \udc80"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "r", "tool_call_id": "c"},
    )
    other = stored(tmp_path / "two", [replace(ATTEMPTS[0], id="t", messages=talk, patch="\udc80")])
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    plain, rich = exported(run, one), exported(other, two)
    assert pq.read_schema(one).equals(pq.read_schema(two)), "whatever is in them"
    assert rich[0]["messages"][1]["tool_calls"] == calls
    assert rich[0]["messages"][0]["content"] == "x ?"
    lines = exported(run, tmp_path / "one.jsonl")
    kept = [{k: v for k, v in m.items() if v is not None} for row in plain for m in row["messages"]]
    assert kept == [m for row in lines for m in row["messages"]]
    assert [row | {"messages": 0} for row in plain] == [row | {"messages": 0} for row in lines]


def test_swe_gyms_policy_rows_hold_messages_of_text_alone(run, tmp_path):
    calls = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]
    broken = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{"}}]
    talks = [
        ({"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": made})
        for made in (calls, broken)
    ]
    attempts = [replace(ATTEMPTS[0], id=str(at), task_id=str(at), messages=t) for at, t in enumerate(talks)]
    other = stored(tmp_path / "two", attempts)
    (row,) = exported(other, tmp_path / "rows.parquet", form="swe-gym-openhands")
    text = "<function=bash>\n<parameter=command>ls</parameter>\n</function>"
    assert row == {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_policy_rows_hold_the_tools_that_the_agent_had(run, tmp_path, name):
    tools = [{"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}]
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(tools))
    exported(run, tmp_path / name, tools=file)
    found = [tools_of(item) for item in read(str(tmp_path / name))]
    assert found and all(one == tools for one in found)
    exported(run, tmp_path / name)
    assert all(tools_of(item) is None for item in read(str(tmp_path / name)))


def test_a_tokenizer_measures_what_was_not_recorded(tmp_path):
    bare = [replace(ATTEMPTS[0], turns=()), replace(ATTEMPTS[5], turns=())]
    other = stored(tmp_path / "two", bare)
    out, wanted = tmp_path / "rows.jsonl", Selection(max_tokens=130)
    with pytest.raises(ConfigError, match="no recorded tokens to count; give --tokenizer"):
        exported(other, out, selection=wanted)
    save_tokenizer(train_tokenizer([], vocab_size=260), tmp_path / "model", chat_template=CHATML)
    with pytest.raises(ConfigError, match="2 too long"):
        exported(other, out, selection=wanted, tokenizer=tmp_path / "model")
    assert len(exported(other, out, selection=Selection(max_tokens=9999), tokenizer=tmp_path / "model")) == 2


def test_verifier_rows_are_as_many_good_as_bad(run, tmp_path):
    rows = exported(run, tmp_path / "v.jsonl", kind="verifier")
    assert Counter(row["label"] for row in rows) == {"YES": 2, "NO": 2}
    assert rows == exported(run, tmp_path / "w.jsonl", kind="verifier"), "the same seed, the same rows"
    for row in rows:
        assert row["messages"][-1]["content"] == f"<judgement>{row['label']}</judgement>"
        assert "*** Turn 1 - ASSISTANT ***" in row["messages"][1]["content"]
    everything = exported(run, tmp_path / "v.jsonl", kind="verifier", negatives=0.0)
    assert Counter(row["label"] for row in everything) == {"YES": 4, "NO": 2}


def test_attempts_of_which_no_row_can_be_made_are_left_out_before_choosing(tmp_path):
    """Else the sides would not be as many, and the cap of a task would hold fewer than there are."""
    broken = [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{"}}]
    talk = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": broken})
    bad = replace(ATTEMPTS[4], id="a-5", messages=talk, turns=())
    other = stored(tmp_path / "two", [ATTEMPTS[0], ATTEMPTS[1], ATTEMPTS[4], bad])
    rows = exported(other, tmp_path / "v.jsonl", kind="verifier")
    assert Counter(row["label"] for row in rows) == {"YES": 1, "NO": 1}
    good = replace(bad, id="a-6", grade=ATTEMPTS[0].grade)
    short = stored(tmp_path / "three", [ATTEMPTS[0], good])
    request = Request(kind="sft", form="swe-gym-openhands", runs=(short,), selection=Selection(per_task=1))
    written = export_rows(request, tmp_path / "s.jsonl", QUIET)
    assert (written.rows, written.attempts, written.left_out.total()) == (1, 1, 1)


@given(st.integers(0, 30), st.integers(0, 30), st.sampled_from([0.5, 1.0, 2.0]))
def test_balance_leaves_out_no_more_than_it_must(good, bad, negatives):
    def made(side, count, outcome):
        return [Candidate(key=(side, n), task_id="t", outcome=outcome, turns=1) for n in range(count)]

    rows = made("g", good, Outcome.RESOLVED) + made("b", bad, Outcome.UNRESOLVED)
    kept = balance(Chosen(rows), negatives=negatives).kept
    count = Counter(candidate.outcome for candidate in kept)
    assert count[Outcome.UNRESOLVED] == round(count[Outcome.RESOLVED] * negatives)
    more = count[Outcome.RESOLVED] + 1
    assert more > good or more * negatives > bad, "one more pair would not have fitted"
    assert [c for c in rows if c in kept] == kept


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.sampled_from("xyz")), max_size=25),
    st.integers(0, 3),
)
def test_no_task_has_more_than_its_cap_and_shorter_ones_go_first(attempts, cap):
    rows = [
        Candidate(key=at, task_id=task, outcome=Outcome.RESOLVED, turns=turns, said=said)
        for at, (task, turns, said) in enumerate(attempts)
    ]
    chosen = select(rows, Selection(per_task=cap))
    assert len(chosen.kept) + chosen.left_out.total() == len(rows)
    assert len({(c.task_id, c.said) for c in chosen.kept}) == len(chosen.kept)
    uncapped = select(rows, Selection()).kept
    for task in "abc":
        kept = [c.turns for c in chosen.kept if c.task_id == task]
        every = sorted(c.turns for c in uncapped if c.task_id == task)
        assert sorted(kept) == every[: cap or None]


def test_turns_that_were_judged_become_rows_of_a_process_reward(tmp_path):
    grade = Grade(state=GradeState.RESOLVED, turn_scores=(0.5, None, -1.0))
    other = stored(tmp_path / "two", [attempt("p", "P", "resolved", turns=3, grade=grade)])
    first, last = exported(other, tmp_path / "p.parquet", kind="prm")
    assert (first["turn"], first["score"], last["turn"], last["score"]) == (0, 0.5, 2, -1.0)
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert (first["step"]["content"], last["step"]["content"]) == ("edit 0", "edit 2")
    assert len(last["messages"]) == 6
    with pytest.raises(ConfigError, match="none of its turns was judged"):
        exported(stored(tmp_path / "three", ATTEMPTS[:1]), tmp_path / "p.jsonl", kind="prm")


def test_slime_rows_begin_their_response_at_the_first_trained_token(run, tmp_path):
    rows = exported(run, tmp_path / "s.parquet", kind="slime", form="sample")
    assert len(rows) == 6, "all that were judged, but void and suspect ones, and equal ones once"
    by_id = {row["metadata"]["task_id"] + str(row["reward"]): row for row in rows}
    row = by_id["D-1.0"]
    assert row["tokens"] == [5, 6, 7, 5, 6, 8] and row["response_length"] == 4
    assert row["loss_mask"] == [1, 0, 0, 1] and row["rollout_log_probs"] == [-0.5, 0.0, 0.0, -0.5]
    assert len(row["loss_mask"]) == row["response_length"] == len(row["rollout_log_probs"])
    assert (row["status"], row["remove_sample"], row["label"]) == ("completed", False, "D")
    assert [row["index"] for row in rows] == list(range(6))
    groups = {row["metadata"]["task_id"]: row["group_index"] for row in rows}
    assert len(set(groups.values())) == 3 and len({row["rollout_id"] for row in rows}) == 6


def test_artifacts_are_a_folder_an_attempt(run, tmp_path):
    assert export_artifacts(Request(kind="artifacts", runs=(run,)), tmp_path / "out", QUIET) == 8
    folder = tmp_path / "out" / "one" / "a-0"
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "patch.diff", "traj.json"]
    told = json.loads((folder / "traj.json").read_text())
    assert told["messages"][1]["content"].startswith("Repair:") and told["info"]["eval_result"]["resolved"]
    assert told["step_debug"][0]["action"] == "ls"
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["instance_id"], meta["run"], meta["config"]) == ("A", "one", {"made": "here"})


def test_a_hubs_folder_has_a_card_and_opens_as_a_data_set(run, tmp_path):
    out = tmp_path / "set"
    request = Request(kind="sft", runs=(run,), selection=Selection(per_task=2))
    export_hub(request, out, QUIET, license_="mit")
    export_hub(request, out, QUIET, license_="apache-2.0")  # its own folder may be written again
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n") and "path: data/train.parquet" in card
    assert "- 3 rows of 3 attempts" in card and "- n<1K" in card and "| `messages` |" in card
    assert len(rows_of(out / "data" / "train.parquet")) == 3
    (out / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"holds 'mine\.txt'"):
        export_hub(request, out, QUIET)


def test_runs_of_the_same_name_stay_apart(run, tmp_path):
    other = stored(tmp_path / "more" / "one", [attempt("a-1", "A", "resolved", said="else")])
    request = Request(kind="sft", runs=(run, other))
    export_rows(request, tmp_path / "rows.jsonl", QUIET)
    names = {row["run"] for row in rows_of(tmp_path / "rows.jsonl")}
    assert names == {str(run), str(other)}


def test_mistakes_are_one_sentence(run, tmp_path):
    for wanted, why in (
        ({"form": "mesages"}, "did you mean 'messages'"),
        ({"kind": "verifer"}, "did you mean 'verifier'"),
        ({"tools": tmp_path / "none.json"}, "no JSON list of tools"),
        ({"stage": "rolout"}, "no attempt of a stage 'rolout'; did you mean 'rollout'"),
    ):
        with pytest.raises(ConfigError, match=why):
            exported(run, tmp_path / "rows.jsonl", **wanted)
    with pytest.raises(ConfigError, match=r"should end in \.jsonl or \.parquet"):
        exported(run, tmp_path / "rows.csv")
    assert not (tmp_path / "rows.jsonl").exists()


def test_an_export_without_rows_leaves_the_file_of_an_earlier_one(run, tmp_path):
    exported(run, tmp_path / "rows.jsonl", stage="roll*")
    before = rows_of(tmp_path / "rows.jsonl")
    with pytest.raises(ConfigError, match="no attempt is left"):
        exported(run, tmp_path / "rows.jsonl", selection=Selection(max_tokens=1))
    assert rows_of(tmp_path / "rows.jsonl") == before
    assert [path.name for path in tmp_path.glob("rows*")] == ["rows.jsonl"]


def test_rows_without_a_conversation_make_no_run(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "prompt": "p"}\n')
    with pytest.raises(ConfigError, match=r"no row of .* can be taken: it has no conversation in messages"):
        import_trajectories(str(tmp_path / "tasks.jsonl"), tmp_path / "run", "", None, QUIET)
    assert not (tmp_path / "run").exists()


def test_a_short_issue_is_no_mark_and_a_long_one_is():
    def task(prompt):
        return Task(id="x", prompt=prompt, tests=Tests(command="true", fail_to_pass=("t",)))

    asked = Candidate(key=1, task_id="y", outcome=Outcome.RESOLVED, turns=1, asked=Benchmark.folded(ISSUE))
    assert Benchmark([task(ISSUE)]).has(asked) and not Benchmark([task("Fix mod.py")]).has(asked)


def test_the_commands_do_it(run, tmp_path):
    def patchwright(*words):
        command = [sys.executable, "-m", "patchwright.cli", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True)

    done = patchwright("export", "sft", run, "-o", tmp_path / "a.parquet", "--per-task", 1)
    assert done.returncode == 0 and "2 rows of 2 attempts" in " ".join(done.stderr.split()), done.stderr
    assert len(rows_of(tmp_path / "a.parquet")) == 2
    done = patchwright("export", "slime", run, "-o", tmp_path / "b.jsonl", "--stage", "rollout")
    assert done.returncode == 0 and len(rows_of(tmp_path / "b.jsonl")) == 6, done.stderr
    done = patchwright("export", "hub", run, "-o", tmp_path / "set", "--kind", "verifier")
    assert done.returncode == 0 and (tmp_path / "set" / "README.md").exists(), done.stderr
    refused = patchwright("export", "sft", tmp_path, "-o", tmp_path / "c.jsonl")
    assert refused.returncode == 2 and "is not a run" in refused.stderr and "Traceback" not in refused.stderr
