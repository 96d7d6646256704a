"""Configuration: what the user writes is read, and every mistake is one sentence with its mend."""

from pathlib import Path
from typing import Literal

import pytest

from patchwright.config import Config, load_config, nearest, pick, reference
from patchwright.errors import ConfigError


class Loop(Config):
    """The training loop."""

    steps: int = 10
    """Optimizer steps to take,
    one after another."""
    lr: float = 1e-3
    """Learning rate."""
    mode: Literal["sync", "async"] = "sync"
    """How generation and training take turns."""


class Part(Config):
    """An agent."""

    use: str = "bash"
    """Which agent."""


class Top(Config):
    """A whole run."""

    model: str
    """Folder of the model."""
    rl: Loop = Loop()
    """The loop."""
    agents: tuple[Part, ...] = ()
    """Agents to try."""
    warm: Loop | None = None
    """A loop before the loop."""


def write(folder: Path, text: str) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def mistake(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Top, write(folder, text), overrides)
    return str(caught.value).replace(str(folder) + "/", "")


def test_file_and_overrides_are_merged(tmp_path: Path) -> None:
    file = write(tmp_path, 'model = "m"\n[rl]\nsteps = 3\nlr = 0.5\n')
    config = load_config(Top, file, ["rl.steps=7", "warm.lr=3e-4", "model=runs/a b", 'agents=[{use="x"}]'])
    assert config.rl == Loop(steps=7, lr=0.5)
    assert config.warm == Loop(lr=3e-4)
    assert (config.model, config.agents) == ("runs/a b", (Part(use="x"),))


def test_no_file_is_all_defaults() -> None:
    assert load_config(Loop) == Loop()


def test_config_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Loop().steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("[rl]\nstpes = 3", [], "unknown key `rl.stpes` in run.toml; did you mean `rl.steps`?"),
        ('model="m"\nsteps = 3', [], "unknown key `steps` in run.toml; did you mean `rl.steps`?"),
        ('model="m"', ["rl.lrr=3"], "unknown key `rl.lrr` in `-s rl.lrr=3`; did you mean `rl.lr`?"),
        ('model="m"\n[warm]\nstep=1', [], "unknown key `warm.step` in run.toml; did you mean `warm.steps`?"),
        (
            'model="m"\n[rl]\nsteps="ten"',
            [],
            '`rl.steps` in run.toml is "ten"; it should be a valid integer, unable to parse string',
        ),
        ('model="m"', ["rl.steps=x"], '`rl.steps` in `-s rl.steps=x` is "x"; it should be a valid integer'),
        ('model="m"', ["rl.mode=fast"], "it should be 'sync' or 'async'"),
        ('model="m"\n[[agents]]\nuse=3', [], "`agents.0.use` in run.toml is 3; it should be a valid string"),
        ("", [], "`model` is missing in run.toml; give it there or with `-s model=...`"),
        ('model="m"\n[rl\n', [], "run.toml is not valid TOML"),
        ('model="m"', ["steps"], "`-s steps` is not KEY=VALUE; write for example `-s rl.steps=10`"),
        ('model="m"', ["model.x=1"], "`-s model.x=1` goes below `model`, which is a value and not a table"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, overrides: list[str], said: str) -> None:
    assert said in mistake(tmp_path, text, *overrides)


def test_toml_error_names_the_line(tmp_path: Path) -> None:
    assert "line 2" in mistake(tmp_path, 'model="m"\n[rl\n')


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load_config(Loop, tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(Loop, tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(Loop, tmp_path)


def test_an_override_cannot_smuggle_a_second_key() -> None:
    with pytest.raises(ConfigError, match="steps"):
        load_config(Loop, None, ["steps=1\nlr = 9.0"])


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    assert mistake(tmp_path, "[rl]\nsteps='x'\nstpes=1").endswith("(and 2 more)")


def test_nearest() -> None:
    assert nearest("rl.stpes", ["rl.steps", "rl.lr"]) == "rl.steps"
    assert nearest("zzz", ["rl.steps"]) is None


def test_pick() -> None:
    registry = {"loop": Loop, "lazy": "pathlib:PurePath"}
    assert pick("loop", registry) is Loop
    assert pick("lazy", registry).__name__ == "PurePath"
    assert pick("collections:OrderedDict", registry).__name__ == "OrderedDict"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("lopo", "neither a known name nor `module:Class`; did you mean `loop`?"),
        ("zzz", "known names: loop"),
        ("no_such_module:X", "cannot be imported"),
        ("collections:Nothing", "module collections has no 'Nothing'"),
    ],
)
def test_pick_mistakes(use: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pick(use, {"loop": Loop}, key="agent.use")
    assert said in str(caught.value) and "agent.use" in str(caught.value)


def test_reference_lists_every_key_with_its_docstring() -> None:
    text = reference(Top)
    assert "| `steps` | int | 10 | Optimizer steps to take, one after another. |" in text
    assert "| `model` | str | required | Folder of the model. |" in text
    assert "## `[warm]`" in text and "## `[agents]`" in text
    assert "| `mode` | Literal['sync', 'async'] |" in text
