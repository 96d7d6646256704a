"""The spec data and the evaluation scripts, held against swebench 4.1.0 itself (fetched once, 300 KB)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchwright.tasks.specs import eval_script, known, spec_of, versions
from patchwright.tasks.specs.script import with_exit_code

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchwright-tests"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EXTENSIONS = {"py": "python", "js": "javascript", "rb": "ruby", "rs": "rust"}
FIELDS = {"pip_packages": "pip", "test_cmd": "test", "apt-pkgs": "apt", "docker_specs": "tools",
          "execute_test_as_nonroot": "nonroot"}  # fmt: skip


def changed(path, old="a", new="b"):
    return (
        f"diff --git a/{path} b/{path}\nindex 1..2 100644\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -1,2 +1,2 @@ def f\n-{old}\n+{new}\n c\n"
    )


ADDED = (
    "diff --git a/tests/new/test_new.py b/tests/new/test_new.py\nnew file mode 100644\nindex 0..1\n"
    "--- /dev/null\n+++ b/tests/new/test_new.py\n@@ -0,0 +1,2 @@\n+--- a/not/a/header\n+++ b/nor/this\n"
)
REMOVED = (
    "diff --git a/tests/old.py b/tests/old.py\ndeleted file mode 100644\nindex 1..0\n--- a/tests/old.py\n"
    "+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
)
RENAMED = (
    "diff --git a/tests/was.py b/tests/dir/is.py\nsimilarity index 90%\nrename from tests/was.py\n"
    "rename to tests/dir/is.py\nindex 1..2 100644\n--- a/tests/was.py\n"
    "+++ b/tests/dir/is.py\n@@ -1 +1 @@\n-x\n+y\n"
)
MOVED = (
    "diff --git a/tests/p.py b/tests/q.py\nsimilarity index 100%\nrename from tests/p.py\n"
    "rename to tests/q.py\n"
)
BINARY = (
    "diff --git a/tests/x.png b/tests/x.png\nnew file mode 100644\nindex 0..1\n"
    "Binary files /dev/null and b/tests/x.png differ\n"
)
QUOTED = (
    'diff --git "a/t/f\\303\\274.py" "b/t/f\\303\\274.py"\nindex 1..2 100644\n--- "a/t/f\\303\\274.py"\n'
    '+++ "b/t/f\\303\\274.py"\n@@ -1 +1 @@\n-x\n+y\n'
)
NO_NEWLINE = changed("tests/end.py") + "\\ No newline at end of file\n"
SNAPSHOT = changed("client/state/test/__snapshots__/x.js.snap") + changed("packages/a/test/b.js")
PATCHES = {
    "one": changed("tests/test_a.py"),
    "data too": changed("tests/data.json") + changed("tests/a/test_b.py") + changed("x_csv"),
    "new only": ADDED,
    "all sorts": ADDED + REMOVED + RENAMED + MOVED + changed("test/e2e/specs/a.js"),
    "binary": changed("tests/test_a.py") + BINARY,
    "quoted": changed("tests/test_a.py") + QUOTED + changed("tests/test_z.py"),
    "no newline": NO_NEWLINE,
    "calypso": SNAPSHOT,
    "spaces": changed("tests/a file.py"),
}


def package() -> Path:
    """The package and what it reads diffs with, in one folder, fetched once."""
    folder = CACHE / "swebench-4.1.0-specs"
    if not folder.is_dir():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", fresh]
        subprocess.run([*pip, "swebench==4.1.0", "unidiff==0.7.5"], check=True)
        try:
            fresh.rename(folder)
        except OSError:  # somebody else was first
            assert folder.is_dir()
    return folder


@pytest.fixture(scope="module")
def official():
    """The oracle's process: its data, and a function from row to script."""
    script = Path(__file__).with_name("official_specs.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-I", script, package()], **pipes) as process:

        def ask(row):
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield json.loads(process.stdout.readline()), ask
        process.stdin.close()


def test_every_field_of_every_version_is_the_official_one(official):
    data, _ = official
    for repo, table in data["MAP_REPO_VERSION_TO_SPECS"].items():
        if repo == "swe-bench/humaneval":
            continue
        assert versions(repo) and set(versions(repo)) == set(table), repo
        extension = data["MAP_REPO_TO_EXT"][repo]
        for version, fields in table.items():
            spec = spec_of(repo, version)
            assert spec.language == EXTENSIONS.get(extension, extension)
            assert list(spec.requirements) == data["MAP_REPO_TO_REQS_PATHS"].get(repo, [])
            assert list(spec.environment) == data["MAP_REPO_TO_ENV_YML_PATHS"].get(repo, [])
            assert spec.fail_only == (repo in data["fail_only"])
            for key, value in fields.items():
                check_field(spec, key, value)


def check_field(spec, key, value):
    if key == "nano_cpus":
        assert spec.cpus * 10**9 == value
        return
    ours = getattr(spec, FIELDS.get(key, key))
    if isinstance(value, str) and isinstance(ours, tuple):
        value = [value]
    assert (list(ours) if isinstance(ours, tuple) else ours) == value, (spec.repo, spec.version, key)


def test_every_version_is_evaluated_by_the_official_script(official):
    data, ask = official
    compared = 0
    for repo in data["MAP_REPO_VERSION_TO_SPECS"]:
        for number, version in enumerate(versions(repo)):
            patches = PATCHES if number == 0 else {"one": PATCHES["one"], "new only": ADDED}
            for name, patch in patches.items():
                row = {"instance_id": "o__r-1", "repo": repo, "version": version, "base_commit": COMMIT,
                       "test_patch": patch, "problem_statement": ""}  # fmt: skip
                if not spec_of(repo, version).test:
                    continue  # dbt-core: the official package has no test command either
                theirs = ask(row)
                assert isinstance(theirs, str), (repo, version, name, theirs)
                ours = eval_script(spec_of(repo, version), row)
                assert ours == mended(theirs), (repo, version, name)
                compared += 1
    assert compared > 1200


def mended(script):
    """The official script as swebench 5 runs it, less the checkout without a path (the first trap)."""
    lines = [line for line in script.split("\n") if line != f"git checkout {COMMIT} "]
    return with_exit_code("\n".join(lines))


def test_no_repository_is_forgotten(official):
    data, _ = official
    theirs = {repo.lower() for repo in data["MAP_REPO_VERSION_TO_SPECS"]} - {"swe-bench/humaneval"}
    assert theirs <= set(known()) and len(set(known()) - theirs) == 12  # SWE-Gym's own
