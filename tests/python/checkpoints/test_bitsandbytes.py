"""Checkpoints of bitsandbytes, compared with PyTorch on the numbers of their formulas."""

import functools
import json

import numpy as np
import pytest
from packed_checkpoints import Layer, check, write_checkpoint
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

SIZES = {"hidden_size": 128, "intermediate_size": 512}
CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
Q = "model.layers.0.self_attn.q_proj"
# Quantiles of a normal distribution, and floats of a sign, two bits of exponent and one of mantissa.
NF4 = [-1, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0]
NF4 += [0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1]
FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
TABLES = {"nf4": torch.tensor(NF4), "fp4": torch.tensor(FP4 + [-one for one in FP4])}


class FourBits:
    """A layer's random codes and scales, and its numbers."""

    def __init__(self, name: str, weight: torch.Tensor, kind: str, *, nested: bool, block: int = 64):
        random = np.random.default_rng(len(name) + weight.shape[1])
        self.kind, self.nested, self.block, self.shape = kind, nested, block, list(weight.shape)
        self.codes = random.integers(0, 16, weight.numel())
        count = -(-weight.numel() // block)
        size = float(weight.abs().max())
        self.scales = torch.from_numpy(random.uniform(0.2, 1, count).astype(np.float32)) * size
        if nested:
            self.scale_codes = torch.from_numpy(random.integers(0, 256, count).astype(np.uint8))
            self.scale_table = torch.from_numpy(np.sort(random.uniform(-1, 1, 256)).astype(np.float32))
            self.largest = torch.from_numpy(random.uniform(0.2, 0.4, -(-count // 256)).astype(np.float32)) * size
            of_block = self.largest[torch.arange(count) // 256]
            self.offset = size
            self.scales = self.scale_table[self.scale_codes.long()] * of_block + self.offset

    def numbers(self) -> torch.Tensor:
        elements = TABLES[self.kind][torch.from_numpy(self.codes)]
        return (elements * self.scales[torch.arange(len(elements)) // self.block]).reshape(self.shape)


def tensors_of(layer: FourBits) -> dict[str, torch.Tensor]:
    state = {"quant_type": layer.kind, "blocksize": layer.block, "dtype": "float32", "shape": layer.shape}
    tensors = {"weight.absmax": layer.scales}
    if layer.nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": layer.offset}
        tensors = {
            "weight.absmax": layer.scale_codes,
            "weight.nested_absmax": layer.largest,
            "weight.nested_quant_map": layer.scale_table,
        }
    halves = layer.codes.reshape(-1, 2)
    return tensors | {
        "weight": torch.from_numpy((halves[:, 0] << 4 | halves[:, 1]).astype(np.uint8))[:, None],
        "weight.quant_map": TABLES[layer.kind],
        f"weight.quant_state.bitsandbytes__{layer.kind}": torch.tensor(list(json.dumps(state).encode())).byte(),
    }


def write_four_bits(folder, kind="nf4", *, nested=False, sizes=SIZES, **options):
    """Writes a small Llama in codes of four bits. Returns what write_checkpoint() does, which takes the `options`."""
    quantize = functools.partial(FourBits, kind=kind, nested=nested)
    return write_checkpoint(folder, make_small_llama(**sizes), CONFIG, tensors_of, quantize, **options)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("nested", [False, True])
def test_four_bits(ranks, tmp_path, kind, nested):
    model, _ = write_four_bits(tmp_path / "llama", kind, nested=nested)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    assert check(ranks, path, model) == {"table4"}


def test_blocks_that_end_inside_rows_become_smaller_groups(ranks, tmp_path):
    sizes = {"hidden_size": 96, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 512}
    model, _ = write_four_bits(tmp_path / "llama", sizes=sizes)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    check(ranks, path, model)
    groups = {one["tensor"].split(".")[-2]: one["group"] for one in accord.inspect(path)["quantized"]}
    assert (groups["q_proj"], groups["o_proj"], groups["down_proj"]) == (32, 16, 64)


def test_bfloat16_models_and_rows_in_8_bits(tmp_path):
    model, _ = write_four_bits(tmp_path / "llama")
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord", dtype="bfloat16")
    ids, rows = np.arange(7), np.arange(7)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).logits[0]
    of_options = []
    for options in ({}, {"activation_dtype": "int8"}):  # rows are not rounded for numbers that are not integers
        with accord.load(str(path), **options) as engine:
            given = engine.run(ids, rows, rows)[0]
            of_options.append(torch.from_dlpack(given).float())
    assert torch.equal(*of_options)
    assert float((of_options[0] - expected).abs().max()) < 0.03 * float(expected.abs().max())


def test_llm_int8(ranks, tmp_path):
    def tensors_of_int8(layer):
        codes = torch.from_numpy((layer.codes - 128).astype(np.int8))
        return {"weight": codes, "SCB": layer.scales[:, 0] * 127, "weight_format": torch.tensor(0, dtype=torch.uint8)}

    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        tensors_of_int8,
        lambda name, weight: Layer(name, weight, 8, -1, symmetric=True, dtype=torch.float32),
    )
    assert check(ranks, accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord"), model) == {"int8"}


def replaced(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


STATE = f"{Q}.weight.quant_state.bitsandbytes__nf4"
BROKEN = {
    "no scales": (lambda tensors: tensors.pop(f"{Q}.weight.absmax"), f'"{Q}.weight.absmax" is missing'),
    "too few codes": (replaced(f"{Q}.weight", lambda one: one[1:]), f'"{Q}.weight" has 8191 bytes, not the codes of'),
    "too few scales": (
        replaced(f"{Q}.weight.absmax", lambda one: one[1:]),
        rf'"{Q}.weight.absmax" is \[255\]: expected \[256\]',
    ),
    "a short table": (
        replaced(f"{Q}.weight.quant_map", lambda one: one[1:]),
        rf'"{Q}.weight.quant_map" is \[15\]: expected \[16\]',
    ),
    "no JSON": (replaced(STATE, lambda one: one[1:]), f'"{STATE}" is damaged'),
    "sizes": (
        replaced(STATE, lambda one: torch.tensor(list(b'{"shape": [128], "blocksize": 64}')).byte()),
        rf'"{STATE}" gives the shape \[128\]',
    ),
    "codes of scales": (
        replaced(f"{Q}.weight.absmax", lambda one: one.byte()),
        f'"{Q}.weight.nested_absmax" is missing',
    ),
    "another kind": (
        lambda tensors: tensors.update({f"{Q}.weight.quant_state.bitsandbytes__nf3": tensors.pop(STATE)}),
        f'the codes of "{Q}.weight" are "nf3"; did you mean "nf4"',
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_refused_by_name(tmp_path, case):
    change, message = BROKEN[case]
    write_four_bits(tmp_path / "llama", change=change)
    with pytest.raises(accord.ExportError, match=message):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")


def test_new_weights_are_rounded_to_the_table(tmp_path):
    write_four_bits(tmp_path / "llama")
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    other = make_small_llama(seed=1, **SIZES)
    ids, rows = np.arange(7), np.arange(7)
    with accord.load(str(path)) as engine:
        engine.load_weights(other.state_dict())
        logits = torch.from_dlpack(engine.run(ids, rows, rows)[0]).clone()
    with torch.no_grad():
        expected = other(torch.from_numpy(ids)[None]).logits[0]
    assert float((logits - expected).norm()) < 0.3 * float(expected.norm())
