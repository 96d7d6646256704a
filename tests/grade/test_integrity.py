"""No past in the agent's box; forged logs are found; official logs that nobody forged are not."""

import asyncio
from dataclasses import replace

import pytest
from tests.boxes import in_boxes
from tests.grade.attack_cases import ATTACKS, DIGGERS
from tests.grade.attack_task import BAD, FIX, GOOD, OFFICIAL, STRICT, change
from tests.grade.realdata import cases

from patchwright.errors import GradeError
from patchwright.grade.diff import parse
from patchwright.grade.integrity import forgeries, screened
from patchwright.grade.patch import take_patch
from patchwright.grade.run import open_box
from patchwright.grade.settings import test_settings as settings_of
from patchwright.grade.tests import Grader
from patchwright.tasks.history import _version, without_history
from patchwright.types import GradeState, Limits, Task, Tests

SECRET = "FUTURE-FIX"
FUTURE = f"""
set -e
git config --global user.email a@b; git config --global user.name a
git config --global protocol.file.allow always
git init -q -b main . && git add -A && git commit -qm base && git tag v1.2.3
fix() {{ echo "# {SECRET}-$1" >> mod.py && git commit -qam "{SECRET} $1"; }}
git checkout -qb fixed && fix branch
git tag -a v1.2.4 -m '{SECRET} tag' && git notes add -m '{SECRET} note'
git checkout -q main && fix reflog && git reset -q --hard HEAD~1
echo '{SECRET}-stash' >> mod.py && git stash -q
echo '{SECRET}-loose' | git hash-object -w --stdin
git checkout -qb packed && fix packed && git gc -q --prune=never && git checkout -q main
git clone -q --bare . /tmp/remote.git && git remote add origin /tmp/remote.git && git fetch -q origin
git worktree add -q /tmp/aside fixed
git clone -q /tmp/remote.git /tmp/source && git -C /tmp/source checkout -q fixed
git submodule --quiet add /tmp/source vendored && git -C vendored checkout -q v1.2.3 && git add -A
git commit -qm submodule
echo '{SECRET}-alternate' > /tmp/x && git init -q --bare /tmp/store.git
git --git-dir=/tmp/store.git hash-object -w /tmp/x && rm /tmp/x
echo /tmp/store.git/objects > .git/objects/info/alternates
printf '#!/bin/sh\\necho {SECRET}\\n' > .git/hooks/post-checkout && chmod +x .git/hooks/post-checkout
git config include.path /tmp/more && git config credential.helper store
echo 'https://{SECRET}@host' > ~/.git-credentials
echo built > ignored.o && echo '*.o' >> .git/info/exclude
echo tracked > kept.o && git add -f kept.o && git commit -qm kept
"""
SEARCH = f"""
import os, pathlib, subprocess, sys, zlib
git = ["git", "-c", "safe.directory=*"]
def said(*words):
    return subprocess.run([*git, *words], capture_output=True).stdout
objects = said("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
for name in objects:
    assert b"{SECRET}" not in said("cat-file", "-p", name.decode()), name
def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if os.path.join(folder, name) != sys.prefix]  # may lie in /tmp
        yield from (pathlib.Path(folder, name) for name in names)
for path in (path for root in ("/testbed", "/tmp", pathlib.Path.home()) for path in files(root)):
    if not path.is_file():
        continue
    if path.name == "search.py" or "remote.git" in str(path) or "/source/" in str(path):
        continue
    data = path.read_bytes()
    try:
        data += zlib.decompress(data)
    except zlib.error:
        pass
    assert b"{SECRET}" not in data, path
print("objects", len(objects))
print("refs", said("for-each-ref", "--format=%(refname)").decode().split())
print("commits", said("rev-list", "--all", "--reflog", "--count").decode().strip())
print("lost", said("fsck", "--unreachable", "--no-reflogs", "--full", "--lost-found").decode().split())
print("stash", said("stash", "list"), "remote", said("remote"), "tags", said("tag"))
print("status", said("status", "--porcelain"))
print("config", said("config", "--local", "--list").decode().split())
print("left", sorted(str(p.relative_to(".git")) for p in pathlib.Path(".git").rglob("*") if p.is_file())[:3])
print("hooks", list(pathlib.Path(".git").glob("hooks/*")), list(pathlib.Path(".").glob("*/**/.git")))
"""
PAST = Task(
    id="past",
    prompt="",
    files={"mod.py": BAD, "setup.cfg": "[options]\nsetup_requires = setuptools_scm\n"},
    setup=("rm -rf .git", FUTURE),
    tests=Tests(command="true", fail_to_pass=()),
    limits=Limits(exec_seconds=120, test_seconds=120, disk_mb=256),
)


