"""Writes small checkpoints of packed integers by the formulas of their formats, bit by bit. Requires torch,
transformers and safetensors."""

import json
from pathlib import Path

import numpy as np
import pytest
from export_reference import read_tensors
from float8_answers import IDS, logits_of, run_on_a_rank

import accord

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


def in_words(numbers: np.ndarray, bits: int) -> torch.Tensor:
    """Packs the numbers of each row one after the other into words of 32 bits, from the lowest bit up: Python's
    integers of any size."""
    rows = []
    for row in numbers.tolist():
        whole = sum(number << bits * place for place, number in enumerate(row))
        rows.append([whole >> 32 * word & 0xFFFFFFFF for word in range(-(-len(row) * bits // 32))])
    return torch.from_numpy(np.array(rows, np.uint32).view(np.int32))


class Layer:
    """A layer's random codes, zeros and scales, and its numbers."""

    def __init__(self, name: str, weight: torch.Tensor, bits: int, group: int, *, symmetric: bool, dtype):
        random = np.random.default_rng(len(name) + weight.shape[1])
        outputs, inputs = weight.shape
        self.name, self.bits = name, bits
        self.group = inputs if group == -1 else group
        groups = -(-inputs // self.group)
        self.codes = random.integers(0, 1 << bits, (outputs, inputs))
        zeros = random.integers(1, 1 << bits, (outputs, groups))
        self.zeros = np.full((outputs, groups), 1 << (bits - 1)) if symmetric else zeros
        size = float(weight.abs().max()) / (1 << bits)
        self.scales = ((torch.rand(outputs, groups) + 0.5) * size).to(dtype)
        self.group_of_input = np.arange(inputs) // self.group

    def numbers(self) -> torch.Tensor:
        rows = torch.arange(len(self.codes))[:, None]
        zeros = torch.from_numpy(self.zeros)[rows, self.group_of_input]
        return self.scales.float()[rows, self.group_of_input] * (torch.from_numpy(self.codes) - zeros).float()


def gptq_tensors(layer: Layer, *, first_format: bool) -> dict[str, torch.Tensor]:
    return {
        "qweight": in_words(layer.codes, layer.bits).t(),
        "qzeros": in_words((layer.zeros - first_format).T, layer.bits),
        "scales": layer.scales.t(),
        "g_idx": torch.from_numpy(layer.group_of_input.astype(np.int32)),
    }


def awq_tensors(layer: Layer) -> dict[str, torch.Tensor]:
    def packed(numbers: np.ndarray) -> torch.Tensor:  # [inputs or groups, outputs]
        eight = numbers.reshape(len(numbers), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return in_words(eight.reshape(numbers.shape), 4)

    return {"qweight": packed(layer.codes.T), "qzeros": packed(layer.zeros.T), "scales": layer.scales.t()}


def compressed_tensors(layer: Layer, *, packed: bool, symmetric: bool) -> dict[str, torch.Tensor]:
    half = 1 << (layer.bits - 1)
    tensors = {"weight_scale": layer.scales}
    if packed:
        tensors["weight_packed"] = in_words(layer.codes, layer.bits)
        tensors["weight_shape"] = torch.tensor(layer.codes.shape)
    else:
        tensors["weight"] = torch.from_numpy((layer.codes - half).astype(np.int8))
    if not symmetric and packed:
        tensors["weight_zero_point"] = in_words(layer.zeros.T, layer.bits).t()
    elif not symmetric:
        tensors["weight_zero_point"] = torch.from_numpy((layer.zeros - half).astype(np.int8))
    return tensors


@torch.no_grad()
def write_checkpoint(folder: Path, model, quantization: dict, tensors_of, make, skipped=("lm_head",), change=None):
    """Writes a checkpoint of the model, in float32 where it is not quantized. `make`: from a layer's name and weight
    to its Layer; `tensors_of`: the tensors of that. Returns the model of the numbers that the checkpoint stands for,
    and its tensors."""
    linears = {name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)} - set(skipped)
    tensors, numbers = {}, {}
    for name, tensor in model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer in linears and name.endswith(".weight"):
            made = make(layer, tensor)
            tensors |= {f"{layer}.{kind}": one for kind, one in tensors_of(made).items()}
            numbers[name] = made.numbers()
        else:
            tensors[name] = numbers[name] = tensor
    if change:
        change(tensors)
    write_tensors(folder, model, quantization, tensors)
    model.load_state_dict(numbers)
    return model.float().eval(), tensors


def write_tensors(folder: Path, model, quantization: dict, tensors) -> None:
    folder.mkdir()
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"], config["dtype"] = quantization, "float32"
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save_file(
        {name: one.clone().contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )


def check(ranks, path, model, kept=True):
    """Compares the package's numbers and logits with the model's. Returns the types of its quantized weights."""
    quantized = {one["tensor"]: one["type"] for one in accord.inspect(path)["quantized"]}
    linears = {f"{name}.weight" for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
    if kept:
        assert quantized.keys() == linears - {"lm_head.weight"}
    stored = read_tensors(path)
    for name, number in model.state_dict().items():
        if name in stored:
            torch.testing.assert_close(stored[name].float(), number, rtol=1e-6, atol=1e-7, msg=name)
    expected = logits_of(model)
    for size in (1, 2):
        for given in ranks(size).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), expected, rtol=2e-4, atol=2e-5)
    return set(quantized.values())
