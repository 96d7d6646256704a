"""What is held in memory, counted in elements by tensor: shapes, not clocks or allocators."""

from dataclasses import replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from patchwright.train.attention import STRETCH, enable_trees
from patchwright.train.config import TrainConfig
from patchwright.train.memory import recompute_layers
from patchwright.train.model import collate, load_model, logprobs
from patchwright.train.trainer import Trainer
from patchwright.train.tree import Forest
from patchwright.types import Sample

VOCABULARY = 259


class Largest(TorchDispatchMode):
    """The largest tensor any operation makes, forward or backward."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *(tensor.numel() for tensor in tensors)])
        return made


def long_row(length):
    zeros = (0.0,) * length
    return Sample(
        token_ids=tuple(3 + index % 250 for index in range(length)),
        mask=(1,) * length,
        logprobs=zeros,
        advantages=zeros,
        weights=(0.0,) + (1.0,) * (length - 1),
    )


def loss_of(model, batch, limit):
    logprobs_N, _ = logprobs(model, batch, max_logits=limit)
    loss = -logprobs_N.mean()
    loss.backward()
    return loss.item()


def test_logits_of_a_long_row_are_never_whole_and_the_result_is_the_same(model_folder):
    """4,000 tokens with room for 64 rows of logits: as 32k with a real vocabulary within 128 MB."""
    batch, losses, gradients, sizes = collate([long_row(4000)]), [], [], []
    for limit in (64 * VOCABULARY, 2**25):
        model = load_model(model_folder)
        with Largest() as seen:
            losses.append(loss_of(model, batch, limit))
        sizes.append(seen.elements)
        gradients.append([weight.grad for weight in model.parameters()])
    assert sizes[1] >= 3999 * VOCABULARY, "the naive way makes them whole"
    assert sizes[0] <= 4000 * 48, "in pieces nothing is larger than the feed-forward layer's activations"
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-4)


def test_a_long_row_and_a_long_tree_never_make_a_whole_mask_or_all_scores(model_folder):
    """4,096 tokens, alone and as two rows that share half of them; a mask would have 2^24 elements."""
    model, row = load_model(model_folder), long_row(4096)
    enable_trees(model)
    two = [long_row(3072), replace(long_row(3072), token_ids=row.token_ids[:2048] + (3,) * 1024)]
    forest = Forest.of([one.token_ids for one in two])
    assert len(forest) == 4096
    for batch in (collate([row]), collate(two, forest=forest)):
        with Largest() as seen:
            loss_of(model, batch, 64 * VOCABULARY)
        assert seen.elements <= 2 * STRETCH * 4096, "a stretch of queries sees all keys, and no more do"


def test_a_row_of_65536_tokens_makes_nothing_larger_than_a_layers_activations(tmp_path):
    """One layer, so that it takes seconds; logits would have 259 elements a token, a mask 65,536."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "head_dim": 16, "vocab_size": VOCABULARY}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    shape = Qwen3Config(**sizes, **heads, max_position_embeddings=65_536, tie_word_embeddings=True)
    Qwen3ForCausalLM(shape).save_pretrained(tmp_path)
    with Largest() as seen:
        loss_of(load_model(tmp_path), collate([long_row(65_536)]), 64 * VOCABULARY)
    assert seen.elements <= 32 * 65_536


def test_masks_of_a_long_tree_are_kept_once(model_folder):
    """Not one for each stretch of queries, nor a copy for each layer's way back."""
    trunk = tuple(range(3, 203)) * 10
    rows = [replace(long_row(3000), token_ids=trunk + (end,) * 1000) for end in (4, 5, 6)]
    forest, held = Forest.of([row.token_ids for row in rows]), {}
    model = load_model(model_folder)
    enable_trees(model)

    def pack(tensor):
        if tensor.dim() > 1 and tensor.shape[-1] > 2000 and not tensor.requires_grad:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs(model, collate(rows, forest=forest))
    assert held and sum(held.values()) <= 1.1 * 4 * STRETCH * (3000 + STRETCH)


def kept_for_backward(trainer, batch):
    held = {}

    def pack(tensor):
        held[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logprobs(trainer.model, batch)
    weights = {weight.data_ptr() for weight in trainer.model.parameters()}
    return sum(count for place, count in held.items() if place not in weights)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_recomputing_layers_holds_less_and_gives_the_same_step(model_folder, make_rows, lora):
    rows, after, held = make_rows(4), [], []
    for recompute in (False, True):
        trainer = Trainer(model_folder, TrainConfig(lr=1e-2, recompute=recompute, lora=lora))
        held.append(kept_for_backward(trainer, collate(rows)))
        trainer.step(rows, loss="sft")
        after.append([weight.detach().clone() for weight in trainer.model.parameters()])
    assert held[1] < 0.4 * held[0]
    for first, second in zip(*after, strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("to_host", [False, True])
def test_layers_inputs_leave_the_device_when_the_host_keeps_them(model_folder, make_rows, to_host):
    plain, model, inputs = load_model(model_folder), load_model(model_folder), []
    recompute_layers(model, to_host=to_host)
    for layer in model.model.layers[1:]:
        layer.input_layernorm.register_forward_pre_hook(
            lambda _, given: inputs.append(StorageWeakRef(given[0].untyped_storage()))
        )
    batch = collate(make_rows(3))
    logprobs_N, _ = logprobs(model, batch)
    assert [kept.expired() for kept in inputs] == [to_host], "a copy is kept, not the tensor itself"
    logprobs_N.sum().backward()
    logprobs(plain, batch)[0].sum().backward()
    for weight, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, wanted.grad, atol=1e-6, rtol=1e-6)
