"""What slime 0.3.1 is to a plug-in, stood in for: its loader, its `Sample`, its rollout loop, its conversion
to training data, and the router before its engines. Each part holds a plug-in to what the real one relies on.

Written after slime's source at 624b824: `utils/types.py`, `utils/misc.py`, `rollout/sglang_rollout.py`,
`rollout/filter_hub/base_types.py`, `ray/rollout.py`, `observability/rollout_data_utils.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import inspect
import sys
import types
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from aiohttp import web

from patchwright.render import Renderer

# --- types ------------------------------------------------------------------------------------


@dataclass
class CacheInfo:
    cached_tokens: int = 0
    total_prompt_tokens: int = 0


@dataclass
class Sample:
    """The fields of slime's, with their defaults; any other attribute is a mistake here."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict | None = None
    multimodal_train_inputs: dict | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: Any = None
    rollout_top_p_token_offsets: Any = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: Any = None
    prefix_cache_info: CacheInfo = field(default_factory=CacheInfo)

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in {one.name for one in fields(type(self))}, f"slime's Sample has no {name}"
        super().__setattr__(name, value)

    def get_reward_value(self, args: Any) -> float:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


class GenerateState:
    """The singleton of a rollout process."""

    aborted = False

    def __init__(self, args: Any) -> None: ...


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """A rollout that only takes its tasks."""
    return (rollout_id, evaluation, [] if evaluation else data_source.get_samples(args.rollout_batch_size))


@contextlib.contextmanager
def slime_installed() -> Iterator[None]:
    """`import slime...` finds the stand-in, as in slime's own processes."""
    parts = {
        "slime": {},
        "slime.utils": {},
        "slime.utils.types": {"Sample": Sample},
        "slime.rollout": {},
        "slime.rollout.filter_hub": {},
        "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
        "slime.rollout.sglang_rollout": {
            "GenerateState": GenerateState,
            "generate_rollout": generate_rollout,
        },
    }
    before = {name: sys.modules.get(name) for name in parts}
    for name, members in parts.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        sys.modules[name] = module
    try:
        yield
    finally:
        GenerateState.aborted = False
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def load_function(path: str) -> Any:
    """By the last dot, as slime does."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def make_args(**given: Any) -> types.SimpleNamespace:
    """slime's flags as parsed, those a plug-in may look at."""
    plug_in = "patchwright.integrations.slime."
    known: dict[str, Any] = {
        "hf_checkpoint": "", "prompt_data": "", "eval_datasets": [], "save": None, "load": None,
        "sglang_router_ip": "127.0.0.1", "sglang_router_port": 0, "router_policy": None,
        "rollout_batch_size": 2, "n_samples_per_prompt": 2, "rollout_shuffle": False, "rollout_seed": 42,
        "rollout_global_dataset": True, "rollout_max_context_len": 4000, "eval_max_context_len": None,
        "rollout_max_response_len": 400, "rollout_temperature": 1.0, "rollout_top_p": 1.0,
        "rollout_top_k": -1, "patchwright": None,
        "rollout_stop": None, "rollout_stop_token_ids": None, "rollout_skip_special_tokens": False,
        "partial_rollout": False, "group_rm": False, "use_rollout_routing_replay": False,
        "log_passrate": False, "use_dynamic_batch_size": True, "reward_key": None, "eval_reward_key": None,
        "custom_rm_path": None, "advantage_estimator": "grpo", "rewards_normalization": True,
        "grpo_std_normalization": True, "custom_generate_function_path": plug_in + "generate",
        "custom_reward_post_process_path": plug_in + "post_process",
        "dynamic_sampling_filter_path": plug_in + "keep_group",
        "data_source_path": plug_in + "TaskSource",
        "rollout_function_path": plug_in + "rollout",
        "custom_eval_rollout_log_function_path": plug_in + "log_eval",
    }  # fmt: skip
    return types.SimpleNamespace(**{**known, **given})


# --- the rollout loop -------------------------------------------------------------------------


