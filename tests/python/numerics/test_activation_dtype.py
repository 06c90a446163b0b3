"""8-bit integer activations with 8-bit and 4-bit weights. NumPy computes the expected products from the rounding rule
and from the weights as they are stored."""

from pathlib import Path

import accord_command
import numpy as np
import pytest
from export_reference import read_tensors

import accord

torch = pytest.importorskip("torch")

WIDTH, INNER, ROWS = 192, 128, (1, 5, 40)
GROUPS = {"int8": 64, "int4": 32}


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = self.up(x)
        return inner, self.down(inner)


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    sharding = {"up": accord.Column(unit=64), "down": accord.Row(unit=64)}
    sizes = ({0: torch.export.Dim("rows", max=64)},)
    made = {}
    for name, dtype in {"same": "float32", "int8": "float32", "int4": "float32", "int4 bfloat16": "bfloat16"}.items():
        made[name] = folder / f"{name.replace(' ', '-')}.accord"
        x = torch.rand(2, WIDTH, dtype=getattr(torch, dtype))
        model = Layers().bfloat16().to(x.dtype).eval()  # the same codes in both dtypes
        weights = None if name == "same" else name.split()[0]
        accord.export(model, (x,), path=made[name], weights=weights, sharding=sharding, dynamic_shapes=sizes)
    return made


def inputs(rows: int) -> np.ndarray:
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    x[0, :64] = 0
    return torch.from_numpy(x).bfloat16().float().numpy()  # values that both dtypes represent exactly


def in_integers(x: np.ndarray, group: int) -> np.ndarray:
    groups = x.reshape(len(x), -1, group)
    most = np.abs(groups).max(axis=2, keepdims=True)
    integers = np.rint(groups * np.where(most > 0, np.float32(127) / np.where(most > 0, most, 1), 0))
    return (integers.astype(np.float64) * (most / 127)).reshape(x.shape)


def run(path: Path, x: np.ndarray, **options) -> tuple[np.ndarray, np.ndarray]:
    with accord.load(path, **options) as engine:
        bfloat16 = "bfloat16" in str(path)
        given = torch.from_numpy(x).bfloat16() if bfloat16 else x
        inner, outer = (torch.from_dlpack(output).float().numpy() for output in engine.run(given))
        return inner.copy(), outer.copy()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["int8", "int4", "int4 bfloat16"])
def test_rows_are_rounded_by_the_documented_rule(packages, name, rows):
    x, path = inputs(rows), packages[name]
    inner, outer = run(path, x, activation_dtype="int8")
    stored = read_tensors(packages[name.split()[0]])  # in float32, not rounded to bfloat16
    weights = {key: value.double().numpy() for key, value in stored.items()}
    tolerance = {"rtol": 2**-8, "atol": 1e-6} if "bfloat16" in name else {"rtol": 1e-5, "atol": 1e-5}
    exact = x.astype(np.float64) @ weights["up.weight"].T
    group = GROUPS[name.split()[0]]
    expected = in_integers(x, group) @ weights["up.weight"].T
    np.testing.assert_allclose(inner, expected, **tolerance)
    np.testing.assert_allclose(outer, in_integers(inner, group) @ weights["down.weight"].T, **tolerance)
    most = np.abs(x.reshape(rows, -1, group)).max(axis=2).repeat(group, axis=1)
    assert (np.abs(expected - exact) <= (most / 254) @ np.abs(weights["up.weight"]).T).all()
    if "bfloat16" not in name:
        plain, _ = run(path, x)
        np.testing.assert_allclose(plain, exact, rtol=1e-5, atol=1e-5)
        assert np.abs(inner - plain).max() > 1e-3  # the option had an effect


def test_activation_dtype_does_not_affect_other_weights(packages):
    x = inputs(5)
    for changed, plain in zip(run(packages["same"], x, activation_dtype="int8"), run(packages["same"], x), strict=True):
        assert changed.tobytes() == plain.tobytes()


def outputs_of_ranks(comm, path, x):
    with accord.load(path, {"tp": comm}, activation_dtype="int8", canonical_ranks=2) as engine:
        return [np.array(output).tobytes() for output in engine.run(x)]


def test_canonical_sums_are_bit_identical_on_one_rank_and_two(ranks, packages):
    path, x = str(packages["int4"]), inputs(5)
    alone = [array.tobytes() for array in run(packages["int4"], x, activation_dtype="int8", canonical_ranks=2)]
    by_rank = ranks(2).run(outputs_of_ranks, path, x)
    assert by_rank[0][1] == by_rank[1][1] == alone[1]


def load_unlike(comm, path):
    try:
        accord.load(path, {"tp": comm}, activation_dtype="int8" if comm.rank else None)
    except accord.Mismatch:
        return "refused"


def test_ranks_that_differ_and_other_dtypes_are_rejected(ranks, packages):
    assert ranks(2).run(load_unlike, str(packages["int4"])) == ["refused", "refused"]
    with pytest.raises(accord.InvalidArgument, match="activation_dtype is float16; expected none, int8 on the CPU"):
        accord.load(packages["int4"], activation_dtype="float16")
    with pytest.raises(TypeError, match='did you mean "activation_dtype"'):
        accord.load(packages["int4"], activation_dtypes="int8")


def test_the_command_accepts_activation_dtype(packages, tmp_path):
    from safetensors.numpy import load_file, save_file

    x = inputs(5)
    save_file({"x": x}, tmp_path / "x.safetensors")
    ran = ["engine", "run", packages["int4"], "--inputs", tmp_path / "x.safetensors", "--activation-dtype"]
    result = accord_command.accord(*ran, "int8", "--outputs", tmp_path / "y.safetensors")
    assert result.returncode == 0, result.stderr
    outputs = sorted(output.tobytes() for output in load_file(tmp_path / "y.safetensors").values())
    assert outputs == sorted(array.tobytes() for array in run(packages["int4"], x, activation_dtype="int8"))
    refused = accord_command.accord(*ran, "int3")
    assert (refused.returncode, 'unknown dtype "int3"' in refused.stderr) == (1, True)
