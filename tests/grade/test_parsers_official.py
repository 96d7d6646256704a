"""Official parsers by name: each one's own log, and where the dialects of the packages differ."""

import pytest

from patchwright.errors import ConfigError
from patchwright.grade.parsers import UnreadableLog, parser, reader
from patchwright.grade.parsers.repositories import concrete_parser, repository_parser
from patchwright.types import TestStatus

P, F, S, E = "PASSED", "FAILED", "SKIPPED", "ERROR"

LOGS = {
    "parse_log_pytest": ("PASSED a[1]\nFAILED b - x\nERROR c\nSKIPPED [2] d", {"a[1]": P, "b": F, "c": E}),
    "parse_log_pylint": ("PASSED a[/x/y/z.py] more", {"a[/z.py]": P}),
    "parse_log_sphinx": ("\x1b[32mPASSED\x1b[0m a b\nc FAILED", {"a b": P, "c": F}),
    "parse_log_matplotlib": ("PASSED a[MouseButton.LEFT]", {"a[1]": P}),
    "parse_log_django": (
        "a (m.C) ... ok\nb (m.C) ... noise\nok\nFAIL: c (m)",
        {"a (m.C)": P, "b (m.C)": P, "c": F},
    ),
    "parse_log_seaborn": ("FAILED a\nb PASSED [ 5%]\nSKIPPED c", {"a": F, "b": P}),
    "parse_log_sympy": (
        "test_a ok\ntest_b E\n__ x/y.py:test_c __",
        {"x/y.py:test_c": F, "test_a": P, "test_b": E},
    ),
    "parse_log_gotest": ("    --- PASS: A/b (0.1s)\n--- SKIP: C (0s)", {"A/b": P, "C": S}),
    "parse_log_cargo": ("test a::b ... ok\ntest c ... FAILED\ntest d ... ignored", {"a::b": P, "c": F}),
    "parse_log_redis": ("[ok]: a (3 ms)\n[err]: b in tests/x.tcl\n[ignore]: c", {"a": P, "b": F, "c": S}),
    "parse_log_jq": ("PASS: a\nFAIL: b", {"a": P, "b": F}),
    "parse_log_micropython_test": ("pass  a\nskip  b\nFAIL  c", {"a": P, "b": S, "c": F}),
    "parse_log_googletest": ("[       OK ] A.b (0 ms)\n[  FAILED  ] A.c (1 ms)", {"A.b": P, "A.c": F}),
    "parse_log_doctest": (
        '<doctest><TestCase name="a"><SubCase name="b">'
        '<Expression success="false"/></SubCase></TestCase></doctest>',
        {"a > b": F},
    ),
    "parse_log_maven": (
        "+ mvn -Dtest=A\n[INFO] BUILD SUCCESS\n+ mvn -Dtest=B\nBUILD FAILURE",
        {"A": P, "B": F},
    ),
    "parse_log_ant": ("[junit] [PASS] a\n[junit] [ERR] b", {"a": P, "b": F}),
    "parse_log_gradle_custom": ("A > b PASSED\nA > c\nnoise\nFAILED", {"A > b": P, "A > c": F}),
    "parse_log_phpunit": (
        "Some Suite (A\\B)\n ✔ a\n ✘ b\n ↩ c",
        {"Some Suite > a": P, "Some Suite > b": F, "Some Suite > c": S},
    ),
    "parse_log_minitest": ("T#a. = 0.0 s = .\nT#b. = 0.1 s = F", {"T#a": P, "T#b": F}),
    "parse_log_cucumber": ("a ....\nb ..F", {"a": P, "b": F}),
    "parse_log_ruby_unit": ("test: a: .: (0.1)\nb: E\nc: O", {"a": P, "b": F, "c": S}),
    "parse_log_rspec_transformed_json": ("a - passed\nb - failed\nc - pending", {"a": P, "b": F}),
    "parse_log_jest": ("  ✓ a (3 ms)\n  ✕ b\n  ○ c", {"a": P, "b": F, "c": S}),
    "parse_log_jest_json": ("[PASSED] a b\n[FAILED] c", {"a b": P, "c": F}),
    "parse_log_vitest": ("✓ a 3ms\n× b\n↓ c [skipped]", {"a": P, "b": F, "c": S}),
    "parse_log_tap": ("ok 1 a\nnot ok 2 b", {"a": P, "b": F}),
    "parse_log_karma": ("Starting browser\n  A\n    ✔ a\n    ✖ b\nSUMMARY:\n  ✔ c", {"A > a": P, "A > b": F}),
    "parse_log_calypso": (
        "+ ./node_modules/.bin/jest x\n  A\n    ✓ a (3ms)\n    ✕ b",
        {"A - a": P, "A - b": F},
    ),
    "parse_log_carbon": ("PASS a (3ms)\nFAIL b (2.1 s)", {"a": P, "b": F}),
    "parse_log_grommet": ("FAIL a (1 s)\nPASS b (3ms)", {"a": F, "b": P}),
    "parse_log_emotion": ("FAIL a\nPASS a\nFAIL b", {"a": P, "b": F}),
    "parse_log_highlightjs": ("  A\n    ✓ a (3ms)\n    1) b\n\n  1 passing\n  ✓ c", {"A.a": P, "A.b": F}),
    "parse_log_lighthouse_mocha": (
        "running 1 test files\nA\n  B\n    ✔ a (3ms)\n    1) b",
        {"B - a": P, "B - b": F},
    ),
    "parse_log_next_v1": ("+ xvfb-run x\n  A\n    ✓ a\n    ✗ b\nTOTAL 2\n ✓ c", {"A - a": P, "A - b": F}),
    "parse_log_next_v2": ("Running: x (1 of 2)\n\n\n  A\n    ✓ a (3ms)\n    1) b\n", {"A: b": F, "A: a": P}),
    "parse_log_prismjs": (
        "+ ./node_modules/.bin/mocha tests/run.js --reporter json\n"
        '{"passes": [{"fullTitle": "a"}], "failures": []}',
        {"a": P},
    ),
    "parse_log_cypress": (
        '  "failures": [\n"fullTitle": "b",\n  ],\n  "passes": [\n"fullTitle": "a",\n  }\n../..',
        {"a": P, "b": F},
    ),
    "parse_log_eslint": ("  1) A\n   b:\n\n   TypeError: x", {"A b:": F}),
    "parse_log_bpmn_js": ("HeadlessChrome 9.0 (Linux 0.0.0) a b FAILED\n", {"a b ": F}),
    "parse_log_chart_js": ("\x1b[31mChrome 9.0 (Linux x86_64) a FAILED\x1b[39m\n", {"a ": F}),
    "parse_log_openlayers": (
        "Chrome Headless 9.0 (Linux x86_64) a  b FAILED\ncase c: mismatch",
        {"a b": F, "c": F},
    ),
    "parse_log_marked": ("1) a b\n  2) c", {"a b": F}),
    "parse_log_p5js": ("  1) A\n       b:\n     Error", {"A:b": F}),
    "parse_log_quarto_cli": ("[smoke] a ... \x1b[32mok\x1b[0m\n[unit] b", {"[smoke] a": P, "[unit] b": F}),
    "parse_plotly_js": ("  - A :\n    * a : ok\n    * b : failed", {"A.a": P, "A.b": F}),
    "parse_log_pydantic": ("FAILED [ 5%] a - x\nb PASSED", {"a": F, "b": P}),
    "swesmith_pytest": ("a PASSED [ 1%]\nb  FAILED", {"a": P, "b": F}),
    "swesmith_mypy": ("[gw0] [ 9%] PASSED a\nFAILED b", {"a": P, "b": F}),
    "swesmith_paramiko": ("PASSED a", {"a": P}),
    "swesmith_autograd": ("[gw1] FAILED a", {"a": F}),
    "swesmith_python_slugify": ("a (m.C) ... ok\nb (m) ... ERROR", {"a (m.C)": P, "b (m)": E}),
    "swesmith_tornado": ("a (m) ... ok\nFAIL: b (m)", {"a (m)": P, "b (m)": F}),
}


