"""Numbers among arguments, sizes derived from other sizes, and outputs that share memory behave as in eager
PyTorch."""

import warnings

import pytest
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.usefixtures("fresh")]
LOOSE = {"min_block_size": 1}


def jit(function, dynamic=None, **options):
    return torch.compile(function, backend="accord", dynamic=dynamic, options=LOOSE | options)


def leaves(value) -> list:
    return torch.utils._pytree.tree_leaves(value)


def rows(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape)


NUMBERS = {
    "times": lambda x, n: torch.relu(x) * n + 1,
    "and back": lambda x, n: (torch.relu(x) + n, n, n * 2, n / 2),
    "clamped": lambda x, n: (x * 5).clamp(max=n) + 1,
    "filled": lambda x, n: torch.full_like(x, n) * x + torch.full((4,), n),
    "compared": lambda x, n: torch.relu(x) + (1 if n > x.shape[0] else 2),
    "chosen": lambda x, n: torch.where(x > 0, x, n) + 1,
}


@pytest.mark.parametrize("function", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("dynamic", mostly_slow([None, True], None))
@torch.no_grad()
def test_a_number_may_change_and_be_0_negative_or_a_fraction(function, dynamic):
    compiled, x = jit(function, dynamic), rows(4)
    for n in (3, 5, 0, -2, 1, 2.5, -0.5, float("inf")):
        got, expected = leaves(compiled(x, n)), leaves(function(x, n))
        for one, other in zip(got, expected, strict=True):
            assert type(one) is type(other)
            torch.testing.assert_close(one, other, equal_nan=True)


def test_a_number_that_is_not_a_size_keeps_the_graph_in_engines(recwarn):
    compiled = jit(NUMBERS["times"], True)
    with torch.no_grad():
        compiled(rows(4), -2)
    (report,) = accord.compilation_report()[-1:]
    assert report.ops("engine")
    assert not [one for one in recwarn if "stays in PyTorch" in str(one.message)]


DERIVED = {
    "half": lambda x, y: (torch.relu(x).view(x.shape[0] // 2, 2, 4) + 1).sum(1),
    "rows": lambda x, y: (torch.relu(x) * x.shape[0] + 1, x.shape[0] * 2 + 1),
    "product": lambda x, y: torch.relu(x).reshape(x.shape[0] * x.shape[1]) + 1,
    "twice": lambda x, y: torch.cat([x, x]) + torch.relu(y),
    "padded": lambda x, y: torch.nn.functional.pad(torch.relu(x), (0, 0, x.shape[0], 1)) + 1,
}


@pytest.mark.parametrize("function", DERIVED.values(), ids=DERIVED)
@torch.no_grad()
def test_sizes_may_be_derived_from_others(function):
    compiled = jit(function, True)
    for n in (4, 6, 2, 10):
        x, y = rows(n, 4), rows(2 * n, 4)
        torch.testing.assert_close(leaves(compiled(x, y)), leaves(function(x, y)))


class Derived(torch.nn.Module):
    def forward(self, x, y):
        return torch.cumprod(torch.relu(x), 1)[0] * y.shape[0] + 1, torch.relu(y) + 1, x.shape[0]


@torch.no_grad()
def test_a_dimension_may_be_a_multiple_of_a_symbol_that_is_not_an_input_size(tmp_path):
    half, more = torch.export.Dim("half", min=2, max=8), torch.export.Dim("more", min=3, max=9)
    shapes = ({0: 2 * half}, {0: more - 1})
    compiled = accord.compile(Derived(), (rows(6, 3), rows(5, 3)), LOOSE, dynamic_shapes=shapes)
    loaded = accord.load(compiled.save(tmp_path / "saved.accord")).module()
    whole = torch.nn.Sequential(torch.nn.ReLU()).eval()
    plain = accord.load(
        accord.export(whole, (rows(6, 3),), path=tmp_path / "plain.accord", dynamic_shapes=({0: 2 * half},))
    )
    for n, m in ((4, 2), (10, 7), (16, 8)):
        x, y = rows(n, 3), rows(m, 3)
        for module in (compiled, loaded):
            torch.testing.assert_close(module(x, y), Derived()(x, y))
        torch.testing.assert_close(plain.module()(x), torch.relu(x))
    assert list(plain.inputs[0].shape) == ["2*half", 3]
    with pytest.raises(accord.InvalidArgument, match=r"dimension 0 is 5, which is not a value of 2\*half"):
        plain.run(rows(5, 3))
    with pytest.raises(accord.InvalidArgument, match=r'dimension 0 \("2\*half"\) is 18, outside 4 to 16'):
        plain.run(rows(18, 3))


@torch.no_grad()
def test_a_number_may_change_in_a_compiled_and_saved_model(tmp_path):
    class Times(torch.nn.Module):
        def forward(self, x, n):
            return torch.relu(x) * n + 1

    free = torch.export.Dim.DYNAMIC
    compiled = accord.compile(Times(), (rows(4, 3), 3), LOOSE, dynamic_shapes=({0: free}, free))
    loaded = accord.load(compiled.save(tmp_path / "model.accord")).module()
    for n in (5, 7, 2):
        for module in (compiled, loaded):
            torch.testing.assert_close(module(rows(6, 3), n), Times()(rows(6, 3), n))
    for module in (compiled, loaded):
        with pytest.raises(TypeError, match=r"input 1 was a number \(int\) .* and is 2.5"):
            module(rows(6, 3), 2.5)


VIEWS = {
    "of an output": lambda x: (y := torch.relu(x) + 1, y[0], y.t()),
    "of no output": lambda x: (y := torch.relu(x) + 1)[1:, ::2].unsqueeze(0).expand(2, -1, -1) if x.dim() else y,
    "of one tensor": lambda x: (torch.relu(x) + 1).chunk(2, 1),
    "rows of one tensor": lambda x: (torch.relu(x) + 1).unbind(0),
    "of other shapes": lambda x: (y := torch.relu(x) + 1, y.view(-1), y.diagonal(), y.detach()),
    "of an input": lambda x: (x, x[1:], x.t(), torch.relu(x)),
    "of a changed input": lambda x: (x.add_(1), x[0], torch.relu(x)),
    "the same twice": lambda x: (y := torch.relu(x) + 1, y, y.contiguous(), y.clone()),
    "changed in place": lambda x: (y := torch.relu(x), y[0].add_(1), y * 2),
    "of a constant": lambda x: (c := torch.tensor([1.0, 2.0]), c[1:], torch.relu(x)),
}


def memory(args, out) -> list[tuple]:
    """Returns a number for the storage of each tensor, equal for shared storage, with the tensor's strides and
    offset."""
    tensors = [one for one in (*leaves(args), *leaves(out)) if isinstance(one, torch.Tensor)]
    numbers: dict[int, int] = {}
    return [
        (numbers.setdefault(one.untyped_storage().data_ptr(), len(numbers)), one.stride(), one.storage_offset())
        for one in tensors
    ]


@pytest.mark.parametrize("function", VIEWS.values(), ids=VIEWS)
@torch.no_grad()
def test_outputs_share_memory_as_in_eager(function):
    compiled = jit(function, True)
    for height in (4, 5):
        inputs, same = (rows(height, 6),), (rows(height, 6),)
        got, expected = compiled(*inputs), function(*same)
        assert memory(inputs, got) == memory(same, expected)
        outputs = [one for one in leaves(expected) if isinstance(one, torch.Tensor)]
        for number in range(len(outputs)):
            if 0 not in outputs[number].stride():
                leaves(got)[number].add_(1)
                outputs[number].add_(1)
            torch.testing.assert_close([*leaves(got), *inputs], [*leaves(expected), *same])


@torch.no_grad()
def test_models_compiled_ahead_and_saved_return_views_of_outputs_too(tmp_path):
    class Views(torch.nn.Module):
        def forward(self, x):
            y = torch.relu(x) + 1
            return y, y[0]

    compiled = accord.compile(Views(), (rows(4, 6),), LOOSE)
    for module in (compiled, accord.load(compiled.save(tmp_path / "views.accord")).module()):
        y, first = module(rows(4, 6))
        y.zero_()
        assert first.abs().max() == 0


@torch.no_grad()
def test_sizes_without_bounds_and_marked_dimensions_run_as_in_pytorch():
    compiled = jit(lambda x: (torch.relu(x) * int((x > 0).sum().item()) + 1, torch.nonzero(x) * 2))
    for n in (4, 5):
        torch.testing.assert_close(
            compiled(rows(n, 3)),
            (torch.relu(rows(n, 3)) * int((rows(n, 3) > 0).sum()) + 1, torch.nonzero(rows(n, 3)) * 2),
        )
    marked = jit(lambda x: torch.relu(x) + x.shape[0])
    for n, mark in (
        (3, torch._dynamo.mark_dynamic),
        (7, torch._dynamo.mark_dynamic),
        (2, torch._dynamo.decorators.mark_unbacked),
    ):
        x = rows(n, 3)
        mark(x, 0)
        torch.testing.assert_close(marked(x), torch.relu(rows(n, 3)) + n)


@torch.no_grad()
def test_a_graph_that_accord_fails_on_stays_in_pytorch_with_a_warning(monkeypatch):
    def fail(*_, **__):
        raise KeyError("s39")

    monkeypatch.setattr("accord.jit.backend.CompiledGraph", fail)
    with pytest.warns(UserWarning, match="a graph stays in PyTorch: KeyError: 's39'"):
        torch.testing.assert_close(jit(torch.relu)(rows(4)), torch.relu(rows(4)))
    torch._dynamo.reset()
    with warnings.catch_warnings(), pytest.raises(Exception, match="s39"):
        jit(torch.relu, require_full_compilation=True)(rows(4))


@torch.no_grad()
def test_a_call_that_an_engine_rejects_runs_in_pytorch(monkeypatch):
    compiled = jit(lambda x: torch.relu(x) + 1, True)
    compiled(rows(4, 3))

    def refuse(*_):
        raise accord.InvalidArgument("a size that it was not made for")

    monkeypatch.setattr("accord.jit.bound_engine.BoundEngine.run", refuse)
    torch.testing.assert_close(compiled(rows(5, 3)), torch.relu(rows(5, 3)) + 1)
