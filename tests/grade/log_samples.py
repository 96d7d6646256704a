"""Logs of every framework the official parsers read, made at random from a seed, and damaged at random."""

import json
import random

NAMES = [
    "test_a",
    "t.py::test_b[x-1]",
    "test_c[/tmp/a/b]",
    "tests/x.py::C::m",
    "a b c",
    "ünïcode ✓",
    "[100%]",
    "",
]
NOISE = ["", "  ", "\t", "ok", "ERROR: x (y)", "collected 3 items", "====", "E   assert 1", "...", "- - -"]

PYTEST = [
    "{word} {name}",
    "{word} {name} - assert 1 == 2",
    "{word} {name} - a - b [note] ",
    "{word}",
    "{word}: {name}",
    "{name} {word}",
    "{name} {word} [ 10%]",
    "{word} [{n}] t.py:{n}: why",
    "\x1b[32m{word}\x1b[0m {name}",
    "[gw0] {word} {name}",
    "FAILED [ 5%] {name}",
    "{word} MouseButton.LEFT::{name}",
    "XPASS {name}",
    "SKIPPED [1]",
    "{name}\t{word}\tx",
]
DJANGO = [
    "{name} (pkg.C) ... {unit}",
    "{name} (pkg.C) ... skipped 'why'",
    "{name} ... ",
    "ok",
    "okay then",
    "FAIL: {name} (pkg.C)",
    "ERROR: {name}",
    "FAIL:",
    "--version is equivalent to version",
    "Applying sites.0002_alter_domain_unique...test_no_migrations (x) ... ok",
    "{name} ... Testing against Django installed in '/x' with up to 2 processes silenced).\nok",
    "{name} ... Testing against Django installed in",
    "{name} ... Internal Server Error: /x/\nok",
    "{name} ... System check identified no issues (0 silenced)\nok",
]
SYMPY = [
    "{name} {sympy}",
    "test_{n} {sympy}",
    "test_x {sympy} [OK]",
    "test_x {sympy}  [FAIL]",
    "____ sympy/core/x.py:test_{n} ____",
    "___ a b.py:c d.py:e _ f __",
    " x.py:y",
    "x .py: ",
]
TREE = [
    "  {name}",
    "    {name}",
    "      {name}",
    " {name}",
    "  ✓ {name}",
    "    ✓ {name} ({n}ms)",
    "      ✕ {name} ({n} ms)",
    "    ✔ {name} ({n}ms)",
    "    ✖ {name}",
    "      {n}) {name}",
    "  {n}) {name} ({n}ms)",
    "  × {name} {n}ms",
    "  ↓ {name} [skipped]",
    "  ○ {name}",
    "  ✗ {name}",
    "✓ {name} (1.5 s)",
    "✓   {name}  (3 ms)",
    "✓ {name} ({n}ms) x",
    "  {n} passing (1s)",
    "Test Suites: 1 failed, 2 total",
    "  ● {name}",
    "+ ./node_modules/.bin/jest --verbose",
    "+ ./node_modules/.bin/jest ",
    "+ xvfb-run npm test",
    "Starting browser Chrome",
    "Starting browser",
    "SUMMARY:",
    "TOTAL: 3 SUCCESS",
    "ERROR something",
    "running 3 test files",
    "Running:  a.js   (1 of 2)\n\n\n  {name}\n    {n}) {name}\n    ✓ {name} (3ms)",
    "AssertionError: expected #x\nmore\n\n",
    "  - {name}  :",
    "    * {name} : ok",
    "    * {name} : failed not ok",
    "  - {name} : x",
]
FILES = [
    "PASS {name}",
    "FAIL {name} ({n}ms)",
    "PASS {name} (1.5 s)",
    "FAIL {name} (2.5s)",
    "PASS {name} (3ms) (2 s)",
    "PASS\n{name}",
    "[PASSED] {name}",
    "[FAILED] {name}",
    "FAILED {name}",
]
KARMA = [
    "Chrome 99.0 (Linux x86_64) {name} FAILED",
    "Chrome 99.0 (Linux 4.5) {name}FAILED",
    "Chrome Headless 99.0 (Linux x86_64) {name} FAILED",
    "\x1b[2KPhantomJS 2.1.1 (Linux 5.0.0) {name} FAILED",
    "\x1b[2KPhantomJS 2.1.1 (Linux x86_64) {name} FAILED",
    "HeadlessChrome 7.0 (Linux 0.0.0) {name} FAILED",
    "Executed {n} of 3 SUCCESS",
    "  {n}) {name}\n       deeper {name}:\n     AssertionError: no",
    "  {n}) {name}\n\n  TypeError: x",
    "{n}) {name}",
    "case {name}: mismatch 0.1",
    "case {name}': ok",
    "{n} specs, 0 failures",
    "{{",
    '  "a": 1',
    "}}",
    "x [",
    "]",
    "[1]",
    "{{}}",
    "<div><b>x</b><div>y</div>",
    "</div>",
    "<p>",
    "   1) a\n     b\n       c:",
]
GO = [
    "--- PASS: {name} (0.00s)",
    "    --- FAIL: {name}/sub (0.10s)",
    "--- SKIP: {name} (x)",
    "--- PASS: x (1) (2)",
]
RUST = ["test {name} ... ok", "test mod::{n} ... FAILED", "test mod::x ... ignored", "test  a  ...  ok"]
C = [
    "PASS: {name}",
    "  FAIL: {name}",
    "pass  {name}",
    "FAIL  {name}",
    "skip  {name} why",
    "[ok]: {name} (3 ms)",
    "[err]: {name} in tests/unit/x.tcl",
    "[err]: {name} in a in b",
    "[skip]: {name}",
    "[ignore]: {name} (12 s)",
    "[       OK ] {name} (0 ms)",
    "[  FAILED  ] A.{name} (1 ms) (2 ms)",
    "1: [ OK ] [ FAILED ] x (3)",
]
RUBY = [
    "{name} ...F",
    "{name} ....",
    "a . b .F..",
    "test: {name}: .",
    "test: {name}: E",
    "test: : F",
    "{name}: O: (0.1)",
    "{name}: Error",
    "{name} - passed",
    "{name} - failed - passed",
    "{name} - pending",
    "Suite#{name}. = 0.01 s = .",
    "Suite#{name}. x = F",
    "A. b. = E = S",
    "a. = 1",
    ". =F",
]
JAVA = [
    "[junit] [PASS] {name}",
    "  [junit]  [ERR] {name} x",
    "[junit] [FAIL] ",
    "+ mvn test -Dtest={name}",
    "+ mvn -Dtest=A{n} -Dtest=B{n}#c -x",
    "[INFO] BUILD SUCCESS",
    "[INFO] BUILD FAILURE",
    "[INFO] BUILD SUCCESS ",
    "BUILD",
    "a.B > {name} PASSED",
    "a.B > test{n}",
    "PASSED",
    " FAILED",
    "> Task :x FAILED",
    "a.B > c  FAILED",
    "x PASSED",
    "xy\tPASSED",
]
TAP = ["ok {n} {name}", "not ok {n} {name}", "ok {n}", "# tests {n}", "ok 1  - x"]
PHP = ["Some Suite (Tests\\Some)", "{name} (X)", " ✔ {name}", " ✘ {name}", "↩ {name}", "✔"]
QUARTO = [
    "[smoke] > {name} ... \x1b[32mok\x1b[0m (1s)",
    "[unit] > /tmp/abc{n}/x {name} ... \x1b[31mFAILED\x1b[0m",
    "[smoke] /tmp/q{n}.qmd /tmp/q{n}.qmd ... x",
    "[unit] /tmp/q1.qmd /tmp/abc2/ ... 32mok",
    "[unit] 3 passed 1 failed steps",
    "[unit] \x1b[34mINFO x",
    "test result: [unit] ok",
]
JSON = ["+ ./node_modules/.bin/mocha tests/run.js --reporter json", "{name}", "../.."]
XML = ["<doctest", "</doctest>", "{name}"]

