"""`train ... --dry-run`: shapes, memory, placement, presets, what is missing."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchwright.errors import ConfigError
from patchwright.recipes import plan_memory
from patchwright.recipes.cluster import ClusterConfig, place
from patchwright.recipes.plan import make_plan
from patchwright.recipes.plan_memory import (
    engine_memory,
    host_memory,
    kept_bytes,
    lora_parameters,
    trainer_memory,
)
from patchwright.recipes.plan_model import Shape, find_shape, shape_of
from patchwright.recipes.presets import load_training, training_names
from patchwright.train.config import LoraConfig, TrainConfig

TINY = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 50,
    "tie_word_embeddings": True,
}
PRESETS = [(kind, name) for kind in ("rl", "sft", "verifier") for name in training_names(kind)]


def tiny_model(**changes):
    """The same shape as a real model, and its `Shape`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {key: value for key, value in (TINY | changes).items() if key != "model_type"}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, attn_implementation="sdpa")), shape_of(TINY | changes)


def parts(shape, train, longest=0):
    return {part.name: part.bytes for part in trainer_memory(shape, train, longest)}


# --- shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),  # as the model hub counts them in the files
    [
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 30_532_122_624),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", 32_763_876_352),
    ],
)
def test_parameters_of_published_models_add_up(name, parameters):
    assert find_shape(None, name).parameters == parameters


def test_parameters_of_a_real_model_add_up():
    for changes in ({}, {"tie_word_embeddings": False}):
        model, shape = tiny_model(**changes)
        assert shape.parameters == sum(weight.numel() for weight in model.parameters())


def test_a_model_folder_goes_before_a_name(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert find_shape(tmp_path, "Qwen/Qwen3-8B").hidden == 64
    assert find_shape(tmp_path / "none", "Qwen/Qwen3-8B").hidden == 4096
    with pytest.raises(
        ConfigError, match=r"'Qwen/Qwen3-9B' is no model folder .* did you mean `Qwen/Qwen3-8B`"
    ):
        find_shape(tmp_path / "none", "Qwen/Qwen3-9B")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="has no 'hidden_size'"):
        find_shape(tmp_path, "")


# --- memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "changes", [{}, {"hidden_size": 128}, {"intermediate_size": 256}, {"num_attention_heads": 8}]
)
def test_what_a_layer_keeps_is_what_is_reckoned(dtype, changes):
    """The bytes two layers keep more than one, of one token, within 5 %."""
    import torch

    tokens = 80  # no other size is the same

    def kept(layers):
        model, shape = tiny_model(num_hidden_layers=layers, **changes)
        ours = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
        seen, hold = {}, []

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in ours and tensor.shape not in copies:
                seen[storage.data_ptr()] = storage.nbytes()
            hold.append(tensor)  # or its address would be given away again
            return tensor

        copies = {shape for w in model.parameters() for shape in (w.shape, w.shape[::-1])}
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16", cache_enabled=False):
            model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
        return sum(seen.values()), shape

    (more, shape), (less, _) = kept(2), kept(1)
    assert (more - less) / tokens == pytest.approx(kept_bytes(shape, dtype), rel=0.05)


def test_constants_are_the_trainers():
    from patchwright.train import model, shards

    assert (plan_memory.HELD_GRADIENT, plan_memory.MAX_LOGITS) == (shards.HELD_GRADIENT, model.MAX_LOGITS)


def test_lora_counts_as_peft_does():
    from peft import LoraConfig as Peft
    from peft import get_peft_model

    shape = shape_of(TINY)
    for targets in ((), ("q_proj", "down_proj")):
        train = TrainConfig(lora=LoraConfig(rank=3, targets=targets))
        wrapped = get_peft_model(
            tiny_model()[0], Peft(r=3, target_modules=list(targets) or "all-linear", task_type="CAUSAL_LM")
        )
        trained = sum(weight.numel() for weight in wrapped.parameters() if weight.requires_grad)
        assert lora_parameters(shape, train) == trained


