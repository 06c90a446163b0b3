"""8-bit float weights on simulated devices. torch's own float8 provides the expected values."""

from pathlib import Path

import accord_command
import numpy as np
import pytest
from export_reference import read_tensors
from float8_rounding import rounded
from small_llama import make_small_llama
from weights_model import IDS, exported

import accord

torch = pytest.importorskip("torch")

WIDTH, INNER, ODD = 192, 128, 40
# Numbers of rows for which kernels read the stored weights: in every dtype; in 16-bit dtypes, unless rows are rounded.
FEW, MORE = (1, 2, 5, 8), (9, 33, 70)
ALL, WITHOUT_SCALES, NONE = 0, 1, 2  # the float8 products that the library supports


def test_float8_rows_require_gpus(tmp_path):
    from safetensors.numpy import save_file

    path = exported(tmp_path, "fp8")
    for name in ("fp8", "float8_e4m3fn"):
        with pytest.raises(accord.Unsupported, match="activation_dtype float8_e4m3fn is for engines on GPUs"):
            accord.load(path, activation_dtype=name)
    save_file({"ids": IDS.numpy()}, tmp_path / "x.safetensors")
    refused = accord_command.accord(
        "engine", "run", path, "--inputs", tmp_path / "x.safetensors", "--activation-dtype", "fp8"
    )
    assert (refused.returncode, "is for engines on GPUs" in refused.stderr) == (1, True), refused.stderr


class Layers(torch.nn.Module):
    """A gated layer, a layer after it, and one of a size for which the library has no float8 product."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.up = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down, self.odd = torch.nn.Linear(INNER, WIDTH), torch.nn.Linear(WIDTH, ODD)
        self.table = torch.nn.Embedding(64, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 64, bias=False)
        self.head.weight = self.table.weight
        self.to(dtype)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.to(self.odd.weight.dtype)
        inner = torch.nn.functional.silu(self.gate(x)) * self.up(x)
        odd, down = torch.relu(self.odd(x)), self.down(inner)
        rows = self.table(ids)
        return tuple(one.float() for one in (inner, down, odd, rows, self.head(rows)))


DTYPES = {"float32": 2e-5, "bfloat16": 0.02, "float16": 0.003}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    sharding = {"gate": accord.Column(unit=32), "up": accord.Column(unit=32), "down": accord.Row(unit=32)}
    rows = torch.export.Dim("rows", max=80)
    example = torch.rand(2, WIDTH), torch.tensor([1, 2])
    return {
        dtype: accord.export(
            Layers(getattr(torch, dtype)).eval(),
            example,
            path=folder / f"{dtype}.accord",
            weights="fp8",
            sharding=sharding,
            dynamic_shapes=({0: rows}, {0: rows}),
        )
        for dtype in DTYPES
    }


def run_layers(_, path, package, inputs, activation_dtype, takes_scales, takes_float8=0):
    """Returns the outputs for each of the inputs, on one device and on two, and the number of library products that
    each run took on one device."""
    import numpy as np
    from host_devices import library, on_thread_ranks

    import accord

    loaded = library(path)
    loaded.accord_test_take_scales(takes_scales)
    loaded.accord_test_take_float8(takes_float8)
    products = [loaded.accord_test_products()]
    alone = []
    with accord.load(package, device="cuda", activation_dtype=activation_dtype) as engine:
        for given in inputs:
            alone.append([np.array(output) for output in engine.run(*given)])
            products.append(loaded.accord_test_products())
    shared = []

    def body(comm, rank):
        options = {"device": f"cuda:{rank}", "activation_dtype": activation_dtype}
        with accord.load(package, {"tp": comm}, **options) as engine:
            outputs = [[np.array(output) for output in engine.run(*given)] for given in inputs]
            if rank == 0:
                shared.extend(outputs)

    on_thread_ranks(2, body)
    loaded.accord_test_take_float8(0)
    return alone, shared, np.diff(products).tolist()


def make_inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows)
    x = random.standard_normal((rows, WIDTH)).astype(np.float32) * np.exp(random.standard_normal((rows, 1)) * 1.5)
    x[-1] = 0
    x = torch.from_numpy(x.astype(np.float32)).bfloat16().float().numpy()  # numbers that all dtypes represent exactly
    return x, random.integers(0, 64, rows)


def expected_outputs(
    package: Path, dtype: str, x: np.ndarray, ids: np.ndarray, inner, rounds: bool, ranks: int
) -> list:
    """Returns the expected outputs in float64. The layer after `inner` is computed from the given numbers. rounds:
    inputs are rounded to float8, separately for each rank's part."""
    weights = {name: tensor.double() for name, tensor in read_tensors(package).items()}  # in the model's dtype
    model = Layers(getattr(torch, dtype)).double()
    takes = rounded if rounds else lambda rows: rows.double()

    def linear(name: str, rows: torch.Tensor) -> torch.Tensor:
        bias = getattr(model, name).bias
        return rows @ weights[f"{name}.weight"].T + (0 if bias is None else bias)

    with torch.no_grad():
        x = torch.from_numpy(x)
        gated = torch.nn.functional.silu(linear("gate", takes(x))) * linear("up", takes(x))
        table = weights["table.weight"][torch.from_numpy(ids)]
        narrow = table.to(getattr(torch, dtype))
        odd = torch.relu(linear("odd", x.double()))  # 40 outputs are not a multiple of 16
        return [
            gated,
            linear("down", takes(torch.from_numpy(inner).reshape(len(x), ranks, -1)).reshape(len(x), -1)),
            odd,
            table,
            takes(narrow) @ weights["table.weight"].T,
        ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("activation_dtype", "takes_scales", "takes_float8"),
    [(None, 1, ALL), ("fp8", 1, ALL), ("fp8", 0, ALL), ("fp8", 1, WITHOUT_SCALES), ("fp8", 1, NONE)],
)
def test_devices_multiply_with_unconverted_weights(
    device_process, packages, dtype, activation_dtype, takes_scales, takes_float8
):
    inputs = [make_inputs(rows) for rows in (*FEW, *MORE)]
    *found, products = device_process(
        run_layers, str(packages[dtype]), inputs, activation_dtype, takes_scales, takes_float8
    )
    tolerance = DTYPES[dtype]
    rounding = activation_dtype is not None and takes_float8 != NONE
    for (x, _), count in zip(inputs, products, strict=True):
        by_kernels = len(x) in FEW or dtype != "float32"
        # A run has five products; the one with 40 outputs is never a float8 product.
        assert count == (0 if by_kernels and (len(x) in FEW or not rounding) else 4 if by_kernels else 5), len(x)
    for ranks, outputs_of_runs in enumerate(found, 1):
        for (x, ids), outputs in zip(inputs, outputs_of_runs, strict=True):
            rounds = rounding and len(x) > max(FEW)
            expected = expected_outputs(packages[dtype], dtype, x, ids, outputs[0], rounds, ranks)
            for number, (given, right) in enumerate(zip(outputs, expected, strict=True)):
                right = right.numpy()
                # Rows differ in magnitude, so errors are relative to the largest number of their row.
                most = np.abs(right).max(1, keepdims=True) + 1e-3
                assert (np.abs(given - right) <= tolerance * most).all(), (ranks, len(x), number)


