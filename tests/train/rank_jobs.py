"""What the ranks of the tests do: in this process alone, and in each of two that share a model."""

from dataclasses import replace

import torch
from torch.distributed.device_mesh import init_device_mesh

from patchwright.errors import PatchwrightError
from patchwright.train.config import TrainConfig
from patchwright.train.loss import sft_loss
from patchwright.train.model import collate, load_model
from patchwright.train.ranks import Ranks
from patchwright.train.shards import Sharded, Shards
from patchwright.train.trainer import Trainer

RANKS = Ranks("cpu")


def meet(rank: int, count: int, meeting: str) -> None:
    """Make this process one of several."""
    global RANKS
    torch.set_num_threads(1)
    RANKS = Shards(TrainConfig(ranks=count), rank=rank, meeting=meeting)


def train(model, config, jobs, *, resume=None, weights=None, checkpoint=None):
    """A `step` for each (rows, loss); returns their metrics, and what the trainer then measures."""
    trainer = Trainer(model, config.model_copy(update={"ranks": RANKS.count}), RANKS)
    if resume:
        trainer.score(jobs[0][0][0].token_ids)  # leaves no whole copy behind that would hide what is loaded
        trainer.load_checkpoint(resume)
    told = [replace(trainer.step(rows, loss=loss), seconds=0, computed=0) for rows, loss in jobs]
    rows = jobs[-1][0]
    measured = [trainer.evaluate(rows), *trainer.score(rows[0].token_ids)]
    if weights:
        trainer.save_weights(weights, 1)
    if checkpoint:
        trainer.save_checkpoint(checkpoint)
    told.append(replace(trainer.step(rows, loss="sft"), seconds=0, computed=0))  # saving changed nothing
    return told, measured


def gradients(model, batches, *, max_logits, holds, offload=False):
    """Whole gradients of the cross-entropy of this rank's batches, with `max_logits` at once."""
    loaded = load_model(model)
    if offload:  # what of it there is without a GPU
        config = TrainConfig(ranks=RANKS.count, device="cuda", offload=True)
        computed = Sharded(loaded, init_device_mesh("cpu", (RANKS.count,)), config)
    else:
        computed = RANKS.computed(loaded)
    computed.max_logits, computed.holds = max_logits, holds
    mine = batches[RANKS.rank :: RANKS.count]
    for number, batch in enumerate(mine, start=1):
        logprobs_N, _ = computed.logprobs(batch)
        computed.backward(sft_loss(logprobs_N, batch.weights_N), last=number == len(mine))
    return RANKS.collected({name: weight.grad for name, weight in loaded.named_parameters()})


def layer_weights(model, row, **config):
    """Of a layer's weight while it computes: its type, and whether its part stays in host memory."""
    loaded, seen = load_model(model), []
    mesh = init_device_mesh("cpu", (RANKS.count,))
    computed = Sharded(loaded, mesh, TrainConfig(ranks=RANKS.count, device="cuda", **config))
    layer = loaded.model.layers[0]
    layer.mlp.register_forward_hook(lambda module, *_: seen.append(module.down_proj.weight.dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled="dtype" in config):
        computed.logprobs(collate([row]))
    parts = layer._get_fsdp_state()._fsdp_param_group.fsdp_params
    return str(*seen), {part.offload_to_cpu for part in parts}


def refused(model, config, rows, loss, checkpoint=None):
    """The error a step or a checkpoint ends with, and whether the next step goes well."""
    trainer = Trainer(model, config.model_copy(update={"ranks": RANKS.count}), RANKS)
    try:
        if checkpoint:
            trainer.load_checkpoint(checkpoint)
        trainer.step(rows, loss=loss)
    except PatchwrightError as error:
        return str(error), trainer.step(rows, loss="sft").updates
    raise AssertionError("must be refused")
