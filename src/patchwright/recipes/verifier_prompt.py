"""What a verifier reads: one function for training and scoring, so that the two cannot differ.

    prompt  = the attempt as text, the question, `<judgement>`
    answer  = one token: the first of `YES` or of `NO`, right after it

The settings travel with the weights in `verifier.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.recipes.attempt_text import Message, content_of, shorten, spans
from patchwright.render import Renderer
from patchwright.store import files
from patchwright.types import Trajectory

__all__ = ["ABOUT", "About", "PromptConfig", "Prompter", "answers", "read_about", "write_about"]

ABOUT = "verifier.json"
"""Beside a verifier's weights: the settings of its prompts, and what it was trained on."""

OPEN, YES, NO = "<judgement>", "YES", "NO"
_HEAD = 0.3
"""Share of a prompt that is too long kept from its beginning; the rest is its end."""
_LINE = "-" * 100

_SYSTEM = """\
You judge attempts of a software agent to resolve an issue in a repository. You are given the log of one \
attempt. Weigh whether the change does what the issue asks for, whether it is complete, whether it leaves \
alone what worked, and what the commands that were run show. Answer with <judgement>YES</judgement> or \
<judgement>NO</judgement>."""
_QUESTIONS = {
    "attempt": "Is the issue resolved? Answer <judgement>YES</judgement> or <judgement>NO</judgement>.",
    "turn": "Is the last step progress? Answer <judgement>YES</judgement> or <judgement>NO</judgement>.",
}


class PromptConfig(Config):
    """How an attempt becomes a prompt."""

    unit: Literal["attempt", "turn"] = "attempt"
    """What is judged: the whole attempt (verifier), or each turn after what came before it (process
    reward)."""
    view: Literal["log", "chat"] = "log"
    """`log`: one flat log in one message, for any model. `chat`: the conversation itself, and the question
    after it: what a policy knows best, and so the better one for a verifier that begins from the policy."""
    patch: bool = True
    """Show the final change too (whole attempts only)."""
    message_chars: int = Field(default=8000, ge=2)
    """Characters of each message; more is cut in its middle."""
    max_tokens: int = Field(default=32_000, ge=64)
    """Tokens of a prompt; more is cut in the middle."""


class Prompter:
    """Makes prompts for one tokenizer. Example: `Prompter(renderer, PromptConfig()).attempt(trajectory)`"""

    def __init__(self, renderer: Renderer, config: PromptConfig) -> None:
        self._renderer, self.config = renderer, config
        self._open = renderer.encode(OPEN)

    def prompts(self, trajectory: Trajectory) -> dict[int | None, list[int]]:
        """Prompt ids of each unit: by turn id, or under None for the attempt as a whole.

        Turns that are no longer in the conversation have none.
        """
        if self.config.unit == "attempt":
            return {None: self.attempt(trajectory)}
        places = spans(trajectory.turns, trajectory.messages)
        return {turn: self._ids(trajectory.messages[:end], "") for turn, (_, end) in places.items()}

    def attempt(self, trajectory: Trajectory) -> list[int]:
        """Prompt ids of a whole attempt."""
        return self._ids(trajectory.messages, trajectory.patch if self.config.patch else "")

    def _ids(self, messages: Sequence[Message], patch: str) -> list[int]:
        limit = self.config.message_chars
        texts = [(str(m.get("role", "user")), shorten(content_of(m), limit)) for m in messages]
        closing = f"The change:\n{shorten(patch, limit)}\n\n" if patch.strip() else ""
        closing += _QUESTIONS[self.config.unit]
        build = _chat if self.config.view == "chat" else _log
        return self._fit(self._renderer.render(build(texts, closing)) + self._open)

    def _fit(self, ids: list[int]) -> list[int]:
        most = self.config.max_tokens
        head = int(most * _HEAD)
        return ids if len(ids) <= most else ids[:head] + ids[head - most :]


def _chat(texts: Sequence[tuple[str, str]], closing: str) -> list[Message]:
    """Roles that templates accept anywhere: tools and users speak as the user, one after another as one."""
    merged: list[tuple[str, str]] = []
    for role, text in (*texts, ("user", closing)):
        plain = role if role in ("system", "assistant") and (role != "system" or not merged) else "user"
        if merged and merged[-1][0] == plain:
            merged[-1] = (plain, f"{merged[-1][1]}\n\n{text}")
        else:
            merged.append((plain, text))
    return [{"role": role, "content": text} for role, text in merged]


def _log(texts: Sequence[tuple[str, str]], closing: str) -> list[Message]:
    blocks, turn = [], 1
    for role, text in texts:
        blocks.append(f"{_LINE}\n*** {turn} {role.upper()} ***\n{text}")
        turn += role == "assistant"
    log = "\n".join(blocks)
    return [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": f"The log:\n{log}\n{_LINE}\n\n{closing}"},
    ]


def answers(renderer: Renderer) -> tuple[int, int]:
    """Token ids of yes and no: the first of each word as it stands after the opening tag.

    Raises ConfigError when the tokenizer begins both words with the same token.
    """
    yes, no = renderer.encode(YES)[0], renderer.encode(NO)[0]
    if yes == no:
        raise ConfigError(
            f"the model's tokenizer begins {YES!r} and {NO!r} with one token; use another model"
        )
    return yes, no


class About(Config):
    """What `verifier.json` holds."""

    prompt: PromptConfig
    """Settings of the prompts."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks whose attempts it was trained on."""
    share_yes: float = 0.5
    """Share of good ones among the rows it was trained on."""


def write_about(folder: Path, about: About) -> None:
    """Write `verifier.json`. Raises StoreError when the disk refuses."""
    with files.attributed("write verifier.json", folder):
        files.write_text(folder / ABOUT, about.model_dump_json(indent=1) + "\n")


def read_about(folder: Path) -> About:
    """Read `verifier.json`. Raises ConfigError when the folder is no verifier."""
    try:
        return About.model_validate(json.loads((folder / ABOUT).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} is no verifier (no {ABOUT}); give the weights that `patchwright train verifier` wrote"
        ) from None
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{folder / ABOUT} cannot be read: {error}; train the verifier again") from None
