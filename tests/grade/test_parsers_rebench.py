"""SWE-rebench V2's parsers by name: a log of ours for each, and what its evaluation makes of names."""

import pytest

from patchwright.grade.parsers import UnreadableLog, parser, reader
from patchwright.grade.parsers.rebench import OWN, timeless
from patchwright.grade.rules import judge
from patchwright.tasks.sources import bench
from patchwright.tasks.sources.rows import Row
from patchwright.types import GradeState, Task, Tests

P, F, S, E = "PASSED", "FAILED", "SKIPPED", "ERROR"

ROWS_NAME = (
    "java_mvn java_mvn_v2 log_ant log_cargo log_cpp_v3 log_dart log_dart_v3 log_elixir log_gotest"
    " log_gradle_custom log_gradlew_v1 log_jq log_js log_js_2 log_js_3 log_js_4 log_junit log_maven log_ocaml"
    " log_ocaml_v2 log_php_v1 log_phpunit log_pytest log_r log_scala_v2 log_scala_v3 log_swift logs_r_junit"
    " lue_nvim"
)
"""What `install_config.log_parser` says in the published rows, without `parse_`."""

XML = '<?xml version="1.0"?>\n<testsuites><testsuite>\n{}\n</testsuite></testsuites>'
CASES = (
    '<testcase classname="C" name="a"/>'
    '<testcase name="b" classname="C"><failure message="1 > 2">x</failure></testcase>'
    '<testcase name="c" classname="C"><skipped/></testcase>'
    '<testcase name="d"><error/></testcase>'
)

