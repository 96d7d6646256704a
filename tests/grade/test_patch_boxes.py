"""Patches in and out of real boxes, by real git."""

import json
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.boxes import in_boxes
from tests.grade.boxes import applied, changed, task_of, tree

from patchwright.grade.diff import parse
from patchwright.grade.patch import apply_patch, take_patch
from patchwright.grade.run import open_box

LINES = "".join(f"line {number}\n" for number in range(40))
TASK = task_of({"a.txt": LINES, "b.txt": "b\n", "sub/c.txt": "c\n", "crlf.txt": "one\r\ntwo\r\n"})

CHANGES = {
    "new": "echo new > new.txt",
    "new in a new folder": "mkdir -p x/y && echo new > x/y/new.txt",
    "empty": "touch empty.txt",
    "deleted": "rm b.txt",
    "renamed": "mv a.txt moved.txt",
    "renamed and edited": "mv a.txt moved.txt && sed -i 's/line 7$/line seven/' moved.txt",
    "copied": "cp a.txt copy.txt && echo more >> a.txt",
    "binary": "head -c 3000 /dev/urandom > data.bin",
    "binary replaced by text": "head -c 300 /dev/zero > b.txt",
    "mode only": "chmod +x b.txt",
    "link": "ln -s a.txt link",
    "dangling link out of the repository": "ln -s /nowhere/at/all link",
    "file becomes link": "rm b.txt && ln -s a.txt b.txt",
    "file becomes folder": "rm b.txt && mkdir b.txt && echo x > b.txt/x",
    "not UTF-8": "printf 'caf\\xe9\\n' > latin.txt && printf 'caf\\xe9\\n' >> a.txt",
    "not UTF-8 by name": "echo x > $'caf\\xe9'",
    "odd names": "for n in 'a b' $'tab\\there' 'quo\"te' \"ap'os\" 'back\\slash' 'ü' '-dash' '*.txt' "
    "$'new\\nline'; "
    'do echo "$n" > "./$n"; done',
    "no final newline": "printf 'no newline' > b.txt",
    "CRLF edited": "printf 'one\\r\\nzwei\\r\\n' > crlf.txt",
    "looks like a patch": "printf -- '-- a/x\\n++ b/x\\n@@ -1 +1 @@\\n' > a.txt && rm b.txt",
    "folder becomes link": "rm -r sub && ln -s /tmp sub",
    "nothing": "true",
    "committed": "echo x > a.txt && git add -A && git -c user.name=x -c user.email=x@x commit -qm x",
    "killed in the middle of git": "echo x > a.txt && touch .git/index.lock",
    "with diff configured otherwise": "git config diff.noprefix true; git config diff.mnemonicPrefix true; "
    "git config color.ui always; git config diff.external false; echo x > a.txt",
}


def test_what_is_taken_out_of_one_box_goes_into_another():
    async def work(backend):
        failed = []
        for name, command in CHANGES.items():
            patch, wanted = await changed(backend, TASK, command)
            said, found = await applied(backend, TASK, patch) if patch else ("", wanted)
            if said or found != wanted or bool(patch) != (name != "nothing"):
                failed.append((name, said, patch))
        return failed

    assert in_boxes(work) == []


def test_a_patch_of_five_megabytes_goes_through():
    async def work(backend):
        patch, wanted = await changed(backend, TASK, "seq 900000 > long.txt")
        return len(patch), await applied(backend, TASK, patch), wanted

    size, (said, found), wanted = in_boxes(work)
    assert size > 5_000_000 and not said and found == wanted


