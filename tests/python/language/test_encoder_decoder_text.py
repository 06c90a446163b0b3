"""Encoder-decoder models answer texts: from Python, from the command, and with features of a recording."""

import json

import numpy as np
import pytest
from accord_command import accord as command

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.numpy")

from sequence_models import START, greedy_answer, sequence_model, sources  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

import accord  # noqa: E402

TOKENS = 12
TEXT = "The lazy fox jumps."


@pytest.fixture(scope="module")
def reader(text_model, tmp_path_factory):
    """A T5 whose tokenizer is that of the shared text model, and its package."""
    model = sequence_model("t5", vocab_size=len(text_model.tokenizer))
    folder = tmp_path_factory.mktemp("reader")
    return model, accord.export(model, path=folder / "t5.accord", sharding="auto", tokenizer=text_model.path.parent)


@pytest.fixture(scope="module")
def listener(text_model, tmp_path_factory):
    model = sequence_model("whisper", vocab_size=len(text_model.tokenizer))
    folder = tmp_path_factory.mktemp("listener")
    return model, accord.export(
        model, path=folder / "whisper.accord", sharding="auto", tokenizer=text_model.path.parent
    )


def text_of(text_model, tokens):
    return text_model.tokenizer.decode(tokens, skip_special_tokens=True)


def ids_of(text_model, text, *, special=True):
    return np.array(text_model.tokenizer(text, add_special_tokens=special).input_ids)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_text_is_the_source(ranks, reader, text_model):
    model, path = reader
    texts = [TEXT, "One two three", "Ça va?"]
    expected = [text_of(text_model, greedy_answer(model, ids_of(text_model, text), TOKENS)) for text in texts]
    found = on_threads(ranks, lambda comm: accord.generate(path, texts, comm=comm, max_new_tokens=TOKENS))[0]
    assert [answer.text for answer in found] == expected
    assert [answer.prompt_tokens for answer in found] == [len(ids_of(text_model, text)) for text in texts]


def test_an_answer_may_begin_with_other_tokens(reader, text_model):
    model, path = reader
    start = (START, 7, 9)
    expected = greedy_answer(model, ids_of(text_model, TEXT), TOKENS, start)
    found = accord.generate(path, TEXT, start_tokens=list(start), max_new_tokens=TOKENS)
    assert found.text == text_of(text_model, expected)


def test_features_are_the_source_and_a_text_begins_the_answer(listener, text_model):
    model, path = listener
    (source,) = sources(model, (1,))
    start = ids_of(text_model, "<s>The", special=False).tolist()
    assert start[0] == 0
    for text, tokens in (("", (START,)), ("<s>The", tuple(start))):
        expected = text_of(text_model, greedy_answer(model, source, TOKENS, tokens))
        assert accord.generate(path, text, source=source, max_new_tokens=TOKENS).text == expected
    with pytest.raises(accord.InvalidArgument, match='the source of the request: input "input_features"'):
        accord.generate(path, "no features")


def test_the_command_reads_a_text_or_a_file(reader, listener, text_model, tmp_path):
    model, path = reader
    expected = text_of(text_model, greedy_answer(model, ids_of(text_model, TEXT), TOKENS))
    result = command("engine", "generate", path, "--prompt", TEXT, "--ranks", 2, "--max-new-tokens", TOKENS, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["text"] == expected

    model, path = listener
    (source,) = sources(model, (1,))
    safetensors.save_file({"features": source}, tmp_path / "source.safetensors")
    arguments = ["--source", tmp_path / "source.safetensors", "--max-new-tokens", TOKENS, "--json"]
    result = command("engine", "generate", path, *arguments)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["text"] == text_of(text_model, greedy_answer(model, source, TOKENS))
    safetensors.save_file({"features": source, "more": source}, tmp_path / "source.safetensors")
    result = command("engine", "generate", path, *arguments)
    assert result.returncode == 1
    assert "it has 2 tensors; expected the encoder's input" in result.stderr
