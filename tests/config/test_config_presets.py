from patchwright.config import Config, load_config, reference
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.settings import Settings


class Inner(Config):
    rate: float = 1.0
    """A rate."""
    steps: int = 10
    """Steps."""


class Outer(Config):
    inner: Inner = Inner(rate=0.5)
    """A preset."""


class Outermost(Config):
    outer: Outer = Outer(inner=Inner(rate=0.25, steps=4))
    """A preset of a preset."""


def test_setting_one_key_of_a_preset_keeps_its_others():
    assert load_config(Outer, None, ["inner.steps=3"]).inner == Inner(rate=0.5, steps=3)


def test_the_reference_tells_the_values_of_presets():
    assert "| `rate` | float | 0.5 | A rate. |" in reference(Outer)
    told = reference(Outermost)
    assert "| `rate` | float | 0.25 | A rate. |" in told and "| `steps` | int | 4 | Steps. |" in told


def test_the_learning_rates_are_those_of_pretrained_models():
    found = load_config(Settings, None, ["rl.train.ranks=2", "sft.train.ranks=2", "verifier.train.ranks=2"])
    rates = [found.rl.train.lr, found.sft.train.lr, found.verifier.train.lr]
    assert rates == [1e-6, 1e-5, 1e-5]


def test_the_quickstarts_presets_survive_an_override():
    preset = QuickstartConfig()
    changed = load_config(
        QuickstartConfig, None, ["sft.epochs=9", "rl.train.lr=0.1", "line.agent.max_turns=3"]
    )
    assert changed.sft.train == preset.sft.train and changed.sft.context_weight == preset.sft.context_weight
    assert changed.rl.train.minibatches == preset.rl.train.minibatches
    assert changed.line.agent.instance == preset.line.agent.instance
    assert changed.line.engine == preset.line.engine
