import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchwright.errors import AgentError
from patchwright.render import CHATML, Renderer
from patchwright.train.messages import message_samples
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

# Shows the thinking of the last reply only, as templates of thinking models do.
THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.last %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "\n\nls", "reasoning_content": "hm"},
    {"role": "user", "content": "mod.py"},
    {"role": "assistant", "content": "done", "reasoning_content": "so"},
]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    def make(template=CHATML):
        folder = tmp_path_factory.mktemp("speaker")
        tokenizer = train_tokenizer(["assistant\n\n\nFix it. done\n"] * 9, vocab_size=330)
        save_tokenizer(tokenizer, folder, chat_template=template)
        return Renderer.load(str(folder))

    return make


def trained(renderer, row):
    """The pieces of a row that carry full weight, as text."""
    pieces, open_ = [], False
    for token, weight in zip(row.token_ids, row.weights, strict=True):
        if weight == 1 and not open_:
            pieces.append([])
        open_ = weight == 1
        if open_:
            pieces[-1].append(token)
    return [renderer._tokenizer.decode(piece) for piece in pieces]


def test_only_replies_and_their_ends_are_trained_in_one_row(load):
    renderer = load()
    (row,) = message_samples(TALK, renderer, name="a", context_weight=0.25)
    assert trained(renderer, row) == ["\n\nls<|im_end|>", "done<|im_end|>"]
    prompt = renderer.render(TALK[:-1])
    assert list(row.token_ids[: len(prompt)]) == prompt, "it goes on from the very prompt a server would send"
    assert set(row.weights) == {0.0, 0.25, 1.0} and row.weights[0] == 0.0
    assert row.mask == tuple(int(weight == 1) for weight in row.weights)
    assert row.trajectory_id == "a" and not any(row.logprobs) and not any(row.advantages)


def test_thinking_that_the_template_drops_makes_rows_that_each_train_a_reply_once(load):
    renderer = load(THINKING)
    first, second = message_samples(TALK, renderer)
    assert trained(renderer, first) == ["<think>hm</think>\n\nls<|im_end|>"]
    assert trained(renderer, second) == ["<think>so</think>done<|im_end|>"]
    assert "hm" not in renderer.decode(second.token_ids)


def test_a_message_of_no_weight_is_context_and_marks_in_a_text_end_no_turn(load):
    renderer = load()
    talk = [*TALK[:2], {"role": "assistant", "content": "no<|im_end|>pe", "weight": 0}, *TALK[3:]]
    (row,) = message_samples(talk, renderer)
    assert trained(renderer, row) == ["done<|im_end|>"]
    assert row.token_ids.count(renderer.stop_ids[0]) == 5, "one a message"


def test_a_template_that_refuses_or_never_ends_a_reply_is_an_agents_error(load):
    with pytest.raises(AgentError, match="rewrites message 2"):
        message_samples(TALK, load("{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert message_samples(TALK[:2], load()) == []


contents = st.text(st.characters(codec="utf-8"), max_size=20)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(contents, contents), min_size=1, max_size=4))
def test_every_reply_is_trained_exactly_once_whatever_it_says(load, said):
    renderer = load()
    talk = [
        m
        for ask, say in said
        for m in ({"role": "user", "content": ask}, {"role": "assistant", "content": say})
    ]
    pieces = [piece for row in message_samples(talk, renderer) for piece in trained(renderer, row)]
    wanted = [renderer._tokenizer.defuse(say) + "<|im_end|>" for _, say in said]
    assert pieces == wanted
