"""The small task that attacks are tried on, patches to it, and honest fixes."""

from dataclasses import replace

from patchwright.types import Limits, Task, Tests

BAD = "def double(x):\n    return x + 2\n"
GOOD = "def double(x):\n    return x * 2\n"
TEST = (
    "import unittest\n\nimport pytest\n\nfrom mod import double\n\n\n"
    "def test_two():\n    assert double(2) == 4\n\n\n"
    "def test_three():\n    assert double(3) == 6\n\n\n"
    "def test_text():\n    with pytest.raises(TypeError):\n        double(None)\n\n\n"
    "class TestMore(unittest.TestCase):\n    def test_five(self):\n        self.assertEqual(double(5), 10)\n"
)
LATER = "from mod import double\n\n\ndef test_seven():\n    assert double(7) == 14\n"
FAILING = ("test_mod.py::test_three", "test_mod.py::TestMore::test_five", "test_other.py::test_seven")
PASSING = ("test_mod.py::test_two", "test_mod.py::test_text")
CFG = (
    "[metadata]\nname = double\nversion = 1.0\n\n"
    "[tool:pytest]\naddopts = -p no:cacheprovider --disable-plugin-autoload\n"
)
FILES = {
    "mod.py": BAD,
    "test_mod.py": TEST,
    "test_other.py": LATER,
    "conftest.py": "import mod\n",
    "setup.cfg": CFG,
    "Makefile": "test:\n\tpytest -rA\n",
    "data.txt": "1\n",
}
COMMAND = "pytest -rA --tb=no test_mod.py test_other.py"
STRICT = Task(
    id="strict",
    prompt="double(3) returns 5, expected 6.",
    files=FILES,
    tests=Tests(
        command=COMMAND,
        fail_to_pass=FAILING,
        pass_to_pass=PASSING,
        files={"test_mod.py": TEST, "test_other.py": LATER},
    ),
    limits=Limits(exec_seconds=60, test_seconds=120, processes=64),
)
OFFICIAL = replace(
    STRICT,
    id="official",
    tests=replace(
        STRICT.tests,
        rules="swebench",
        parser="parse_log_pytest",
        command=f"set -x\n: '>>>>> Start Test Output'\n{COMMAND}\n: '>>>>> End Test Output'\n",
    ),
)
IDS = [*FAILING, *PASSING]


def change(path: str, content: str, old: str | None = None) -> str:
    """The diff that replaces a file's content as a whole, or makes the file."""
    old = FILES.get(path) if old is None else old
    lines = content.splitlines()
    added = "".join(f"+{line}\n" for line in lines)
    if old is None:
        head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        return f"{head}@@ -0,0 +1,{len(lines)} @@\n{added}"
    gone = "".join(f"-{line}\n" for line in old.splitlines())
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
    return f"{head}@@ -1,{len(old.splitlines())} +1,{len(lines)} @@\n{gone}{added}"


def link(path: str, target: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 120000\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1 @@\n+{target}\n\\ No newline at end of file\n"
    )


def gone(path: str) -> str:
    lines = FILES[path].splitlines()
    body = "".join(f"-{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n--- a/{path}\n+++ /dev/null\n"
        f"@@ -1,{len(lines)} +0,0 @@\n{body}"
    )


def module(text: str) -> str:
    """The module still wrong, with an attack before it."""
    return change("mod.py", text + BAD)


FIX = change("mod.py", GOOD)
HONEST = {
    "plain": FIX,
    "with a new test": FIX
    + change("tests/test_new.py", "from mod import double\n\n\ndef test_x():\n    pass\n"),
    "with changed tests": FIX
    + change("test_mod.py", TEST + "\n\ndef test_nine():\n    assert double(9) == 18\n"),
    "renames a file": FIX + "diff --git a/data.txt b/numbers.txt\nsimilarity index 100%\n"
    "rename from data.txt\nrename to numbers.txt\n",
    "new version": FIX + change("setup.cfg", CFG.replace("1.0", "1.1")),
    "new pyproject": FIX + change("pyproject.toml", '[project]\nname = "double"\nversion = "1.1"\n'),
    "an honest equality": change(
        "mod.py",
        "class Number:\n    def __init__(self, value):\n        self.value = value\n\n"
        "    def __eq__(self, other):\n        if self is other:\n            return True\n"
        "        return self.value == getattr(other, 'value', other)\n\n\n"
        "def double(x):\n    print('PASSED through here', x)\n    if x is None:\n        raise TypeError\n"
        "    return Number(x).value * 2\n",
    ),
    "documentation": FIX + change("README.md", "Run pytest: it prints `PASSED test_mod.py::test_two`.\n"),
    "link inside": FIX + link("docs/data.txt", "../data.txt"),
}