@pytest.mark.parametrize("name", LOGS)
def test_each_parser_reads_the_logs_it_is_for(name):
    log, expected = LOGS[name]
    assert reader(name)(log) == expected
    assert list(reader(name)(log)) == list(expected) and reader(name)("") == {}


def test_statuses_are_told_apart_and_odd_words_are_no_pass():
    found = parser("parse_log_pytest")("XFAIL a\nERROR: not found\nPASSED b")
    assert found == {"a": TestStatus.PASSED, "not": TestStatus.ERROR, "b": TestStatus.PASSED}


@pytest.mark.parametrize(
    ("name", "log", "swebench", "older"),
    [
        ("parse_log_pytest", "SKIPPED [2] t.py:3: x", {}, {"[2]": S}),
        ("parse_log_scikit", "PASSED a b", {"a b": P}, {"a": P}),
        ("parse_log_jest", "✓  a", {"a": P}, {" a": P}),
        ("parse_log_maven", "-Dtest=A\n-Dtest=B\nBUILD SUCCESS", {"A": P}, {"B": P}),
        ("parse_log_gradle_custom", "A > b\nPASSED", {"A > b": P}, {}),
    ],
)
def test_dialects(name, log, swebench, older):
    assert reader(name)(log) == swebench
    assert reader(name, "swebench4")(log) == older


