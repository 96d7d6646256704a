"""A Hugging Face folder's tokenizer and chat template, read with `tokenizers` and `jinja2` alone.

`ChatTokenizer` has the surface the `renderers` library asks of a tokenizer, so that library's model
families work over it without `transformers`.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from patchwright.errors import AgentError, ConfigError

__all__ = ["CHATML", "ChatTokenizer"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML without a default system prompt: the chat template of the quickstart's own model. A turn ends
with `<|im_end|>`."""


_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError)
"""What a template raises over a conversation it was not written for."""


class ChatTokenizer:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Tokenizer, template: str, special: Mapping[str, str], name: str) -> None:
        self.name_or_path = name
        self.template = template
        self._tokenizer = tokenizer
        self._template = _compile(template, name)
        self._special = dict(special)
        added = tokenizer.get_added_tokens_decoder().values()
        self.all_special_tokens = sorted(token.content for token in added if token.special)
        self._defuse = re.compile("|".join(map(re.escape, self.all_special_tokens)) or r"(?!)")

    @classmethod
    def load(cls, path: str) -> ChatTokenizer:
        """Read a folder. Raises ConfigError when it, its tokenizer or its chat template is missing."""
        folder = Path(path)
        if not folder.is_dir():
            raise ConfigError(f"there is no model folder {path}; give the path of a Hugging Face folder")
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"{path} has no tokenizer.json; save the model's fast tokenizer there")
        config = read_json(folder / "tokenizer_config.json")
        template = _read_template(folder, config)
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"{file} cannot be read as a tokenizer: {error}; save it anew") from None
        return cls(tokenizer, template, _special_tokens(config), path)

    @property
    def unk_token_id(self) -> int | None:
        """Id of the unknown token, if there is one."""
        return self._id_of("unk_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token, if there is one."""
        return self._id_of("eos_token")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised. Lone surrogates become `?`."""
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeError, TypeError):
            text = text.encode("utf-8", "replace").decode()
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def decode(
        self,
        token_ids: Sequence[int] | int,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Text of token ids; the last option is accepted for compatibility and changes nothing."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Id of a token, or the ids of several; the unknown id (or None) where there is none such."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._tokenizer.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Ids (or, without `tokenize`, text) of a conversation."""
        text = self.apply(conversation, tools, add_generation_prompt)
        ids = self.encode(text) if tokenize else text
        return {"input_ids": ids} if return_dict else ids

    def apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Text of a conversation. Raises AgentError when the template refuses it (roles, order)."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except _REFUSALS as error:
            raise AgentError(f"the chat template refuses this conversation: {error}") from None

    def defuse(self, text: str) -> str:
        """`text` with the special tokens written in it broken by a zero-width space.

        What comes out of a box is hostile: a file that holds `<|im_end|>` must not end a turn.
        """
        return self._defuse.sub(lambda match: match[0][0] + "\u200b" + match[0][1:], text)

    def _id_of(self, name: str) -> int | None:
        token = self._special.get(name)
        found = None if token is None else self._tokenizer.token_to_id(token)
        return None if found is None else int(found)


# --- files ------------------------------------------------------------------------------------


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is absent. Raises ConfigError when it is broken."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as JSON: {error}; save it anew") from None
    return data if isinstance(data, dict) else {}


def _read_template(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    if not isinstance(template, str):
        raise ConfigError(
            f"{folder} has no chat template; add a chat_template.jinja (base models come without)"
        )
    return template


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` -> text and so on; a token is written as text or as an object with `content`."""
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


# --- jinja ------------------------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what is sampled; for rendering it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the class attribute jinja2 asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of the block, as it stands."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(template: str, name: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template of {name} is broken at line {error.lineno}: {error.message}"
        ) from None


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates mean it (`transformers` set the options and their order): not escaped for HTML,
    unlike jinja2's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
