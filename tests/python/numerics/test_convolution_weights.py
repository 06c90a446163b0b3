"""Convolution weights in the layout of matrix products, unquantized and in 8 and 4 bits: stored, mapped, used,
replaced."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from export_reference import changed_manifest, read_tensors
from mapped_weights import load_on_a_rank

import accord

torch = pytest.importorskip("torch")


class ImageNetwork(torch.nn.Module):
    """Convolutions of every kind: 3x3 and 1x1 kernels, groups with a kernel that is not square, depthwise,
    one-dimensional."""

    def __init__(self, seed: int = 0, wide: int = 64) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = torch.nn.Conv2d(6, wide, 3, padding=1)
        self.single = torch.nn.Conv2d(wide, 2 * wide, 1)
        self.grouped = torch.nn.Conv2d(2 * wide, wide, (3, 2), stride=2, groups=4)
        self.depthwise = torch.nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.last = torch.nn.Conv1d(wide, 7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.silu(self.single(torch.relu(self.first(x))))
        h = self.grouped(h)
        return self.last((h + self.depthwise(h)).flatten(2))


X = torch.randn(2, 6, 9, 12, generator=torch.Generator().manual_seed(1))
GROUPS = {"first": 1, "single": 1, "grouped": 4, "last": 1}
MINIMA = {"*": accord.Int4(minima=True)}
CASES = {"as they are": (None, 0), "int8": ("int8", 1 / 127), "int4": ("int4", 1 / 7.5), "minima": (MINIMA, 1 / 15)}


def exported(path: Path, model: torch.nn.Module, weights=None) -> Path:
    return accord.export(model.eval(), (X.to(next(model.parameters()).dtype),), path=path, weights=weights)


def entries_of(path: Path) -> dict[str, dict]:
    return {entry["name"]: entry for entry in json.loads((path / "manifest.json").read_text())["tensors"]}


def with_weights(model: torch.nn.Module, stored: dict[str, torch.Tensor]) -> torch.nn.Module:
    model.load_state_dict(stored)
    return model.eval()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Maps each case to its package and to the tensors that the slow reader finds in it."""
    folder = tmp_path_factory.mktemp("packages")
    paths = [exported(folder / f"{i}.accord", ImageNetwork(), weights) for i, (weights, _) in enumerate(CASES.values())]
    return {case: (path, read_tensors(path)) for case, path in zip(CASES, paths, strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_convolution_weights_have_the_product_layout_and_report_their_error(packages, case):
    step = CASES[case][1]
    path, stored = packages[case]
    entries, model = entries_of(path), ImageNetwork()
    quantized = {entry["tensor"]: entry for entry in accord.inspect(path)["quantized"]}
    assert quantized.keys() == ({f"{name}.weight" for name in GROUPS} if step else set())
    for name, groups in GROUPS.items():
        entry, given = entries[f"{name}.weight"], model.get_parameter(f"{name}.weight")
        assert entry["shape"] == list(given.shape)
        assert entry["packed"]["groups"] == groups
        assert entry["offset"] % 64 == 0
        difference = (stored[f"{name}.weight"] - given).detach().double().numpy()
        error = np.linalg.norm(difference) / np.linalg.norm(given.detach().double().numpy())
        if not step:
            assert entry["packed"] == {"type": "float32", "groups": groups}
            assert error == 0
            continue
        assert np.abs(difference).max() <= 1.01 * step * given.abs().max()
        assert quantized[f"{name}.weight"]["error"] == pytest.approx(error, rel=1e-3)
        assert 0 < error < 1.5 * step
    assert "packed" not in entries["depthwise.weight"]
    assert torch.equal(stored["depthwise.weight"], model.depthwise.weight)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_convolutions_match_pytorch_with_the_stored_weights(packages, case):
    path, stored = packages[case]
    expected = with_weights(ImageNetwork(), stored)(X)
    outputs = []
    for threads in (1, 3):
        with accord.load(path, threads=threads) as engine:
            outputs.append(torch.from_dlpack(engine.run(X)[0]).clone())
    torch.testing.assert_close(outputs[0], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(*outputs)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_network_with_quantized_convolutions_is_as_close_to_float32_as_pytorch_is(tmp_path, dtype):
    path = exported(tmp_path / "m.accord", ImageNetwork().to(dtype), "int8")
    # The same codes in float32. The slow reader would round the tensors of `path` to `dtype`.
    stored = read_tensors(exported(tmp_path / "wide.accord", ImageNetwork().to(dtype).float(), "int8"))
    pytorch, exact = (with_weights(ImageNetwork().to(one), stored)(X.to(one)) for one in (dtype, torch.float32))
    with accord.load(path) as engine:
        given = torch.from_dlpack(engine.run(X.to(dtype))[0])
        assert given.dtype == dtype
        assert (given - exact).abs().mean() <= 1.1 * (pytorch - exact).abs().mean()


def test_rows_of_quantized_convolutions_are_rounded_to_8_bits_on_request(packages):
    path, _ = packages["int4"]
    with accord.load(path) as engine, accord.load(path, activation_dtype="int8") as rounding:
        exact, rounded = (np.array(one.run(X)[0]) for one in (engine, rounding))
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 2e-2


def test_patterns_select_the_convolutions_that_are_quantized(tmp_path):
    path = exported(tmp_path / "m.accord", ImageNetwork(), {"grouped": accord.Int8(group=32), "first": "same"})
    assert [(one["tensor"], one["group"]) for one in accord.inspect(path)["quantized"]] == [("grouped.weight", 32)]
    with pytest.raises(accord.ExportError, match='weights pattern "depthwise" decides no layer with packed weights'):
        exported(tmp_path / "m.accord", ImageNetwork(), {"depthwise": "int8"})


@pytest.mark.parametrize("weights", [None, "int8"])
def test_ranks_map_the_convolutions_and_copy_nothing(ranks, tmp_path, weights):
    model = ImageNetwork(wide=384)
    path = exported(tmp_path / "m.accord", model, weights)
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    depthwise = 384 * 9 * 4  # each process packs it, 16 outputs per group, instead of mapping it
    for resident, copied, anonymous, shard, read in ranks(2).run(load_on_a_rank, str(path), []):
        assert read == shard
        assert shard - depthwise <= resident < stored + (1 << 20)
        assert copied == 0
        assert anonymous < stored / 4 + 20 * depthwise


def test_damaged_and_differently_packed_convolutions_are_rejected(packages, tmp_path):
    package, _ = packages["int8"]
    copy = Path(shutil.copytree(package, tmp_path / "damaged.accord"))
    entry = entries_of(package)["grouped.weight"]
    with open(copy / entry["file"], "r+b") as file:
        file.seek(entry["offset"] + 100)
        (byte,) = file.read(1)
        file.seek(entry["offset"] + 100)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(accord.Corrupt, match='tensor "grouped.weight"'):
        accord.load(copy)
    assert any("grouped.weight" in damage.what for damage in accord.verify(copy))

    def groups_of_another(manifest):
        entries = {entry["name"]: entry for entry in manifest["tensors"]}
        # The size in bytes is the same: one panel of 64 outputs, or 4 panels of 16.
        entries["grouped.weight"]["packed"]["groups"] = 1

    other = changed_manifest(packages["as they are"][0], tmp_path / "other.accord", groups_of_another)
    with pytest.raises(accord.Corrupt, match='tensor "grouped.weight" is packed for a convolution of 1 groups'):
        accord.load(other)


def test_new_weights_are_packed_like_the_old_ones(packages):
    path, _ = packages["int8"]
    with accord.load(path) as engine:
        before = np.array(engine.run(X)[0])
        engine.load_weights(ImageNetwork(1).state_dict())
        assert not np.allclose(engine.run(X)[0], before, rtol=0.1)
        engine.load_weights(ImageNetwork(0).state_dict())
        assert np.array_equal(engine.run(X)[0], before)