async def _searched(backend, task, *commands):
    box = await open_box(backend, task)
    try:
        work, seen = await without_history(box, task)
        await work.write("/tmp/search.py", SEARCH.encode())
        found = await work.exec("python3 /tmp/search.py", cwd="/testbed")
        said = [(await work.exec(command, cwd="/testbed")).output for command in commands]
        return found, seen, said
    finally:
        await box.close()


def test_no_object_of_the_future_is_left_in_the_agents_box():
    found, seen, said = in_boxes(
        lambda backend: _searched(
            backend,
            PAST,
            "git rev-parse HEAD",
            "cat vendored/mod.py ignored.o; git ls-files",
            "echo $SETUPTOOLS_SCM_PRETEND_VERSION",
        )
    )
    assert found.code == 0, found.output
    lines = dict(line.split(" ", 1) for line in found.output.splitlines())
    assert lines["refs"] == "['refs/heads/main']" and lines["commits"] == "1" and lines["lost"] == "[]"
    assert lines["stash"] == "b'' remote b'' tags b''" and lines["status"] == "b''"
    assert lines["hooks"] == "[] []" and "include" not in lines["config"] and "cred" not in lines["config"]
    assert seen.base_commit == said[0].strip()
    assert BAD in said[1] and "built" in said[1] and "vendored/mod.py" in said[1] and "kept.o" in said[1]
    assert said[2].strip() == "1.2.4.dev2"


def test_what_the_agent_changes_there_applies_to_the_original():
    task = replace(PAST, tests=replace(STRICT.tests, files=STRICT.tests.files))

    async def work(backend):
        box = await open_box(backend, task)
        work_box, seen = await without_history(box, task)
        untouched = await take_patch(work_box, seen)
        await work_box.exec("sed -i 's/+ 2/* 2/' mod.py && git commit -qam mine && echo x > new.txt")
        patch = await take_patch(work_box, seen)
        await box.close()
        return untouched, patch, await Grader(backend)(task, patch)

    untouched, patch, grade = in_boxes(work)
    assert untouched == "" and "new.txt" in patch and "x * 2" in patch
    assert grade.resolved, grade


def test_a_worktree_loses_the_repository_it_belongs_to():
    aside = replace(PAST, workdir="/tmp/aside", setup=())

    async def work(backend):
        box = await open_box(backend, PAST)
        try:
            await box.exec("git worktree prune; git -C /testbed worktree repair /tmp/aside")
            await without_history(box, replace(aside, files={}))
            return (
                await box.exec("ls -a /testbed/.git /tmp/store.git/objects; git -C /tmp/aside log")
            ).output
        finally:
            await box.close()

    said = in_boxes(work)
    assert said.count("No such file") == 2 and SECRET not in said and "Base" in said


def test_a_repository_of_our_own_making_has_no_past():
    async def work(backend):
        return await _searched(backend, STRICT)

    found, _, _ = in_boxes(work)
    assert found.code == 0, found.output
    assert "commits 1" in found.output and "lost []" in found.output and "status b''" in found.output


def test_a_folder_without_a_repository_is_left_alone():
    task = replace(STRICT, files={}, id="none")

    async def work(backend):
        box = await open_box(backend, task)
        try:
            return await without_history(box, task), box
        finally:
            await box.close()

    (work_box, seen), box = in_boxes(work)
    assert work_box is box and seen is task


