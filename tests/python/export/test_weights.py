"""Weights in the layout of matrix products: formats, errors, odd sizes. An independent reader of the layout provides
the expected values."""

import accord_command
import numpy as np
import pytest
from export_reference import read_json, read_tensors
from weights_model import IDS, Model, exported, on_a_rank, output

import accord

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_keep_their_dtype_and_their_values(tmp_path, dtype):
    path = exported(tmp_path, dtype=dtype)
    entries = {entry["name"]: entry for entry in read_json(path, "manifest.json")["tensors"]}
    assert entries["up.weight"]["packed"] == {"type": str(dtype).removeprefix("torch.")}
    assert entries["turned"]["packed"]["transposed"]
    assert "packed" not in entries["up.bias"]
    model = Model().to(dtype)
    tensors = read_tensors(path)
    for name, entry in entries.items():
        assert torch.equal(tensors[name], model.get_parameter(name)), name
        assert entry["offset"] % (64 if "packed" in entry else dtype.itemsize) == 0


FORMATS = {
    "int8": ("int8", 1 / 127),
    "int4": ("int4", 1 / 7.5),
    "int4 with minima": ({"*": accord.Int4(minima=True)}, 1 / 15),
    "int8 in groups of 32": ({"*": accord.Int8(group=32)}, 1 / 127),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("sharded", [False, True])
def test_quantized_weights_are_close_and_their_error_is_reported(tmp_path, name, sharded):
    weights, step = FORMATS[name]
    sharding = {"up": accord.Column(unit=32), "down": accord.Row(unit=32), "embed": "row", "head": "column"}
    path = exported(tmp_path, weights, sharding if sharded else None)
    model, tensors = Model(), read_tensors(path)
    quantized = {entry["tensor"]: entry for entry in accord.inspect(path)["quantized"]}
    assert set(quantized) == {"up.weight", "down.weight", "embed.weight", "turned"}
    if weights == "int4":
        assert quantized["embed.weight"]["type"] == "int8"  # the head
    for tensor, entry in quantized.items():
        given, stored = model.get_parameter(tensor).detach().double(), tensors[tensor].double()
        assert (stored - given).abs().max() <= 1.01 * step * given.abs().max()
        error = float((stored - given).square().sum().sqrt() / given.square().sum().sqrt())
        assert entry["error"] == pytest.approx(error, rel=1e-3)
        assert 0 < error < 1.5 * step
    # The engine computes with the stored weights.
    with torch.no_grad():
        for tensor in quantized:
            model.get_parameter(tensor).copy_(tensors[tensor])
        torch.testing.assert_close(output(path), model(IDS), rtol=1e-4, atol=1e-5)


def test_patterns_exclude_layers_and_the_first_match_decides(tmp_path):
    path = exported(tmp_path, {"down": "same", "up": accord.Int4(group=32), "*": "int8"})
    quantized = {entry["tensor"]: (entry["type"], entry["group"]) for entry in accord.inspect(path)["quantized"]}
    # 96 inputs cannot be divided into groups of 64.
    assert quantized == {"up.weight": ("int4", 32), "embed.weight": ("int8", 32), "turned": ("int8", 32)}
    text = accord_command.accord("engine", "inspect", path).stdout
    error = next(e["error"] for e in accord.inspect(path)["quantized"] if e["tensor"] == "up.weight")
    assert f"int4 in groups of 32, error {100 * error:.2f} %" in text


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("int5", r"'int5' is not a format of weights; did you mean \"int4\"|did you mean \"int8\""),
        ({"up": 4}, "4 is not a format of weights"),
        ({"upp": "int8"}, r'weights pattern "upp" decides no layer with packed weights; layers with near names: "up"'),
        ({"up": accord.Int4(group=48)}, "groups are of 32, 64 or 128"),
    ],
)
def test_an_unknown_weight_format_is_rejected(tmp_path, weights, message):
    with pytest.raises(accord.ExportError, match=message):
        exported(tmp_path, weights)


class Neighbours(torch.nn.Module):
    """Layers with the same input, which become one step if they are stored in the same format."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = torch.nn.Linear(96, 160), torch.nn.Linear(96, 80, bias=False)
        self.value, self.gate, self.up = (torch.nn.Linear(96, 80) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.silu(self.gate(x)) * self.up(x)
        return torch.cat([self.query(x) + 1, self.key(x) + 2, self.value(x) + 3], 1), y


@pytest.mark.parametrize(
    "weights",
    ["int4", {"key": "int4", "query": "int8", "value": "int8", "gate": accord.Int4(minima=True), "*": "same"}],
)
def test_layers_of_one_input_may_be_stored_in_different_formats(tmp_path, weights):
    model, x = Neighbours().eval(), torch.randn(7, 96, generator=torch.Generator().manual_seed(1))
    path = accord.export(model, (x,), path=tmp_path / "m.accord", weights=weights)
    tensors = read_tensors(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
        expected = model(x)
    with accord.load(path, threads=3) as engine:
        given = [torch.from_dlpack(output) for output in engine.run(x.numpy())]
        torch.testing.assert_close(given, list(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_the_last_unit_of_a_dimension_may_be_shorter(ranks, tmp_path, size):
    # 77 rows and outputs in units of 16; 160 outputs, and 160 inputs, in units of 48.
    sharding = {
        "embed": accord.Row(unit=16),
        "head": accord.Column(unit=16),
        "up": accord.Column(unit=48),
        "down": accord.Row(unit=48),
    }
    path = exported(tmp_path, sharding=sharding)
    with torch.no_grad():
        expected = Model()(IDS).numpy()
    for logits, read, shard in ranks(size).run(on_a_rank, str(path), IDS.numpy()):
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        assert read == shard