BY_PARSERS = (
    (DJANGO, "django"),
    (SYMPY, "sympy"),
    (PYTEST, "pytest pytest_options pytest_v2 pytest_pydantic matplotlib seaborn"),
    (TREE, "calypso highlightjs jest karma vitest lighthouse_mocha next_v1 next_v2"),
    (FILES, "carbon emotion grommet jest_json"),
    (KARMA, "bpmn_js chart_js eslint marked openlayers p5js"),
    (GO, "gotest"),
    (RUST, "cargo"),
    (C, "jq micropython_test redis googletest"),
    (RUBY, "minitest cucumber ruby_unit rspec_transformed_json"),
    (JAVA, "ant maven gradle_custom"),
    (TAP, "tap"),
    (PHP, "phpunit"),
    (QUARTO, "quarto_cli"),
    (JSON, "prismjs cypress lighthouse_json"),
    (XML, "doctest"),
)
POOLS = {f"parse_log_{name}": lines for lines, names in BY_PARSERS for name in names.split()} | {
    "parse_plotly_js": TREE
}
ALL = [line for lines, _ in BY_PARSERS for line in lines]


def a_log(parser: str, seed: int) -> str:
    """A log for a parser: most lines its own, some of everybody's, then perhaps damaged."""
    rng = random.Random(f"{parser}-{seed}")
    log = "\n".join(_line(rng, parser) for _ in range(rng.randrange(30)))
    if POOLS.get(parser) is JSON:
        log = "\n".join([log, *(_json_run(rng) for _ in range(rng.randrange(3)))])
    if POOLS.get(parser) is XML:
        log += _xml_run(rng)
    return OPENINGS.get(parser, "") + (damaged(log, rng) if rng.random() < 0.5 else log)


