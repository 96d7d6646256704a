"""The tokens of an attempt, exactly as sampled, and what training made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from patchwright.store import Run
from patchwright.train.advantage import STEP
from patchwright.types import Outcome, Trajectory
from patchwright.view.shelf import Book

__all__ = ["token_record"]

Json = dict[str, Any]

_REWARDS = ("algorithm", "reward_resolved", "reward_unresolved", "on_cheat", "scores")
"""What an advantage depends on, of the options of reinforcement learning."""
_IN_GROUP = frozenset({"std", "mean", "rloo", STEP})
"""Advantages that a group alone decides. Others need the whole round, or are code that the run names: what is
only looked at must not run code."""


def token_record(book: Book, trajectory: Trajectory) -> Json:
    """Turn by turn, the prompt's ids after the parent's, the sampled ids, their log-probs and versions, the
    advantage; and the text of every id, where a tokenizer is at hand."""
    advantage = _advantage(book, trajectory)
    turns = [
        {
            "id": turn.id,
            "parent": turn.parent,
            "prompt": list(turn.prompt_ids),
            "sampled": list(turn.completion_ids),
            "logprobs": [round(value, 4) for value in turn.logprobs],
            "version": turn.version,
            "versions": list(turn.versions),
            "train": turn.train,
            "drift": list(turn.drift),
            "advantage": advantage.get(turn.id) if isinstance(advantage, Mapping) else advantage,
        }
        for turn in trajectory.turns
    ]
    ids = {number for turn in trajectory.turns for number in (*turn.prompt_ids, *turn.completion_ids)}
    return {"turns": turns, "texts": _texts(book, ids)}


def _texts(book: Book, ids: Iterable[int]) -> dict[int, str]:
    """Id -> text, by the run's own tokenizer; nothing where there is none."""
    file = _tokenizer_file(book)
    if file is None:
        return {}
    speak = _tokenizer(str(file))
    return {number: speak.decode([number], skip_special_tokens=False) for number in ids} if speak else {}


@lru_cache(maxsize=4)
def _tokenizer(file: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(file)
    except Exception:  # the library raises nothing narrower, and the view goes on without texts
        return None


def _tokenizer_file(book: Book) -> Path | None:
    """In the run's own weights, or in the model it was given."""
    if not isinstance(book, Run):
        return None
    latest = book.latest("weights")
    named = book.config.get("model")
    places = [latest[1]] if latest else []
    if isinstance(named, str):
        places += [Path(named), book.path / named]
    files = [place / "tokenizer.json" for place in places]
    return next((file for file in files if file.is_file()), None)


def _advantage(book: Book, trajectory: Trajectory) -> float | dict[int, float] | None:
    """As its run computed it, in its group, if it was one of reinforcement learning."""
    entry = book.entry(trajectory.id)
    if not isinstance(book, Run) or entry is None or entry.stage != "rl" or "rl" not in book.config:
        return None
    from pydantic import ValidationError

    from patchwright.errors import ConfigError
    from patchwright.recipes.policy import shares
    from patchwright.recipes.rl_config import RlConfig

    try:
        told = book.config["rl"]
        config = RlConfig.model_validate({key: told[key] for key in _REWARDS if key in told})
        algorithm = config.method
    except (ConfigError, ValidationError, TypeError):  # another version's
        return None
    if algorithm.advantage not in _IN_GROUP:
        return None
    same = book.trajectories(stage=entry.stage, step=entry.step, task=entry.task_id)
    group = [one for one in same if one.group == trajectory.group]
    worth = {Outcome.RESOLVED: config.reward_resolved, Outcome.UNRESOLVED: config.reward_unresolved}
    [found] = shares([group], worth, algorithm, config.on_cheat)
    mine = next(share for one, share in zip(group, found, strict=True) if one.id == trajectory.id)
    return dict(mine) if isinstance(mine, Mapping) else mine
