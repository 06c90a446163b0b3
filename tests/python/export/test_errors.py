"""Models that cannot be exported raise accord.ExportError, which says where in the model, why, and what to do."""

import errno
import random

import pytest
from function_module import Function

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
X = torch.ones(4, 3)


class Inner(Function):
    """A function inside another module."""


def model_of(function) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(Inner(function))).eval()


def ways(model, inputs, path, **options):
    """Returns the same operation through accord.export and through accord.compile."""
    return (
        lambda: accord.export(model, inputs, path=path / "m.accord", **options),
        lambda: accord.compile(model, inputs, **options),
    )


def raising(error):
    def function(x):
        if not isinstance(x, torch.nn.Parameter) and type(x) is not torch.Tensor:  # one of the tracer's tensors
            raise error
        return x

    return function


def decided(x):
    return x + 1 if x.sum().item() > 0 else x - 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.erfinv, r'unsupported op "aten\.erfinv\.default" at \S+:\d+, in module "1\.0"'),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), 'unsupported op "cond" at .*in module "1.0"'),
        (lambda x: x * x[0, 0].item(), "a number that is computed from a size or taken out of a tensor"),
        (
            lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4)),
            r'unsupported op "aten\.linalg_inv(_ex)?\.default" at .*in module "1.0"',
        ),
        (lambda x: x[:0], r"an output has no elements"),
        (lambda x: x.double() * 2, r'"aten._to_copy.default" at .*py:.*, in module "1.0": dtype torch.float64'),
    ],
    ids=["unsupported", "cond", "item", "check", "empty", "double"],
)
def test_unsupported_ops_are_rejected_with_the_option_that_leaves_them_to_pytorch(function, message, tmp_path):
    with pytest.raises(accord.ExportError, match=message + r".*; options=\{\} leaves such ops to PyTorch$"):
        accord.export(model_of(function), (X,), path=tmp_path / "m.accord")
    path = accord.export(model_of(function), (X,), path=tmp_path / "m.accord", options={"min_block_size": 1})
    torch.testing.assert_close(accord.load(path).module()(X), function(X))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.linalg.inv, "singular"),
        (torch.inverse, "singular"),
        (lambda x: torch.linalg.solve(x, torch.eye(4)), "singular"),
        (lambda x: torch.linalg.tensorsolve(x, torch.ones(4)), "singular"),
        (lambda x: torch.linalg.matrix_power(x, -2), "singular"),
        (lambda x: torch.linalg.cholesky(x - torch.eye(4)), "not positive-definite"),
    ],
)
def test_a_failed_check_of_a_pytorch_op_raises_in_a_compiled_model(function, message):
    compiled = accord.compile(model_of(lambda x: function(x * 2)), (torch.eye(4),), {"min_block_size": 1})
    torch.testing.assert_close(compiled(torch.eye(4)), function(torch.eye(4) * 2))
    with pytest.raises(torch.linalg.LinAlgError, match=message):
        compiled(torch.zeros(4, 4))


def test_a_model_that_changes_state_is_rejected_with_an_alternative(tmp_path):
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x + self.calls

    with pytest.raises(
        accord.ExportError, match=r'changes "calls" while it runs.*torch.compile\(model, backend="accord"\)'
    ):
        accord.export(Counts().eval(), (X,), path=tmp_path / "m.accord")
    run = torch.compile(Counts().eval(), backend="accord", options={"min_block_size": 1})
    assert [run(X)[0, 0].item() for _ in range(2)] == [2, 3]


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (
            decided,
            "GuardOnDataDependentSymNode",
            r"depends on values in tensors.*torch.where or torch.cond there, or run",
        ),
        (
            raising(TypeError("no operand")),
            "TypeError",
            r"TypeError: no operand; change that code, or run the model by",
        ),
        (raising(AttributeError("hidden_size")), "AttributeError", "AttributeError: hidden_size; change that code"),
        (raising(KeyError("s39")), "KeyError", "KeyError: 's39'; change that code"),
        (raising(RuntimeError("")), "RuntimeError", "RuntimeError: no message; change that code"),
    ],
    ids=["values", "TypeError", "AttributeError", "KeyError", "no message"],
)
def test_tracing_errors_name_the_module_the_source_line_and_a_remedy(function, kind, message, tmp_path):
    for way in ways(model_of(function), (X,), tmp_path):
        with pytest.raises(accord.ExportError, match=message) as caught:
            way()
        assert 'in module "1.0" (Inner) at ' in str(caught.value)
        assert "test_errors.py:" in str(caught.value)
        assert caught.value.__cause__ is not None
        chain, error = [], caught.value
        while error is not None:
            chain.append(type(error).__name__)
            error = error.__cause__ or error.__context__
        assert kind in chain
    assert not list(tmp_path.iterdir())


