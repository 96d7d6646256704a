"""Changes between two texts: hunks, clusters, what a base without one of them looks like."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.tasks.mining.changelog import about, entry
from patchwright.tasks.mining.changes import clusters, file_diff, without

OLD = '''"""Doc."""

import os

__version__ = "1.0"


def clamp(x, low, high):
    return min(x, high)


def spread(numbers):
    """How far."""
    return max(numbers)


def join(a, b):
    return os.sep.join((a, b))
'''
NEW = '''"""Another doc."""

import posixpath

__version__ = "1.1"


def clamp(x, low, high):
    return max(low, min(x, high))


def _low(numbers):
    return min(numbers)


def spread(numbers):
    """How far apart."""
    return max(numbers) - _low(numbers)


def join(a, b):
    return posixpath.join(a, b)
'''


def test_each_change_of_behaviour_is_a_cluster_and_a_new_name_goes_with_its_use():
    found = clusters({"m.py": OLD}, {"m.py": NEW})
    texts = ["".join(line for hunk in one for line in hunk.after) for one in found]
    assert [("clamp" in t, "_low" in t, "posixpath.join" in t) for t in texts].count(
        (False, False, True)
    ) == 1
    assert len(found) == 3 and not any("doc" in text or "__version__" in text for text in texts)
    assert sum("_low" in text for text in texts) == 1, "the helper and its use are one change"


def test_without_a_cluster_the_rest_of_the_new_release_stays_and_runs():
    for cluster in clusters({"m.py": OLD}, {"m.py": NEW}):
        text = without(cluster, {"m.py": NEW})["m.py"]
        space = {}
        exec(compile(text, "m.py", "exec"), space)
        assert space["__version__"] == "1.1"
        works = (space["clamp"](0, 2, 5) == 2, space["spread"]([3, 1]) == 2, space["join"]("a", "b") == "a/b")
        assert works.count(False) <= 1, "one function is as it was, all run"


def test_files_that_came_or_went_are_clusters_too():
    found = clusters({"gone.py": "X = 1\n"}, {"new.py": "def f():\n    return 2\n"})
    states = [without(one, {"new.py": "def f():\n    return 2\n"}) for one in found]
    assert {"gone.py": "X = 1\n"} in states and {"new.py": None} in states


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "def f():\n", "    return 1\n"]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_a_file_diff_is_what_git_applies(tmp_path_factory, before, after, cut_before, cut_after):
    folder = tmp_path_factory.mktemp("repo")
    old, new = "".join(before), "".join(after)
    old, new = (old[:-1] if cut_before else old) or None, (new[:-1] if cut_after else new) or None
    if old is not None:
        (folder / "m.py").write_text(old)
    diff = file_diff("m.py", old, new)
    if old == new:
        assert diff == ""
        return
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=diff, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert ((folder / "m.py").read_text() if (folder / "m.py").exists() else None) == new


LOG = """# Changelog

## 1.10.1

- something newer

## 1.1 (2024-01-02)

* `clamp` no longer ignores its lower bound
  when it is negative.
* `spread()` of one number is 0.

## 1.0

* First.
"""


@pytest.mark.parametrize(
    "log",
    [
        LOG,
        LOG.replace("## 1.1 (2024-01-02)", "Release 1.1 (2024-01-02)\n------------------------"),
        LOG.replace("## 1.1 (2024-01-02)", "[1.1] - 2024-01-02"),
        LOG.replace("## 1.1 (2024-01-02)", "**1.1**\n+++++++"),
    ],
)
def test_a_version_s_entry_and_the_item_about_one_change(log):
    text = entry({"CHANGES.md": log}, "1.1")
    assert "clamp" in text and "newer" not in text and "First" not in text
    assert about(text, {"clamp"}, ()) == (
        "* `clamp` no longer ignores its lower bound\n  when it is negative."
    )
    assert about(text, {"unheard_of"}, ()) == ""
    assert entry({"CHANGES.md": log}, "9.9") == ""


def test_lines_of_the_fix_are_not_told():
    text = "* `clamp` is mended:\n\n      return max(low, min(x, high))\n"
    assert "max(low" not in about(text, {"clamp"}, ["    return max(low, min(x, high))\n"])
