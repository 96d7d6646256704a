"""SWE-rebench V2's readers of Elixir's, Haskell's and OCaml's logs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchwright.grade.parsers.rebench.lines import (
    BLANKS,
    WORDS,
    Rule,
    by_rules,
    closing,
    named,
    note,
    note_worse,
    upto,
)
from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, Words, nested, without_ansi

_EXUNIT = r"\*\s++test\s++"
_EXUNIT_HEADING = re.compile(r"\d++\)\s++test\s++")
_PARENTHESIS = re.compile(BLANKS + r"\(")


def _exunit_failure(line: str) -> str | None:
    begin = _EXUNIT_HEADING.match(line)
    at = closing(line, _PARENTHESIS, begin.end() + 1) if begin else -1
    return line[begin.end() : at] if begin and at >= 0 else None


read_elixir = by_rules(
    Rule(name=upto(_EXUNIT, r"\(skipped\)\s++\[L#\d++\]$"), word=SKIPPED),
    Rule(name=_exunit_failure, word=FAILED),
    Rule(name=upto(_EXUNIT, r"\([0-9]++(?:\.[0-9]++)?ms\)\s++\[L#\d++\]$"), word=PASSED, keep=True),
    Rule(name=upto(_EXUNIT, r"\[L#\d++\]$"), word=PASSED, keep=True),
)
"""ExUnit with `--trace`: `* test name (1.2ms) [L#3]`, and headings of failures, `1) test name (Module)`."""

# --- Haskell

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = ("Test suite ", "Linking ", "Building ", "Running  ")
_TASTY = re.compile(r"(?<!\s)\s*+:\s*+(OK|PASS|FAIL|ERROR|SKIP|PENDING)\b")


def _ticked(line: str) -> str | None:
    """`✓ name (0.1s)`, up to the first parenthesis where a parenthesis ends the line."""
    text = line.lstrip()
    if text[:1] not in ("✓", "✔") or not text[1:2].isspace():
        return None
    name = text[1:].strip()
    cut = _PARENTHESIS.search(name, 1) if name.endswith(")") else None
    return name[: cut.start()] if cut else name


_HSPEC = (
    Rule(name=upto(r"\s++", r"\[[✓✔]\]$"), word=PASSED, keep=True),
    Rule(name=upto(r"\s++", r"\[[✗✘]\]$"), word=FAILED),
    Rule(name=_ticked, word=PASSED, keep=True),
    Rule(name=named(r"\s*+[✗✘]\s++(?P<test>.+)"), word=FAILED),
    Rule(name=named(r"\s*+\d++\)\s++(?P<test>.+)"), word=FAILED),
    Rule(name=named(r"###\s++Failure\s++in:\s++(?P<test>.+)"), word=FAILED),
    Rule(name=named(r"###\s++Error\s++in:\s++(?P<test>.+)"), word=ERROR),
)


def read_haskell(log: str) -> Words:
    """tasty (`name: OK`), hspec (`✓ name`, `name [✗]`, `1) name`) and HUnit (`### Failure in: name`)."""
    found: Words = {}
    for line in (_COLOUR.sub("", raw).rstrip() for raw in log.splitlines()):
        if any(noise in line for noise in _NOISE):
            continue
        text = line.lstrip()
        if tasty := _TASTY.search(text, 1):
            note(found, text[: tasty.start()].strip(), WORDS[tasty[1]])
            continue
        for rule in _HSPEC:
            if (test := rule.name(line)) is not None:
                note(found, test, rule.word, keep=rule.keep)
                break
    return found


_UNCHANGED = "Golden and Actual output didn't change"
_AFTER_FAILURES = ("To rerun use:", "Randomized with seed", "Finished in ", "Test suite ")
_NO_TREE = (
    *("Downloading", "Building", "Installing", "Completed", "Starting", "Preprocessing", "Configuring"),
    *("Linking", "Resolving dependencies", "Build profile", "In order, the following will be built"),
    *("Error:", "Test suite ", "Running "),
)
_HEADING = re.compile(r"\d++\)\s++(.*)$")
_HSPEC_FAILED = re.compile(BLANKS + r"FAILED\s*+\[\d++\]$")
_HSPEC_PENDING = re.compile(BLANKS + r"(?:PENDING|SKIPPED)\b", re.IGNORECASE)


def read_haskell_v2(log: str) -> Words:
    """hspec's tree: what has nothing deeper below it is a test, named by all above it; then its failures."""
    rows = log.splitlines()
    end = next((n for n, row in enumerate(rows) if row.strip() == "Failures:"), len(rows))
    found: Words = {}
    tree = [row for row in rows[_tree_start(rows) : end] if row.strip() and row.strip() != _UNCHANGED]
    suites: list[str] = []
    for row, below in zip(tree, [*tree[1:], ""], strict=False):
        depth = _depth(row)
        name, word = _hspec_line(row.strip())
        del suites[depth // 2 :]
        if depth < _depth(below):
            suites += [""] * (depth // 2 - len(suites)) + [name]
        else:
            note(found, nested(".", [title for title in suites if title], name), word)
    found.update(dict.fromkeys(_hspec_failures(rows[end + 1 :]), FAILED))
    return found


def _depth(row: str) -> int:
    return len(row) - len(row.lstrip(" "))


def _tree_start(rows: list[str]) -> int:
    """Behind the first suite's announcement, else at the first line that may be a module's name."""
    for number, row in enumerate(rows):
        if row.startswith("Test suite ") and ": RUNNING..." in row:
            return number + 1
    for number, row in enumerate(rows):
        if not row.startswith(" ") and "." in row and not any(word in row for word in _NO_TREE):
            return number
    return 0


def _hspec_line(text: str) -> tuple[str, str]:
    for ending, word in ((_HSPEC_FAILED, FAILED), (_HSPEC_PENDING, SKIPPED)):
        if cut := ending.search(text):
            return text[: cut.start()], word
    return text, PASSED


def _hspec_failures(rows: list[str]) -> Iterator[str]:
    for row in map(str.strip, rows):
        if row.startswith(_AFTER_FAILURES):
            return
        if heading := _HEADING.match(row):
            yield ".".join(part.strip() for part in heading[1].strip().split(","))


# --- OCaml

_ALCOTEST = re.compile(r"\s*+\[([A-Z]++)\]\s++")
_ALCOTEST_WORDS = {
    word: WORDS[word] for word in ("OK", "PASS", "FAIL", "FAILED", "ERROR", "ERR", "SKIP", "SKIPPED", "TODO")
}
_INDEX_FIRST = re.compile(r"(\d++)\s++(?=.)")
_INDEX = re.compile(BLANKS + _INDEX_FIRST.pattern)


def read_ocaml(log: str) -> Words:
    """Alcotest: `[OK] suite 3 name`."""
    found: Words = {}
    for line in map(str.rstrip, log.splitlines()):
        begin = _ALCOTEST.match(line)
        index = _INDEX.search(line, begin.end() + 1) if begin else None
        if begin and index is None and line[begin.end() - 2].isspace():
            index = _INDEX_FIRST.match(line, begin.end())
        if begin and index:
            test = f"{line[begin.end() : index.start()]} {index[1]} {line[index.end() :]}"
            word = _ALCOTEST_WORDS.get(begin[1], ERROR)
            note(found, test.lstrip(), word, keep=word == PASSED)
    return found


_RUNNING = re.compile(r"Running\[(\d++)\]:\s++\((.+)\)$")
_OUTPUT = re.compile(r"Output\[(\d++)\]:")
_DUNE_WORDS = {
    **dict.fromkeys(("FAIL", "ERROR", "EXCEPTION", "CRASH", "FATAL"), FAILED),
    "SKIP": SKIPPED,
}


def read_ocaml_v2(log: str) -> Words:
    """dune's log: `Running[3]: (cd .. && ./test.exe)`, then `Output[3]:` and what that program wrote, in
    which some words decide; a program that wrote none of them has passed."""
    found: Words = {}
    programs: dict[str, str] = {}
    wrote: dict[str, str] = {}
    active = ""
    for line in filter(None, map(str.strip, log.splitlines())):
        if running := _RUNNING.match(line):
            number = running[1].lstrip("0") or "0"
            programs[number] = _program(running[2]) or f"run_{number}"
            active = ""
        elif output := _OUTPUT.match(line):
            active = programs.get(output[1].lstrip("0") or "0", "")
        elif active:
            wrote[active] = PASSED
            if word := _dune_word(line.upper()):
                note_worse(found, active, word)
    return {**wrote, **found}


def _dune_word(text: str) -> str | None:
    hit = next((word for mark, word in _DUNE_WORDS.items() if mark in text), None)
    return hit or (PASSED if text == "OK" else None)


def _program(command: str) -> str:
    command = command.split("&&")[-1].strip().removeprefix("exec ").strip().removeprefix("./")
    return command.split()[0].rsplit("/", 1)[-1] if command.split() else ""


_TAGGED = re.compile(r"\[([A-Za-z][A-Za-z0-9_-]*+)\]\s++(.+)$")
_TAGS = {
    **WORDS,
    "DISABLED": SKIPPED,
    **dict.fromkeys(("ERROR", "EXCEPTION", "CRASH", "FATAL", "KO", "PANIC"), FAILED),
}
_NO_TAGS = {"ERR", "FAILURE", "TIMEOUT"}


def read_ocaml_v3(log: str) -> Words:
    """`[OK] name`, whatever the case of the word; the worst result counts."""
    found: Words = {}
    for line in filter(None, map(_TAGGED.match, map(str.strip, log.splitlines()))):
        tag = line[1].upper()
        if tag in _TAGS and tag not in _NO_TAGS:
            note_worse(found, " ".join(line[2].split()), _TAGS[tag])
    return found


_STATUS = re.compile(r"(PASSED|FAILED|SKIPPED|ERROR)\s++(.+)$")
_GAP = re.compile(r"\s{2,}+")


def _spaced(row: str) -> str:
    return without_ansi(_COLOUR.sub(" ", row)).strip()


def read_ocaml_v4(log: str) -> Words:
    """ocamlbuild: `PASSED name`, up to two blanks; the worst result counts."""
    found: Words = {}
    for line in filter(None, map(_STATUS.match, map(_spaced, log.splitlines()))):
        note_worse(found, _GAP.split(line[2], maxsplit=1)[0], line[1])
    return found
