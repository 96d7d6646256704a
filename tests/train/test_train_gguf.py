"""Pre-trained weights out of GGUF files, written here by llama.cpp's own library."""

import json

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from patchwright.cli.app import app
from patchwright.errors import ConfigError
from patchwright.render import CHATML, Renderer
from patchwright.train.config import TrainConfig
from patchwright.train.gguf import import_gguf
from patchwright.train.tokenizer import train_tokenizer
from patchwright.train.trainer import Trainer

HEADS = 4
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["def add(a, b):\n    return a + b\n"] * 4, vocab_size=300)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


def pairwise(weight):
    """Rows as llama.cpp has them: what its rotary embedding turns together lies side by side."""
    rows, columns = weight.shape
    return weight.reshape(HEADS, 2, rows // HEADS // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors(model):
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    yield "output.weight", state["lm_head.weight"]
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            value = state[f"model.layers.{layer}.{ours}.weight"]
            yield f"blk.{layer}.{theirs}.weight", pairwise(value) if theirs in ("attn_q", "attn_k") else value


def write(path, model, tokenizer, *, template):
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([word for word, _ in words])
    writer.add_token_types([3 if word in special else 1 for word, _ in words])
    writer.add_token_merges([" ".join(pair) for pair in merges(tokenizer)])
    writer.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    writer.add_bos_token_id(tokenizer.token_to_id("<|im_end|>"))
    if template:
        writer.add_chat_template(template)
    for name, value in tensors(model):
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merges(tokenizer):
    return json.loads(tokenizer.to_str())["model"]["merges"]


def test_the_folder_computes_what_the_file_holds_and_trains(model, tokenizer, make_rows, tmp_path):
    import_gguf(write(tmp_path / "m.gguf", model, tokenizer, template=CHATML), tmp_path / "v0")
    ids = torch.tensor([[5, 9, 17, 40, 3, 5]])
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "v0").eval()
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    renderer = Renderer.load(str(tmp_path / "v0"))
    text = "def add(a, b):\n    return a + b\n"
    assert renderer.decode(renderer.encode(text)) == text
    assert Trainer(tmp_path / "v0", TrainConfig()).step(make_rows(2), loss="sft").updates == 1


def test_the_command_writes_it_once_and_refuses_other_files(model, tokenizer, tmp_path):
    file, out = write(tmp_path / "m.gguf", model, tokenizer, template=CHATML), tmp_path / "v0"
    assert CliRunner().invoke(app, ["train", "import", str(file), "--out", str(out)]).exit_code == 0
    again = CliRunner().invoke(app, ["train", "import", str(file), "--out", str(out)])
    assert isinstance(again.exception, ConfigError) and "exists" in str(again.exception)
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(ConfigError, match=r"text\.gguf cannot be read as a model in GGUF"):
        import_gguf(tmp_path / "text.gguf", tmp_path / "other")
    bare = write(tmp_path / "bare.gguf", model, tokenizer, template="")
    with pytest.raises(ConfigError, match="no chat template"):
        import_gguf(bare, tmp_path / "other")
    assert not (tmp_path / "other").exists()
