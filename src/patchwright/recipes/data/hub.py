"""A data set as a folder that the Hugging Face hub (and `datasets.load_dataset(FOLDER)`) takes as it is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from patchwright import __version__
from patchwright.errors import ConfigError
from patchwright.recipes.data.export import Request, Written, export_rows, form_of
from patchwright.recipes.progress import View
from patchwright.store import files

__all__ = ["export_hub", "upload"]

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_WHAT = {
    "sft": "Conversations of attempts that resolved their task, judged by the task's own tests.",
    "verifier": "Logs of attempts with the judgement of the task's own tests.",
    "prm": "Steps of attempts with a score each.",
    "slime": "Token ids, masks and log-probs of attempts, as sampled.",
}


def export_hub(request: Request, out: Path, view: View, *, license_: str = "other") -> Written:
    """Write `data/train.parquet` and a data set card into a folder that is new or was made by this.

    Raises ConfigError when the folder holds something else.
    """
    strangers = [p.name for p in out.iterdir() if p.name not in ("data", "README.md")] if out.is_dir() else []
    if strangers:
        raise ConfigError(f"{out} holds {strangers[0]!r}; give a new folder")
    written = export_rows(request, out / "data" / "train.parquet", view)
    with files.attributed("write the card", out):
        files.write_text(out / "README.md", _card(request, written, license_))
    view.say(f"{out}: ready to upload, or for datasets.load_dataset")
    return written


def _card(request: Request, written: Written, license_: str) -> str:
    form = form_of(request.kind, request.form)
    size = next((name for most, name in _SIZES if written.rows < most), "n>1M")
    selection = request.selection
    facts = [
        f"{written.rows} rows of {written.attempts} attempts",
        f"at most {selection.per_task} attempts a task" if selection.per_task else "no cap per task",
        f"at most {selection.max_tokens} tokens" if selection.max_tokens else "no limit of length",
        "held against a benchmark" if request.benchmark else "not held against a benchmark",
        *(f"left out: {count} {why}" for why, count in written.left_out.most_common()),
    ]
    return "\n".join(
        [
            "---",
            f"license: {license_}",
            "task_categories:",
            "- text-generation",
            "tags:",
            "- code",
            "- software-engineering",
            "- agent",
            "size_categories:",
            f"- {size}",
            "configs:",
            "- config_name: default",
            "  data_files:",
            "  - split: train",
            "    path: data/train.parquet",
            "---",
            "",
            f"# {request.kind} rows",
            "",
            _WHAT[request.kind],
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "| column | type |",
            "| --- | --- |",
            *(f"| `{name}` | {kind} |" for name, kind in form.columns.items()),
            "",
            f"Made by Patchwright {__version__}.",
            "",
        ]
    )


def upload(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload the folder to the hub as data set `OWNER/NAME`; returns its address. The token is the one
    `huggingface_hub` finds.

    Raises ConfigError when that library is missing, or when the hub refuses.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise ConfigError("uploading needs huggingface_hub; pip install 'patchwright[hub]'") from None
    try:
        api = hub.HfApi()
        api.create_repo(name, repo_type="dataset", private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=str(folder), repo_type="dataset"))
    except Exception as error:  # the network's, the hub's, or the library's own
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"the hub did not take {name} ({first[:200]}); check the name and your token"
        ) from None
