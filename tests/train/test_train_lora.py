import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from patchwright.errors import ConfigError
from patchwright.train.config import LoraConfig, TrainConfig
from patchwright.train.model import load_model
from patchwright.train.trainer import Trainer

LORA = TrainConfig(lr=1e-2, lora=LoraConfig(rank=4, alpha=8.0))


def trained(folder, rows, config=LORA, steps=3):
    trainer = Trainer(folder, config)
    for _ in range(steps):
        trainer.step(rows, loss="sft")
    return trainer


def test_an_adapter_changes_nothing_at_first_and_learns_with_the_base_frozen(model_folder, make_rows):
    rows = make_rows(4, longest=16)
    before = load_model(model_folder).state_dict()
    trainer = Trainer(model_folder, LORA)
    assert trainer.score(rows[0].token_ids) == Trainer(model_folder, TrainConfig()).score(rows[0].token_ids)
    losses = [trainer.step(rows, loss="sft").loss for _ in range(25)]
    assert losses[-1] < losses[0] - 0.4
    after = {n.replace(".base_layer", ""): w for n, w in trainer.model.state_dict().items()}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    moved = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    assert moved < 0.5 * sum(weight.numel() for weight in before.values())


def test_merged_weights_and_the_adapter_alone_both_compute_what_was_trained(
    model_folder, make_rows, tmp_path
):
    rows = make_rows(4, longest=16)
    trainer = trained(model_folder, rows)
    trainer.save_weights(tmp_path / "v1", version=1)
    ids = torch.tensor([rows[0].token_ids])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "v1")(input_ids=ids).logits
        base = AutoModelForCausalLM.from_pretrained(model_folder)
        untrained = base(input_ids=ids).logits
        beside = PeftModel.from_pretrained(base, tmp_path / "v1" / "adapter")(input_ids=ids).logits
    torch.testing.assert_close(merged, beside, atol=1e-5, rtol=1e-5)
    assert (merged - untrained).abs().max() > 0.1
    scores = torch.tensor(trainer.score(rows[0].token_ids))
    wanted = merged[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(scores, wanted, atol=1e-5, rtol=1e-5)
    assert json.loads((tmp_path / "v1" / "adapter" / "adapter_config.json").read_text())["r"] == 4
    trainer.step(rows, loss="sft")  # saving left the trained model as it was
    assert trainer.steps == 4


def test_an_adapter_resumes_to_the_bit(model_folder, make_rows, tmp_path):
    rows = make_rows(6)
    whole = trained(model_folder, rows, steps=4)
    first = trained(model_folder, rows, steps=2)
    first.save_checkpoint(tmp_path / "2")
    second = Trainer(model_folder, LORA)
    second.load_checkpoint(tmp_path / "2")
    for _ in range(2):
        second.step(rows, loss="sft")
    pairs = zip(whole.model.parameters(), second.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_same_seed_gives_the_same_adapter_and_leaves_torchs_generator_alone(model_folder, make_rows):
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    one, two = (trained(model_folder, make_rows(3), steps=1) for _ in range(2))
    assert torch.equal(torch.rand(3), drawn)
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_only_the_named_layers_are_adapted(model_folder, make_rows):
    config = TrainConfig(lora=LoraConfig(targets=("q_proj", "v_proj")))
    names = [n for n, w in Trainer(model_folder, config).model.named_parameters() if w.requires_grad]
    assert len(names) == 2 * 2 * 2 and all("q_proj" in n or "v_proj" in n for n in names)


def test_mistakes_about_adapters_are_one_sentence(model_folder, make_rows, tmp_path):
    with pytest.raises(ConfigError, match=r"`lora\.targets` does not fit"):
        Trainer(model_folder, TrainConfig(lora=LoraConfig(targets=("nothing",))))
    Trainer(model_folder, TrainConfig()).save_checkpoint(tmp_path / "full")
    with pytest.raises(ConfigError, match="checkpoint of another model"):
        Trainer(model_folder, LORA).load_checkpoint(tmp_path / "full")
    Trainer(model_folder, LORA).save_checkpoint(tmp_path / "lora")
    with pytest.raises(ConfigError, match="checkpoint of another model"):
        Trainer(model_folder, TrainConfig(lora=LoraConfig(rank=2))).load_checkpoint(tmp_path / "lora")