OPENINGS = {
    "parse_log_karma": "Starting browser\n",
    "parse_log_calypso": "+ ./node_modules/.bin/jest a\n",
    "parse_log_next_v1": "+ xvfb-run x\n",
    "parse_log_lighthouse_mocha": "running 3 test files\n",
    "parse_log_next_v2": "Running: (1 of 2)\n\n\n  suite\n",
}


def _json_run(rng: random.Random) -> str:
    tests = [{"fullTitle": f"s {rng.choice(NAMES)} {n}", "file": None} for n in range(rng.randrange(6))]
    half = rng.randrange(len(tests) + 1)
    report = {"stats": {}, "passes": tests[:half], "failures": tests[half:]}
    if rng.random() < 0.5:
        report = dict(reversed(report.items()))
    command = rng.choice(["./node_modules/.bin/mocha tests/run.js", "./node_modules/.bin/mocha", "../.."])
    return f"+ {command} --reporter json\n{json.dumps(report, indent=2)}\n../..\nbye"


def _xml_run(rng: random.Random) -> str:
    cases = "".join(f'<TestCase name="{n}">{_xml_subs(rng)}</TestCase>' for n in range(rng.randrange(4)))
    return f'\n<doctest binary="x">\n<TestSuite>{cases}</TestSuite></doctest> after'


def _xml_subs(rng: random.Random) -> str:
    parts = [
        '<SubCase name="a"><Expression success="true"/></SubCase>',
        '<SubCase name="b c"><Expression success="false"/><Expression success="true"/></SubCase>',
        '<SubCase name="d"><SubCase name="e"><Expression success="false"/></SubCase></SubCase>',
        "<SubCase/>",
        "<Expression/>",
    ]
    return "".join(rng.choices(parts, k=rng.randrange(4)))


def _line(rng: random.Random, parser: str) -> str:
    own = POOLS.get(parser, PYTEST)
    weights = [3, 7, 90] if own in (JSON, XML) else [80, 12, 8]
    return rng.choice(rng.choices([own, ALL, NOISE], weights)[0]).format(
        name=rng.choice(NAMES),
        n=rng.randrange(120),
        word=rng.choice(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"]),
        unit=rng.choice(["ok", "OK", " OK", "FAIL", "ERROR", "ok ", "okay"]),
        sympy=rng.choice(["ok", "E", "F", "f", "s"]),
    )


def damaged(log: str, rng: random.Random) -> str:
    """A few changes of the kinds that happen to logs."""
    for _ in range(rng.randrange(1, 6)):
        log = rng.choice(DAMAGES)(log, rng)
    return log


def _drop(log, rng):
    lines = log.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _swap(log, rng):
    lines = log.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def _repeat(log, rng):
    lines = log.split("\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return "\n".join(lines)


def _join(log, rng):
    lines = log.split("\n")
    i = rng.randrange(len(lines))
    return "\n".join([*lines[:i], "".join(lines[i : i + 2]), *lines[i + 2 :]])


def _cut(log, rng):
    return log[: rng.randrange(len(log) + 1)]


def _splice(log, rng):
    at = rng.randrange(len(log) + 1)
    bits = [
        "\x1b[31m",
        "\t",
        " ",
        "\x0b",
        "\u2028",
        "\r\n",
        "\r",
        "PASSED",
        "FAILED ",
        " - ",
        "[",
        "]",
        "\x85",
        "\n\n",
    ]
    return log[:at] + rng.choice(bits) + log[at:]


def _delete(log, rng):
    at = rng.randrange(len(log) + 1)
    return log[:at] + log[at + rng.randrange(1, 4) :]


def _word(log, rng):
    old, new = rng.sample(["PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "ok", " ... "], 2)
    return log.replace(old, new, rng.randrange(1, 3))


def _marker(log, rng):
    marker = rng.choice(MARKERS)
    if marker in log and rng.random() < 0.5:
        return log.replace(marker, rng.choice(["", rng.choice(MARKERS)]), 1)
    at = rng.randrange(len(log) + 1)
    return log[:at] + marker + log[at:]


MARKERS = [
    ">>>>> Start Test Output",
    ">>>>> End Test Output",
    ">>>>> Test Exit Code: 0",
    ">>>>> Test Exit Code: 1\n",
    ">>>>> Test Exit Code:\n-9",
    ">>>>> Patch Apply Failed",
    ">>>>> Reset Failed",
    ">>>>> Tests Errored",
    ">>>>> Tests Timed Out",
    ">>>>> Applied Patch (pred)",
    "applied patch",
    "Killed\n",
    "ModuleNotFoundError",
    "collected 0 items",
    "Failed to launch",
    "# tests 3",
    "Executed 3 of 3",
]
DAMAGES = [_drop, _swap, _repeat, _join, _cut, _splice, _delete, _word, _marker]
