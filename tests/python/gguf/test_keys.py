"""Keys of GGUF files are applied as llama.cpp applies them, or rejected by name; split files, damaged files."""

import math
import re

import numpy as np
import pytest
from gguf_files import logits_of, logits_of_engine, make_model, write
from text_model import CONTEXT, torch
from tiers import mostly_slow

import accord


def llama_cpp_frequencies(base: float, factor: float, longest: int, fast: float, slow: float) -> torch.Tensor:
    """Computes the rotary frequencies of a head of 32 as ggml's rope_yarn does: fast pairs keep their frequency, and
    the frequency of slow pairs is divided by the factor."""

    def dimension(turns: float) -> float:
        return 32 * math.log(longest / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0.0, math.floor(dimension(fast))), min(31.0, math.ceil(dimension(slow)))
    frequencies = []
    for pair in range(16):
        own = base ** (-2 * pair / 32)
        mix = 1 - min(1.0, max(0.0, (pair - low) / max(0.001, high - low)))
        frequencies.append(own / factor * (1 - mix) + own * mix)
    return torch.tensor(frequencies)


def turned(model: torch.nn.Module, frequencies=None, factor: float = 1.0, scale: float = 1.0) -> torch.nn.Module:
    """Changes the model's rotary frequencies, multiplies rotated queries and keys by a factor, and scales the
    attention scores."""
    if frequencies is not None:
        model.model.rotary_emb.inv_freq = frequencies
    for layer in model.model.layers:
        layer.self_attn.scaling *= factor * factor * scale
    return model


USUAL = 10000.0 ** (-torch.arange(0, 32, 2) / 32)
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
ORIGINAL = {"llama.rope.scaling.original_context_length": 64, "llama.rope.scaling.yarn_beta_fast": 16.0}
OF_YARN = 0.1 * math.log(4.0) + 1.0
APPLIED_KEYS = {
    "a factor without a type": ({"llama.rope.scaling.factor": 4.0}, {"frequencies": USUAL / 4}),
    "the old name of the factor": ({"llama.rope.scale_linear": 2.0}, {"frequencies": USUAL / 2}),
    "a factor of no type": ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, {}),
    "a factor of attention": ({"llama.rope.scaling.attn_factor": 1.5}, {"factor": 1.5}),
    "a scale": ({"llama.attention.scale": 0.5}, {"scale": 0.5 * 32**0.5}),
    "yarn": (
        YARN | ORIGINAL | {"llama.rope.scaling.yarn_attn_factor": 1.25},
        {"frequencies": llama_cpp_frequencies(10000.0, 4.0, 64, 16.0, 1.0), "factor": 1.25 * OF_YARN},
    ),
}


@pytest.mark.parametrize("key", mostly_slow(APPLIED_KEYS, "a scale", "yarn"))
def test_keys_are_applied_as_in_llama_cpp(key, text_model, tmp_path):
    keys, changes = APPLIED_KEYS[key]
    vocabulary = len(text_model.tokenizer)
    model = make_model(vocabulary, initializer_range=0.15)
    ids = np.random.default_rng(0).integers(0, vocabulary, 200)
    plain = logits_of(model, ids)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, keys=keys)
    expected = logits_of(turned(model, **changes), ids)
    assert bool(changes) == ((expected - plain).abs().max() > 0.1)
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    torch.testing.assert_close(logits_of_engine(path, ids), expected, rtol=1e-3, atol=1e-3)


REFUSED_KEYS = {
    "attention.causal": False,
    "attention.clamp_kqv": 8.0,
    "attention.sliding_window": 32,
    "attention.temperature_length": 8192,
    "attn_logit_softcapping": 50.0,
    "embedding_scale": 12.0,
    "expert_used_count": 2,
    "final_logit_softcapping": 30.0,
    "logit_scale": 0.0625,
    "pooling_type": 1,
    "residual_scale": 0.2,
    "rope.dimension_count": 16,
    "rope.scaling.type": "dynamic",
    "rope.scaling.yarn_attn_factor": 2.0,
    "tensor_data_layout": "column major",
    "use_parallel_residual": True,
    "attention.key_length_swa": 64,
    "attention.layer_indices": [1, 3],
    "rope.freq_base_swa": 1e6,
}


