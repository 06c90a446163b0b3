"""Models that combine engines and PyTorch in unusual ways: strides that are read, dtypes that engines lack; and
invalid arguments."""

import copy
import pickle

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Odd(torch.nn.Module):
    """Calls a function with the module itself, which has a linear layer and a convolution, and with the input."""

    def __init__(self, run) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 16)
        self.image = torch.nn.Conv2d(4, 4, 3)
        self.run = run

    def forward(self, x: torch.Tensor):
        return self.run(self, x)


def corner(x: torch.Tensor) -> torch.Tensor:
    """Selects elements by their strides, so the result depends on the memory layout."""
    return x.as_strided((2, 2), (1, 2))


ROWS, IMAGES = torch.linspace(-1, 1, 64).reshape(4, 16), torch.linspace(-1, 1, 648).reshape(2, 4, 9, 9)


@pytest.mark.parametrize(
    ("run", "x"),
    [
        (lambda self, x: corner(self.layer(x).t().relu()), ROWS),  # relu keeps the memory layout
        (lambda self, x: corner(self.layer(x).t()), ROWS),
        (lambda self, x: corner(self.layer(x)[1:, 14:]), ROWS),  # reads elements outside the slice
        (lambda self, x: corner(self.image(x).relu()), IMAGES.to(memory_format=torch.channels_last)),
    ],
    ids=["turned", "view", "part", "channels_last"],
)
@torch.no_grad()
def test_ops_that_read_memory_by_strides_match_pytorch(run, x, tmp_path):
    model = Odd(run).eval()
    compiled = accord.compile(model, (x,), {"min_block_size": 1})
    assert compiled.report.ops("engine").total() > 0
    torch.testing.assert_close(compiled(x), model(x))
    package = compiled.save(tmp_path / "model.accord")
    torch.testing.assert_close(accord.load(package).module()(x), model(x))


@pytest.mark.parametrize(
    "join",
    [
        lambda x: torch.cat([x]),
        lambda x: torch.cat([x[:0], x]),
        lambda x: torch.cat([torch.zeros(0), x.long()]),  # the empty tensor determines the dtype
        lambda x: torch.cat([x.long(), torch.zeros(0, 16), x.long()]),
        lambda x: torch.stack([x])[0],
    ],
    ids=["one", "one and nothing", "dtype of nothing", "several and nothing", "stack"],
)
@pytest.mark.parametrize("dynamic", [None, True])
def test_cat_returns_new_memory_of_the_common_dtype(join, dynamic):
    torch._dynamo.reset()
    x = ROWS.clone()
    got = torch.compile(join, backend="accord", dynamic=dynamic, options={"min_block_size": 1})(x)
    torch.testing.assert_close(got, join(x))
    got.zero_()
    assert torch.equal(x, ROWS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "max-autotune"}, 'mode="max-autotune" is one of inductor\'s'),
        ({"options": "fast"}, "options is 'fast'; give a mapping"),
    ],
)
def test_unsupported_arguments_of_torch_compile_are_rejected(arguments, message):
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        torch.compile(lambda x: x + 1, backend="accord", **arguments)(ROWS)


@torch.no_grad()
def test_outputs_have_the_memory_layout_of_pytorch():
    model = Odd(lambda self, x: (self.layer(x).t().relu(), self.layer(x).view(4, 4, 4).permute(2, 0, 1))).eval()
    torch._dynamo.reset()
    got = torch.compile(model, backend="accord", dynamic=True, options={"require_full_compilation": True})(ROWS)
    for one, expected in zip(got, model(ROWS), strict=True):
        torch.testing.assert_close(one, expected)
        assert one.stride() == expected.stride()


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        (lambda self, x: torch.fft.fft(self.layer(x)).abs() + 1, "dtype torch.complex64 is not supported"),
        (lambda self, x: self.layer(x).abs().to(torch.uint16).float() + 1, "dtype torch.uint16 is not supported"),
        (
            lambda self, x: self.layer(x).cumprod(1).reshape(2, 2, 2, 2, 2, 1, 1, 1, 2).sum((3, 4, 5)) + 1,
            "9 dimensions",
        ),
    ],
    ids=["complex", "uint16", "dimensions"],
)
@torch.no_grad()
def test_an_op_on_a_tensor_that_no_engine_accepts_stays_in_pytorch(run, kept):
    model = Odd(run).eval()
    compiled = accord.compile(model, (ROWS,), {"min_block_size": 1})
    assert any(kept in reason for part in compiled.report.partitions for reason in part.reasons), compiled.report
    assert compiled.report.ops("engine")["aten.linear.default"] == 1
    torch.testing.assert_close(compiled(ROWS), model(ROWS))


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda x: x, (ROWS,), "the model is a function, not a torch.nn.Module"),
        ("llama", (ROWS,), "the model is a str, not a torch.nn.Module"),
        (torch.nn.Linear(16, 4).eval(), ROWS, "example_inputs is a Tensor; give a tuple"),
    ],
    ids=["function", "str", "tensor"],
)
def test_invalid_models_and_arguments_are_rejected(model, inputs, message, tmp_path):
    with pytest.raises(accord.ExportError, match=message):
        accord.compile(model, inputs)
    with pytest.raises(accord.ExportError, match=message):
        accord.export(model, inputs, path=tmp_path / "model.accord")


def test_impossible_exports_report_the_reason(tmp_path):
    model, path = torch.nn.Linear(16, 4).eval(), tmp_path / "model.accord"
    with pytest.raises(accord.ExportError, match=r"an output has no elements, its shape is \[0, 4\]"):
        accord.export(model, (torch.rand(0, 16),), path=path)
    with pytest.raises(accord.ExportError, match="sharding is 'autp'; expected rules by name patterns, or \"auto\""):
        accord.export(model, (ROWS,), path=path, sharding="autp")
    assert not path.exists()


@torch.no_grad()
def test_calls_with_wrong_arguments_are_rejected_with_a_short_message(tmp_path):
    model = Odd(lambda self, x: self.layer(x).cumprod(1)).eval()
    compiled = accord.compile(model, (ROWS,), {"min_block_size": 1})
    package = compiled.save(tmp_path / "model.accord")
    with pytest.raises(accord.Unsupported, match="is a program of several parts; a language model is exported as one"):
        accord.generate(package, "text")
    program = accord.load(package)
    for called in (compiled, program.module()):
        with pytest.raises(TypeError, match=r"compiled for arguments \(\*\), not \(input=\*\)$"):
            called(input=ROWS)
    for given, message in (
        ((), "0 inputs were given, the model takes 1"),
        ((ROWS[:2],), r"input 0 was torch.float32 \[4, 16\] .*, and is torch.float32 \[2, 16\]"),
        ((np.zeros((4, 16), np.float32),), "input 0 was .*, and is a ndarray"),
    ):
        with pytest.raises(TypeError, match=message):
            program.run(*given)
    torch.testing.assert_close(program.run(ROWS)[0], model(ROWS))


def test_copying_or_pickling_a_compiled_module_suggests_save():
    compiled = accord.compile(torch.nn.ReLU(), (ROWS,), {"min_block_size": 1})
    for keep in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"neither copied nor pickled: write it by save\(path\), and load that"):
            keep(compiled)
