"""Recipes, interpreters, and an environment built and used."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from patchwright.errors import ConfigError
from patchwright.images.config import ImagesConfig
from patchwright.images.names import Name
from patchwright.images.store import Store
from patchwright.recipes.environments import Wish, build_env
from patchwright.recipes.progress import View
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.docker import DockerBackend
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.environment.build import Builder
from patchwright.tasks.environment.clones import at_commit, find_clone
from patchwright.tasks.environment.pythons import find, this_version
from patchwright.tasks.environment.recipe import Recipe, read_recipe, recipe_of
from patchwright.tasks.environment.wheels import build_requires
from patchwright.tasks.files import dump_tasks
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.specs.spec import Spec
from patchwright.tasks.specs.table import spec_of
from patchwright.types import Task, Tests

PIP = ("pytest==8.3.5", "docopt==0.6.2")  # the second is on the index as source only


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('python = "three"', "is no version of Python"),
        ('base = "alpine"', "choose `host` or `debian`"),
        ('apt = ["make; rm"]', "is no name of a Debian package"),
        ('pip = ["--index-url=x y"]', "is no requirement"),
        ('pips = ["x"]', "pip"),
    ],
)
def test_a_wrong_recipe_is_told_in_one_sentence(tmp_path, text, message):
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(file)
    assert "\n" not in str(caught.value)


def test_a_python_that_cannot_be_had_is_told_with_those_that_can():
    with pytest.raises(ConfigError, match=rf"no Python 3\.5 to be had.*{this_version()}.*bookworm"):
        find("3.5", "host")
    assert find("", "host").version == this_version()


def test_a_spec_gives_a_recipe():
    spec = Spec(
        repo="a/b", python="3.9", packages="pytest attrs", pip=("x==1",), install=("pip install -e .",)
    )
    assert recipe_of(spec) == Recipe(
        python="3.9", pip=("pytest", "attrs", "x==1"), install=("pip install -e .",)
    )
    with pytest.raises(ConfigError, match="are made for Python"):
        recipe_of(Spec(repo="a/b", language="go"))


def packed(**files):
    tests = Tests(command="", fail_to_pass=())
    named = {name.replace("__", "/") + ".txt": text for name, text in files.items()}
    return repository_archive(Task(id="a", prompt="", tests=tests, files=named))


OWN = Spec(
    repo="a/b", packages="requirements.txt", requirements=("dev.txt", "requirements/dev.txt"), pip=("x==2",)
)


def test_a_repositorys_own_requirements_are_read_out_of_it():
    archive = packed(
        requirements__dev="# tools\n-r tests.txt\n-r ../more.txt\n-e .\n.[test]\nX>=1  # later\n",
        requirements__tests='pytest==8.0 \\\n  ; python_version > "3"\n-r dev.txt\n',
        more="attrs\npytest==8.0 ; python_version > '3'\nattrs\n",
    )
    assert recipe_of(OWN, archive).pip == (
        'pytest==8.0    ; python_version > "3"',
        "attrs",
        "pytest==8.0 ; python_version > '3'",
        "x==2",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--index-url https://x\n", "dev.txt of a/b: `--index-url https://x` is no plain requirement"),
        ("c @ https://x/c.whl\n", "is no plain requirement"),
        ("c @ file:c\n", "is no plain requirement"),
        ("./vendored\n", "is no plain requirement"),
        ("-e vendored\n", "is no plain requirement"),
        ("-c pins.txt\n", "is no plain requirement"),
        ("-r ../gone.txt\n", "dev.txt of a/b: ../gone.txt is not in the repository"),
    ],
)
def test_requirements_that_only_pip_can_read_are_refused(text, message):
    with pytest.raises(ConfigError, match=f"{re.escape(message)}.*give --recipes"):
        recipe_of(OWN, packed(dev=text))


def test_a_spec_whose_requirements_cannot_be_had_is_refused():
    with pytest.raises(ConfigError, match=r"from dev.txt or requirements/dev.txt, which is not.*--recipes"):
        recipe_of(OWN, packed(other=""))
    with pytest.raises(ConfigError, match=r"dask is made from conda's environment.yml.*--recipes"):
        recipe_of(spec_of("dask/dask", "2022.8"))


def test_a_task_that_brings_its_repository_has_its_requirements_read(tmp_path, capsys):
    row = {"repo": "pallets/flask", "version": "2.3", "base_commit": "0"}
    tests = Tests(command="", fail_to_pass=())
    task = Task(id="f", prompt="", tests=tests, files={"requirements/dev.txt": "-c x\n"}, meta={"row": row})
    dump_tasks(tmp_path / "tasks.jsonl", [task])
    images = ImagesConfig(store=str(tmp_path / "store"))
    with pytest.raises(ConfigError, match="no environment"):
        asyncio.run(build_env(tmp_path / "tasks.jsonl", tmp_path / "out.jsonl", Wish(), images, View()))
    assert "requirements/dev.txt of pallets/flask: `-c x` is no plain" in " ".join(
        capsys.readouterr().err.split()
    )


def test_build_requirements_are_the_projects_own():
    assert build_requires('[build-system]\nrequires = ["setuptools~=62.6"]') == ("setuptools~=62.6",)
    assert build_requires(None) == build_requires("not toml [") == ("setuptools>=40.8.0", "wheel")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
    recipe, command = re.search(r"cat > recipe.toml <<'END'\n(.*?)END\n(.*?)\n", page, re.DOTALL).groups()
    assert command == "patchwright tasks build-env recipe.toml environment.json"
    (folder / "recipe.toml").write_text(recipe)
    images = ImagesConfig(store=str(folder / "store"))
    wish = Wish(docker=os.environ.get("PATCHWRIGHT_DOCKER") == "1")
    built = asyncio.run(build_env(folder / "recipe.toml", folder / "out.json", wish, images, View()))
    assert len(built.images) == 1 and not built.failed
    return Store(folder / "store"), folder


def run(backend, image, command):
    async def inside():
        try:
            box = await backend.open(BoxSpec(image=image))
            return (await box.exec(command)).output
        finally:
            await backend.close()

    return asyncio.run(inside())


COMMAND = (
    "source /opt/miniconda3/bin/activate; conda activate testbed; git --version; "
    "python -c 'import docopt, pytest, ssl, sqlite3; print(pytest.__version__, docopt.__version__)'; "
    "find / -xdev -path '*/pytest/__pycache__/__init__*.pyc' | wc -l"
)


def test_a_namespace_box_of_the_environment_has_its_packages_compiled(environment):
    import json

    store, folder = environment
    record = json.loads((folder / "out.json").read_text())
    root = store.resolve(Name.parse(record["image"]))
    assert root.image == record["rootfs"]

    async def inside():
        backend = NamespaceBackend()
        try:
            box = await backend.open(BoxSpec(image=record["rootfs"], env=root.env))
            return (await box.exec(COMMAND)).output
        finally:
            await backend.close()

    output = asyncio.run(inside())
    assert "git version" in output and "8.3.5 0.6.2" in output and not output.strip().endswith("\n0"), output


def test_an_equal_environment_is_built_once(environment):
    store, _ = environment
    said = []

    async def again():
        backend = NamespaceBackend()
        try:
            return await Builder(store, backend, said.append)(Recipe(pip=PIP))
        finally:
            await backend.close()

    image = asyncio.run(again())
    assert (
        not any(line.startswith("packages") for line in said) and store.image(Name.parse(image.name)) == image
    )


@pytest.mark.docker
@pytest.mark.skipif(os.environ.get("PATCHWRIGHT_DOCKER") != "1", reason="PATCHWRIGHT_DOCKER is not 1")
def test_docker_has_the_same_environment(environment):
    import json

    record = json.loads((environment[1] / "out.json").read_text())
    assert "8.3.5 0.6.2" in run(DockerBackend(), record["image"], COMMAND)


def test_a_clone_gives_one_commit_without_what_came_later(tmp_path):
    import subprocess

    def git(*arguments):
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *name, *arguments], cwd=clone, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    clone = tmp_path / "clones/me__it"
    clone.mkdir(parents=True)
    git("init", "-q", "-b", "main")
    commits = []
    for text in ("first", "second", "the fix"):
        (clone / "m.py").write_text(f"# {text}\n")
        git("add", ".")
        git("commit", "-qm", text)
        commits.append(git("rev-parse", "HEAD"))
    assert find_clone(tmp_path / "clones", "me/it") == clone
    repository = at_commit(clone, commits[1])
    assert repository == at_commit(clone, commits[1]), "the same bytes every time"
    shutil.rmtree(clone)
    clone.mkdir()
    subprocess.run(["tar", "x"], cwd=clone, input=repository.archive, check=True)
    git("reset", "-q")
    assert git("rev-parse", "HEAD") == commits[1] and git("status", "--porcelain") == ""
    assert git("rev-list", "--all") == commits[1] and git("remote") == ""
    everything = git("cat-file", "--batch-all-objects", "--batch-check")
    assert everything.count("commit") == 1 and (clone / "m.py").read_text() == "# second\n"
    with pytest.raises(ConfigError, match="no clone of me/other"):
        find_clone(tmp_path, "me/other")
