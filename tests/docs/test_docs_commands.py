"""Every command the pages name exists, with its options, arguments and configuration keys.

Most are run by the tests of their pages. Those that need a GPU, a cluster or a hub are held to this alone.
"""

import re
import tomllib

import pytest
import typer
from tests.docs.pages import PAGES, ROOT, blocks, commands, mentions
from typer.exceptions import TyperException

from patchwright.cli.app import app
from patchwright.config import load_config
from patchwright.errors import ConfigError
from patchwright.fleet.scale import Site
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.settings import Settings
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synthesis import SynthesisConfig
from patchwright.tasks.trust import TrustConfig

PROGRAM = typer.main.get_command(app)
KEYS = {
    ("quickstart",): QuickstartConfig,
    ("tasks", "validate"): TrustConfig,
    ("bench", "scale"): Site,
    ("check", "sandbox"): SandboxConfig,
}
"""Configurations of `-s`; other commands read `Settings`."""


def find(words):
    """The command that the first words name, its path, and the other words."""
    command, path = PROGRAM, ()
    while hasattr(command, "commands") and words:
        assert words[0] in command.commands, f"there is no `patchwright {' '.join((*path, words[0]))}`"
        path, command, words = (*path, words[0]), command.commands[words[0]], words[1:]
    return command, path, words


def configuration(path, words):
    if path == ("tasks", "synth"):
        return SynthesisConfig if words[0] == "composed" else LibraryConfig
    return KEYS.get(path, Settings)


def check(words):
    """Parse a whole command as the program would, and its `-s` as their configuration."""
    if words[0].startswith("-"):
        PROGRAM.make_context("patchwright", [*words, "doctor"])
        return
    command, path, rest = find(words)
    context = command.make_context(" ".join(path), list(rest))
    given = context.params.get("override") or ()
    if given and path != ("check", "engine"):
        load_config(configuration(path, rest), None, list(given))


def check_mention(words):
    """A command in passing: its name, and the options it is said to have."""
    names = [word for word in words if not word.startswith("-")]
    found = [PROGRAM]
    for name in names:
        deeper = [c for c in found if hasattr(c, "commands")]
        if not deeper:
            break
        if not re.fullmatch(r"[a-z|-]+", name):  # a placeholder
            return
        for part in name.split("|"):
            assert any(part in c.commands for c in deeper), f"no command {part!r} in {words}"
        found = [c.commands[part] for c in deeper for part in name.split("|") if part in c.commands]
    known = {option for c in found for parameter in c.params for option in parameter.opts} | {"-h", "--help"}
    for word in words:
        option = word.partition("=")[0].rstrip(",.:;")
        assert not option.startswith("-") or option in known, f"no option {option} in {words}"


CASES = [(page, words) for page in PAGES for words in commands(page)]
MENTIONS = [(page, words) for page in PAGES for words in mentions(page)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one_the_program_takes(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").mkdir()  # the one folder that a setting of the pages reads
    (tmp_path / "prompts" / "system.jinja").write_text("Mend it.")
    for words in commands(page):
        if any(word in ("...", "…") for word in words):
            check_mention([word for word in words if word not in ("...", "…")])
        else:
            check(words)
    for words in mentions(page):
        check_mention(words)


def test_the_pages_are_full_of_them():
    assert len(CASES) > 120 and len(MENTIONS) > 25


@pytest.mark.parametrize(
    "words",
    [
        "quickstrat",
        "tasks improt a b",
        "eval --tasks a --model b --smaples 2",
        "train rl --preset swe-rl-32b-8n --steps 3",
        "tasks list",
        "rollout --tasks a --model b -s line.agent.max_turn=3",
    ],
)
def test_a_command_that_would_not_run_is_found(words):
    with pytest.raises((AssertionError, ConfigError, TyperException)):
        check(words.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_table_of_settings_has_keys_that_exist(page):
    for block in blocks(page, "toml"):
        given = tomllib.loads(block)
        if given.keys() <= Settings.model_fields.keys():
            Settings.model_validate(given)


@pytest.mark.parametrize("page", ["README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES])
def test_every_local_link_leads_somewhere(page):
    """The pages of docs/ are built with their anchors by `make docs`, too."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    here = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", link):
            assert (here / link.partition("#")[0]).exists(), link
