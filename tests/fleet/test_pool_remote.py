"""The `remote` sandbox on two real nodes: the conformance suite, and the whole line."""

import asyncio
import json
from dataclasses import replace

import pytest
from tests.fleet.pool_processes import Fleet

from patchwright.errors import SandboxError
from patchwright.recipes.agents import AgentConfig
from patchwright.recipes.assembly import LineConfig, SandboxConfig, open_boxes
from patchwright.recipes.check import sandbox_conformance
from patchwright.recipes.progress import View
from patchwright.recipes.rollout import run_expert
from patchwright.render import CHATML
from patchwright.sandbox.check import CHECKS, run_check
from patchwright.tasks.files import dump_tasks
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

TEST = b"from mod import double\n\n\ndef test_double():\n    assert double(5) == 10\n"
THROUGH_POOL = (
    "exit_codes",
    "standard_input",
    "files_round_trip",
    "cancelled_command",
    "missing_files",
    "closing",
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.stop()


def where(fleet, *, direct=True):
    return SandboxConfig(use="remote", pool=fleet.pool.url, token_file=str(fleet.token_file), direct=direct)


def check_one(config, check):
    async def run():
        async with open_boxes(config) as backend:
            return await run_check(check, backend)

    return asyncio.run(run())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_remote_boxes_conform(fleet, check):
    result = check_one(where(fleet), check)
    assert result.ok and not result.skipped, result.detail


@pytest.mark.parametrize("name", THROUGH_POOL)
def test_remote_boxes_conform_through_the_pool(fleet, name):
    check = next(check for check in CHECKS if check.__name__ == name)
    result = check_one(where(fleet, direct=False), check)
    assert result.ok, result.detail


def test_the_command_finds_the_pool_by_its_options(fleet, tmp_path):
    missing = [f"token_file={tmp_path / 'none'}", f"pool={fleet.pool.url}"]
    with pytest.raises(Exception, match="there is no token file"):
        asyncio.run(sandbox_conformance("remote", overrides=missing))


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "through the pool"])
def test_a_patch_is_taken_in_one_box_and_judged_in_another(fleet, direct):
    async def run():
        async with fleet.client(direct=direct) as client:
            work, judge = await asyncio.gather(client.allocate("host"), client.allocate("host"))
            for lease in (work, judge):
                await client.write(lease, "mod.py", b"def double(x):\n    return x + 2\n")
                await client.write(lease, "test_mod.py", TEST)
                assert (
                    await client.exec(lease, "git init -q && git add -A && git commit -qm base")
                ).code == 0
            await client.exec(work, "sed -i 's/x + 2/x * 2/' mod.py; printf '\\0\\1' > new.bin")
            patch = (await client.diff(work)).patch
            assert "return x * 2" in patch and "new.bin" in patch
            before = await client.evaluate(
                judge, "", "pytest -q -rA", fail_to_pass=("test_mod.py::test_double",)
            )
            after = await client.evaluate(
                judge, patch, "pytest -q -rA", fail_to_pass=("test_mod.py::test_double",)
            )
            assert (before.resolved, after.resolved) == (False, True)
            copy = await client.fork(judge)
            assert (await client.exec(copy, "cat mod.py")).output.endswith("return x * 2\n")
            with pytest.raises(SandboxError):
                await client.exec(replace(work, token="somebody-elses-token", lease_id="x"), "true")
            await asyncio.gather(*(client.close(lease) for lease in (work, judge, copy)))

    asyncio.run(run())


def test_the_whole_line_runs_on_the_nodes(fleet, tmp_path):
    """The scripted expert on six tasks: nothing but the section of the sandbox says that boxes are remote."""
    tasks = synthesize(SynthesisConfig(sft=6, rl=0, held_out=0, harder=0))["sft"]
    dump_tasks(tmp_path / "tasks.jsonl", tasks)
    save_tokenizer(train_tokenizer([], vocab_size=260), tmp_path / "tokenizer", chat_template=CHATML)
    config = LineConfig(sandbox=where(fleet), agent=AgentConfig(system="", instance="{{ task.prompt }}"))
    work = run_expert(config, tmp_path / "tasks.jsonl", tmp_path / "tokenizer", tmp_path / "run", View())
    found = asyncio.run(work)
    assert (found.resolved, found.total, found.void) == (6, 6, 0)
    audit = (fleet.folder / "state" / "patchwright" / "node-audit.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["what"] == "create" for line in audit) >= 12
