"""The parsers of SWE-rebench V2's rows (`install_config.log_parser`), under their own names.

Results are those of its published evaluation, oddities included; names are compared without times, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

from patchwright.grade.parsers import blocks, django, python, tables
from patchwright.grade.parsers.rebench import compiled, functional, javascript, junit, jvm, scripting
from patchwright.grade.parsers.rebench.lines import timeless
from patchwright.grade.parsers.words import Reader

__all__ = ["OWN", "timed_names_cut", "timeless"]

_PYTEST = python.summary_reader(counts=True, statuses=scripting.STATUSES)
_OPTIONS = python.summary_reader(counts=True, name=python.short_option, statuses=scripting.STATUSES)
_PYTEST_V2 = python.second_word_reader(lone=True, statuses=scripting.STATUSES)

OWN: Mapping[str, Reader] = {
    **{
        f"parse_log_{name}": _PYTEST
        for name in [
            "pytest",
            "astroid",
            "flask",
            "marshmallow",
            "pvlib",
            "pyvista",
            "sqlfluff",
            "xarray",
            "pydantic",
            "dvc",
        ]
    },
    **{f"parse_log_{name}": _OPTIONS for name in ("pytest_options", "pydicom", "requests", "pylint")},
    **{f"parse_log_{name}": _PYTEST_V2 for name in ("pytest_v2", "astropy", "scikit", "sphinx")},
    "parse_log_matplotlib": python.summary_reader(
        counts=True, prepare=python.mouse_buttons, statuses=scripting.STATUSES
    ),
    "parse_log_pytest_nebo": scripting.read_pytest_nebo,
    "parse_log_django": django.read_django,
    "parse_log_seaborn": python.seaborn_reader(lone=True),
    "parse_log_sympy": python.sympy_reader(tagged=True),
    "parse_combined_test_reports": junit.read_reports,
    "parse_log_jest": tables.read_jest4,
    "parse_log_maven": blocks.read_maven4,
    "parse_log_gradle_custom": jvm.read_gradle,
    "parse_log_gradlew_v1": junit.read_gradlew_v1,
    **dict.fromkeys(("parse_log_sbt", "parse_log_junit"), junit.read_junit),
    **dict.fromkeys(("parse_logs_r_junit", "parse_log_r_junit"), junit.read_r_junit),
    **dict.fromkeys(("parse_logs_kotlin_junit", "parse_log_kotlin_junit"), jvm.read_kotlin_junit),
    **dict.fromkeys(("parse_java_mvn", "parse_log_java_mvn"), jvm.read_java_mvn),
    **dict.fromkeys(("parse_java_mvn_v2", "parse_log_java_mvn_v2"), jvm.read_java_mvn_v2),
    "parse_log_scala": jvm.read_scala,
    "parse_log_scala_v2": jvm.read_scala_v2,
    "parse_log_scala_v3": jvm.read_scala_v3,
    "parse_log_lein": jvm.read_lein,
    "parse_log_js": javascript.read_js,
    "parse_log_js_2": javascript.read_js_2,
    "parse_log_js_3": javascript.read_js_3,
    "parse_log_js_4": javascript.read_js_4,
    "parse_log_npx": javascript.read_npx,
    "parse_log_react_pdf": javascript.read_react_pdf,
    "parse_log_elixir": functional.read_elixir,
    "parse_log_haskell": functional.read_haskell,
    "parse_log_haskell_v2": functional.read_haskell_v2,
    "parse_log_ocaml": functional.read_ocaml,
    "parse_log_ocaml_v2": functional.read_ocaml_v2,
    "parse_log_ocaml_v3": functional.read_ocaml_v3,
    **dict.fromkeys(("parse_log_ocaml_v4", "parse_log_ocaml_v5"), functional.read_ocaml_v4),
    "parse_log_ruby_v1": scripting.read_ruby_v1,
    "parse_log_ruby_v2": scripting.read_ruby_v2,
    "parse_log_phpunit": scripting.read_phpunit,
    "parse_log_php_v1": scripting.read_php_v1,
    **dict.fromkeys(("parse_lue_nvim", "parse_lua_nvim", "parse_log_lua_nvim"), scripting.read_nvim),
    "parse_log_r": scripting.read_r,
    "parse_log_r_v2": scripting.read_r_v2,
    "parse_log_julia": scripting.read_julia,
    "parse_log_cpp": compiled.read_cpp,
    "parse_log_cpp_v2": compiled.read_cpp_v2,
    "parse_log_cpp_v3": compiled.read_cpp_v3,
    "parse_log_cpp_v4": compiled.read_cpp_v4,
    "parse_log_dart": compiled.read_dart,
    "parse_log_dart_v2": compiled.read_dart_v2,
    "parse_log_dart_v3": compiled.read_dart_v3,
    "parse_log_swift": compiled.read_swift,
    "parse_log_csharp": compiled.read_csharp,
}
"""Its parsers that swebench lacks, or has otherwise; the rest of them are swebench's."""


def timed_names_cut(readers: Mapping[str, Reader]) -> Mapping[str, Reader]:
    """The readers as its evaluation hears them: every name without a time."""
    return {name: _timeless(read) for name, read in readers.items()}


def _timeless(read: Reader) -> Reader:
    return lambda log: {timeless(test): word for test, word in read(log).items()}
