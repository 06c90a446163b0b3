"""8-bit all_reduce: how far the sums are from the exact ones, and that they are bit-identical on all ranks."""

import numpy as np
import pytest
from accord_command import SUPPORT

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WIDTH, INNER, GROUP = 192, 48, 64
ROWS = (60, 50, 43, 42)  # float32: 46 KB, 38 KB, 32.25 KB, and 31.5 KB, which is too small for 8-bit sums


class Layer(torch.nn.Module):
    """A layer whose output is a sum over the ranks and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))


def llama(dtype: torch.dtype) -> torch.nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=4, vocab_size=320, max_position_embeddings=256)
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    layer = folder / "layer.accord"
    sharding = {"up": accord.Column(unit=1), "down": accord.Row(unit=1)}
    sizes = ({0: torch.export.Dim("rows", max=64)},)
    accord.export(Layer().eval(), (torch.rand(2, WIDTH),), path=layer, sharding=sharding, dynamic_shapes=sizes)
    made = {name: folder / f"{name}.accord" for name in ("float32", "bfloat16")}
    for name, path in made.items():
        accord.export(llama(getattr(torch, name)), path=path, sharding="auto")
    return {name: str(path) for name, path in (made | {"layer": layer}).items()}


def inputs(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)


def layer_of_ranks(comm, path, xs, threads):
    with accord.load(path, {"tp": comm}, all_reduce_dtype="int8", threads=threads) as engine:
        return [np.array(engine.run(x)[0]) for x in xs]


@pytest.mark.parametrize(("size", "threads"), [(2, 1), (2, 3), (4, 1)])
def test_the_error_is_within_the_documented_bound(ranks, packages, size, threads):
    """The error is at most 1/127 of the sum, over the ranks, of the largest magnitude in an element's group of 64
    values. Large messages are not exact; small ones are."""
    xs = [inputs(rows) for rows in ROWS]
    found = ranks(size).run(layer_of_ranks, packages["layer"], xs, threads)
    up, down = (weight.detach().numpy().astype(np.float64) for weight in Layer().parameters())
    for case, x in enumerate(xs):
        outputs = [of_rank[case] for of_rank in found]
        assert all(output.tobytes() == outputs[0].tobytes() for output in outputs)
        inner = np.array_split(np.arange(INNER), size)
        parts = [(x @ up[units].T) @ down[:, units].T for units in inner]
        error = np.abs(outputs[0] - sum(parts))
        bound = sum(np.abs(part).reshape(len(x), -1, GROUP).max(axis=2) for part in parts) / 127
        assert (error <= 1.001 * np.repeat(bound, GROUP, axis=1) + 1e-5).all()
        if len(x) == ROWS[-1]:
            assert error.max() < 1e-5
        else:
            assert error.max() > 0.1 * bound.max()


def logits_of_ranks(comm, tests, paths, dtype):
    import sys

    sys.path.insert(0, tests)
    from language_runs import bits

    found, ids, at = {}, np.arange(200) * 7 % 320, np.arange(200)
    for name, path in paths.items():
        with accord.load(path, {"tp": comm}, all_reduce_dtype=dtype) as engine:
            found[name] = [bits(engine.run(ids[:rows], at[:rows], at[:rows])[0]) for rows in (200, 20)]
    return found


def floats(bits: bytes, dtype: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(bits), dtype=getattr(torch, dtype)).double()


@pytest.mark.parametrize("size", [2, 4])
def test_logits_are_close_to_the_exact_ones_and_equal_on_all_ranks(ranks, packages, size):
    models = {name: path for name, path in packages.items() if name != "layer"}
    exact = ranks(size).run(logits_of_ranks, SUPPORT, models, None)[0]
    coded = ranks(size).run(logits_of_ranks, SUPPORT, models, "int8")
    assert all(of_rank == coded[0] for of_rank in coded)
    for name in models:
        assert coded[0][name][1] == exact[name][1]  # 20 rows
        wanted, given = (floats(found[name][0], name) for found in (exact, coded[0]))
        error = ((given - wanted).norm() / wanted.norm()).item()
        assert 1e-5 < error < 0.02, name


def run_by_command(package, folder, *options):
    from accord_command import ACCORD
    from accord_command import accord as command
    from safetensors.numpy import load_file

    ran = ["engine", "run", package, "--inputs", folder / "x.safetensors", "--outputs", folder / "y.safetensors"]
    result = command("run", "-n", 2, ACCORD, *ran, "--check-ranks-equal", *options)
    assert result.returncode == 0, result.stderr
    return next(iter(load_file(folder / "y.safetensors").values()))


def test_the_command_accepts_8_bit_all_reduce(packages, tmp_path):
    from safetensors.numpy import save_file

    x = inputs(ROWS[0])
    save_file({"x": x}, tmp_path / "x.safetensors")
    exact = run_by_command(packages["layer"], tmp_path)
    halves = run_by_command(packages["layer"], tmp_path, "--overlap-rows", 16)
    coded = run_by_command(packages["layer"], tmp_path, "--all-reduce-dtype", "int8")
    assert halves.tobytes() == exact.tobytes()
    assert 1e-3 < np.abs(coded - exact).max() < 0.05


def test_invalid_options_are_rejected(packages):
    refused = {
        "all_reduce_dtype is float16; expected none or int8": {"all_reduce_dtype": "float16"},
        "canonical_ranks needs exact sums": {"all_reduce_dtype": "int8", "canonical_ranks": 2},
        "overlap_rows cannot be combined with all_reduce_dtype": {"all_reduce_dtype": "int8", "overlap_rows": 64},
    }
    for reason, options in refused.items():
        with pytest.raises(accord.InvalidArgument, match=reason):
            accord.load(packages["layer"], **options)
    with pytest.raises(TypeError, match='did you mean "all_reduce_dtype"'):
        accord.load(packages["layer"], allreduce_dtype="int8")


def loads(comm, path):
    try:
        accord.load(path, {"tp": comm}, all_reduce_dtype="int8" if comm.rank else None)
    except accord.Mismatch:
        return "refused"


def test_ranks_must_agree(ranks, packages):
    assert ranks(2).run(loads, packages["layer"]) == ["refused", "refused"]
