from dataclasses import asdict, replace
from pathlib import Path

import pytest

from patchwright.config import load_config
from patchwright.errors import ConfigError
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.settings import Settings
from patchwright.train.algorithm import PRESETS, Algorithm, AlgorithmConfig, PolicyLoss

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
COLUMNS = {
    "advantage": "advantage",
    "surrogate": "surrogate",
    "clip": "clip_low, clip_high",
    "normalise": "normalise",
    "others": "besides",
}


def algorithm(*overrides):
    judge = "rl.scores.judge.base_url=http://127.0.0.1:1/v1"  # `step` refuses to run without scores of turns
    settings = load_config(Settings, None, [judge, *(f"rl.algorithm.{o}" for o in overrides)])
    return settings.rl.algorithm.algorithm()


def test_the_default_is_what_the_quickstart_was_measured_with():
    assert algorithm() == load_config(QuickstartConfig).rl.algorithm.algorithm() == Algorithm()
    assert Algorithm().advantage == "std"
    assert Algorithm().loss == PolicyLoss(clip_low=0.2, clip_high=0.28, normalise="sequence", kl="none")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_name_is_its_preset_and_every_field_can_be_overridden(name):
    assert algorithm(f"name={name}") == PRESETS[name]
    found = algorithm(f"name={name}", "clip_high=0.5", "advantage=mean", "kl=k3", "overlong_limit=9")
    loss = replace(PRESETS[name].loss, clip_high=0.5, kl="k3")
    assert found == replace(PRESETS[name], advantage="mean", overlong_limit=9, loss=loss)


def test_every_choice_there_is_can_be_set():
    choices = set(asdict(Algorithm())) | set(asdict(PolicyLoss()))
    assert set(AlgorithmConfig.model_fields) - {"name"} == choices - {"loss", "max_drift"}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rl.algorithm.name=dap", "did you mean `dapo`"),
        ("rl.algorithm.name=xyzzy", "known names: grpo, dr_grpo"),
        ("rl.algorithm.clip_hi=1", "did you mean `rl.algorithm.clip_high`"),
        ("rl.algorithm.kl=k4", "rl.algorithm.kl"),
        ("rl.train.normalise=token", "use algorithm.normalise"),
        ("rl.over_sample=2", "give max_staleness too"),
    ],
)
def test_mistakes_are_one_sentence(override, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(Settings, None, [override])
    assert "\n" not in str(caught.value)


def table():
    """The table of `docs/algorithms.md`, from the presets."""
    head = f"| `name` | {' | '.join(COLUMNS.values())} |\n|{' --- |' * (len(COLUMNS) + 1)}\n"
    return head + "".join(f"| `{name}` | {' | '.join(cells(made))} |\n" for name, made in PRESETS.items())


def cells(made):
    loss, plain = made.loss, Algorithm()
    others = [
        f"{k} {v}"
        for k, v in asdict(made).items()
        if k not in ("advantage", "loss") and v != asdict(plain)[k]
    ]
    others += [f"constant_tokens {loss.constant_tokens}"] if loss.normalise == "constant" else []
    if made.overlong_limit:
        others.append(f"overlong_buffer {made.overlong_buffer}")
    clip = "-" if loss.surrogate == "reinforce" else f"{loss.clip_low:g}, {loss.clip_high:g}"
    return [
        f"`{made.advantage}`",
        f"`{loss.surrogate}`",
        clip,
        f"`{loss.normalise}`",
        "; ".join(others) or "-",
    ]


def test_the_page_has_the_presets_as_they_are():
    page = PAGE.read_text()
    shown = page.split("<!-- presets -->\n")[1].split("<!-- /presets -->")[0]
    assert shown == table(), f"paste this into docs/algorithms.md:\n{table()}"


def test_the_page_says_that_everything_else_is_the_same():
    rest = {(p.length_coef, p.integrity_penalty, p.loss.kl, p.loss.kl_coef) for p in PRESETS.values()}
    assert rest == {(0, 0, "none", 0.001)}
    assert {(p.loss.entropy_coef, p.loss.correction) for p in PRESETS.values()} == {(0, "none")}


def test_the_page_names_every_choice():
    page = PAGE.read_text()
    for name in AlgorithmConfig.model_fields:
        assert name in page, name
    for arxiv in (
        "2402.03300",
        "2503.20783",
        "2402.14740",
        "2501.03262",
        "2503.14476",
        "2507.18071",
        "2506.13585",
    ):
        assert arxiv in page