def test_ranks_share_what_stays_and_recomputing_spares_activations():
    shape = find_shape(None, "Qwen/Qwen3-8B")
    one, eight = parts(shape, TrainConfig()), parts(shape, TrainConfig(ranks=8))
    assert one["weights"] == 4 * shape.parameters and one["optimizer"] == 8 * shape.parameters
    for name in ("weights", "gradient", "optimizer"):
        assert eight[name] == one[name] / 8
    assert "layers made whole" in eight and "layers made whole" not in one
    less = parts(shape, TrainConfig(recompute=True))
    assert less["activations"] < one["activations"] / 5
    assert parts(shape, TrainConfig(), 5000)["activations"] == 5 * one["activations"]
    small = shape_of(TINY)
    assert parts(small, TrainConfig(ranks=2))["gradient"] == 4 * small.parameters  # each has a whole one


def test_what_is_offloaded_is_the_hosts():
    shape = find_shape(None, "Qwen/Qwen3-32B")
    train = TrainConfig(ranks=16, device="cuda", dtype="bfloat16", recompute=True)
    there, away = parts(shape, train, 8192), parts(shape, train.model_copy(update={"offload": True}), 8192)
    states = {name: there[name] for name in ("weights", "gradient", "optimizer")}
    assert not states.keys() & away.keys()
    gone = sum(states.values()) + there["activations"] - away["activations"]
    inputs_on_their_way = 2 * 8192 * 4 * shape.hidden
    held = host_memory(shape, train.model_copy(update={"offload": True}), 8192)
    assert held == pytest.approx(gone + inputs_on_their_way)
    single = parts(shape, TrainConfig(offload=True, device="cuda"))
    assert "layers made whole" in single and "weights" not in single


def test_an_engines_cache_is_what_weights_leave():
    shape = find_shape(None, "Qwen/Qwen3-32B")
    size = engine_memory(shape, 80e9, share=0.55, parallel=4)
    assert size.token == 2 * 64 * 2 * 128 * 2  # two of the eight heads
    assert size.tokens == int((44e9 - shape.parameters / 2) / size.token)
    assert engine_memory(shape, 80e9, share=0.55, parallel=1).tokens == 0
    assert engine_memory(shape, 80e9, share=0.5, parallel=16).token == size.token / 2  # one head at least


# --- placement --------------------------------------------------------------------------------


@given(
    st.integers(1, 6),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 6),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 20),
)
def test_nobody_is_lost_and_servers_are_whole(nodes, gpus, engines, parallel, ranks):
    cluster = ClusterConfig(nodes=nodes, gpus_per_node=gpus, engines=engines, tensor_parallel=parallel)
    try:
        placed = place(cluster, ranks)
    except ConfigError:
        assert parallel > gpus or engines * parallel + ranks > nodes * gpus or gpus % parallel
        return
    users = [user for node in placed for user in node.users]
    assert all(len(node.users) <= node.gpus for node in placed)
    assert sorted(set(users)) == sorted(
        [*(f"engine {i}" for i in range(engines)), *(f"rank {i}" for i in range(ranks))]
    )
    for number in range(engines):
        assert sorted(node.users.count(f"engine {number}") for node in placed)[-1] == parallel


@pytest.mark.parametrize("name", ["swe-rl-32b-8n", "swe-rl-32b-4n", "swe-rl-8b-2n"])
def test_swe_rl_trains_on_half_of_every_machine(name):
    settings = load_training("rl", name, None, [])
    for node in place(settings.cluster, settings.rl.train.ranks):
        assert sum(user.startswith("rank") for user in node.users) == 4 and node.free == 0


def test_too_few_gpus_are_one_sentence():
    with pytest.raises(
        ConfigError, match=r"2 machines of 8 GPUs, too few for 1 engines of 8 GPUs and 9 trainer"
    ):
        place(ClusterConfig(nodes=2, gpus_per_node=8, engines=1, tensor_parallel=8), 9)


# --- presets ----------------------------------------------------------------------------------


