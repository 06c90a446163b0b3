"""Text in, text out: accord.generate and LanguageModel.generate, compared with transformers."""

import gc
import re
import sys
from pathlib import Path

import accord_command
import numpy as np
import pytest
from text_model import CONTEXT, CONVERSATIONS, TEXTS

import accord

torch = pytest.importorskip("torch")
QUESTIONS = [conversation[:1] for conversation in CONVERSATIONS]
PROMPTS = ["The quick", "Ça", "One", "日", "", "étudient 👍🏽", *QUESTIONS, [*CONVERSATIONS[1], *QUESTIONS[2]]]


@pytest.fixture(scope="module")
def model(text_model):
    with accord.load(text_model.path) as engine:
        made = accord.LanguageModel.create(engine)
        yield made
        made.stop()


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_greedy_text_matches_transformers(text_model, model, prompt):
    made = accord.generate(model, prompt, max_new_tokens=40)
    assert made.text == str(made) == text_model.continued(prompt, 40)
    assert made.completion_tokens == len(text_model.tokens(prompt, 40))
    assert made.finish == "stop_token"


def test_a_stream_returns_whole_characters_and_no_special_tokens(text_model):
    (question,) = QUESTIONS[2]
    pieces = list(accord.generate(text_model.path, [question], stream=True))
    assert "".join(pieces) == TEXTS[3]
    assert len(pieces) > 5
    assert any("😀" in piece for piece in pieces)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        (["fox j"], " brown ", "stop_sequence"),
        (["lazy cat", "jumps"], " brown fox ", "stop_sequence"),
        (["dog.", "the lazy"], " brown fox jumps over ", "stop_sequence"),
        (["dog.?", "dogs"], " brown fox jumps over the lazy dog.", "stop_token"),
        ([" "], "", "stop_sequence"),
    ],
)
def test_stop_texts_are_found_across_tokens_and_removed(model, stop, text, finish):
    made = accord.generate(model, "The quick", stop=stop)
    assert (made.text, made.finish) == (text, finish)


def test_prompts_are_answered_together(text_model):
    with accord.load(text_model.path) as engine:
        made = accord.generate(engine, [*TEXTS[:2], *QUESTIONS], max_new_tokens=7)
        assert [answer.text for answer in made] == [
            text_model.continued(prompt, 7) for prompt in [*TEXTS[:2], *QUESTIONS]
        ]
        assert accord.generate(engine, "One", max_new_tokens=2).finish == "length"


def test_samples_of_a_prompt_stop_independently(model):
    options = {"samples": 6, "temperature": 2.5, "seed": 3, "max_new_tokens": 30}
    texts, plain = [""] * 6, [""] * 6
    for event in model.generate("One", **options):
        plain[event.sample] += event.text
    ends = 0
    stream = model.generate("One", stop=["t"], **options)
    for event in stream:
        texts[event.sample] += event.text
        ends += event.finish != ""
    assert ends == 6
    assert texts == [text.partition("t")[0] for text in plain]
    assert len(set(texts)) > 1
    assert stream.completion_tokens <= 6 * 30


def test_streams_keep_their_model_and_its_engine(text_model):
    def model():
        return accord.LanguageModel.create(accord.load(text_model.path))

    text = model().generate("The quick", max_new_tokens=40)
    tokens = model().submit(text_model.tokenizer("The quick").input_ids, max_new_tokens=5)
    # Dropped at once: the generation is cancelled, and its model is destroyed.
    model().generate("The quick", max_new_tokens=40)
    gc.collect()
    assert "".join(event.text for event in text) == text_model.continued("The quick", 40)
    assert [event.token for event in tokens] == text_model.tokens("The quick", 5)


