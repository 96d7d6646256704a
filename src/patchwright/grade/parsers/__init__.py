"""Test logs to per-test statuses. Exit codes decide nothing: what a log does not name did not pass.

`parser(name)` is what a task's `tests.parser` names: our own `pytest` and `unittest`, or an official parser
under its official name (`parse_log_django`). Those behave as in swebench 5.0.2, oddities included; `reader`
also knows them as swebench 4 (and SWE-rebench), SWE-Gym and SWE-rebench V2 have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from patchwright.errors import ConfigError
from patchwright.grade.parsers import blocks, failures, javascript, python, rebench, swesmith, tables
from patchwright.grade.parsers.django import read_django
from patchwright.grade.parsers.own import parse_pytest, parse_unittest
from patchwright.grade.parsers.repositories import ALIASES
from patchwright.grade.parsers.words import Reader, UnreadableLog, Words, word_status
from patchwright.types import TestStatus

__all__ = ["OWN", "Parser", "Reader", "UnreadableLog", "Words", "parser", "reader", "word_status"]

Parser = Callable[[str], dict[str, TestStatus]]
"""A whole log in; test name -> status out. Raises UnreadableLog where the official parser dies of a log."""

OWN: Mapping[str, Parser] = {"pytest": parse_pytest, "unittest": parse_unittest}
"""Parsers that follow no official harness."""

_SUMMARY = python.summary_reader()
_OPTIONS = python.summary_reader(name=python.short_option)

_SWEBENCH: Mapping[str, Reader] = {
    # what swebench has too, under its own name or as an alias, is swebench's
    **{name: read for name, read in rebench.OWN.items() if name not in ALIASES},
    "parse_log_pytest": _SUMMARY,
    "parse_log_pytest_options": _OPTIONS,
    "parse_log_pytest_v2": python.read_pytest_v2,
    "parse_log_pytest_pydantic": python.second_word_reader(prepare=python.plain_pydantic, lone=True),
    "parse_log_matplotlib": python.summary_reader(prepare=python.mouse_buttons),
    "parse_log_django": read_django,
    "parse_log_seaborn": python.seaborn_reader(),
    "parse_log_sympy": python.sympy_reader(),
    **tables.LINE_READERS,
    "parse_log_redis": tables.read_redis,
    "parse_log_googletest": tables.read_googletest,
    "parse_log_minitest": tables.read_minitest,
    "parse_log_doctest": blocks.read_doctest,
    "parse_log_maven": blocks.read_maven,
    "parse_log_gradle_custom": blocks.read_gradle,
    "parse_log_phpunit": blocks.read_phpunit,
    "parse_log_bpmn_js": failures.read_bpmn_js,
    "parse_log_chart_js": failures.read_chart_js,
    "parse_log_eslint": failures.read_eslint,
    "parse_log_marked": failures.read_marked,
    "parse_log_openlayers": failures.read_openlayers,
    "parse_log_p5js": failures.read_p5js,
    "parse_log_quarto_cli": failures.read_quarto,
    "parse_log_calypso": javascript.read_calypso,
    "parse_log_carbon": javascript.read_jest_files,
    "parse_log_cypress": javascript.read_cypress,
    "parse_log_emotion": javascript.jest_files_reader(),
    "parse_log_grommet": javascript.jest_files_reader(time=r"\s\([\d.]+\s?(?:ms|s)\)$"),
    "parse_log_highlightjs": javascript.read_highlightjs,
    "parse_log_karma": javascript.read_karma,
    "parse_log_lighthouse_json": javascript.read_lighthouse_json,
    "parse_log_lighthouse_mocha": javascript.read_lighthouse_mocha,
    "parse_log_next_v1": javascript.read_next_v1,
    "parse_log_next_v2": javascript.read_next_v2,
    "parse_log_prismjs": javascript.read_prismjs,
    "parse_plotly_js": javascript.read_plotly,
    "swesmith_autograd": swesmith.read_autograd,
    "swesmith_mypy": swesmith.read_mypy,
    "swesmith_paramiko": swesmith.read_paramiko,
    "swesmith_pytest": swesmith.read_pytest,
    "swesmith_python_slugify": swesmith.read_python_slugify,
    "swesmith_tornado": swesmith.read_tornado,
}

_SUMMARY4: Mapping[str, Reader] = {
    "parse_log_pytest": python.summary_reader(counts=True),
    "parse_log_pytest_options": python.summary_reader(counts=True, name=python.short_option),
    "parse_log_matplotlib": python.summary_reader(counts=True, prepare=python.mouse_buttons),
    "parse_log_seaborn": python.seaborn_reader(lone=True),
}

_DIALECTS: Mapping[str, Mapping[str, Reader]] = {
    "swebench": _SWEBENCH,
    "swebench4": {
        **_SWEBENCH,
        **_SUMMARY4,
        "parse_log_pytest_v2": python.second_word_reader(),
        "parse_log_jest": tables.read_jest4,
        "parse_log_maven": blocks.read_maven4,
        "parse_log_gradle_custom": blocks.read_gradle4,
    },
    "swegym": {
        **_SWEBENCH,
        **_SUMMARY4,
        "parse_log_pytest_v2": python.second_word_reader(lone=True),
        "parse_log_sympy": python.sympy_reader(tagged=True),
    },
    "swerebench2": rebench.timed_names_cut({**_SWEBENCH, **rebench.OWN}),
}


def reader(name: str, dialect: str = "swebench") -> Reader:
    """The official parser `name` as words; `dialect` is `swebench` (5.0.2), `swebench4`, `swegym` or
    `swerebench2` (SWE-rebench V2, whose names carry no times).

    Raises ConfigError naming the nearest there is.
    """
    readers = _DIALECTS[dialect]
    name = name if name in readers else ALIASES.get(name, name)
    if name not in readers:
        raise ConfigError(_unknown(name, [*OWN, *readers, *ALIASES]))
    return readers[name]


def parser(name: str) -> Parser:
    """The parser called `name`, our own or an official one (5.0.2). Raises ConfigError with the nearest."""
    if name in OWN:
        return OWN[name]
    read = reader(name)
    return lambda log: {test: word_status(word) for test, word in read(log).items()}


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=3)
    choice = " or ".join(f"`{one}`" for one in near) or ", ".join(known)
    return f"unknown test parser `{name}`; take {choice}"
