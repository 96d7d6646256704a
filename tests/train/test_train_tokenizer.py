import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from patchwright.errors import ConfigError
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

TURN = "<|im_start|>user\nFix mod.py: f(12) returns 3.<|im_end|>\n<|im_start|>assistant\nTHOUGHT: Read.\n"
CODE = "def add(a, b):\n    if a >= b:\n        return a + b\n    return 0\n"
PHRASES = ("THOUGHT: ", "\n```bash\n", "\n```", "<returncode>0</returncode>\n<output>\n")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = train_tokenizer([TURN + CODE] * 20, vocab_size=320, phrases=PHRASES)


def tokens(text):
    return TOKENIZER.encode(text).tokens


@given(
    st.text()
    | st.lists(st.sampled_from([*PHRASES, " ", "\n", "é", "Ġ", "😀", "\x00", "12", "<|im_end|>"])).map(
        "".join
    )
)
def test_any_text_survives_the_round_trip(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


def test_role_headers_and_phrases_are_few_tokens():
    assert len(tokens("<|im_start|>user\n")) <= 3
    assert len(tokens("<|im_start|>assistant\n")) <= 3
    assert all(tokens(phrase) == [phrase] for phrase in PHRASES)


def test_digits_stand_alone_and_an_indent_is_one_token():
    assert tokens("12345") == list("12345")
    assert len(tokens("\n    ")) == 1


def test_the_vocabulary_has_the_size_asked_for():
    sized = train_tokenizer([CODE * 3], vocab_size=264, phrases=("THOUGHT: ",))
    assert sized.get_vocab_size() == 265
    assert train_tokenizer([], vocab_size=260).get_vocab_size() == 259, "no text, no merges"


def test_autotokenizer_loads_what_was_saved(tmp_path):
    save_tokenizer(TOKENIZER, tmp_path, chat_template=CHAT)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded.apply_chat_template(
        [{"role": "user", "content": "Fix mod.py: é"}], add_generation_prompt=True, return_dict=False
    )
    assert ids == TOKENIZER.encode("<|im_start|>user\nFix mod.py: é<|im_end|>\n<|im_start|>assistant\n").ids
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.decode(ids) == "<|im_start|>user\nFix mod.py: é<|im_end|>\n<|im_start|>assistant\n"
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == loaded.eos_token_id


def test_phrases_that_would_not_survive_are_refused():
    with pytest.raises(ConfigError, match="ASCII"):
        train_tokenizer([], phrases=("é",))
    with pytest.raises(ConfigError, match="vocab_size is 100"):
        train_tokenizer([], vocab_size=100)
