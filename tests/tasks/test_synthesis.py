import ast
import random
import re
import subprocess
import sys
import zlib
from collections import Counter

from patchwright.grade.parsers import parse_pytest
from patchwright.tasks.compose import composed, is_held_out
from patchwright.tasks.handwritten import TRAINING
from patchwright.tasks.harder import HARDER
from patchwright.tasks.plain import Program, passes_tests
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.types import TestStatus

CONFIG = SynthesisConfig(sft=1500, rl=300, held_out=150, harder=100, seed=3)
SETS = synthesize(CONFIG)
TRAINED, EVALUATED = SETS["sft"] + SETS["rl"], SETS["held_out"] + SETS["harder"]


def fixed(task):
    """The good source: the diff's one line put back."""
    [old] = re.findall(r"^-(?!-- )(.*)$", task.solution, re.M)
    [new] = re.findall(r"^\+(?!\+\+ )(.*)$", task.solution, re.M)
    start = int(re.search(r"@@ -(\d+)", task.solution)[1])
    hunk = task.solution.split("@@\n")[1].split("\n")
    line = start + next(i for i, text in enumerate(hunk) if text.startswith("-")) - 1
    lines = task.files["mod.py"].split("\n")
    assert lines[line] == old
    lines[line] = new
    return "\n".join(lines)


def test_counts_and_ids():
    assert {name: len(tasks) for name, tasks in SETS.items()} == {
        "sft": 1500,
        "rl": 300,
        "held_out": 150,
        "harder": 100,
    }
    ids = [task.id for tasks in SETS.values() for task in tasks]
    assert len(set(ids)) == len(ids)


def test_the_same_seed_gives_the_same_tasks_and_another_seed_others():
    small = SynthesisConfig(sft=30, rl=5, held_out=5, harder=5, seed=7)
    assert synthesize(small) == synthesize(small)
    other = synthesize(small.model_copy(update={"seed": 8}))
    assert not {t.id for t in synthesize(small)["sft"]} & {t.id for t in other["sft"]}


def test_the_evaluation_sets_do_not_depend_on_how_much_is_trained_on():
    assert (
        synthesize(SynthesisConfig(sft=10, rl=10, held_out=20, harder=10, seed=3))["held_out"]
        == SETS["held_out"][:20]
    )


def test_no_source_is_both_trained_on_and_evaluated_and_no_bug_is_in_two_sets():
    assert not {fixed(task) for task in TRAINED} & {fixed(task) for task in EVALUATED}
    assert not {task.files["mod.py"] for task in TRAINED} & {task.files["mod.py"] for task in EVALUATED}
    assert not {fixed(task) for task in TRAINED} & {task.files["mod.py"] for task in EVALUATED}
    buggy = [task.files["mod.py"] for tasks in SETS.values() for task in tasks]
    assert len(set(buggy)) == len(buggy)


def test_held_out_signatures_and_harder_kinds_are_never_trained_on():
    for task in TRAINED:
        assert not is_held_out(tuple(task.meta.get("signature", ()))) or task.meta["kind"] != "composed"
    assert all(is_held_out(tuple(task.meta["signature"])) for task in SETS["held_out"])
    assert not {task.meta["kind"] for task in TRAINED} & {task.meta["kind"] for task in SETS["harder"]}
    assert not {kind.id for kind in TRAINING} & {kind.id for kind in HARDER}
    assert len(HARDER) == 20 and len(TRAINING) >= 25


def test_a_fifth_of_the_signatures_is_held_out():
    rng = random.Random(0)
    drawn = [composed(rng, held_out=rng.random() < 0.2).signature for _ in range(3000)]
    assert 0.15 < sum(map(is_held_out, drawn)) / 3000 < 0.25
    assert is_held_out((0, 0, 0, 0, 0)) == (zlib.crc32(bytes(5)) % 10 < 2)


def test_the_fix_passes_and_the_bug_fails_exactly_the_named_tests():
    for task in SETS["sft"][:300] + EVALUATED:
        tests = task.files["test_mod.py"]
        assert passes_tests(fixed(task), tests)
        program = Program(task.files["mod.py"] + "\n" + tests.split("\n", 1)[1])
        failed = {n for n in re.findall(r"def (test_\w+)", tests) if not program.call(n, ()).gives(None)}
        assert {f"test_mod.py::{name}" for name in failed} == set(task.tests.fail_to_pass)
        assert 1 <= len(task.tests.fail_to_pass) <= 3
        assert task.tests.files == {"test_mod.py": tests}


def test_all_sets_but_sft_have_a_test_that_passes_before_the_fix():
    assert all(task.tests.pass_to_pass for name in ("rl", "held_out", "harder") for task in SETS[name])
    assert not all(task.tests.pass_to_pass for task in SETS["sft"])


def test_issues_tell_a_call_that_goes_wrong_and_are_short():
    pattern = re.compile(r"Fix mod\.py: (?P<call>\w+\(.*\)) (returns .+|raises \w+), expected (?P<want>.+)\.")
    for task in SETS["sft"] + EVALUATED:
        match = pattern.fullmatch(task.prompt)
        assert match and f"assert {match['call']} == {match['want']}\n" in task.files["test_mod.py"]
        assert (
            len(task.prompt) <= 112
            and len(task.files["mod.py"]) <= 420
            and len(task.files["test_mod.py"]) <= 600
        )


def test_the_mix_of_the_training_set():
    kinds = Counter(task.meta["kind"] for task in SETS["sft"])
    assert 0.80 < kinds["composed"] / 1500 < 0.92
    assert len(kinds) > 25
    assert {task.meta["kind"] for task in SETS["rl"]} == {"composed"}
    assert len({fixed(task) for task in SETS["sft"]}) > 1500 * 0.45, "at most two bugs of one function"
    bugs = Counter(task.meta["bug"] for task in SETS["sft"])
    assert bugs["compare"] > bugs["const"] > bugs["noreturn"] > 0


def test_every_kind_makes_right_functions_with_varied_names():
    for kind in (*TRAINING, *HARDER):
        for seed in range(15):
            function = kind.function(random.Random(seed))
            ast.parse(function.source)
            program = Program(function.source)
            outcomes = [program.call(function.name, call) for call in function.calls]
            assert not any(outcome.error or outcome.endless for outcome in outcomes), (
                function.source,
                function.calls,
            )


def test_real_pytest_agrees(tmp_path):
    for task in [SETS["sft"][0], SETS["held_out"][0], SETS["harder"][0]]:
        for path, content in task.files.items():
            (tmp_path / path).write_text(content)
        log = _run(task.tests.command, tmp_path)
        statuses = parse_pytest(log)
        assert {name for name, s in statuses.items() if s is TestStatus.FAILED} == set(
            task.tests.fail_to_pass
        )
        assert {name for name, s in statuses.items() if s is TestStatus.PASSED} == set(
            task.tests.pass_to_pass
        )


def _run(command, folder):
    done = subprocess.run(
        [sys.executable, "-B", "-m", *command.split()], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return done.stdout
