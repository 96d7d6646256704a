"""`tasks synth` and `tasks validate`: tasks made, and found out about, in boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchwright.cli.exits import Exit
from patchwright.cli.options import (
    AsJson,
    ConfigFile,
    Image,
    Override,
    SandboxName,
    execute,
    output,
    print_json,
    view,
)

if TYPE_CHECKING:
    from patchwright.recipes.validate import Report

__all__ = ["synth", "validate"]

_STRATEGIES = "`mutate`, `remove`, `rewrite` (needs --model-url) or `combine`; repeatable."


def synth(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="`composed`, `pypi:NAME==VERSION`, a folder, or a git URL (URL@REVISION)."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of the task files.")],
    count: Annotated[int | None, typer.Option("--count", min=1, help="Tasks made from a library.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Bugs tried at once.")] = None,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="How often a test must say the same to count.")
    ] = None,
    strategy: Annotated[list[str] | None, typer.Option("--strategy", help=_STRATEGIES)] = None,
    model_url: Annotated[
        str | None,
        typer.Option("--model-url", metavar="URL", help="Endpoint that writes issues, rewrites."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The endpoint's name for the model.")] = None,
    sandbox: SandboxName = "namespace",
    image: Image = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Make bug-repair tasks: composed functions by the thousand, or bugs in a real library.

    The same command goes on where an interrupted one stopped.
    """
    from patchwright.config import load_config
    from patchwright.errors import ConfigError
    from patchwright.recipes.assembly import SandboxConfig
    from patchwright.recipes.synth import from_composed, from_library
    from patchwright.tasks.synth.config import LibraryConfig
    from patchwright.tasks.synthesis import SynthesisConfig

    given = {
        "count": count,
        "workers": workers,
        "repeat": repeat,
        "strategies": strategy,
        "model_url": model_url,
        "model": model,
    }
    flags = [f"{key}={_toml(value)}" for key, value in given.items() if value]
    if source == "composed":
        if flags:
            raise ConfigError(
                f"`composed` takes no {flags[0].partition('=')[0]}; give the sizes of its sets: `-s rl=100`"
            )
        made = from_composed(load_config(SynthesisConfig, config, override or ()), out, view())
    else:
        wanted = load_config(LibraryConfig, config, [*(override or ()), *flags])
        boxes = SandboxConfig(use=sandbox, image=image or "")
        made = execute(from_library(source, wanted, boxes, out, view()))
    if as_json:
        print_json({"files": made})


def _toml(value: object) -> str:
    import json

    return json.dumps(value)


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of tasks, one JSON object a line.")],
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="How often solution and nothing are graded.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Tasks examined at once.")] = 4,
    first: Annotated[int | None, typer.Option("--first", min=1, help="Only the first so many tasks.")] = None,
    sandbox: SandboxName = "namespace",
    image: Image = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    override: Override = None,
) -> None:
    """Examine tasks in boxes and write into the file whether each is valid, flaky, hackable or broken.

    Exit code 1 when one is broken or flaky, or has no verdict for a fault of this machine. The same command
    goes on where an interrupted one stopped.
    """
    from patchwright.config import load_config
    from patchwright.recipes.assembly import SandboxConfig
    from patchwright.recipes.validate import validate_file
    from patchwright.tasks.trust import HACKABLE, VALID, TrustConfig

    flags = [f"repeat={repeat}"] if repeat else []
    wanted = load_config(TrustConfig, config, [*(override or ()), *flags])
    boxes = SandboxConfig(use=sandbox, image=image or "")
    report = execute(validate_file(file, wanted, boxes, view(), workers=workers, first=first))
    verdicts = {name: trust.verdict for name, trust in report.found.items()}
    if as_json:
        print_json({"verdicts": verdicts, "void": report.unjudged})
    else:
        _say(report)
    good = set(verdicts.values()) <= {VALID, HACKABLE} and not report.unjudged
    raise typer.Exit(Exit.DONE if good else Exit.FAILED)


def _say(report: Report) -> None:
    """Who is not valid and why, and how many there are of each."""
    from collections import Counter

    from patchwright.tasks.trust import VALID, VERDICTS

    console = output()
    for name, trust in report.found.items():
        if trust.verdict != VALID:
            console.print(f"{trust.verdict:<9}{name}: {trust.evidence['reason']}", soft_wrap=True)
    for name, reason in report.unjudged.items():
        console.print(f"void     {name}: {reason}", soft_wrap=True)
    counts = Counter(trust.verdict for trust in report.found.values())
    if report.unjudged:
        counts["void"] = len(report.unjudged)
    order = [verdict for verdict in (*VERDICTS, "void") if verdict in counts]
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in order))
