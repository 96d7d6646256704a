import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.errors import ConfigError
from patchwright.grade.parsers import OWN, parser
from patchwright.grade.parsers.own import parse_pytest, parse_unittest
from patchwright.types import TestStatus

PYTEST_LOG = """\
.Fs                                                                      [100%]
=========================== short test summary info ============================
PASSED test_mod.py::test_a
PASSED test_mod.py::test_b[x - y]
SKIPPED [1] test_mod.py:9: no network
XFAIL test_mod.py::test_known - later
FAILED test_mod.py::test_c - assert 3 == 4
ERROR test_mod.py::test_d - RuntimeError: teardown
1 failed, 2 passed in 0.02s
"""


def test_pytest_summary_is_read_per_test():
    found = parse_pytest(PYTEST_LOG)
    assert found["test_mod.py::test_a"] is TestStatus.PASSED
    assert found["test_mod.py::test_known"] is TestStatus.PASSED
    assert found["test_mod.py::test_c"] is TestStatus.FAILED
    assert found["test_mod.py::test_d"] is TestStatus.ERROR
    assert TestStatus.SKIPPED in found.values()


def test_a_test_that_passes_and_then_errors_did_not_pass():
    log = "PASSED t.py::a\nERROR t.py::a - boom\n"
    assert parse_pytest(log) == {"t.py::a": TestStatus.ERROR}
    assert parse_pytest("ERROR t.py::a - boom\nPASSED t.py::a\n") == {"t.py::a": TestStatus.ERROR}


def test_colours_do_not_hide_a_status():
    assert parse_pytest("\x1b[32mPASSED\x1b[0m t.py::\x1b[1ma\x1b[0m\n") == {"t.py::a": TestStatus.PASSED}


def test_unittest_verbose_output():
    log = (
        "test_a (test_mod.Case.test_a) ... ok\n"
        "test_b (test_mod.Case) ... FAIL\n"
        "test_c (test_mod.Case.test_c)\nWhat it is for. ... skipped 'no'\n"
    )
    assert parse_unittest(log) == {
        "test_mod.Case.test_a": TestStatus.PASSED,
        "test_mod.Case.test_b": TestStatus.FAILED,
        "test_mod.Case.test_c": TestStatus.SKIPPED,
    }


def test_unknown_parser_names_those_there_are():
    with pytest.raises(ConfigError, match="pytest"):
        parser("pytset")


@given(st.text())
def test_no_log_makes_a_parser_fail(log: str):
    for parse in OWN.values():
        assert isinstance(parse(log), dict)
