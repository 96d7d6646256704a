import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM, Qwen3ForCausalLM

from patchwright.errors import ConfigError
from patchwright.train.config import ModelConfig
from patchwright.train.model import collate, load_model, logprobs, new_model
from patchwright.train.tokenizer import train_tokenizer


def plain_logprobs(model, sample, temperature=1.0):
    """One row alone, no padding, all logits: what the batch must agree with."""
    logits = model(input_ids=torch.tensor([sample.token_ids])).logits[0, :-1] / temperature
    chosen = logits.log_softmax(-1).gather(-1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0]
    return [v for v, w in zip(chosen.tolist(), sample.weights[1:], strict=True) if w > 0]


@torch.no_grad()
def test_logprobs_of_padded_rows_equal_plain_forward_passes(model_folder, make_rows):
    model, rows = load_model(model_folder), make_rows(6)
    reference = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    for temperature in (1.0, 0.6):
        values, entropy = logprobs(model, collate(rows), temperature=temperature)
        wanted = [v for row in rows for v in plain_logprobs(reference, row, temperature)]
        torch.testing.assert_close(values, torch.tensor(wanted), atol=1e-5, rtol=1e-5)
        assert len(entropy) == len(values) and bool((entropy > 0).all())


def test_logits_made_in_pieces_give_the_same_gradient(model_folder, make_rows):
    gradients = []
    for limit in (2**25, 259 * 7):  # all at once, seven tokens at once
        model = load_model(model_folder)
        logprobs(model, collate(make_rows(4)), max_logits=limit)[0].sum().backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-5)


def test_the_default_model_is_small_tied_and_reproducible():
    tokenizer = train_tokenizer([], vocab_size=260)
    first, second = (new_model(ModelConfig(seed=3), tokenizer) for _ in range(2))
    assert isinstance(first, Qwen3ForCausalLM)
    assert 700_000 < sum(weight.numel() for weight in first.parameters()) < 850_000
    assert first.lm_head.weight is first.model.embed_tokens.weight
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.config.eos_token_id == tokenizer.token_to_id("<|im_end|>")


def damaged(folder, tmp_path, change):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change(copy)
    return copy


def test_user_mistakes_are_one_sentence(model_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path / "nowhere")
    headless = damaged(model_folder, tmp_path, lambda copy: (copy / "model.safetensors").unlink())
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        load_model(headless)


def test_weights_that_do_not_fit_the_config_are_refused(model_folder, tmp_path):
    def deeper(copy):
        config = json.loads((copy / "config.json").read_text())
        config["num_hidden_layers"] = 3
        config["layer_types"] = ["full_attention"] * 3
        (copy / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigError, match=r"lack model\.layers\.2"):
        load_model(damaged(model_folder, tmp_path, deeper))


def test_a_model_that_bends_its_logits_is_refused(tmp_path):
    config = GraniteConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        logits_scaling=4.0,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="transforms its logits"):
        load_model(tmp_path)