def test_a_model_that_fails_in_pytorch_is_distinguished_from_one_that_cannot_be_traced(tmp_path):
    for function, inputs, message in (
        (
            lambda x: x @ torch.ones(5, 2),
            (X,),
            r'fails with these inputs, in module "1.0" \(Inner\) at .*: RuntimeError: (mm: )?mat1',
        ),
        (
            lambda x: x + 1,
            (X, X),
            r"fails with these inputs.*: TypeError: .*takes 2 positional arguments but 3 were given",
        ),
        (lambda x: x + 1, (None,), r"fails with these inputs.*: TypeError: .*give example_inputs that it takes"),
    ):
        for way in ways(model_of(function), inputs, tmp_path):
            with pytest.raises(accord.ExportError, match="the model itself " + message):
                way()


def test_sizes_that_a_model_does_not_support_are_reported_with_the_findings_of_torch(tmp_path):
    batch = ({0: torch.export.Dim("batch", max=64)},)
    for way in ways(model_of(lambda x: x.view(2, 2, 3) + 1), (X,), tmp_path, dynamic_shapes=batch):
        message = (
            r"its code holds for some values of batch only \(torch finds batch = 4\), "
            r'in module "1.0" \(Inner\); give dynamic_shapes that say so'
        )
        with pytest.raises(accord.ExportError, match=message):
            way()


class Both(torch.nn.Module):
    """Two inputs with the same number of rows. `inner` gets their sum."""

    def __init__(self, inner):
        super().__init__()
        self.inner = Inner(inner)

    def forward(self, x, y):
        return self.inner(x + y)


def test_sizes_that_share_a_symbol_are_not_blamed(tmp_path):
    batch = torch.export.Dim("batch", max=64)
    for inner in (lambda x: x * 2 if x.shape[0] < 30 else x, lambda x: x.view(4, 3) + 1):
        for way in ways(Both(inner).eval(), (X, X), tmp_path, dynamic_shapes=({0: batch}, {0: batch})):
            with pytest.raises(accord.ExportError, match=r'of batch only \(torch finds .*\), in module "inner"'):
                way()


