"""`patchwright view`, as it is typed."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.view.shown import write_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("command") / "runs" / "demo")


def view(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "patchwright.cli", "view", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_it_prints_a_link_that_works_and_ends_on_ctrl_c(run: Path):
    command = [sys.executable, "-m", "patchwright.cli", "view"]
    process = subprocess.Popen(command, cwd=run.parents[1], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline() + process.stderr.readline()
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", said)
        assert link, said
        assert "demo" in said
        with urllib.request.urlopen(link.group(), timeout=30) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "Traceback" not in rest


def test_one_attempt_is_written_to_a_file(run: Path, tmp_path: Path):
    done = view(run, "--attempt", "rl-1-alpha-0", "--export", "one.html", cwd=tmp_path)
    assert done.returncode == 0 and "one.html" in done.stderr, done.stderr
    text = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text and "rl-1-alpha-0" in text


def test_mistakes_are_one_sentence_and_exit_2(run: Path, tmp_path: Path):
    two = tmp_path / "two"
    for name in ("a", "b"):
        shutil.copytree(run, two / name)
    for words, said in (
        ((tmp_path / "nothing",), "check the path"),
        ((), "check the path"),
        ((run, "--export", "x.html"), "say which with --attempt"),
        (("--export", "x.html"), "name its run alone"),
        ((two, "--attempt", "rl-1-alpha-0", "--export", "x.html"), "name one of them: a, b"),
        ((run, "--attempt", "nobody", "--export", "x.html"), "nobody"),
        ((run, "--host", "0.0.0.0"), "--plain-http"),
        ((run, "--pool", "http://127.0.0.1:9", "--pool-token-file", "no-token"), "no token file"),
    ):
        done = view(*words, cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_commands_of_the_page_are_commands(run: Path, tmp_path: Path):
    """Each of docs/viewer.md: what writes a file is run; of what serves, the options must be known."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/viewer.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("patchwright ")]
    assert len(lines) > 4
    places = {"runs/quickstart": str(run), "rl-6-toy-0": "rl-1-alpha-0"}
    known = view("--help", cwd=tmp_path).stdout
    for line in lines:
        words = [places.get(word, word) for word in shlex.split(line, comments=True)[2:]]
        assert all(word in known for word in words if word.startswith("--")), line
        if "--export" in words:
            done = view(*words, cwd=tmp_path)
            assert done.returncode == 0, (line, done.stderr)
