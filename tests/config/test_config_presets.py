from patchwright.config import Config, load_config
from patchwright.recipes.quickstart.config import QuickstartConfig


class Inner(Config):
    rate: float = 1.0
    """A rate."""
    steps: int = 10
    """Steps."""


class Outer(Config):
    inner: Inner = Inner(rate=0.5)
    """A preset."""


def test_setting_one_key_of_a_preset_keeps_its_others():
    assert load_config(Outer, None, ["inner.steps=3"]).inner == Inner(rate=0.5, steps=3)


def test_the_quickstarts_presets_survive_an_override():
    preset = QuickstartConfig()
    changed = load_config(
        QuickstartConfig, None, ["sft.epochs=9", "rl.train.lr=0.1", "line.agent.max_turns=3"]
    )
    assert changed.sft.train == preset.sft.train and changed.sft.context_weight == preset.sft.context_weight
    assert changed.rl.train.minibatches == preset.rl.train.minibatches
    assert changed.line.agent.instance == preset.line.agent.instance
    assert changed.line.engine == preset.line.engine