LOGS = {
    "parse_log_pytest": ("PASSED a\nXFAIL b\nSKIPPED [1] t.py:3: x", {"a": P, "[1]": S}),
    "parse_log_pytest_nebo": (
        "[gw0] [ 5%] PASSED t::a in 0.1s\nt::b c FAILED [10%] in 2.5s\nERROR t::d in x",
        {"t::a": P, "t::b c": F, "t::d": E},
    ),
    "parse_combined_test_reports": (
        f"noise {XML.format(CASES)} noise",
        {"C::a": P, "C::b": F, "C::c": S, "None::d": E},
    ),
    "parse_log_junit": (f"x <testcase {CASES}", {"C a": P, "C b": F, "C c": S, "d": E}),
    "parse_log_gradlew_v1": (
        '<?xml version="1.0"?>\n<testsuite>\n' + CASES + "\n</testsuite>\n",
        {"a (C)": P, "b (C)": F, "c (C)": S, "d": E},
    ),
    "parse_logs_r_junit": (XML.format(CASES), {"C::a": P, "C::b": F, "C::c": S, "d": E}),
    "parse_logs_kotlin_junit": (
        "Running a.B\nTests run: 2, Failures: 0, Errors: 1, Skipped: 0\nRunning a.C\n"
        "Tests run:  2, Failures:  0, Errors:  0, Skipped:  2",
        {"a.B": F, "a.C": S},
    ),
    "parse_java_mvn": (
        "[INFO] Running a.B\n[ERROR] a.B.testX:12 NullPointerException\n"
        "Tests run: 2, Failures: 0, Errors: 1, Skipped: 0\n[INFO] Running a.C\n"
        "[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time: 1 s - in a.C",
        {"a.B.testX": E, "a.B": F, "a.C": P},
    ),
    "parse_java_mvn_v2": (
        "[INFO] Core - A .......... SUCCESS [ 1.2 s]\n[INFO] Web ... FAILURE [1 s]\n"
        "Tests run: 3, Failures: 0, Errors: 1, Skipped: 0",
        {"Core - A": P, "Web": F, "__suite__": E},
    ),
    "parse_log_gradle_custom": ("A > b PASSED (0.3s)\nA > c FAILED\n> d PASSED", {"A > b": P, "A > c": F}),
    "parse_log_scala": (
        "[info] - a (x) (1 ms)\n[info] - b *** FAILED *** (2 s)\n[info] - c !!! IGNORED !!!",
        {"a (x)": P, "b": F, "c": S},
    ),
    "parse_log_scala_v2": (
        "  \x1b[32m+ \x1b[0m\x1b[32ma b\x1b[0m \x1b[90m0.1s\x1b[0m\nx [0m[31mc[0m [90m3ms[0m",
        {"a b": P, "c": F},
    ),
    "parse_log_scala_v3": (
        "[info] Suite:\n[info] - a (3 milliseconds)\n[info] - b *** FAILED ***\n[info] - c *** PENDING ***",
        {"Suite:: a": P, "Suite:: b": F, "Suite:: c": S},
    ),
    "parse_log_lein": (
        "lein test a.b c.d\nFAIL in (x)\nlein test :only e.f/y",
        {"a.b": P, "c.d": F, "e.f": P},
    ),
    "parse_log_js": ("✔ a (3ms)\n- b\n1) c:\n[W] 2) d", {"a": P, "b": S, "c": F, "d": F}),
    "parse_log_js_2": ("✔ a 1.5 s\n- b\n1) c", {"a": P, "b": S, "c": F}),
    "parse_log_js_3": (
        "ok 1 - A {\n    ok 1 - b # time=3ms\n    not ok 2 - c\n}\nok 2 - d # SKIP",
        {"A": P, "A :: b": P, "A :: c": F, "d": P},
    ),
    "parse_log_js_4": ("✓ [x.js]: a 3ms\n✖ b\n○ c\nd [todo]", {"a": P, "b": F, "c": S, "d": S}),
    "parse_log_npx": ("✔ a (3ms)\n1) b (m)", {"a": P, "b": F}),
    "parse_log_elixir": (
        "* test a (1.2ms) [L#3]\n* test b (skipped) [L#4]\n* test c [L#5]\n1) test c (M)",
        {"a": P, "b": S, "c": F},
    ),
    "parse_log_haskell": (
        "A.b: OK (0.1s)\n  ✓ c (0.2s)\n  d [✗]\n### Error in: e",
        {"A.b": P, "c": P, "d": F, "e": E},
    ),
    "parse_log_haskell_v2": (
        "Test suite x: RUNNING...\nM\n  f\n    a\n    b FAILED [1]\n"
        "    c # PENDING: y\nFailures:\n  1) M, f, b",
        {"M.f.a": P, "M.f.b": F, "M.f.c #": S},
    ),
    "parse_log_ocaml": ("  [OK]    suite    3   a b.\n[FAIL] suite 4 c", {"suite 3 a b.": P, "suite 4 c": F}),
    "parse_log_ocaml_v2": (
        "Running[1]: (cd d && ./t/a.exe x)\nRunning[2]: (exec ./b.exe)\n"
        "Output[1]:\nfine\nOutput[2]:\nFatal: x",
        {"a.exe": P, "b.exe": F},
    ),
    "parse_log_ocaml_v3": ("[ok] a  b\n[KO] c\n[skip] a b", {"a b": S, "c": F}),
    "parse_log_ocaml_v4": ("\x1b[32mPASSED\x1b[0m a   (0.1s)\nFAILED b", {"a": P, "b": F}),
    "parse_log_ruby_v1": (
        "FooTest\n  test_a   PASS (0.02s)\n  test_b  ERROR (0s)",
        {"FooTest::test_a": P, "FooTest::test_b": E},
    ),
    "parse_log_ruby_v2": ("T#a = 0.01 s = .\nT#b = 1 s = E", {"T#a": P, "T#b": F}),
    "parse_log_phpunit": ("Suite (A)\n ✔ a [1.34 ms]\n ✘ b", {"Suite > a": P, "Suite > b": F}),
    "parse_log_php_v1": (
        "PASS  T\\A\n✓ a  0.03s\n⨯ b 0.1s\n- c\nFAIL  T\\B",
        {"a": P, "b": F, "c": S, "T\\B": F},
    ),
    "parse_lue_nvim": ("\x1b[32mSuccess\x1b[0m || s a\t\nFail || s b\nSuccess: 3", {"s a": P, "s b": F}),
    "parse_log_r": (
        "✔ | 60 | a [1.2s]\n✖ | 2 9 | b\n── Failed tests ──\nError (x.R:1): c\n[ FAIL 1",
        {"a": P, "b": F, "c": E},
    ),
    "parse_log_r_v2": (
        "* checking a ... OK\n* checking b ...\nWARNING\n* checking c ... ZZ",
        {"a": P, "b": F, "c": P},
    ),
    "parse_log_julia": (
        "Test Summary: | Pass  Fail  Total\n  a | 3    3  0.1s\n  b | 2  1  3",
        {"a": P, "b": F},
    ),
    "parse_log_cpp": ("t.py::a PASSED [5%]\nt.py::b SKIPPED", {"a": P, "b": S}),
    "parse_log_cpp_v2": ("Test a   passed\nTest b failed\nTest c skipped", {"a": P, "b": F, "c": S}),
    "parse_log_cpp_v3": (
        "[1/9] a b... OK\nAES ran 3 tests in 1.2 msec all ok\nc ... FAILED",
        {"a b": P, "AES ran 3 tests all ok": P, "c": F},
    ),
    "parse_log_cpp_v4": ("1/2 Test  #1: a .....   Passed\n2/2 Test #2: b ... Timeout", {"a": P, "b": F}),
    "parse_log_dart": (
        '{"type":"testStart","test":{"id":1,"name":"a"}}\n{"type":"testDone","testID":1,"result":"success"}\n'
        '[{"type":"testDone","testID":[],"result":{}}]',
        {"a": P},
    ),
    "parse_log_dart_v2": (
        "[p]: 00:01 +1: /a.dart: x\n[p]: 00:01 +2: /a.dart: x\n[p]: 00:02 +2: /a.dart: y",
        {"/a.dart: x": P, "/a.dart: y": E},
    ),
    "parse_log_dart_v3": (
        "00:01 +1: /a.dart: x\n00:02 +1 -1: /a.dart: y [E]\n00:02 +1 -2: loading /b.dart [E]",
        {"/a.dart: x": P, "/a.dart: y": F, "/b.dart": E},
    ),
    "parse_log_swift": (
        "Test Case 'A.a' passed (0.1 seconds)\nTest Case 'A.b' failed (1 seconds)",
        {"A.a": P, "A.b": F},
    ),
    "parse_log_csharp": (
        "  Passed a(x: [1]) [3 ms]\n  Failed b [< 1 ms]\n  Skipped c\n[xUnit.net 00:00:01.2]   d [FAIL]",
        {"a(x:": P, "b": F, "c": S, "d": F},
    ),
    "parse_log_react_pdf": ("PASS a.test.js (1.2 s)\nFAIL b", {"a.test.js": P, "b": F}),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_read(name):
    log, words = LOGS[name]
    assert reader(name, "swerebench2")(log) == words


def test_every_parser_has_a_log_and_every_name_of_the_rows_is_known():
    covered = {OWN[name] for name in LOGS}
    elsewhere = (
        "pytest",
        "django",
        "seaborn",
        "sympy",
        "matplotlib",
        "jest",
        "maven",
    )  # in other tests' tables
    python = "pytest_options pydicom requests pylint pytest_v2 astropy scikit sphinx"
    known = {f"parse_log_{one}" for one in [*elsewhere, *python.split()]}
    assert {name for name, read in OWN.items() if read not in covered} <= known
    for name in ROWS_NAME.split():
        assert reader(f"parse_{name}", "swerebench2")("") == {}


def test_names_are_compared_without_times():
    assert [timeless(name) for name in ("a [1.2 ms]", "b (3s)", "c in 3 msec d", "e [x]")] == [
        "a",
        "b",
        "c d",
        "e [x]",
    ]
    tests = Tests(
        command="",
        parser="parse_log_vitest",
        rules="swerebench2",
        fail_to_pass=("a (3s)",),
        pass_to_pass=("b",),
    )
    task = Task(id="x", prompt="", tests=tests)
    assert judge(task, "✓ a (12 ms)\n✓ b").state is GradeState.RESOLVED
    assert judge(task, "✓ a (12 ms)\n↓ b").state is GradeState.TESTS_FAILED
    assert judge(task, "nothing").state is GradeState.NO_TESTS_PARSED


def test_a_row_of_v2_is_judged_by_its_own_rules_and_parser():
    row = {
        "instance_id": "o__r-1",
        "repo": "o/r",
        "language": "scala",
        "base_commit": "c",
        "problem_statement": "p",
        "test_patch": "diff --git a/t b/t\n",
        "patch": "",
        "image_name": "i",
        "FAIL_TO_PASS": ["a"],
        "PASS_TO_PASS": [],
        "install_config": {"log_parser": "parse_log_scala_v2", "test_cmd": ["sbt test"]},
    }
    tests = bench.bench_task(Row(row, "row 1"), "swe-rebench-v2").tests
    assert (tests.parser, tests.rules) == ("parse_log_scala_v2", "swerebench2")
    assert parser(tests.parser)("+ a 1s")


def test_an_unfinished_check_without_a_word_is_unreadable():
    with pytest.raises(UnreadableLog):
        reader("parse_log_r_v2")("* checking a ...\n...")
