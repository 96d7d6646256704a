"""What is in wheel and sdist, and what they say of themselves. `smoke.sh` installs and runs them."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from patchwright import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_has_every_file_of_the_package(built):
    """Templates, presets, pins, specs, pages of the viewer: what is no code is needed, too."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("patchwright/")}
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert {Path(name).suffix for name in inside} >= {".py", ".toml", ".json", ".jinja", ".txt", ".typed"}


def test_the_wheel_says_what_it_needs(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(wheel.read(name).decode())
        assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    needed = [line for line in about.get_all("Requires-Dist", []) if "extra ==" not in line]
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in needed}
    assert not names & {
        "torch",
        "transformers",
        "ray",
        "vllm",
        "modal",
        "peft",
        "wandb",
        "datasets",
        "docker",
    }
    assert {"local", "hub", "lora", "modal", "docs"} <= set(about.get_all("Provides-Extra"))
    assert about["Version"] == __version__ and about["Requires-Python"] == ">=3.11"


def test_the_sdist_has_what_is_needed_to_work_on_it(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert top >= {
        "src",
        "tests",
        "docs",
        "deploy",
        "Makefile",
        "constraints.txt",
        "README.md",
        "CHANGELOG.md",
    }
    assert top <= {
        "src", "tests", "docs", "deploy", "Makefile", "constraints.txt", "pyproject.toml", "LICENSE",
        "PKG-INFO", ".gitignore", "README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md",
    }  # fmt: skip


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == __version__


def test_constraints_pin_every_package_that_the_project_names():
    """One that is not pinned may be another tomorrow. Extras that no test installs are left out."""
    pinned = {
        re.split(r"[=\[]", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    installed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["local"]]
    installed += [*PROJECT["optional-dependencies"]["dev"], *PROJECT["optional-dependencies"]["docs"]]
    names = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in installed}
    assert names <= pinned, sorted(names - pinned)


def test_the_image_is_made_of_what_it_copies(tmp_path):
    """No registry is at hand to build it: its COPY lines are followed, and the wheel is built of that."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        *sources, target = line.split()
        assert target.startswith("/src/")
        for source in sources:
            goal = tmp_path / target.strip("/") / ("" if (ROOT / source).is_dir() else source)
            goal.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():  # what is compiled changes while other tests run
                shutil.copytree(ROOT / source, goal, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, goal)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path / "src")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^USER 1000$", text, re.M) and text.rstrip().splitlines()[-1].startswith("ENTRYPOINT")
    (extras,) = re.findall(r"--build-arg EXTRAS=(\w+)", text)
    assert extras in PROJECT["optional-dependencies"]
