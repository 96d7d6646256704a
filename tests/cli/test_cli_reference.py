"""docs/cli.md is what the program does: exit codes, progress, JSON, completion."""

import inspect
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from patchwright.cli.exits import ANSWERS, Exit
from patchwright.cli.reference import commands, page
from patchwright.recipes.presets import names, training_names
from patchwright.recipes.progress import View

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "patchwright.cli"]
_ONE = ("show", "compare")
_TASKS = ("tasks list", "tasks show", "tasks overlap")
SHORT = {*_ONE, *_TASKS, "agents list", "images list", "images export"}
"""Done in a moment, or as fast as a disk: nothing to watch."""


def test_the_page_is_what_the_program_says():
    assert (ROOT / "docs" / "cli.md").read_text() == page(), "run `make docs`"


def test_help_names_every_preset():
    known = {"eval": names(), "rollout": names()}
    known |= {f"train {kind}": training_names(kind) for kind in ("rl", "sft", "verifier")}
    found = {
        name: sorted(re.findall(r"`(.*?)`", option.help))
        for name, command in commands()
        for option in command.params
        if option.name == "preset"
    }
    assert found == known


def source(command) -> str:
    return inspect.getsource(inspect.unwrap(command.callback))


def test_commands_that_answer_no_with_1_are_on_the_page_and_no_others():
    ends = {
        name for name, command in commands() if re.search(r"Exit\.FAILED|\breport\(execute", source(command))
    }
    assert ends == ANSWERS.keys()


def test_no_module_has_an_exit_code_of_its_own():
    for file in sorted((ROOT / "src/patchwright/cli").glob("*.py")):
        assert not re.search(r"Exit\(\s*\d|sys\.exit\(\d|Exit\(\w+ if .* else \d", file.read_text()), file


def test_every_long_command_shows_what_it_does():
    watched = r"view\(\)|observed\(|progress\(\)|\.work\(|execute\([^\n]*, f?\"|execute\(work, f?\""
    silent = {name for name, command in commands() if not re.search(watched, source(command))}
    assert silent == SHORT


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, cwd=cwd)


def test_json_is_all_there_is_on_stdout(tmp_path: Path):
    agents = json.loads(run("agents", "list", "--json", cwd=tmp_path).stdout)
    assert {"name": "bash", "version": "", "state": "built in"} in agents
    counts = [flag for count in ("sft=0", "rl=2", "held_out=0", "harder=0") for flag in ("-s", count)]
    made = run("tasks", "synth", "composed", "t", *counts, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    rows = json.loads(run("tasks", "list", "t/rl.jsonl", "--json", cwd=tmp_path).stdout)
    ids = [json.loads(line)["id"] for line in (tmp_path / "t" / "rl.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ids and all(row["to_mend"] >= 1 and row["lines"] for row in rows)
    checked = run("check", "agent", "bash", "--json", cwd=tmp_path)
    assert checked.returncode == 0 and checked.stderr.startswith("check agent bash ...\n")
    assert json.loads(checked.stdout)["failed"] == 0
    valid = run("tasks", "validate", "t/rl.jsonl", "--first", "1", "--json", cwd=tmp_path)
    assert json.loads(valid.stdout)["verdicts"].keys() == {ids[0]}
    scale = run("bench", "scale", "--seconds", "5", "-s", "boxes=20", "--json", cwd=tmp_path)
    assert json.loads(scale.stdout)["site"]["boxes"] == 20 and "bench scale: " in scale.stderr


def test_a_disk_that_refuses_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = run("tasks", "synth", "composed", "file/t", "-s", "rl=1", cwd=tmp_path)
    assert done.returncode in (Exit.FAILED, Exit.MISTAKE)
    assert done.stderr.splitlines()[-1].startswith("error: ") and "Traceback" not in done.stderr


def test_live_on_a_terminal_and_plain_in_a_pipe(tmp_path: Path):
    plain = io.StringIO()
    with View(Console(file=plain)).work("bench rl"):
        pass
    assert re.fullmatch(r"bench rl \.\.\.\nbench rl: \d\.\d s\n", plain.getvalue())
    main, side = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "bench", "scale", "--seconds", "5", "-s", "boxes=20", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=side,
        cwd=tmp_path,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(side)
    shown = b""
    try:
        while chunk := os.read(main, 4096):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    os.close(main)
    assert process.wait() == 0
    assert b"\x1b[" in shown and b"bench scale" in shown and b"bench scale ..." not in shown


@pytest.mark.parametrize(("line", "offered"), [("patchwright tr", "train"), ("patchwright train r", "rl")])
def test_bash_completes_with_what_is_installed(tmp_path: Path, line: str, offered: str):
    """`--install-completion` in a home of its own, then what bash itself makes of a line."""
    folder = Path(sys.executable).parent
    own = os.environ | {"HOME": str(tmp_path), "PATH": f"{folder}:{os.environ['PATH']}"}
    install = ["bash", "-c", "patchwright --install-completion; exit $?"]
    done = subprocess.run(install, capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr
    ask = (
        'source ~/.bashrc; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        "$(complete -p patchwright | grep -oP '(?<=-F )\\S+') patchwright; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    found = subprocess.run(
        ["bash", "-c", ask, "bash", *line.split()], capture_output=True, text=True, env=own
    )
    assert offered in found.stdout.split(), found.stderr
