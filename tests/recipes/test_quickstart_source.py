"""The quickstart's tasks from a library: made once, read again."""

import asyncio
import io
import tarfile
from types import SimpleNamespace

from rich.console import Console

from patchwright.config import load_config
from patchwright.recipes.progress import View
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.quickstart.tasks import task_sets
from patchwright.sandbox.namespace import NamespaceBackend

FILES = {
    "PKG-INFO": "Name: shortlib\n",
    "shortlib.py": "def double(x):\n    return x * 2\n\n\ndef halve(x):\n    return x // 2\n",
    "test_shortlib.py": (
        "import shortlib\n\n\ndef test_double():\n    assert shortlib.double(3) == 6\n\n\n"
        "def test_halve():\n    assert shortlib.halve(7) == 3\n"
    ),
}


def test_a_library_named_as_source_gives_a_set_of_its_own(tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    with tarfile.open(links / "shortlib-1.0.tar.gz", "w:gz") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"shortlib-1.0/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    variables = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    small = ["experts.waves=1", "experts.per_wave=2", "tokenizer.attempts=2", "rl_tasks=2"]
    small += ["evaluation.tasks=1", "evaluation.harder_tasks=1", "source_tasks=2"]
    config = load_config(QuickstartConfig, None, [*small, "source=pypi:shortlib==1.0"])

    async def run():
        backend, view = NamespaceBackend(), View(Console(file=io.StringIO()))
        try:
            first = await task_sets(config, SimpleNamespace(path=tmp_path), backend, view)
            return first, await task_sets(config, SimpleNamespace(path=tmp_path), backend, view)
        finally:
            await backend.close()

    first, second = asyncio.run(run())
    assert first == second and len(first.library) == 2 and len(first.rl) == 2
    assert {task.meta["function"] for task in first.library} <= {"double", "halve", "double, halve"}