def test_the_presets_are_those_of_the_seeds():
    assert PRESETS == [
        ("rl", "qwen3-coder-30b-qwen-code"),
        ("rl", "swe-rl-32b-4n"),
        ("rl", "swe-rl-32b-8n"),
        ("rl", "swe-rl-8b-2n"),
        ("rl", "swe-rl-8b-prm-5n"),
        ("sft", "swe-gym-32b-sft"),
        ("verifier", "swe-gym-32b-verifier"),
    ]


@pytest.mark.parametrize(("kind", "name"), PRESETS)
def test_every_preset_can_be_planned_and_says_where_its_numbers_are_from(kind, name):
    settings = load_training(kind, name, None, [])
    plan = make_plan(kind, settings, None)
    assert any(line.startswith("model: none was given") for line in plan.missing)
    assert sum(len(node.users) for node in plan.nodes) == sum(node.gpus for node in plan.nodes)
    from patchwright.recipes import presets

    text = (Path(presets.__file__).parent / "training" / f"{name}.toml").read_text()
    numbers = [line for line in text.splitlines() if line.partition(" = ")[2][:1].isdigit()]
    assert numbers and all("#" in line for line in numbers)


@pytest.mark.parametrize(("kind", "name"), PRESETS)
def test_every_preset_fits_its_gpus(kind, name):
    missing = make_plan(kind, load_training(kind, name, None, []), None).missing
    assert not [line for line in missing if line.startswith("memory")]


def test_the_seeds_main_run():
    settings = load_training("rl", "swe-rl-32b-8n", None, [])
    rl, line, cluster = settings.rl, settings.line, settings.cluster
    assert (cluster.nodes * cluster.gpus_per_node, cluster.boxes_per_node, line.concurrency) == (64, 15, 128)
    assert (line.engine.max_context, line.sampling.max_tokens, line.agent.context.head) == (16384, 4096, 0.3)
    assert (rl.samples_per_task, rl.train.lr, rl.algorithm.algorithm().loss.clip_high) == (8, 1e-6, 0.28)
    plan = make_plan("rl", settings, None)
    assert plan.step.attempts == 64 and plan.step.sampled == 64 * 20 * 4096
    assert plan.boxes is not None and (plan.boxes.each, plan.boxes.room) == (8, 270)
    assert plan.trainer_bytes < 72e9  # the seeds ran it on such GPUs


def test_the_users_configuration_lies_over_a_preset(tmp_path: Path):
    file = tmp_path / "own.toml"
    file.write_text("[rl]\nsteps = 3\n[rl.train]\nranks = 8\n")
    settings = load_training("rl", "swe-rl-8b-2n", file, ["cluster.nodes=1", "cluster.engines=0"])
    assert (settings.rl.steps, settings.rl.train.ranks, settings.rl.train.lr) == (3, 8, 1e-6)
    assert settings.cluster.nodes == 1 and settings.cluster.model == "Qwen/Qwen3-8B"
    with pytest.raises(ConfigError, match="`--preset swe-rl-8b-2n` is no preset; there are swe-gym-32b-sft"):
        load_training("sft", "swe-rl-8b-2n", None, [])


# --- what is missing --------------------------------------------------------------------------


def test_what_does_not_fit_is_missing():
    """One GPU of 80 GB cannot hold 32e9 frozen parameters in float32, and says so."""
    whole = load_training("verifier", "swe-gym-32b-verifier", None, ["verifier.train.offload=false"])
    plan = make_plan("verifier", whole, None)
    assert plan.missing[0].startswith("memory: a trainer's GPU needs about 198 of 80 GB")
    small = load_training("rl", "swe-rl-32b-8n", None, ["cluster.engine_memory=0.21", "cluster.box_nodes=2"])
    lines = "\n".join(make_plan("rl", small, None).missing)
    assert "an engine's GPU has room for the keys and values of" in lines
    assert "128 attempts at once, 30 boxes on 2 nodes" in lines


