"""`bench engine`, `fleet`, `gateway`, `grading`, `rl`, `sandbox`, `scale`, `train`: what parts cost here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchwright.cli.options import AsJson, Image, Override, SandboxName, execute, output, print_json, view

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure the parts on this machine.")
Model = Annotated[
    Path | None, typer.Option("--model", help="Model folder; an untrained small model when not given.")
]


@app.command("engine")
def engine(model: Model = None, as_json: AsJson = False) -> None:
    """Sampled tokens per CPU-second, beside transformers' generate."""
    from patchwright.recipes.bench import engine_speeds, engine_table

    speeds = execute(engine_speeds(model), "bench engine")
    if as_json:
        print_json(speeds)
    else:
        output().print(engine_table(speeds))


@app.command("fleet")
def fleet(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes of our own pool.")] = 2,
    leases: Annotated[int, typer.Option("--leases", min=1, help="Episodes at once.")] = 15,
    commands: Annotated[int, typer.Option("--commands", min=1, help="Commands of each episode.")] = 20,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of every request, in turn.")] = 30,
    sandbox: SandboxName = "namespace",
    image: Annotated[str, typer.Option("--image", help="What every box is made from.")] = "host",
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="Another pool, measured beside ours by swe-rl's protocol; repeatable."),
    ] = None,
    seed_protocol: Annotated[
        bool, typer.Option("--seed-protocol", help="Measure ours by swe-rl's protocol too.")
    ] = False,
    simulated_nodes: Annotated[
        int, typer.Option("--simulated-nodes", min=0, help="Nodes of the pool with many leases; 0: none.")
    ] = 64,
    simulated_leases: Annotated[
        int, typer.Option("--simulated-leases", min=1, help="Leases it holds.")
    ] = 1000,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the figures too; `-` is stdout."),
    ] = None,
) -> None:
    """Leases on real nodes: latencies, commands per second, leaks; and a pool of many simulated nodes."""
    from patchwright.recipes.bench_fleet import FleetBench, bench_fleet

    config = FleetBench(
        nodes=nodes,
        leases=leases,
        commands=commands,
        rounds=rounds,
        sandbox=sandbox,
        image=image,
        urls=tuple(url or ()),
        seed_protocol=seed_protocol,
        simulated_nodes=simulated_nodes,
        simulated_leases=simulated_leases,
    )
    tables = execute(bench_fleet(config, json), "bench fleet")
    if json != Path("-"):
        output().print(tables)


@app.command("gateway")
def gateway(
    model: Model = None,
    history: Annotated[
        int, typer.Option("--history", min=1, help="Tokens before the turns measured.")
    ] = 32_000,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions at once.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """CPU time of a turn with a long history, recording alone and over HTTP; many sessions at once."""
    from dataclasses import asdict

    from patchwright.recipes.bench import gateway_cost, gateway_table

    cost = execute(gateway_cost(model, history_tokens=history, sessions=sessions), "bench gateway")
    if as_json:
        print_json(asdict(cost))
    else:
        output().print(gateway_table(cost))


@app.command("grading")
def grading(
    sandbox: SandboxName = "namespace",
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="How long the test sleeps.")] = 5.0,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Patches, one after the other.")] = 5,
    image: Image = None,
    as_json: AsJson = False,
) -> None:
    """What grading adds to the time of the test command."""
    from dataclasses import asdict

    from patchwright.recipes.bench_grading import grading_overhead, overhead_table

    found = execute(grading_overhead(sandbox, seconds=seconds, rounds=rounds, image=image), "bench grading")
    if as_json:
        print_json(asdict(found))
    else:
        output().print(overhead_table(found))


@app.command("rl")
def rl(
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", help="Run whose attempts' lengths are taken; a drawn long tail when not given."
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps played.")] = 60,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Groups of a step.")] = 16,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Attempts of a group.")] = 8,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Attempts in flight.")] = 256,
    capacity: Annotated[
        float, typer.Option("--capacity", min=1, help="Attempts the engine serves at full speed.")
    ] = 128,
    train_seconds: Annotated[
        float, typer.Option("--train-seconds", min=0, help="One step of the trainer.")
    ] = 240,
    load_seconds: Annotated[
        float, typer.Option("--load-seconds", min=0, help="Loading weights into the engine.")
    ] = 20,
    straggler_seconds: Annotated[
        list[float] | None,
        typer.Option("--straggler-seconds", min=0, help="A cut-off, a row each; 600 and 60 when not given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Steps an hour of synchronous and asynchronous training, simulated on lengths of attempts."""
    from patchwright.recipes.bench_rl import CUTS, compare_schedules, lengths_of, schedules_table
    from patchwright.recipes.rl_simulation import Plant
    from patchwright.recipes.schedule import Pace

    plant = Plant(
        pace=Pace(steps=steps, size=tasks),
        samples=samples,
        concurrency=concurrency,
        capacity=capacity,
        train_seconds=train_seconds,
        load_seconds=load_seconds,
    )
    with view().work("bench rl"):
        rows = compare_schedules(lengths_of(run), plant, straggler_seconds or CUTS)
    if as_json:
        print_json(rows)
    else:
        output().print(schedules_table(rows))


@app.command("scale")
def scale(
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Of the fleet's own time.")] = 120.0,
    as_json: AsJson = False,
    override: Override = None,
) -> None:
    """A large fleet, simulated from measured costs: `-s boxes=10000 -s nodes=625 -s think=10`."""
    from patchwright.config import load_config
    from patchwright.fleet.scale import Site, simulate
    from patchwright.recipes.scale_tables import load_table

    site = load_config(Site, None, override or ())
    with view().work("bench scale"):
        load = simulate(site, seconds=seconds)
    if as_json:
        print_json({"site": site.model_dump(), "load": load.model_dump()})
    else:
        output().print(load_table(site, load))


@app.command("sandbox")
def sandbox(
    name: Annotated[str, typer.Argument(help="`namespace`, `docker` or `process`.")] = "namespace",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Boxes opened, one after the other.")] = 30,
    image: Image = None,
    warm: Annotated[int, typer.Option("--warm", min=0, help="Docker: containers kept started.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Milliseconds to make a box, run commands, fork it once and 100 times, close it; what it holds idle."""
    from patchwright.recipes.bench import idle_megabytes, sandbox_table, sandbox_times

    times = execute(sandbox_times(name, rounds=rounds, image=image, warm=warm), f"bench sandbox {name}")
    idle = execute(idle_megabytes(name))
    if as_json:
        found = {"sandbox": name, "rounds": rounds, "warm": warm, "milliseconds": times}
        print_json({**found, "idle_megabytes": idle})
    else:
        output().print(sandbox_table(name, rounds, times, idle))


@app.command("train")
def train(
    shape: Annotated[
        str | None, typer.Option("--shape", help="`tiny`, `0.6B` or `4B`: tokens per second and MFU of it.")
    ] = None,
    length: Annotated[int, typer.Option("--length", min=64, help="With --shape: tokens of a row.")] = 16_384,
    attempts: Annotated[int, typer.Option("--attempts", min=2, help="With --shape: rows of a step.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Steps; the median counts.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Tokens per CPU-second beside a plain loop, and what sharing prefixes saves; or one model shape."""
    from patchwright.recipes.bench import train_figures, train_tables

    work = train_figures(shape, length=length, attempts=attempts, rounds=rounds)
    figures = execute(work, "bench train")
    if as_json:
        print_json(figures)
    else:
        for table in train_tables(figures):
            output().print(table)