NAMES = st.sampled_from(
    ["a.txt", "b.txt", "sub/c.txt", "new", "sub/new", "n w", 'q"', "ü", "-d", "deep/er/x"]
)
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.lists(st.sampled_from([b"line 1\n", b"x\n", b"\r\n", b"--- a/x\n", b"+++ b/x\n", b"\n"])).map(
        b"".join
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, CONTENTS),
        st.tuples(st.just("delete"), NAMES, st.just(b"")),
        st.tuples(st.just("move"), NAMES, NAMES),
        st.tuples(st.just("chmod"), NAMES, st.just(b"")),
        st.tuples(st.just("link"), NAMES, st.sampled_from(["a.txt", "/etc", "../x"])),
    ),
    min_size=1,
    max_size=8,
)
PERFORM = r"""
import json, os, shutil, sys
for kind, name, what in json.load(open("/tmp/steps.json")):
    try:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        if kind == "write":
            open(name, "wb").write(bytes.fromhex(what))
        elif kind == "delete":
            shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.remove(name)
        elif kind == "move":
            os.rename(name, what)
        elif kind == "chmod":
            os.chmod(name, 0o755)
        else:
            os.symlink(what, name)
    except OSError:
        pass
"""


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=4, max_size=8))
def test_any_change_goes_through(sequences):
    """Five batches of random sequences of changes."""

    async def work(backend):
        for steps in sequences:
            plain = [
                (kind, name, what.hex() if isinstance(what, bytes) else what) for kind, name, what in steps
            ]
            box = await open_box(backend, TASK)
            await box.write("/tmp/steps.json", json.dumps(plain).encode())
            await box.write("/tmp/perform.py", PERFORM.encode())
            assert (await box.exec("python3 /tmp/perform.py")).code == 0
            patch, wanted = await take_patch(box, TASK), await tree(box)
            await box.close()
            if patch:
                assert not parse(patch).outside
                assert await applied(backend, TASK, patch) == ("", wanted), plain
            else:
                assert wanted == (await applied(backend, TASK, ""))[1]

    in_boxes(work)


HUNK = "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n"
FIRST = "@@ -1,3 +1,3 @@\n-line 0\n+LINE 0\n line 1\n line 2\n"
LAST = "@@ -38,3 +38,3 @@\n line 37\n line 38\n-line 39\n+LINE 39\n"
WRONG = "@@ -18,3 +18,3 @@\n nothing like it\n-line 18 it is not\n+LINE 18\n not this either\n"


@pytest.mark.parametrize(
    "patch",
    [
        "Sure! Here is the fix:\n\n```diff\n" + HUNK + FIRST + "```\nHope it helps -- bye\n",
        (HUNK + FIRST).replace("\n", "\r\n"),
        (HUNK + FIRST).rstrip("\n"),
        "--- a/a.txt\n+++ b/a.txt\n" + FIRST,
        "--- a/a.txt\t2024-01-01 10:00:00\n+++ b/a.txt\t2024-01-01 10:00:01\n" + FIRST,
        "From 0123 Mon Sep 17\nSubject: [PATCH] fix\n---\n a.txt | 2 +-\n\n" + HUNK + FIRST + "-- \n2.43.0\n",
        HUNK + FIRST.replace(" line 1\n", " line one\n"),  # fuzz
        HUNK + FIRST.replace("@@ -1,3 +1,3 @@", "@@ -11,3 +11,3 @@"),  # offset
    ],
    ids=["fenced", "crlf", "no newline", "plain", "dated", "mail", "fuzz", "offset"],
)
def test_what_models_write_goes_in(patch):
    async def work(backend):
        return await applied(backend, TASK, patch), await changed(
            backend, TASK, "sed -i '1s/l/L/;1s/ine/INE/' a.txt"
        )

    (said, found), (_, wanted) = in_boxes(work)
    assert not said and found == wanted


def test_one_bad_hunk_leaves_nothing_behind_that_counts():
    """In one file, and in the second of two files: neither is half applied on the rungs that go on."""

    async def work(backend):
        same = await applied(backend, TASK, HUNK + FIRST + WRONG + LAST)
        other = HUNK + FIRST + "diff --git a/b.txt b/b.txt\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-q\n+r\n"
        return same[0], (await applied(backend, TASK, other))[0]

    assert all(in_boxes(work))


def test_a_conflicting_merge_is_undone_before_the_next_rung():
    """The blob is known, so `--3way` tries, conflicts and leaves markers: GNU patch finds a clean tree."""

    async def work(backend):
        patch, _ = await changed(backend, TASK, "sed -i 's/line 5$/LINE 5/' a.txt && echo z > z.txt")
        task = task_of({**TASK.files, "a.txt": LINES.replace("line 6\n", "other\n")})
        blob = task_of({**TASK.files, "a.txt": LINES.replace("line 6\n", "other\n"), "old": LINES})
        return await applied(backend, blob, patch), await applied(backend, task, patch)

    for said, found in in_boxes(work):
        assert not said
        assert not [path for path in found if bytes.fromhex(path).endswith((b".orig", b".rej"))]


