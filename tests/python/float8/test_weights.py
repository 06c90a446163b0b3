"""8-bit float weights as they are stored, and on the CPU. torch's own float8 provides the expected values."""

import shutil

import accord_command
import numpy as np
import pytest
from export_reference import changed_manifest, read_json, read_tensors
from float8_rounding import rounded
from weights_model import IDS, Model, exported, on_a_rank, output

import accord

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_are_the_nearest_numbers_and_their_error_is_reported(tmp_path, dtype, sharded):
    sharding = {"up": accord.Column(unit=48), "down": accord.Row(unit=48), "embed": "row", "head": "column"}
    path = exported(tmp_path, "fp8", sharding if sharded else None, dtype)
    model, tensors = Model().to(dtype), read_tensors(path)
    quantized = {entry["tensor"]: entry for entry in accord.inspect(path)["quantized"]}
    assert set(quantized) == {"up.weight", "down.weight", "embed.weight", "turned"}
    entries = {entry["name"]: entry for entry in read_json(path, "manifest.json")["tensors"]}
    for tensor, entry in quantized.items():
        given = model.get_parameter(tensor).detach()
        expected = rounded(given, 0 if tensor == "turned" else 1)
        assert torch.equal(tensors[tensor], expected.to(dtype)), tensor
        error = float((expected - given.double()).norm() / given.double().norm())
        assert entry["error"] == pytest.approx(error, rel=1e-3)
        assert (entry["type"], entry["group"], entry["minima"]) == ("float8_e4m3fn", 0, False)
        assert 0.01 < error < 0.04
        assert entries[tensor]["packed"].keys() - {"transposed"} == {"type", "scales", "error"}
    assert not sharded or len(entries["down.weight"]["xxh3"]) == 4  # the last unit has 16 of 48 inputs
    text = accord_command.accord("engine", "inspect", path).stdout
    assert f"float8_e4m3fn with a scale for each output, error {100 * quantized['up.weight']['error']:.2f} %" in text
    with torch.no_grad():  # the engine computes with the stored weights
        for tensor in quantized:
            model.get_parameter(tensor).copy_(tensors[tensor])
        exact = model.float()(IDS)
    bound = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(output(path).float(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_shard_outputs_and_inputs(ranks, tmp_path, size):
    sharding = {
        "embed": accord.Row(unit=16),
        "head": accord.Column(unit=16),
        "up": accord.Column(unit=32),
        "down": accord.Row(unit=32),
    }
    path = exported(tmp_path, "fp8", sharding)
    alone = output(path).numpy()
    for logits, read, shard in ranks(size).run(on_a_rank, str(path), IDS.numpy()):
        np.testing.assert_allclose(logits, alone, rtol=1e-4, atol=1e-5)
        assert read == shard


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Conv1d(16, 32, 3)
        self.layer = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.places(x).transpose(1, 2))


def test_patterns_select_layers_and_convolutions_keep_their_dtype(tmp_path):
    path = exported(tmp_path, {"down": "same", "up": accord.Fp8(), "*": "int8"})
    quantized = {entry["tensor"]: entry["type"] for entry in accord.inspect(path)["quantized"]}
    assert quantized == {"up.weight": "float8_e4m3fn", "embed.weight": "int8", "turned": "int8"}
    torch.manual_seed(0)
    path = accord.export(Mixed().eval(), (torch.rand(2, 16, 9),), path=tmp_path / "mixed.accord", weights="fp8")
    assert [entry["tensor"] for entry in accord.inspect(path)["quantized"]] == ["layer.weight"]
    with pytest.raises(accord.ExportError, match=r'did you mean "fp8"'):
        exported(tmp_path, "fp88")


def test_weights_that_are_not_numbers_are_rejected(tmp_path):
    model = Model()
    with torch.no_grad():
        model.up.weight[3, 5] = torch.inf
    with pytest.raises(accord.InvalidArgument, match="output 3"):
        accord.export(model.eval(), (IDS,), path=tmp_path / "m.accord", weights="fp8")


def test_damage_is_detected(tmp_path):
    path = exported(tmp_path, "fp8")
    entry = next(one for one in read_json(path, "manifest.json")["tensors"] if one["name"] == "up.weight")
    damaged = shutil.copytree(path, tmp_path / "damaged.accord")
    with open(damaged / entry["file"], "r+b") as file:
        file.seek(entry["offset"] + 160 * 4 + 100)  # one of the elements
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(accord.Corrupt, match=r"up\.weight"):
        accord.load(damaged)

    def use_groups(manifest: dict) -> None:
        next(one for one in manifest["tensors"] if one["name"] == "up.weight")["packed"]["group"] = 48

    with pytest.raises(accord.Corrupt, match="16, 32, 64 or 128 of its inputs"):
        accord.load(changed_manifest(path, tmp_path / "wrong.accord", use_groups))


def test_new_weights_are_packed_like_the_old_ones(tmp_path):
    path = exported(tmp_path, "fp8")
    with accord.load(path) as engine:
        before = np.array(engine.run(IDS.numpy())[0])
        doubled = Model()
        with torch.no_grad():
            for parameter in doubled.parameters():
                parameter.mul_(2)
        engine.load_weights(doubled.state_dict())
        assert not np.allclose(engine.run(IDS.numpy())[0], before, rtol=0.1)
        engine.load_weights(Model().state_dict())
        assert np.array_equal(engine.run(IDS.numpy())[0], before)
