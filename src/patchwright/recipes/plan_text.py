"""A `Plan` as tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from patchwright.recipes.cluster import Node
from patchwright.recipes.plan import Plan
from patchwright.recipes.plan_memory import EngineMemory, Part, host_memory, ranks_text
from patchwright.recipes.plan_model import Shape

__all__ = ["plan_text"]

_WORDS = {"rank": "trainer rank", "engine": "engine", "judge": "judge"}


def plan_text(plan: Plan) -> RenderableType:
    """What `--dry-run` prints."""
    blocks: list[RenderableType] = [_model(plan.shape, plan.name)]
    blocks += [_placement(plan.nodes), _trainer(plan)]
    serving = [("engine", plan.engine, plan.cluster.tensor_parallel, plan.cluster.engines)]
    serving += [("judge", plan.judge_engine, plan.cluster.judge_parallel, plan.cluster.judges)]
    if plan.local:
        blocks.append(_parts("memory of the local engine, GB", plan.local))
    blocks += [_server(*one, plan) for one in serving if one[1]]
    return Group(*(part for block in [*blocks, _step(plan), _missing(plan)] for part in (block, "")))


def _model(shape: Shape, name: str) -> str:
    experts = f", {shape.active_experts} of {shape.experts} experts a token" if shape.experts else ""
    return (
        f"model {name}: {shape.parameters / 1e9:.2f}e9 parameters, {shape.layers} layers{experts}, "
        f"{shape.kv_bytes():,} bytes of keys and values a token"
    )


def _placement(nodes: Sequence[Node]) -> Table:
    table = _table("placement", "GPUs", "who", "free")
    last: tuple[str, str, str] | None = None
    for number, node in enumerate(nodes):
        kinds = Counter(user.split()[0] for user in node.users)
        who = ", ".join(f"{_names(node, kind)} on {count}" for kind, count in sorted(kinds.items()))
        last = (str(node.gpus), who or "nobody", str(node.free))
        table.add_row(f"node {number}", *last)
    return table


def _names(node: Node, kind: str) -> str:
    """`engine 0`, `trainer ranks 0-3`: who of a kind is on a node."""
    numbers = sorted({int(user.split()[1]) for user in node.users if user.startswith(f"{kind} ")})
    word = _WORDS[kind] + ("s" if len(numbers) > 1 else "")
    return f"{word} {', '.join(_runs(numbers))}"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    """0, 1, 2, 5 -> 0-2, 5."""
    start = 0
    for end in range(len(numbers)):
        if end + 1 == len(numbers) or numbers[end + 1] != numbers[end] + 1:
            yield str(numbers[start]) if start == end else f"{numbers[start]}-{numbers[end]}"
            start = end + 1


def _trainer(plan: Plan) -> Table:
    where = "GPU" if plan.train.device != "cpu" else "process"
    table = _parts(f"memory of a {where} that trains, GB", plan.trainer)
    of = f"of {plan.cluster.gpu_memory_gb:.0f}" if plan.train.device != "cpu" else ""
    table.add_row("together", f"{plan.trainer_bytes / 1e9:.1f}", of)
    if plan.train.offload:
        host = host_memory(plan.shape, plan.train, plan.context)
        table.add_row("of the host", f"{host / 1e9:.1f}", "more for each rank: what is offloaded")
    return table


def _parts(title: str, parts: Sequence[Part]) -> Table:
    table = _table(title, "", "reckoned as")
    for part in parts:
        table.add_row(part.name, f"{part.bytes / 1e9:.1f}", part.how)
    return table


def _server(name: str, size: EngineMemory | None, parallel: int, count: int, plan: Plan) -> Table:
    assert size is not None
    cluster = plan.cluster
    table = _table(f"memory of a GPU of {name} servers, GB", "", "reckoned as")
    table.add_row("weights", f"{size.weights / 1e9:.1f}", f"2 bytes a parameter / {parallel} GPUs")
    share = f"{cluster.engine_memory:.0%} of {cluster.gpu_memory_gb:.0f} less the weights"
    table.add_row("keys and values", f"{size.cache / 1e9:.1f}", f"{share}; {size.token:,} bytes a token")
    held = count * size.tokens
    whole = f"{held // plan.context:,} contexts of {plan.context:,}"
    table.add_row("tokens", f"{held:,}", f"in all servers ({count}): {whole}")
    return table


def _step(plan: Plan) -> Table:
    step, boxes = plan.step, plan.boxes
    table = _table("one step, at most", "", "")
    if step.attempts:
        table.add_row("attempts", f"{step.attempts:,}", f"of up to {plan.context:,} tokens a context")
        table.add_row("tokens sampled", f"{step.sampled:,}", "")
    table.add_row("tokens trained on", f"{step.computed:,}", "if no two rows began alike")
    table.add_row("micro-batches a rank", f"{step.passes:,}", ranks_text(plan.train.ranks))
    if boxes is not None:
        where = f"{boxes.each} on each node of {boxes.nodes}" if boxes.nodes else "on this machine"
        table.add_row("boxes at once", f"{boxes.at_once:,}", f"{where}; room for {boxes.room:,}")
        table.add_row("memory of boxes", f"{boxes.memory_gb:.0f} GB", "on each, if all take their limit")
    return table


def _missing(plan: Plan) -> str:
    if not plan.missing:
        return "nothing is missing on this machine"
    return "\n".join(["missing on this machine", *(f"- {line}" for line in plan.missing)])


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=len(title))
    table.add_column("")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if column in ("who", "reckoned as") or place else "right")
    return table