@pytest.fixture(scope="module")
def small_model(text_model):
    return make_model(len(text_model.tokenizer))


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_an_unsupported_key_is_named(key, small_model, text_model, tmp_path):
    file = write(tmp_path / "m.gguf", small_model, text_model.tokenizer, keys={f"llama.{key}": REFUSED_KEYS[key]})
    named = re.escape("dynamic" if key == "rope.scaling.type" else f"llama.{key}")
    with pytest.raises(accord.ExportError, match=f"m.gguf: .*{named}"):
        accord.export_gguf(file, path=tmp_path / "m.accord")


def test_keys_with_neutral_values_change_nothing(small_model, text_model, tmp_path):
    keys = {
        "attention.causal": True,
        "attention.clamp_kqv": 0.0,
        "attention.sliding_window": CONTEXT,
        "expert_count": 0,
        "logit_scale": 1.0,
        "rope.scaling.finetuned": False,
        "tensor_data_layout": "Meta AI original pth",
        "use_parallel_residual": False,
    }
    keys = {f"llama.{name}": value for name, value in keys.items()} | {"quantize.imatrix.chunks_count": 5}
    file = write(tmp_path / "m.gguf", small_model, text_model.tokenizer, keys=keys)
    ids = np.arange(40)
    path = accord.export_gguf(file, path=tmp_path / "m.accord")
    torch.testing.assert_close(logits_of_engine(path, ids), logits_of(small_model, ids), rtol=1e-4, atol=1e-5)


def test_all_parts_of_a_split_file_are_read(small_model, text_model, tmp_path):
    write(tmp_path / "m.gguf", small_model, text_model.tokenizer, split=8)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert [part.name for part in parts] == [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    ids = np.arange(40)
    path = accord.export_gguf(parts[1], path=tmp_path / "m.accord")
    torch.testing.assert_close(logits_of_engine(path, ids), logits_of(small_model, ids), rtol=1e-4, atol=1e-5)
    for found, message in (
        (
            parts[2].rename(tmp_path / "away.gguf"),
            r"is part 2 of 3 of a split file; not beside it: m-00003-of-00003.gguf",
        ),
        (tmp_path / "away.gguf", r"is part 3 of 3 of a split file, but is not named so .*llama-gguf-split --merge"),
    ):
        with pytest.raises(accord.ExportError, match=message):
            accord.export_gguf(parts[1] if "not beside" in message else found, path=tmp_path / "m.accord")
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(accord.ExportError, match=r'm-00003-of-00003.gguf has "split.no" 1 .*expected are 2 and 3'):
        accord.export_gguf(parts[0], path=tmp_path / "m.accord")
    parts[2].write_bytes((tmp_path / "away.gguf").read_bytes()[:-100])
    with pytest.raises(
        accord.ExportError, match=r"m-00003-of-00003.gguf is damaged, or its end is missing .*part 3 of 3"
    ):
        accord.export_gguf(parts[0], path=tmp_path / "m.accord")


def test_a_truncated_file_is_named(small_model, text_model, tmp_path):
    whole = write(tmp_path / "m.gguf", small_model, text_model.tokenizer).read_bytes()
    for size in (4, 7, 20, 100, 1000, len(whole) // 2, len(whole) - 40):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(accord.ExportError, match=rf"cut.gguf is damaged, or its end is missing \({size:,} bytes"):
            accord.export_gguf(tmp_path / "cut.gguf", path=tmp_path / "m.accord")


def test_a_tensor_whose_shape_contradicts_the_keys_is_named(small_model, text_model, tmp_path):
    file = write(tmp_path / "m.gguf", small_model, text_model.tokenizer, keys={"llama.feed_forward_length": 512})
    with pytest.raises(
        accord.ExportError, match=r'"blk.0.ffn_gate.weight" is \[256, 256\], but its keys make it \[512, 256\]'
    ):
        accord.export_gguf(file, path=tmp_path / "m.accord")