def test_a_cancelled_stream_ends(model):
    stream = model.generate("One", temperature=3.0)
    next(stream)
    stream.cancel()
    *_, last = stream
    assert last.finish in ("cancelled", "stop_token")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("One", {"temprature": 1.0}, 'did you mean "temperature"'),
        ("One", {"stop": [""]}, "an empty stop text"),
        ("One", {"logprobs": 1}, "logprobs: only submit"),
        ("One", {"samples": 2}, "samples: LanguageModel.generate"),
        ("One " * CONTEXT, {}, "context"),
        ([{"role": "wizard", "content": "x"}], {}, "wizard"),
        ([], {}, "a conversation without messages"),
    ],
)
def test_an_invalid_request_is_rejected_and_the_model_stays_usable(model, prompt, options, message):
    with pytest.raises(accord.InvalidArgument, match=message):
        accord.generate(model, prompt, **options)
    assert accord.generate(model, "The quick", max_new_tokens=5).text == " brown fox"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("One", {"temperature": "hot"}, "temperature: expected a number, got 'hot'"),
        ("One", {"max_new_tokens": 1.5}, "max_new_tokens: expected a 32-bit integer, got 1.5"),
        ("One", {"max_new_tokens": 10**30}, "max_new_tokens: expected a 32-bit integer, got 1000"),
        ("One", {"seed": -1}, "seed: expected an unsigned 64-bit integer, got -1"),
        ("One", {"biases": {"one": 1}}, "biases: expected a dict of token ids and numbers"),
        ("One \ud800", {}, "prompt: expected a str, got one with lone surrogates"),
        ([1, 2], {}, "expected a list of messages, got a int"),
        ([{"role": "user", "content": ["x"]}], {}, "message 0: content: expected a str, got a list"),
    ],
)
def test_values_of_a_wrong_type_are_named(model, prompt, options, message):
    with pytest.raises(TypeError, match=message):
        accord.generate(model, prompt, **options)
    with pytest.raises(KeyError, match="message 0: content: a message is"):
        accord.generate(model, [{"role": "user"}])


def test_generating_text_without_a_tokenizer_is_an_error_that_names_the_option(text_model, tmp_path):
    bare = accord.export(text_model.model, path=tmp_path / "bare.accord")
    with accord.load(bare) as engine:
        model = accord.LanguageModel.create(engine)
        with pytest.raises(accord.NotFound, match="the package has no tokenizer.json: export with tokenizer="):
            model.generate("One")


def generate_on_a_rank(comm, path, questions):
    whole = accord.generate(path, questions, comm=comm, max_new_tokens=40)
    pieces = accord.generate(path, "One", comm=comm, stream=True)
    prompt = "One" if comm.rank == 0 else None  # the other ranks need no prompt
    drawn = accord.generate(path, prompt, comm=comm, temperature=2.0, seed=7, max_new_tokens=20)
    return [answer.text for answer in whole or []], list(pieces), drawn and drawn.text


def test_ranks_answer_together_and_rank_0_gets_the_text(ranks, text_model, model):
    (texts, pieces, drawn), others = ranks(2).run(generate_on_a_rank, str(text_model.path), QUESTIONS)
    assert others == ([], [], None)
    assert texts == [text_model.continued(question, 40) for question in QUESTIONS]
    assert "".join(pieces) == text_model.continued("One", 40)
    assert drawn == accord.generate(model, "One", temperature=2.0, seed=7, max_new_tokens=20).text
    assert drawn != accord.generate(model, "One", temperature=2.0, seed=8, max_new_tokens=20).text


def test_the_guide_generates_on_ranks_of_a_launcher(text_model, tmp_path):
    guide = (Path(__file__).parents[3] / "docs/language-models.md").read_text()
    (program,) = re.findall(r"^```python\n(import accord\n\nanswer = .*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "llama.accord").symlink_to(text_model.path)
    result = accord_command.accord("run", "-n", "2", sys.executable, "-c", program, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("[0] ") > 0
    assert "[1] " not in result.stdout


def test_a_prompt_may_be_an_array_or_a_tensor_but_not_text(model):
    prompts = [1, 2, 3], np.array([1, 2, 3]), torch.tensor([1, 2, 3])
    first, *others = ([event.token for event in model.submit(prompt, max_new_tokens=4)] for prompt in prompts)
    assert others == [first, first]
    for prompt, message in (
        ("text", r"prompt: expected a list of token ids, got 'text'; generate\(\) takes a text"),
        ([1.5], r"prompt: expected a list of token ids, got \[1.5\]"),
        (torch.ones(2, 2, dtype=torch.int64), "prompt: expected a list of token ids, got tensor"),
    ):
        with pytest.raises(TypeError, match=message):
            model.submit(prompt)
    with pytest.raises(accord.InvalidArgument, match="prompt: 4294967296 is not a token id"):
        model.submit([2**32])