def test_an_error_at_all_sizes_is_not_reported_as_one_of_small_sizes(tmp_path):
    with pytest.raises(
        accord.ExportError, match="the model itself fails with these inputs: RuntimeError: mat1 and mat2"
    ):
        accord.export(torch.nn.Linear(3, 2).bfloat16().eval(), (X,), path=tmp_path / "m.accord")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": None}, "path is None; give the name of a package"),
        ({"sharding": {5: "column"}}, "sharding: the pattern 5 is no text"),
        ({"weights": {5: "int8"}}, "weights: the pattern 5 is no text"),
        ({"weights": ["int8"]}, r"weights: \['int8'\] is not a format of weights"),
        ({"options": 5}, 'options is 5; give a mapping like {"min_block_size": 1}'),
        ({"output_names": "y"}, "output_names is 'y'; give a list of names"),
        ({"output_names": [5]}, r"output_names is \[5\]; give a list of names"),
        ({"output_names": ["\ud800"]}, "give a list of names of 1 to 512 printable bytes"),
        ({"output_names": [""]}, "give a list of names of 1 to 512 printable bytes"),
        ({"path": "a\0b.accord"}, "a path has no zeros in it"),
        ({"dynamic_shapes": ({0: torch.export.Dim("b", max=3)},)}, r"4 not in range \[2, 3\]; change dynamic_shapes"),
        ({"dynamic_shapes": 5}, "dynamic_shapes is 5; give the dimensions of each input"),
        ({"dynamic_shapes": ({0: "b"},)}, "UserError: Unexpected dimension .*; change dynamic_shapes"),
        ({"checkpoint": 5}, "checkpoint is 5; give a safetensors file"),
        ({"progress": 5}, "progress is 5; give a function"),
        ({"dynamic_shapes": ({7: torch.export.Dim("b")},)}, r"names dimension 7 of an input of shape \[4, 3\]$"),
        ({"dynamic_shapes": {"input": {"0": torch.export.Dim("b")}}}, "names dimension '0' of an input of shape"),
        ({"output_names": ["y", "z"]}, "2 output names for 1 outputs of the model$"),
        ({"output_names": ["input"]}, 'name "input" is already the name of another output, or of an input$'),
        ({"weights": accord.Int4(minima="no")}, "weights with minima 'no': give True or False"),
        ({"sharding": {"0": accord.Column(unit=True)}}, "a unit is a whole number from 1 up, got True"),
        ({"sharding": {"0": accord.Column(group=3)}}, '"3" cannot be the name of a group'),
    ],
)
def test_arguments_of_wrong_types_are_distinguished_from_model_errors(given, message, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval()
    with pytest.raises(accord.ExportError, match=message):
        accord.export(model, (X,), **({"path": tmp_path / "m.accord"} | given))
    if "options" in given or "dynamic_shapes" in given:
        with pytest.raises(accord.ExportError, match=message):
            accord.compile(model, (X,), **given)
    with pytest.raises(accord.ExportError, match="example_inputs is None"):
        accord.compile(model, None)
    with pytest.raises(accord.ExportError, match="is a TorchScript module"):
        accord.compile(torch.jit.script(torch.nn.ReLU()).eval(), (X,))


def test_a_size_without_a_fix_from_torch_is_reported_with_its_condition(tmp_path):
    length = ({2: torch.export.Dim("length", min=3, max=64)},)
    with pytest.raises(accord.ExportError, match=r"values of length only \(torch finds .*size\(\)\[2\]\) != 1\)"):
        accord.export(
            torch.nn.Conv1d(4, 6, 3).eval(), (torch.ones(2, 4, 9),), path=tmp_path / "m.accord", dynamic_shapes=length
        )


def test_inputs_that_fail_only_in_pytorch_are_not_reported_as_a_size_error(tmp_path):
    """torch traces a linear layer with integer inputs without an error."""
    with pytest.raises(accord.ExportError, match="the model itself fails with these inputs.*same dtype"):
        accord.export(torch.nn.Linear(3, 3).eval(), (X.long(),), path=tmp_path / "m.accord")


def test_a_weight_of_a_dtype_that_engines_lack_is_named(tmp_path):
    model = model_of(lambda x: x + 1)
    model[1].register_buffer("table", torch.ones(3, dtype=torch.float64))
    model[1].append(Inner(lambda x: x * model[1].table.float()))
    with pytest.raises(accord.UnsupportedOpError, match='weight "1.table": dtype torch.float64 is not supported'):
        accord.export(model, (X,), path=tmp_path / "m.accord")


class Remembers(torch.nn.Module):
    """A model with its own state, outside its buffers."""

    def __init__(self, remember):
        super().__init__()
        self.remember = remember
        self.calls, self.seen, self.last = 0, [], None

    def forward(self, x):
        return self.remember(self, x)


def count(model, x):
    model.calls += 1
    return x * model.calls


def collect(model, x):
    model.seen.append(x)
    return x * len(model.seen)


def keep(model, x):
    before = torch.zeros(3) if model.last is None else model.last
    model.last = x
    return x + before


@pytest.mark.parametrize("remember", [count, collect, keep, lambda _, x: x * random.random()])
@pytest.mark.parametrize("options", [None, {"min_block_size": 1}])
def test_a_model_with_different_results_in_a_second_call_is_rejected(remember, options, tmp_path):
    model = Remembers(remember).eval()
    model(X)
    with pytest.raises(accord.ExportError, match="other values when it is called again"):
        accord.export(model, (X,), path=tmp_path / "m.accord", options=options)


def test_values_that_a_model_computes_once_and_keeps_are_exported(tmp_path):
    def table(model, x):
        if model.last is None:
            model.last = torch.arange(3.0)
        return x + model.last

    model = Remembers(table).eval()
    loaded = accord.load(accord.export(model, (X,), path=tmp_path / "m.accord")).module()
    assert torch.equal(loaded(X), X + torch.arange(3.0))


def test_torch_programs_are_exported_through_their_modules_and_the_error_says_how(tmp_path):
    model = torch.nn.Linear(3, 3).eval()
    program = torch.export.export(model, (X,))
    with pytest.raises(accord.ExportError, match=r"accord.compile\(program\).save\(path\)"):
        accord.export(program, (X,), path=tmp_path / "m.accord")
    for package in (
        accord.compile(program).save(tmp_path / "a.accord"),
        accord.export(program.module(), (X,), path=tmp_path / "b.accord"),
    ):
        with torch.no_grad():
            assert torch.allclose(accord.load(package).module()(X), model(X))


def test_16_bit_rounding_does_not_count_as_a_difference_from_the_model(tmp_path):
    """PyTorch computes logit in float32 and rounds once; its decomposition rounds at each step."""
    x = torch.rand(64, generator=torch.Generator().manual_seed(0)).half()
    model = model_of(lambda x: torch.logit(x, 1e-3))
    loaded = accord.load(accord.export(model, (x,), path=tmp_path / "m.accord")).module()
    assert torch.allclose(loaded(x), model(x), rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_and_memory_errors_propagate_unchanged(error, tmp_path):
    for way in ways(model_of(raising(error())), (X,), tmp_path):
        with pytest.raises(error):
            way()


def test_a_package_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(accord.ExportError, match=r"m.accord: .*Permission denied.*nothing was written"):
        accord.export(model_of(torch.relu), (X,), path=tmp_path / "m.accord")


def test_a_checkpoint_whose_reading_fails_is_named(tmp_path, monkeypatch):
    def fail(*_):
        raise AttributeError("'NoneType' object has no attribute 'dtype'")

    monkeypatch.setattr("accord.checkpoints.export.read_config", fail)
    with pytest.raises(accord.ExportError, match="checkpoint: AttributeError: 'NoneType' object has no attribute"):
        accord.export_checkpoint(tmp_path / "checkpoint", path=tmp_path / "m.accord")


IMAGE = (torch.ones(1, 3, 64, 64),)


def test_image_models_whose_sizes_differ_by_stage_are_exported_or_the_op_is_named(tmp_path):
    segformer = transformers.SegformerModel(
        transformers.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 32])
    ).eval()
    engine = accord.load(accord.export(segformer, IMAGE, path=tmp_path / "segformer.accord"))
    with torch.no_grad():
        expected = segformer(*IMAGE).last_hidden_state
    torch.testing.assert_close(engine.module()(*IMAGE).last_hidden_state, expected, rtol=1e-4, atol=1e-4)
    swin = transformers.SwinModel(
        transformers.SwinConfig(
            image_size=64, patch_size=4, embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=4
        )
    ).eval()
    program = accord.load(accord.export(swin, IMAGE, path=tmp_path / "swin.accord", options={}))
    with torch.no_grad():
        expected = swin(*IMAGE).last_hidden_state
    torch.testing.assert_close(program.module()(*IMAGE).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


def test_the_error_for_a_model_with_a_state_in_code_of_its_own_says_so(tmp_path):
    config = transformers.xLSTMConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_heads=2)
    with pytest.raises(
        accord.ExportError, match="xLSTMForCausalLM keeps a state from token to token .* code of its own"
    ):
        accord.export(transformers.xLSTMForCausalLM(config).eval(), path=tmp_path / "m.accord")
