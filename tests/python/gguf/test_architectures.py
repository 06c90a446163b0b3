"""GGUF files of every architecture give the logits of transformers' models."""

import numpy as np
import pytest
from gguf_files import logits_of, logits_of_engine, write
from gguf_models import MODELS, make_small
from text_model import torch
from tiers import mostly_slow

import accord


@pytest.mark.parametrize("name", mostly_slow(MODELS, "gpt-oss", "gemma3", "deepseek2 with sigmoid"))
def test_a_file_gives_the_logits_of_transformers(name, text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = make_small(name, vocabulary)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer)
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    wanted = logits_of(model, ids)
    torch.testing.assert_close(logits_of_engine(path, ids), wanted, rtol=1e-4, atol=1e-4)