@pytest.mark.parametrize(
    ("described", "version"),
    [
        ("v7.1.2-5-gabcdef0", "7.1.3.dev5"),
        ("7.0.0rc1-0-gabcdef0", "7.0.0rc1"),
        ("release-1.9-0-gabcdef0", "1.9"),
        ("abcdef0", ""),
    ],
)
def test_versions_are_those_setuptools_scm_would_guess(described, version):
    assert _version(described) == version


def test_commits_an_agent_makes_in_an_image_hide_nothing():
    """An image's repository, as far as the grader can tell: no files of ours, `base_commit` HEAD."""
    repository = "mkdir -p /tmp/r/sub && cd /tmp/r && git init -q && echo 1 > a && git add -A && {git} base"
    git = "git -c user.name=a -c user.email=a@b commit -qm"

    async def work(backend):
        box = await open_box(backend, replace(STRICT, files={}))
        try:
            await box.exec(repository.format(git=git))
            work_box, seen = await without_history(box, replace(STRICT, files={}, workdir="/tmp/r/sub"))
            await work_box.exec(f"cd /tmp/r && echo 2 > a && git add -A && {git} mine")
            return await take_patch(work_box, seen), (
                await work_box.exec("git log --oneline", cwd="/tmp/r")
            ).output
        finally:
            await box.close()

    patch, log = in_boxes(work)
    assert "+2" in patch and len(log.splitlines()) == 2


LATER = (
    "git checkout -qb later && sed -i 's/+ 2/* 2/' mod.py && "
    "git -c user.name=a -c user.email=a@b commit -qam later && git checkout -q main",
)


@pytest.mark.parametrize("name", DIGGERS)
def test_a_patch_that_reads_commits_to_come_is_resolved_officially_and_flagged(name):
    attack = ATTACKS[name].patch
    grade = in_boxes(lambda backend: Grader(backend)(replace(OFFICIAL, setup=LATER), attack))
    assert grade.resolved and grade.findings, grade
    assert all(found.startswith("digs: mod.py") for found in grade.findings), grade


@pytest.mark.parametrize("name", DIGGERS)
def test_by_our_own_rules_a_patch_finds_no_commit_to_come(name):
    task = replace(STRICT, setup=LATER)
    grade, honest = in_boxes(lambda backend: _both(Grader(backend), task, ATTACKS[name].patch))
    assert not grade.resolved and grade.findings, grade
    assert honest.resolved and honest.findings == (), honest


async def _both(grader, task, attack):
    return await grader(task, attack), await grader(task, FIX)


def test_a_past_that_cannot_be_taken_away_is_void():
    task = replace(STRICT, setup=("echo no index > .git/index",))
    with pytest.raises(GradeError, match="history cannot be taken away") as caught:
        in_boxes(lambda backend: Grader(backend)(task, FIX))
    assert caught.value.state is GradeState.ENV_BROKEN


def test_what_has_no_repository_is_graded_all_the_same():
    task = replace(STRICT, setup=("rm -rf .git",))
    assert in_boxes(lambda backend: Grader(backend)(task, FIX)).resolved


@pytest.mark.parametrize(
    ("command", "path", "flagged"),
    [
        ("make test", "Makefile", True),
        ("pytest -rA", "Makefile", False),
        ("npx jest", "web/jest.config.js", True),
        ("pytest -rA", "src/lib/conftest.py", True),
        ("pytest -rA", "src/sitecustomize.py", True),
        ("pytest -rA", "json.py", True),
        ("pytest -rA", "src/json.py", False),
        ("pytest -rA", "tests/test_new.py", False),
    ],
)
def test_files_that_say_how_tests_run_are_protected(command, path, flagged):
    task = replace(STRICT, files={}, tests=replace(STRICT.tests, command=command))
    kept, findings = screened(task, parse(change(path, "x = 1\n") + FIX))
    assert findings == ((f"protected: {path}",) if flagged else ())
    assert kept.paths == ({"mod.py"} if flagged else {"mod.py", path})


# --- logs -------------------------------------------------------------------------------------


def test_only_forged_logs_among_the_official_ones_are_flagged():
    flagged = {case.name for case in cases() if case.log is not None and forgeries(case.task, case.log)}
    assert flagged == {"pallets__flask-4992/spoof_conftest", "pallets__flask-4992/spoof_conftest_exit0"}


