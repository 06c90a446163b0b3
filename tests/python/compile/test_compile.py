"""torch.compile(backend="accord") and accord.compile in one process: the same numbers as PyTorch, and which op ran
where."""

import gc
import threading
import weakref

import pytest

import accord

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Model(torch.nn.Module):
    """Ops that engines run whole, views with dynamic sizes, attention, and cumprod, which engines do not support."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = torch.nn.Embedding(10, 8)
        self.up = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("factor", torch.rand(16))

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.norm(torch.nn.functional.gelu(self.up(self.table(tokens)))) * self.factor
        heads = y.view(y.shape[0], y.shape[1], 2, 8).transpose(1, 2)
        heads = torch.cat((heads[..., 4:], heads[..., :4]), dim=-1)
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return {"mixed": mixed, "sums": torch.cumprod(y, 1) + torch.tensor([1.0])}


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_naming_the_backend_suffices_and_new_batches_and_lengths_compile_nothing(fresh):
    model = Model().eval()
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"min_block_size": 1})
    for shape in ((2, 5), (3, 7), (4, 2)):
        assert_same(compiled(tokens(*shape)), model(tokens(*shape)))
    (report,) = accord.compilation_report(model)
    assert report.ops("pytorch") == {"aten.cumprod.default": 1}
    assert report.ops("engine")["aten.scaled_dot_product_attention.default"] == 1
    assert report.builds == 1
    (outside,) = [part for part in report.partitions if part.where == "pytorch"]
    assert 'unsupported op "aten.cumprod.default" at' in outside.reasons[0]
    assert "test_compile.py" in str(report)
    # Weights that are changed in place, or moved to other memory, take effect.
    model.up.weight.mul_(2)
    assert_same(compiled(tokens(2, 5)), model(tokens(2, 5)))
    model.table.weight.data = model.table.weight.data * 3
    assert_same(compiled(tokens(2, 5)), model(tokens(2, 5)))
    assert accord.compilation_report(model)[0].builds == 3


@torch.no_grad()
def test_outputs_that_are_views_of_inputs_remain_views(fresh):
    class Views(torch.nn.Module):
        def forward(self, x):
            rest = x[1:]
            return rest.neg() + 1, rest, x.transpose(0, 1)[2:], x

    compiled = torch.compile(Views(), backend="accord", dynamic=True, options={"require_full_compilation": True})
    for rows in (4, 5):
        x = torch.rand(rows, 8)
        given = x.clone()
        computed, rest, turned, same = compiled(x)
        torch.testing.assert_close((computed, rest, turned, same), (1 - given[1:], given[1:], given.T[2:], given))
        x.zero_()  # visible through views only
        assert rest.abs().max() == turned.abs().max() == same.abs().max() == 0


@torch.no_grad()
def test_repeatedly_swapped_data_keeps_two_sets_of_engines(fresh):
    model = Model().eval()
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"min_block_size": 1})
    held = [torch.rand(16, 8) for _ in range(5)]
    for weight in (*held, held[-2]):
        model.up.weight.data = weight
        assert_same(compiled(tokens(2, 5)), model(tokens(2, 5)))
    (report,) = accord.compilation_report(model)
    assert (report.engines, report.builds) == (2, 5)


def test_groups_set_for_a_module_are_released_with_it():
    class Groups(dict):
        """A mapping that supports weak references."""

    model, groups = torch.nn.Linear(2, 2), Groups()
    watched = weakref.ref(groups)
    accord.set_groups(model, groups)
    del groups
    gc.collect()
    assert watched() is not None
    del model
    gc.collect()
    assert watched() is None


def test_calls_that_need_gradients_stay_in_pytorch_and_are_reported(fresh):
    model = torch.nn.Linear(4, 4)
    compiled = torch.compile(model, backend="accord")
    with pytest.warns(UserWarning, match=r"engines compute no gradients: call the model under torch.no_grad\(\)"):
        compiled(torch.ones(2, 4)).sum().backward()
    assert model.weight.grad is not None
    torch._dynamo.reset()
    strict = torch.compile(model, backend="accord", options={"require_full_compilation": True})
    with pytest.raises(Exception, match="engines compute no gradients"):
        strict(torch.ones(2, 4))


@torch.no_grad()
def test_layers_of_one_class_share_a_graph_and_have_their_own_engines(fresh):
    layers = torch.nn.ModuleList(Model(seed) for seed in range(3))
    expected = [layer(tokens(2, 5)) for layer in layers]
    for layer, one in zip(layers, expected, strict=True):
        layer.compile(backend="accord")
        assert_same(layer(tokens(2, 5)), one)
    (report,) = accord.compilation_report(layers)
    assert report.engines == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_blok_size": 1}, 'unknown option "min_blok_size"; did you mean "min_block_size"?'),
        ({"use_distributed_mode_trace": True}, 'unknown option "use_distributed_mode_trace"'),
        ({"min_block_size": 0}, "a whole number from 1 up, not 0"),
        ({"require_full_compilation": 1}, "True or False, not 1"),
        ({"use_fp32_acc": False}, "engines always add up in fp32"),
        ({"use_explicit_typing": False}, "engines compute in the dtypes of the model"),
        ({"torch_executed_ops": "aten.add"}, "a set of ops"),
        ({"all_reduce_dtype": "int4"}, "sums travel as they are, None, or as \"int8\", not 'int4'"),
        ({"overlap_rows": -1}, "a whole number from 0 up, not -1"),
        ({"all_reduce_dtype": "int8", "overlap_rows": 8}, "leave out overlap_rows"),
        ({"torch_executed_ops": {"aten.ad"}}, 'there is no op "aten.ad"; did you mean "aten.add"?'),
        ({"require_full_compilation": True}, 'unsupported op "aten.cumprod.default"'),
    ],
)
def test_invalid_options_are_errors(options, message):
    with pytest.raises(accord.ExportError) as caught:
        accord.compile(Model().eval(), (tokens(2, 5),), options)
    assert message in str(caught.value)


@torch.no_grad()
def test_a_model_compiled_ahead_is_called_like_the_model():
    model = Model().eval()
    free = torch.export.Dim.DYNAMIC
    compiled = accord.compile(model, (tokens(2, 5),), {"min_block_size": 1}, dynamic_shapes=({0: free, 1: free},))
    assert compiled.report.builds == 1  # built before the first call
    for shape in ((2, 5), (3, 7)):
        assert_same(compiled(tokens(*shape)), model(tokens(*shape)))
    with pytest.raises(TypeError, match="was compiled for arguments"):
        compiled(tokens(2, 5), tokens(2, 5))
    model.train()
    with pytest.raises(accord.ExportError, match="training mode"):
        accord.compile(model, (tokens(2, 5),))


def where(report: accord.CompilationReport) -> dict[str, str]:
    return {op.split(".")[1]: part.where for part in report.partitions for op in part.ops}


@torch.no_grad()
def test_options_decide_where_ops_run():
    class Chain(torch.nn.Module):
        def forward(self, x):
            return (torch.cumprod(torch.exp(x), 0).neg() + 1).abs().sin()

    model, x = Chain().eval(), torch.rand(3, 4)
    by_options = [
        ({"min_block_size": 1}, {"cumprod"}),
        ({"min_block_size": 2}, {"cumprod", "exp"}),
        ({"min_block_size": 5}, {"cumprod", "exp", "neg", "add", "abs", "sin"}),
        (
            {"min_block_size": 1, "torch_executed_ops": {"aten.neg", torch.ops.aten.sin.default}},
            {"cumprod", "neg", "sin"},
        ),
    ]
    for options, in_torch in by_options:
        compiled = accord.compile(model, (x,), options)
        torch.testing.assert_close(compiled(x), model(x))
        assert {op for op, place in where(compiled.report).items() if place == "pytorch"} == in_torch


@torch.no_grad()
def test_data_dependent_sizes_and_the_ops_after_them_stay_in_pytorch():
    class Chosen(torch.nn.Module):
        def forward(self, x):
            return (torch.nonzero(torch.relu(x) * 2) + 1) * 3, x.exp().sin()

    x = torch.tensor([[1.0, -1.0], [2.0, 3.0]])
    compiled = accord.compile(Chosen().eval(), (x,), {"min_block_size": 1})
    for given in (x, -x):
        for got, expected in zip(compiled(given), Chosen()(given), strict=True):
            torch.testing.assert_close(got, expected)
    places = where(compiled.report)
    assert (places["relu"], places["sin"], places["nonzero"], places["add"]) == (
        "engine",
        "engine",
        "pytorch",
        "pytorch",
    )
    assert "a size depends on data" in str(compiled.report)


@torch.no_grad()
def test_only_an_op_that_no_engine_can_be_built_with_goes_to_pytorch():
    class Masked(torch.nn.Module):
        def forward(self, x):
            return ((x * 2 + 1) & 3) + x

    x = torch.arange(6)
    compiled = accord.compile(Masked().eval(), (x,), {"min_block_size": 1})
    torch.testing.assert_close(compiled(x), Masked()(x))
    assert compiled.report.ops("pytorch").total() == 1
    assert "bitwise ops have kernels only for bool (of int64 [6])" in str(compiled.report)
    with pytest.raises(accord.Unsupported, match="bitwise ops have kernels only for bool"):
        accord.compile(Masked().eval(), (x,), {"min_block_size": 1, "pass_through_build_failures": True})


@torch.no_grad()
def test_several_threads_call_a_compiled_model():
    model = Model().eval()
    compiled = accord.compile(model, (tokens(2, 5),))
    expected, wrong = model(tokens(2, 5)), []

    def call() -> None:
        for _ in range(50):
            got = compiled(tokens(2, 5))
            wrong.extend(name for name in got if not torch.allclose(got[name], expected[name], atol=1e-5))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@torch.no_grad()
def test_weights_that_no_product_uses_are_not_moved():
    table = torch.nn.Embedding(1000, 64)
    compiled = accord.compile(table.eval(), (tokens(3),), {"min_block_size": 1})
    # Changed behind torch's back, so that no new engine is built: the engine reads the parameter's memory.
    table.weight.numpy(force=False)[:] = 7
    assert compiled.report.builds == 1
    torch.testing.assert_close(compiled(tokens(3)), torch.full((3, 64), 7.0))


@torch.no_grad()
def test_the_engine_of_a_package_is_a_module(tmp_path):
    class Two(torch.nn.Module):
        def forward(self, x, y):
            return x @ y, torch.relu(x)

    x, y = torch.rand(3, 4) - 0.5, torch.rand(4, 5)
    module = accord.load(accord.export(Two().eval(), (x, y), path=tmp_path / "two.accord")).module()
    both = torch.nn.Sequential(module)
    for got in (module(x, y), module(y=y, x=x)):
        for one, expected in zip(got, Two()(x, y), strict=True):
            torch.testing.assert_close(one, expected)
    first = module(x, y)[1]
    module(-x, y)
    torch.testing.assert_close(first, torch.relu(x))  # the caller owns the outputs
    assert next(both.children()).engine.state == "bound"
    for arguments in ((x,), (x, y, y)):
        with pytest.raises(TypeError, match="the engine takes x, y"):
            module(*arguments)
    with pytest.raises(TypeError, match="the engine takes x, y"):
        module(x, y, y=y)


@torch.no_grad()
def test_a_view_in_pytorch_accepts_engine_outputs_whatever_strides_torch_had():
    class Turned(torch.nn.Module):
        def forward(self, x):
            turned = torch.relu(x.transpose(0, 1))  # relu keeps the strides
            return turned.transpose(0, 1).view(-1)

    x = torch.rand(3, 4)
    compiled = accord.compile(
        Turned().eval(), (x,), {"min_block_size": 1, "torch_executed_ops": {"aten.view", "aten.permute"}}
    )
    assert where(compiled.report) == {"permute": "pytorch", "relu": "engine", "view": "pytorch"}
    torch.testing.assert_close(compiled(x), Turned()(x))


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        return x.sum(0) * times / x.shape[0]


def test_inputs_that_differ_from_the_compiled_ones_are_rejected():
    compiled = accord.compile(Scaled().eval(), (torch.ones(4, 3), 2))
    assert compiled(torch.full((4, 3), 2.0), 2).tolist() == [4.0] * 3
    for wrong, message in [
        ((torch.ones(4, 3), 3), "input 1 was 2 when the model was compiled, and is 3"),
        ((torch.ones(5, 3), 2), r"input 0 was torch.float32 \[4, 3\] .* torch.float32 \[5, 3\]"),
        ((torch.ones(4, 3, dtype=torch.float64), 2), "and is torch.float64"),
        ((1.5, 2), "and is 1.5"),
    ]:
        with pytest.raises(TypeError, match=message):
            compiled(*wrong)
    batch = torch.export.Dim("batch", min=1, max=8)
    compiled = accord.compile(Scaled().eval(), (torch.ones(4, 3), 2), dynamic_shapes=({0: batch}, None))
    assert compiled(torch.ones(5, 3), 2).tolist() == [2.0] * 3


@torch.no_grad()
def test_sizes_beyond_the_bounds_of_an_engine_stay_in_pytorch(fresh, monkeypatch):
    monkeypatch.setattr("accord.graph.symbols.LARGEST_SIZE", 64)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"min_block_size": 1})
    now = accord.compile(
        model, (torch.rand(4, 8),), {"min_block_size": 1}, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    for rows in (64, 65, 3):
        x = torch.rand(rows, 8)
        for one in (compiled, now):
            torch.testing.assert_close(one(x), model(x))
    limited = accord.compile(
        model, (torch.rand(4, 8),), {"min_block_size": 1}, dynamic_shapes=({0: torch.export.Dim("batch", max=32)},)
    )
    with pytest.raises(accord.InvalidArgument, match="33"):
        limited(torch.rand(33, 8))  # exceeding the model's own limit is still an error
