"""GGUF files of every architecture give the logits of transformers' models."""

import numpy as np
import pytest
from gguf_files import gguf, logits_of, logits_of_engine, write
from gguf_models import MODELS, make_small
from text_model import torch
from thread_ranks import on_threads
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


def rounded(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """Rounds the model's matrices as they are rounded in a file, where inputs are the last dimension."""
    kind = gguf.GGMLQuantizationType[kind]
    for name, weight in model.state_dict().items():
        if weight.dim() < 2 or "gate.weight" in name or "router" in name or "bias" in name:
            continue
        swapped = model.config.model_type == "gpt_oss" and "experts" in name
        rows = (weight.transpose(1, 2) if swapped else weight).contiguous().numpy()
        made = torch.from_numpy(gguf.dequantize(gguf.quantize(rows, kind), kind))
        weight.copy_(made.transpose(1, 2) if swapped else made)
    return model


# Layers whose matrices are codes, in each layer and besides; experts of a layer count as three.
KEPT = {"phi3": (7, 1), "mixtral": (7, 1), "qwen2moe": (10, 1), "gpt-oss": (7, 1), "gemma": (7, 1)}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("name", mostly_slow(KEPT, "gpt-oss"))
def test_quantized_matrices_of_fused_layers_and_experts_keep_their_bits(name, kind, text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = rounded(make_small(name, vocabulary), kind)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, (kind,))
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    quantized = accord.inspect(path)["quantized"]
    of_layers, besides = KEPT[name]
    assert len(quantized) == of_layers * model.config.num_hidden_layers + besides
    assert {tensor["error"] for tensor in quantized} == {0.0}
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    for logits in on_threads(2, lambda comm: logits_of_engine(path, ids, {"tp": comm})):
        torch.testing.assert_close(logits, logits_of(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_experts_in_other_types_are_converted(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = rounded(make_small("gpt-oss", vocabulary), "MXFP4")
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, ("MXFP4",))
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    torch.testing.assert_close(logits_of_engine(path, ids), logits_of(model, ids), rtol=1e-4, atol=1e-4)