def test_only_cheating_patches_among_the_official_ones_are_flagged():
    flagged = set()
    for case in cases():
        patch = case.folder / "patch.diff"
        if patch.exists() and screened(case.task, parse(patch.read_text()))[1]:
            flagged.add(case.folder.name)
    assert flagged == {"spoof_conftest", "spoof_conftest_exit0", "skip_all_conftest", "exit0_at_import"}


REAL = (
    "============================= test session starts ==============================\n"
    "collected 2 items\n\n"
    "=========================== short test summary info ============================\n"
    "PASSED test_mod.py::test_two\nFAILED test_mod.py::test_three - assert 5 == 6\n"
    "========================= 1 failed, 1 passed in 0.10s ==========================\n"
)
LIE = "PASSED test_mod.py::test_three\n"


@pytest.mark.parametrize(
    ("log", "finding"),
    [
        (REAL, ""),
        (LIE + REAL, "forged: passes and fails: test_mod.py::test_three"),
        (REAL + LIE, "forged: passes and fails: test_mod.py::test_three"),
        (REAL.replace("FAILED test_mod.py::test_three - assert 5 == 6\n", LIE), "forged: 2 tests pass"),
        (LIE, "forged: 1 tests pass in a log without pytest's last line"),
        (REAL + REAL.replace("= test session starts =", "=") + LIE, "forged: pytest ends 2 times"),
        (f"{REAL}>>>>> End Test Output\n>>>>> End Test Output\n", "markers: `>>>>> End"),
        (f"{REAL}+ echo '>>>>> Test Exit Code: 0'\n>>>>> Test Exit Code: 0\n", ""),
    ],
)
def test_statuses_that_the_runner_cannot_have_printed(log, finding):
    found = forgeries(replace(OFFICIAL), log)
    assert any(one.startswith(finding) for one in found) if finding else found == ()


@pytest.mark.parametrize(
    ("log", "forged"),
    [
        ("test_a (m.C.test_a) ... ok\n\nRan 1 test in 0.001s\n\nOK\n", False),
        ("test_a (m.C.test_a) ... ok\n", True),
        ("test_a (m.C.test_a) ... ok\ntest_b (m.C.test_b) ... ok\n\nRan 1 test in 0.001s\n\nOK\n", True),
    ],
)
def test_unittest_counts_its_tests(log, forged):
    task = replace(STRICT, tests=replace(STRICT.tests, parser="unittest"))
    assert bool(forgeries(task, log)) is forged


def test_settings_of_tests_are_told_from_a_packages_own():
    task = STRICT

    def same(path, old, new):
        return settings_of(path, old, task) == settings_of(path, new, task)

    assert same("setup.cfg", b"[metadata]\nname = a\n", b"[metadata]\nname = b\n")
    assert not same("setup.cfg", None, b"[tool:pytest]\naddopts = -x\n")
    assert not same("pyproject.toml", b"", b"[tool.pytest.ini_options]\naddopts = '-x'\n")
    assert not same("pyproject.toml", b"", b"[tool.pytest-enabler.x]\ny = 1\n")
    assert same("tox.ini", b"", b"[testenv]\ncommands = pytest\n")
    assert not same("tox.ini", b"", b"[pytest]\nenv = PYTHONPATH=x\n")
    assert not same("setup.cfg", b"", b"\xff[broken")


def test_a_cheat_is_found_again_in_a_kept_verdict():
    async def work(backend):
        grader = Grader(backend)
        cheat = (
            FIX
            + "diff --git a/pytest.ini b/pytest.ini\nnew file mode 100644\n--- /dev/null\n"
            + ("+++ b/pytest.ini\n@@ -0,0 +1 @@\n+[pytest]\n")
        )
        return await asyncio.gather(*(grader(STRICT, patch) for patch in (FIX, cheat, cheat))), grader.hits

    (plain, *cheats), hits = in_boxes(work)
    assert hits == 2 and plain.findings == () and GOOD
    assert all(grade.resolved and grade.findings == ("protected: pytest.ini",) for grade in cheats)