def test_swegym_takes_the_tag_off_sympys_lines_and_dies_of_a_lone_word():
    assert reader("parse_log_sympy")("test_a ok [OK]") == {}
    assert reader("parse_log_sympy", "swegym")("test_a ok [OK]") == {"test_a": P}
    with pytest.raises(UnreadableLog):
        reader("parse_log_sphinx", "swegym")("PASSED")


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("parse_log_django", "FAIL:"),
        ("parse_log_doctest", "<doctest>"),
        ("parse_log_prismjs", "+ ./node_modules/.bin/mocha tests/run.js --reporter json\n{"),
        ("parse_log_calypso", "+ ./node_modules/.bin/jest x\n✓ a"),
        ("parse_log_karma", "Starting browser\n    x\n   y\n  z"),
    ],
)
def test_a_log_the_official_parser_dies_of_is_unreadable(name, log):
    with pytest.raises(UnreadableLog):
        reader(name)(log)


def test_repositories_have_their_parser_in_any_spelling():
    assert repository_parser("Project-MONAI/MONAI") == "parse_log_monai"
    assert repository_parser("PrismJS/prism") == repository_parser("prismjs/prism") == "parse_log_prismjs"
    assert repository_parser("nobody/nothing") is None
    assert repository_parser("python/mypy", swesmith=True) == "swesmith_mypy"
    assert repository_parser("nobody/nothing", swesmith=True) == "swesmith_pytest"


@pytest.mark.parametrize(
    ("name", "instance", "version", "concrete"),
    [
        ("parse_log_jekyll", "jekyll__jekyll-9141", "4", "parse_log_minitest"),
        ("parse_log_immutable_js", "immutable-js__immutable-js-2005", "5", "parse_log_jest_json"),
        ("parse_log_next", "x-1", "1.27", "parse_log_next_v2"),
        ("parse_log_next", "x-1", "1.2", "parse_log_next_v1"),
        ("parse_log_lighthouse", "x-1", "9.5", "parse_log_lighthouse_mocha"),
        ("parse_log_lighthouse", "x-1", "3.0", "parse_log_lighthouse_jest"),
        ("parse_log_lighthouse", "x-1", "2.1", "parse_log_lighthouse_json"),
        ("parse_log_django", "x-1", "9", "parse_log_django"),
    ],
)
def test_names_that_stand_for_several_parsers(name, instance, version, concrete):
    assert concrete_parser(name, instance, version) == concrete
    reader(concrete)


def test_an_instance_no_parser_is_known_for_is_named():
    with pytest.raises(ConfigError, match="jekyll__jekyll-1 "):
        concrete_parser("parse_log_jekyll", "jekyll__jekyll-1", "4")


def test_an_unknown_parser_names_the_nearest():
    with pytest.raises(ConfigError, match=r"parse_log_djngo.*parse_log_django"):
        parser("parse_log_djngo")


LINEAR = ("parse_log_sympy", "parse_log_minitest", "parse_log_gradle_custom", "parse_log_django")


@pytest.mark.parametrize("name", [*LINEAR, "parse_log_pydantic"])
@pytest.mark.parametrize("piece", ["_", "x PASSED", ". =F", "a.py: ", "FAILED[", " ", " ... "])
def test_a_megabyte_on_one_line_does_not_stop_us(name, piece):
    assert len(reader(name)("[] " + piece * (1_000_000 // len(piece)) + "\n")) <= 1


def test_many_tests_interrupted_by_djangos_banner_do_not_stop_us():
    line = "a ... Testing against Django installed in 'x'\n"
    assert reader("parse_log_django")("x silenced).\nok\n" + line * 20_000) == {}