def test_float8_rows_change_only_the_documented_outputs(device_process, packages):
    inputs = [make_inputs(rows) for rows in (max(FEW), 33)]
    plain, fp8 = (device_process(run_layers, str(packages["float32"]), inputs, one, 1)[0] for one in (None, "fp8"))
    assert all(np.array_equal(one, other) for one, other in zip(plain[0], fp8[0], strict=True))  # few rows
    for number, (one, other) in enumerate(zip(plain[1], fp8[1], strict=True)):
        error = np.linalg.norm(one - other) / np.linalg.norm(one)
        # Rows of the table are already representable in float8.
        assert error < 1e-6 if number in (2, 3, 4) else 0.003 < error < 0.1, (number, error)


@pytest.mark.parametrize("kept", ["gate", "up"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_layer_may_have_one_float8_weight(device_process, tmp_path, dtype, kept):
    package = accord.export(
        Layers(getattr(torch, dtype)).eval(),
        (torch.rand(2, WIDTH), torch.tensor([1, 2])),
        path=tmp_path / "mixed.accord",
        weights={kept: "same", "*": "fp8"},
        dynamic_shapes=({0: torch.export.Dim("rows", max=800)}, {0: torch.export.Dim("rows", max=800)}),
    )
    assert {"gate.weight", "up.weight"} - {one["tensor"] for one in accord.inspect(package)["quantized"]} == {
        f"{kept}.weight"
    }
    inputs = [make_inputs(rows) for rows in (5, 20, 70, 800)]
    alone, products = device_process(run_once_with_counts, str(package), inputs)
    assert products[0] == 0  # kernels read few rows, whatever the format of the weights
    # For more rows a kernel reads the float8 weight, and the library multiplies with the other weight.
    assert products[1:3] == ([5, 5] if dtype == "float32" else [1, 1])
    assert products[3] == 5  # the library multiplies so many rows faster, and the weight is widened for it
    for (x, ids), (inner, *_) in zip(inputs, alone, strict=True):
        right = expected_outputs(package, dtype, x, ids, np.zeros((len(x), INNER), np.float32), False, 1)[0].numpy()
        most = np.abs(right).max(1, keepdims=True) + 1e-3
        assert (np.abs(inner - right) <= 2 * DTYPES[dtype] * most).all(), len(x)


def run_once_with_counts(_, path, package, inputs):
    import numpy as np
    from host_devices import library

    import accord

    loaded = library(path)
    found, products = [], []
    with accord.load(package, device="cuda") as engine:
        for given in inputs:
            before = loaded.accord_test_products()
            found.append([np.array(output) for output in engine.run(*given)])
            products.append(loaded.accord_test_products() - before)
    return found, products


def run_once(_, path, package, x):
    import numpy as np
    from host_devices import library

    import accord

    library(path)
    with accord.load(package, device="cuda") as engine:
        return np.array(engine.run(x)[0])


def test_a_weight_widened_in_pieces_is_one_weight(device_process, tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(16384, 576), torch.nn.ReLU())  # 36 MiB in float32
    x = torch.randn(9, 16384)
    path = accord.export(layer.eval(), (x,), path=tmp_path / "m.accord", weights="fp8")
    given = torch.from_numpy(device_process(run_once, str(path), x.numpy()))
    expected = torch.relu(x.double() @ read_tensors(path)["0.weight"].double().T + layer[0].bias.detach().double())
    torch.testing.assert_close(given.double(), expected, rtol=1e-4, atol=1e-4)


def run_logits(_, path, packages, ids):
    """Returns the logits of a prompt and of the token after it for each package: on the CPU, on a device, and on a
    device with float8 activations."""
    import numpy as np
    from host_devices import library

    import accord

    library(path).accord_test_take_scales(1)
    found = []
    for package in packages:
        for options in ({}, {"device": "cuda"}, {"device": "cuda", "activation_dtype": "fp8"}):
            with accord.load(package, **options) as engine:
                context = engine.create_context()
                context.create_cache(8, block_tokens=16)
                count, logits = len(ids) - 1, []
                for begin, tokens in ((0, ids[:count]), (count, ids[count:])):
                    at = np.arange(begin, begin + len(tokens))
                    part = [(len(tokens), begin, [2, 0, 1])]
                    logits.append(np.array(context.run_sequences(part, tokens, at, np.arange(len(tokens)))[0]))
                found.append(np.concatenate(logits))
    return found


def test_the_logits_of_a_small_llama_stay_close(device_process, tmp_path):
    model = make_small_llama(tie_word_embeddings=True)
    with torch.no_grad():  # scaled up, so that logits differ clearly
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.dim() == 2 else 1)
    names = {"same": None, "fp8": "fp8"}
    paths = [
        str(accord.export(model, path=tmp_path / f"{name}.accord", weights=weights, sharding="auto"))
        for name, weights in names.items()
    ]
    ids = np.random.default_rng(0).integers(0, 160, 40)
    with torch.no_grad():
        exact = model(torch.from_numpy(ids)[None]).logits[0].double()
        stored = read_tensors(Path(paths[1]))
        model.load_state_dict({name: stored.get(name, tensor) for name, tensor in model.state_dict().items()})
        quantized = model(torch.from_numpy(ids)[None]).logits[0].double()

    def loss(logits: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(logits[:-1], torch.from_numpy(ids[1:])))

    found = [torch.from_numpy(logits).double() for logits in device_process(run_logits, paths, ids)]
    for logits in found[:3]:  # without float8 weights the option has no effect
        torch.testing.assert_close(logits, exact, rtol=1e-3, atol=1e-3)
    for logits in found[3:5]:  # float8 weights only
        torch.testing.assert_close(logits, quantized, rtol=1e-3, atol=1e-3)
    for logits, most in ((found[4], 0.12), (found[5], 0.2)):
        assert 0.005 < (logits - exact).norm() / exact.norm() < most
        assert abs(loss(logits) - loss(exact)) < 0.05 * loss(exact)