def test_a_patch_that_is_in_already_is_not_taken_out_again():
    done = task_of({**TASK.files, "a.txt": LINES.replace("line 0\n", "LINE 0\n")})
    _, found = in_boxes(lambda backend: applied(backend, done, HUNK + FIRST))
    _, before = in_boxes(lambda backend: changed(backend, done, "true"))
    name = b"./a.txt".hex()
    assert found[name] == before[name]  # whatever it says, nothing went backwards


EVIL = {
    "up": "--- a/../evil\n+++ b/../evil\n@@ -0,0 +1 @@\n+x\n",
    "absolute": "--- /dev/null\n+++ /tmp/evil\n@@ -0,0 +1 @@\n+x\n",
    "hook": "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+x\n",
    "hook by case": "diff --git a/.GIT/config b/.GIT/config\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/.GIT/config\n@@ -0,0 +1 @@\n+x\n",
    "quoted": '--- /dev/null\n+++ "b/\\056\\056/evil"\n@@ -0,0 +1 @@\n+x\n',
    "renamed": "diff --git a/a.txt b/../evil\nsimilarity index 100%\nrename from a.txt\nrename to ../evil\n",
    "nested": "--- /dev/null\n+++ b/sub/.git/config\n@@ -0,0 +1 @@\n+x\n",
    "second": HUNK + FIRST + "--- a/../../etc/x\n+++ b/../../etc/x\n@@ -0,0 +1 @@\n+x\n",
    "link of its own": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n"
    "+/tmp\n\\ No newline at end of file\ndiff --git a/l/evil b/l/evil\nnew file mode 100644\n--- /dev/null\n"
    "+++ b/l/evil\n@@ -0,0 +1 @@\n+x\n",
}


@pytest.mark.parametrize("name", EVIL)
def test_a_patch_that_reaches_out_is_refused_by_its_looks(name):
    assert parse(EVIL[name]).outside


def test_no_rung_lets_one_out_that_looked_fine():
    """Straight into the box, past the check: links of the repository, and the attacks above."""
    task = task_of(TASK.files)
    through = "--- /dev/null\n+++ b/out/evil\n@@ -0,0 +1 @@\n+x\n"
    indented = "  --- /dev/null\n  +++ b/.git/hooks/evil\n  @@ -0,0 +1 @@\n  +x\n"

    async def work(backend):
        leaks = {}
        for name, patch in {**EVIL, "through": through, "indented": HUNK + FIRST + indented}.items():
            box = await open_box(backend, task)
            await box.exec("ln -s /tmp out")
            await apply_patch(box, task, parse(patch))
            found = await box.exec(
                "ls /tmp/evil ../evil .git/hooks/evil .git/hooks/post-checkout 2>/dev/null"
            )
            if found.output or (await box.exec("git status")).code:
                leaks[name] = found.output
            await box.close()
        return leaks

    assert in_boxes(work) == {}


def test_an_agent_that_destroys_the_repository_or_fills_the_box_leaves_no_patch():
    async def work(backend):
        found = []
        for command in ("rm -rf .git", "head -c 60000000 /dev/urandom > core"):
            box = await open_box(backend, TASK)
            await box.exec(command)
            found.append(await take_patch(box, TASK))
            await box.close()
        return found

    assert in_boxes(work) == ["", ""]


def test_git_reject_is_no_rung_of_its_own(tmp_path):
    """Why the ladder leaves it out: it fails wherever `git apply` does."""
    (tmp_path / "a.txt").write_text(LINES)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    for patch in (HUNK + FIRST + WRONG, HUNK + WRONG, HUNK + FIRST.replace("line 1", "line one")):
        (tmp_path / "p").write_text(patch)
        for extra in ([], ["--reject"]):
            assert subprocess.run([*git, "apply", *extra, "p"], capture_output=True).returncode
