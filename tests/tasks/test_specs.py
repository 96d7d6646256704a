"""How rows say, or do not say, how their tests are run; the scripts against those of real evaluations."""

import json
import re
from pathlib import Path

import pytest

from patchwright.errors import ConfigError
from patchwright.tasks.specs import (
    eval_command,
    eval_script,
    known,
    spec_for,
    spec_of,
    versions,
    with_exit_code,
)
from patchwright.tasks.specs.directives import changed, directives, restored

REAL = Path(__file__).parents[3] / "shared" / "realdata"
REASON = f"the real records are not beside this clone ({REAL}); the oracle test still compares every script"
ADDED = (
    "diff --git a/t/new.py b/t/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/t/new.py\n"
    "@@ -0,0 +1 @@\n+x\n"
)
CHANGED = (
    "diff --git a/tests/a/b.py b/tests/a/b.py\n--- a/tests/a/b.py\n+++ b/tests/a/b.py\n@@ -1 +1 @@\n-x\n+y\n"
)


def row(repo, version, patch=CHANGED, **more):
    return {"repo": repo, "version": version, "test_patch": patch, "base_commit": "c0ffee", **more}


@pytest.mark.skipif(not REAL.is_dir(), reason=REASON)
def test_the_scripts_are_those_of_every_real_evaluation():
    rows = {r["instance_id"]: r for r in map(json.loads, (REAL / "instances.jsonl").open())}
    scripts = sorted(REAL.glob("logs/*/*/eval.sh"))
    for path in scripts:
        real = rows[path.parent.parent.name]
        assert eval_script(spec_for(real), real) == path.read_text(), path
    assert len(scripts) >= 54


def test_a_test_patch_of_new_files_only_checks_nothing_out():
    script = eval_script(spec_of("sphinx-doc/sphinx", "3.5"), row("sphinx-doc/sphinx", "3.5", ADDED))
    assert "git checkout" not in script and "git apply -v" in script
    other = eval_script(spec_of("redis/redis", "13115"), row("redis/redis", "13115", ADDED))
    assert 'echo "No test files to reset"' in other and "git checkout" not in other


def test_the_command_of_a_row_leaves_the_test_files_to_the_grader_and_dumps_no_tree():
    command = eval_command(spec_of("pallets/flask", "2.3"), row("pallets/flask", "2.3"))
    assert not re.search("git (checkout|apply|show|status)|EOF", command)
    assert (
        command.index("pip install -e .")
        < command.index("Start Test")
        < command.index("pytest -rA tests/a/b.py")
    )
    assert command.rindex("Test Exit Code") > command.index("End Test")


def test_pins_of_build_requirements_and_self_contained_interpreters_are_in_the_data():
    assert "setuptools==70.0.0" in spec_of("pallets/flask", "2.0").pip
    assert any("setuptools==68.0.0" in line for line in spec_of("astropy/astropy", "5.1").pre_install)
    assert spec_of("sphinx-doc/sphinx", "4.1").test == ("tox --current-env -epy39 -v --",)
    assert any("grep -q" in line and "||" in line for line in spec_of("sphinx-doc/sphinx", "4.1").pre_install)


def test_names_are_found_whatever_their_case_and_near_misses_named():
    assert spec_of("Project-MONAI/MONAI", "1.3") is spec_of("project-monai/monai", "1.3")
    assert spec_of("automattic/WP-Calypso", "10.9.0").language == "javascript"
    with pytest.raises(
        ConfigError, match=r"no spec for repository 'pallets/flaks'; did you mean 'pallets/flask'"
    ):
        spec_of("pallets/flaks", "2.0")
    with pytest.raises(
        ConfigError, match=r"no spec for version '9' of pallets/flask; there are 2.0, .*eval_script"
    ):
        spec_of("pallets/flask", "9")
    with pytest.raises(ConfigError, match="has no test command"):
        eval_command(spec_of("dbt-labs/dbt-core", "1.0"), row("dbt-labs/dbt-core", "1.0"))


def test_every_language_and_harness_has_its_repositories():
    specs = [spec_of(repo, version) for repo in known() for version in versions(repo)]
    languages = {spec.language for spec in specs}
    assert languages == {"c", "go", "java", "javascript", "php", "python", "ruby", "rust"}
    assert sum(spec.harness == "swegym" for spec in specs) == 510 and len(specs) == 688 + 510
    assert all(spec.parser.startswith("parse_log_") for spec in specs)


def test_django_is_told_modules_and_mypy_cases():
    patch = CHANGED + CHANGED.replace("tests/a/b.py", "tests/a/data.json")
    assert directives("modules", patch) == ["a.b"]
    assert directives("files", patch) == ["tests/a/b.py"]
    cases = "@@ -1 +1,2 @@\n [case one]\n+[case testTwo]\n"
    command = eval_command(spec_of("python/mypy", "1.4"), row("python/mypy", "1.4", cases))
    assert command.endswith('-k "one or testTwo"\n') and ">>>>>" not in command  # no markers for SWE-Gym
    with pytest.raises(ConfigError, match="no rule 'modles'"):
        directives("modles", patch)


def test_a_row_with_its_own_configuration_needs_no_repository():
    config = {"python": "3.9", "install": "pip install -e .[dev]", "test_cmd": "pytest -rA",
              "pip_packages": ["x==1"], "log_parser": "parse_log_pytest_v2", "pre_install": None}  # fmt: skip
    for given in (config, json.dumps(config)):
        spec = spec_for(row("some/where", "0.1", install_config=given))
        assert (spec.harness, spec.pip, spec.parser) == ("rebench", ("x==1",), "parse_log_pytest_v2")
    gone = ADDED + CHANGED.replace("+++ b/tests/a/b.py", "+++ /dev/null")
    assert "pytest -rA t/new.py\n" in eval_command(spec, row("some/where", "0.1", gone))
    with pytest.raises(ConfigError, match="`install_config` is not JSON"):
        spec_for(row("some/where", "0.1", install_config="{"))


def test_any_language_of_the_second_rebench_runs_what_its_row_says():
    config = {
        "base_image_name": "c:latest",
        "test_cmd": ["make", "ctest -V"],
        "log_parser": "parse_log_ctest",
    }
    spec = spec_for(row("unidata/netcdf-c", "", language="c", install_config=config))
    assert eval_command(spec, row("", "")) == "#!/bin/bash\nset -e\nmake\nctest -V\n"


def test_the_exit_code_is_recorded_once():
    script = "#!/bin/bash\n: '>>>>> Start Test Output'\nt\n: '>>>>> End Test Output'\nx\n"
    told = with_exit_code(script)
    assert told.split("\n")[3:6] == [
        "SWEBENCH_TEST_EXIT_CODE=$?",
        ": '>>>>> End Test Output'",
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"',
    ]
    assert with_exit_code(told) == told and with_exit_code("no marker") == "no marker"


def test_headers_inside_hunks_are_no_files():
    patch = (
        "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n diff --git a/no b/no\n"
        "--- a/no\n+++ b/no\n c\n"
        "\\ No newline at end of file\ndiff --git a/y b/z\nrename from y\nrename to z\n"
    )
    assert changed(patch) == [("x", "x"), ("y", "z")]
    assert restored("swebench", patch) == ["x", "y"]
    assert changed("--- a/plain\n+++ b/plain\n@@ -1 +1 @@\n-a\n+b\n") == [("plain", "plain")]
    assert changed("") == [] and changed("noise\n") == []