def test_servers_files_and_tokens_are_looked_for(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").touch()
    token, tasks = tmp_path / "token", tmp_path / "tasks.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        given = [
            f"line.engine.url={url}",
            "line.engine.use=vllm",
            "line.sandbox.use=remote",
            f"line.sandbox.pool={url}",
            f"line.sandbox.token_file={token}",
        ]
        settings = load_training("rl", "", None, given)
        assert make_plan("rl", settings, tmp_path, [tasks]).missing == [
            f"data: there is no {tasks}",
            f"the pool's token: there is no {token}; copy it from where the pool runs",
        ]
        token.touch(), tasks.touch()
        assert make_plan("rl", settings, tmp_path, [tasks]).missing == []
    lines = make_plan("rl", settings, tmp_path, [tasks]).missing
    assert [line.partition(":")[0] for line in lines] == ["vllm server", "pool of boxes"]


def test_no_gpus_and_ranks_of_several_machines_are_missing():
    settings = load_training("rl", "swe-rl-8b-prm-5n", None, [])
    lines = make_plan("rl", settings, None).missing
    assert any(line.startswith("one machine with 16 GPUs") for line in lines)
    assert any(line.startswith("judge: nobody answers at http://127.0.0.1:30001") for line in lines)


def test_what_is_offloaded_must_fit_the_machines_memory(monkeypatch):
    """108 GB for each of 8 ranks, and 131 GB while each reads the model; on Ray others have a part of it."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 512 * 10**9 // 4096}
    monkeypatch.setattr("os.sysconf", lambda name: pages[name])

    def lacks(kind, name, *given):
        missing = make_plan(kind, load_training(kind, name, None, given), None).missing
        return [line for line in missing if line.startswith("host memory")]

    [line] = lacks("sft", "swe-gym-32b-sft")
    assert line.startswith("host memory: 1,048 GB for 8 ranks, 131 GB each")
    assert line.endswith("this machine has 512 GB")
    assert not lacks("verifier", "swe-gym-32b-verifier")
    assert lacks("rl", "swe-rl-32b-4n") and not lacks("rl", "swe-rl-32b-4n", "cluster.use=ray")
    pages["SC_PHYS_PAGES"] *= 3
    assert not lacks("sft", "swe-gym-32b-sft")


@pytest.mark.parametrize(("kind", "alone"), [("rl", False), ("sft", True), ("verifier", True)])
def test_ray_gives_ranks_of_several_machines_to_rl_alone(kind, alone):
    given = ["cluster.use=ray", "cluster.nodes=2", f"{kind}.train.ranks=2", f"{kind}.train.device=cuda"]
    settings = load_training(kind, "", None, [*given, "cluster.model=Qwen/Qwen3-8B"])
    lines = [line for line in make_plan(kind, settings, None).missing if line.startswith("one machine")]
    assert bool(lines) is alone and "cluster.use" not in "".join(lines)


# --- the command ------------------------------------------------------------------------------


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "patchwright.cli", "train", *words],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_dry_run_prints_the_plan():
    done = command("rl", "--preset", "swe-rl-8b-prm-5n", "--dry-run")
    assert done.returncode == 0, done.stderr
    for words in ("judge 0 on 8", "trainer ranks 4-7 on 4", "keys and values", "missing on this machine"):
        assert words in done.stdout


def test_without_a_dry_run_the_model_is_wanted():
    done = command("sft", "--preset", "swe-gym-32b-sft")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --model is missing; only --dry-run can do without it\n",
    )
    done = command("verifier", "--model", "m")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --data is missing; only --dry-run can do without it\n",
    )


@pytest.mark.parametrize("kind", ["sft", "verifier"])
def test_a_training_of_one_machine_says_so_where_a_cluster_is_named(kind):
    name = "Qwen/Qwen3-8B"
    done = command(kind, "--dry-run", "-s", "cluster.use=ray", "-s", f"cluster.model={name}")
    assert done.returncode == 0, done.stderr
    assert f'train {kind} runs on this machine alone; `cluster.use = "ray"`' in done.stderr


def test_the_local_engine_and_own_configurations_are_planned_too(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"max_position_embeddings": 512}))
    done = command("rl", "--model", str(tmp_path), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "memory of the local engine" in done.stdout and "32 attempts x 512 tokens" in done.stdout
    assert isinstance(find_shape(tmp_path, ""), Shape)