def sampling_params(args: Any) -> dict[str, Any]:
    return {
        "temperature": args.rollout_temperature, "top_p": args.rollout_top_p, "top_k": args.rollout_top_k,
        "max_new_tokens": args.rollout_max_response_len, "stop": args.rollout_stop,
        "stop_token_ids": args.rollout_stop_token_ids,
        "skip_special_tokens": args.rollout_skip_special_tokens, "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }  # fmt: skip


async def generate_and_rm(args: Any, sample: Sample, *, evaluation: bool = False) -> list[Sample]:
    """One sample through the plug-in's generate and reward, in slime's order."""
    function = load_function(args.custom_generate_function_path)
    parameters = inspect.signature(function).parameters
    assert tuple(parameters)[:3] == ("args", "sample", "sampling_params")
    more = {"evaluation": evaluation} if "evaluation" in parameters else {}
    made = await function(args, sample, sampling_params(args), **more)
    assert isinstance(made, list) and made and all(isinstance(one, Sample) for one in made)
    if any(one.status is Sample.Status.ABORTED for one in made):
        return made
    missing = [one for one in made if one.reward is None]
    if missing:
        given = await load_function(args.custom_rm_path)(args, missing)
        for one, reward in zip(missing, given, strict=True):
            one.reward = reward
    return made


async def roll_out(args: Any, groups: list[list[Sample]]) -> list[list[list[Sample]]]:
    """Groups of samples made, as lists of lists."""
    made = []
    for group in groups:
        for sample in group:
            sample.session_id = sample.session_id or f"session-{sample.index}"
        made.append(await asyncio.gather(*(generate_and_rm(args, sample) for sample in group)))
    return made


def filtered(args: Any, groups: list[list[list[Sample]]]) -> tuple[list[list[list[Sample]]], list[str]]:
    """The groups a dynamic filter keeps, and why it did not keep the others."""
    function = load_function(args.dynamic_sampling_filter_path)
    kept, dropped = [], []
    for group in groups:
        output = function(args, group)
        assert isinstance(output, DynamicFilterOutput)
        if output.keep:
            kept.append(group)
        else:
            dropped.append(output.reason)
    return kept, dropped


def train_data(args: Any, groups: list[list[list[Sample]]]) -> dict[str, list]:
    """What reaches the trainer, with all that slime asserts on the way, and what its trainer relies on."""
    for siblings in (one for group in groups for one in group):
        ids = {sample.rollout_id for sample in siblings}
        assert len(ids) == 1 and None not in ids, "siblings share a rollout id"
    samples = [sample for group in groups for siblings in group for sample in siblings]
    raw, rewards = load_function(args.custom_reward_post_process_path)(args, samples)
    assert len(raw) == len(rewards) == len(samples)
    masks = []
    for sample in samples:
        assert 0 < sample.response_length < len(sample.tokens), "x[-0:] is everything; token 0 has no past"
        assert len(sample.loss_mask) == sample.response_length == len(sample.rollout_log_probs)
        assert all(isinstance(token, int) for token in sample.tokens)
        assert isinstance(sample.get_reward_value(args), float), "metrics round rewards, void ones too"
        if sample.remove_sample:
            sample.loss_mask = [0] * sample.response_length
        if sample.status is Sample.Status.ABORTED:
            assert not any(sample.loss_mask)
        masks.append(sample.loss_mask)
    ids = [sample.rollout_id for sample in samples]
    assert all(all(b == a for b in ids[ids.index(a) : ids.index(a) + ids.count(a)]) for a in ids)
    sums = {one: sum(sum(m) for m, i in zip(masks, ids, strict=True) if i == one) for one in ids}
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": rewards,
        "raw_reward": raw,
        "truncated": [int(sample.status is Sample.Status.TRUNCATED) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": ids,
        "loss_masks": masks,
        "rollout_mask_sums": [sums[one] for one in ids],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
    }


async def evaluate(args: Any, name: str, prompts: list[Sample]) -> dict[str, dict[str, list]]:
    """A data set of an evaluation, as slime logs it: the plug-in's logger first."""
    made: list[Sample] = []
    for index, prompt in enumerate(prompts):
        sample = copy.deepcopy(prompt)
        sample.index = index
        made += await generate_and_rm(args, sample, evaluation=True)
    made.sort(key=lambda sample: sample.index)
    key = args.eval_reward_key or args.reward_key
    data = {
        name: {
            "rewards": [one.reward if not key else one.reward[key] for one in made],
            "truncated": [one.status is Sample.Status.TRUNCATED for one in made],
            "samples": made,
        }
    }
    assert load_function(args.custom_eval_rollout_log_function_path)(0, args, data, None) is False
    return data


# --- the router -------------------------------------------------------------------------------


class Router:
    """Answers `/generate` with what `reply(prompt text, routing key)` says, in SGLang's shape, with a
    log-prob of its own for every token; keeps what it was asked."""

    def __init__(self, renderer: Renderer, reply: Callable[[str, str], str]) -> None:
        self._renderer, self._reply = renderer, reply
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        """Prompt, completion and log-probs of every call."""
        self.status = 200
        self.hang = False
        self.reached = asyncio.Event()

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert (
            set(body) == {"input_ids", "sampling_params", "return_logprob"} and body["return_logprob"] is True
        )
        assert set(body["sampling_params"]) <= {
            "temperature", "top_p", "top_k", "max_new_tokens", "stop", "stop_token_ids", "sampling_seed",
            "skip_special_tokens", "no_stop_trim", "spaces_between_special_tokens",
        }  # fmt: skip
        self.asked.append(body)
        self.reached.set()
        key = request.headers.get("X-SMG-Routing-Key", "")
        self.keys.append(key)
        if self.hang:
            await asyncio.sleep(60)
        if self.status != 200:
            return web.Response(status=self.status, text="no worker is there")
        call = len(self.sampled)
        text = self._reply(self._renderer.decode(body["input_ids"]), key)
        ids = [*self._renderer.encode(text), self._renderer.stop_ids[0]]
        logprobs = [-0.01 * (call + 1) - 0.001 * at for at in range(len(ids))]
        self.sampled.append((body["input_ids"], ids, logprobs))
        meta = {
            "id": "1", "finish_reason": {"type": "stop", "matched": ids[-1]}, "weight_version": "7",
            "prompt_tokens": len(body["input_ids"]), "completion_tokens": len(ids), "cached_tokens": 3,
            "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
        }  # fmt: skip
        return web.json_response({"text": text, "output_ids": ids, "meta_info": meta})

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_post("/generate", self.generate)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
