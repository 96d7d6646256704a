"""No parser can be stalled: on logs made to cost more than their length, each one comes to an end."""

import signal
from contextlib import contextmanager, suppress

import pytest

from patchwright.grade.parsers import _DIALECTS, OWN, UnreadableLog

SIZE, SECONDS = 40_000, 8.0
"""Characters of a log, and the processor time after which its reader counts as stalled: a linear one needs
hundredths of that, one that is quadratic in the size many times it."""

READERS = {
    **{read: name for d in _DIALECTS.values() for name, read in d.items()},
    **{p: n for n, p in OWN.items()},
}

PARTS = [
    *(
        "<a>",
        "<testcase ",
        '<testcase name="a">',
        "<?xml\n",
        '<TestCase name="a">',
        "[",
        "(",
        " (",
        ") ",
        " x (",
    ),
    *(
        "\n",
        " ",
        "  1) ",
        "\n  1)",
        "1",
        "a",
        "Error ",
        "[ OK ] a (",
        "Chrome 1 (a) ",
        "Chrome Headless 1 (Linux x86_64) ",
    ),
    *(
        "2KPhantomJS 1 (Linux 0) ",
        '"fullTitle": "',
        "Running:",
        "AssertionError: #",
        "a ... Internal Server Error: /",
    ),
    *(
        "- a : ",
        " *** FAILED *** (",
        " PASSED [",
        "/tmp/a.qmd",
        "ok 1 - a {\n",
        "Test Suite (",
        ". =",
        "x ran 1 tests in 1 msec ",
    ),
    *("[ERROR] a.$.", "::", " : ", "||", "* checking a ...\n", '{"a":', "FAILED", "\u2028"),
]
HEADS = [
    "",
    "  1) ",
    "--- PASS: a",
    "Starting browser\n",
    "✓ a",
    "running 1 test files\n",
    "[info] - a",
    "[ERROR] a",
]


@contextmanager
def limited(what: str):
    def late(*_: object) -> None:
        raise AssertionError(f"stalled by {what}")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("part", PARTS)
def test_no_log_stalls_a_parser(part):
    for number, (read, name) in enumerate(READERS.items()):
        head = HEADS[(number + PARTS.index(part)) % len(HEADS)]
        log = head + part * (SIZE // len(part)) + "x"
        with limited(f"{head!r} and {part!r} in {name}"), suppress(UnreadableLog):
            assert isinstance(read(log), dict)


def test_suites_without_end_are_no_memory_bomb():
    log = "ok 1 - suite {\n" * 20_000
    with pytest.raises(UnreadableLog, match="titles"):
        next(read for read, name in READERS.items() if name == "parse_log_js_3")(log)
