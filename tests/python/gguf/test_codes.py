"""Quantized types of GGUF that packages keep in their bits: the same numbers as the package gguf computes, in about as
many bytes, on any number of ranks."""

import importlib

import numpy as np
import pytest
from export_reference import read_json, read_tensors
from gguf_files import BLOCK_SCALES, gguf, logits_of, logits_of_engine, make_model, random_blocks, write
from text_model import torch, transformers

import accord

CODES = importlib.import_module("accord.gguf.codes").CODES
OUT, IN = 80, 768


def blocks_of(name: str) -> np.ndarray:
    """Returns a matrix [OUT, IN] in the type's blocks: [OUT, bytes]."""
    kind = gguf.GGMLQuantizationType[name]
    if name in BLOCK_SCALES:
        return random_blocks(kind, (OUT, IN))
    return gguf.quantize(np.random.default_rng(1).standard_normal((OUT, IN), np.float32), kind)


class Layers(torch.nn.Module):
    """A layer that may be divided by its inputs, behind one that changes nothing and provides them."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.same, self.layer = torch.nn.Linear(IN, IN, bias=False), torch.nn.Linear(IN, OUT, bias=False)
        self.same.weight, self.layer.weight = torch.nn.Parameter(torch.eye(IN)), torch.nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.same(x))


@pytest.mark.parametrize("name", CODES)
def test_products_and_packages_have_the_numbers_of_the_file(name, tmp_path):
    blocks, kind = blocks_of(name), gguf.GGMLQuantizationType[name]
    codes = CODES[name](blocks.reshape(OUT, -1, gguf.GGML_QUANT_SIZES[kind][1]))
    weight = torch.from_numpy(gguf.dequantize(blocks, kind).copy())
    one_hot = torch.eye(IN)
    # Units of inputs: none, parts of groups, whole super-groups, parts of one, and parts of several.
    units = [(None, "int8"), (24, None), (256, "int8"), (64, "int8"), (96, "float32")]
    for unit, scales in units if codes.super_scales is not None else units[:2]:
        sharding = {"same": accord.Column(unit=unit), "layer": accord.Row(unit=unit)} if unit else None
        path = accord.export(
            Layers(weight).eval(), (one_hot,), path=tmp_path / "m.accord", weights={"layer": codes}, sharding=sharding
        )
        (entry,) = (one for one in read_json(path, "manifest.json")["tensors"] if one["name"] == "layer.weight")
        packed = entry["packed"]
        expected = codes.scale_type if scales and codes.super_scales is None else scales
        assert (packed["type"], packed.get("scales")) == (codes.type if scales else "float32", expected)
        assert entry["packed"].get("error", 0.0) == 0.0
        assert torch.equal(read_tensors(path)["layer.weight"], weight)
        with accord.load(path) as engine:
            product = torch.from_dlpack(engine.run(one_hot.numpy())[0]).clone()
        assert torch.equal(product, weight.T), f"units of {unit}"


# Bytes of a package for each of the file, for types whose codes become wider.
WIDER = {"Q2_K": 1.96, "Q3_K": 1.33, "MXFP4": 1.06}


@pytest.mark.parametrize("name", CODES)
def test_a_package_is_about_as_large_as_the_file(name, text_model, tmp_path):
    model = make_model(len(text_model.tokenizer))
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, (name,))
    path = accord.export_gguf(file, path=tmp_path / "model.accord", sharding=None)
    of_file = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors)
    of_package = 0
    for weights in path.glob("*.safetensors"):
        data = weights.read_bytes()
        of_package += len(data) - 8 - int.from_bytes(data[:8], "little")
    ratio = of_package / of_file / WIDER.get(name, 1.0)
    assert 0.98 < ratio < (1.01 if name in WIDER else 1.05)


def run_on_a_rank(comm, path: str, ids: np.ndarray) -> np.ndarray:
    with accord.load(path, {"tp": comm}) as engine:
        return np.array(engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_model_of_one_type_matches_transformers_on_two_ranks(name, tied, text_model, tmp_path, ranks):
    model = make_model(len(text_model.tokenizer), tie_word_embeddings=tied)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, (name,))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    assert {tensor["type"] for tensor in accord.inspect(path)["quantized"]} == {f"int{name[1]}"}
    ids = np.random.default_rng(0).integers(0, len(text_model.tokenizer), 50)
    expected = logits_of(reference, ids)
    torch.testing.assert_close(logits_of_engine(path, ids), expected, rtol=1e-4, atol=1e-5)
    for logits in ranks(2).run(run_on_a_rank, str(path), ids):
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-5)


def test_new_weights_are_rounded_to_the_formats_of_the_file(text_model, tmp_path):
    model = make_model(len(text_model.tokenizer), tie_word_embeddings=True)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, ("Q6_K", "Q5_K"))
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    ids = np.random.default_rng(0).integers(0, len(text_model.tokenizer), 50)
    with accord.load(path) as engine:
        engine.load_weights(model.state_dict())
        logits = torch.from_dlpack(engine.run(ids, np.arange(50), np.arange(50))[0]).clone()
    expected = logits_of(model, ids)
    assert (logits - expected).norm() < 0.15 * expected.norm()
