"""Tensors that torch.export does not trace raise accord.ExportError, which names them and says what to do."""

import warnings

import pytest
from function_module import Function

import accord

torch = pytest.importorskip("torch")
X = torch.ones(4, 3)


def quantized_by_torch() -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(3, 3)).eval())


def with_buffer(value) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.ReLU())
    model[0].register_buffer("table", value)
    return model.eval()


def made_in_inference_mode() -> torch.nn.Module:
    with torch.inference_mode():
        return torch.nn.Linear(3, 3).eval()


@pytest.mark.parametrize(
    ("model", "made", "message"),
    [
        (
            quantized_by_torch,
            lambda: X,
            r'module "0" \(Linear\) is quantized by torch.ao.*; give the model as it was before',
        ),
        (
            made_in_inference_mode,
            lambda: X,
            r'"weight" was made within torch.inference_mode\(\).*torch.no_grad\(\) instead',
        ),
        (lambda: torch.nn.LazyLinear(3).eval(), lambda: X, '"weight" is of no shape yet.*; run the model once before'),
        (
            lambda: with_buffer(torch.eye(3).to_sparse()),
            lambda: X,
            r'"0.table" is a sparse tensor.*; give its to_dense\(\)',
        ),
        (lambda: with_buffer(torch.eye(3).to_sparse_csr()), lambda: X, '"0.table" is a sparse tensor'),
        (
            torch.nn.ReLU,
            lambda: torch.nested.nested_tensor([X, X[:1]]),
            r"example_inputs\[0\] is a nested tensor.*; pad it to one shape",
        ),
        (torch.nn.ReLU, X.to_sparse, r"example_inputs\[0\] is a sparse tensor"),
        (torch.nn.ReLU, lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), r"\[0\] is a quantized tensor"),
        (
            lambda: Function(lambda x: (x, float("nan"))).eval(),
            lambda: X,
            r"gives nan itself.*; give torch.tensor\(nan\)",
        ),
    ],
)
def test_tensor_kinds_that_torch_does_not_trace_are_named_with_a_remedy(model, made, message, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = (made(),)
    model = model()
    with pytest.raises(accord.ExportError, match=message):
        accord.export(model, inputs, path=tmp_path / "m.accord")
    with pytest.raises(accord.ExportError, match=message):
        accord.compile(model, inputs)


def test_a_module_names_an_argument_that_is_not_a_tensor(tmp_path):
    engine = accord.load(accord.export(torch.nn.ReLU(), (X,), path=tmp_path / "m.accord"))
    with pytest.raises(TypeError, match="input is a list; a module takes tensors"):
        engine.module()([[1.0]])
