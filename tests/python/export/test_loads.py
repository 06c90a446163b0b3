"""accord.load accepts every package that accord.export writes, on one rank and on two. export rejects ops that have no
kernel and names its place in the model."""

import itertools

import pytest

import accord

torch = pytest.importorskip("torch")
from op_cases import all_calls  # noqa: E402
from op_values import Call, In  # noqa: E402

aten = torch.ops.aten


class Layer(torch.nn.Module):
    """A module that calls one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = Layer(function)

    def forward(self, *inputs):
        return self.layer(*inputs)


FLOATS, WHOLE = torch.ones(4, 3), torch.ones(4, 3, dtype=torch.int64)
REFUSED = {  # part of the error message -> model, input
    r"transposed convolution.*float32 \[1, 3, 8\]": (torch.nn.ConvTranspose1d(3, 4, 2), torch.ones(1, 3, 8)),
    r"aten.convolution.*float32 \[1, 3, 4, 4, 4\]": (torch.nn.Conv3d(3, 4, 2), torch.ones(1, 3, 4, 4, 4)),
    r"aten.convolution.* only with weights of the package.*float32": (
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 2)),
        torch.ones(1, 3, 8),
    ),
    r"aten.layer_norm.*float32 \[2, 4, 4\]": (torch.nn.LayerNorm((4, 4)), torch.ones(2, 4, 4)),
    r"aten.gather.*for a scalar.*float32 \[\]": (
        Model(lambda x: x.gather(0, torch.zeros((), dtype=torch.int64))),
        torch.tensor(2.0),
    ),
    r"aten.topk.*only along the last dimension.*float32 \[4, 3\]": (Model(lambda x: x.topk(2, dim=0)), FLOATS),
    r"aten.bitwise_and.*only for bool.*int64 \[4, 3\]": (Model(lambda n: n & 3), WHOLE),
    r"aten.mm.*int64 \[4, 3\]": (Model(lambda n: n @ n.t()), WHOLE),
    r"aten.add.*uint8 \[4, 3\]": (Model(lambda n: n + 1), WHOLE.to(torch.uint8)),
    r"aten.linalg_vector_norm.*order 2": (Model(lambda x: torch.linalg.vector_norm(x, ord=1, dim=1)), FLOATS),
}


@pytest.mark.parametrize("message", REFUSED)
def test_export_rejects_ops_without_a_kernel_and_names_their_source_line(message, tmp_path):
    model, example = REFUSED[message]
    with pytest.raises(accord.ExportError, match=message) as error:
        accord.export(model.eval(), (example,), path=tmp_path / "model.accord")
    assert ".py:" in str(error.value)
    assert "options={} leaves such ops to PyTorch" in str(error.value)
    assert "model.accord" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_dtype_without_kernel_becomes_a_pytorch_partition(tmp_path):
    model = Model(lambda n: ((n + 5) & 3) * 2).eval()
    package = accord.export(model, (WHOLE,), path=tmp_path / "model.accord", options={"min_block_size": 1})
    program = accord.load(package)
    assert torch.equal(program.module()(WHOLE), model(WHOLE))


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 64), torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"up": accord.Column(unit=32), "down": accord.Row(unit=16)}, "does not line up"),
        ({"down": accord.Row(unit=16)}, "give the layer before it a column rule"),
    ],
)
def test_export_rejects_rules_that_two_ranks_cannot_follow(rules, message, tmp_path):
    with pytest.raises(accord.ExportError, match=f'rank 0 of 2 in group "tp".*down.*{message}'):
        accord.export(TwoLayers().eval(), (torch.ones(2, 8),), path=tmp_path / "model.accord", sharding=rules)
    assert not list(tmp_path.iterdir())


def test_a_layer_of_one_unit_is_exported_and_runs_on_one_rank_only(tmp_path):
    rules = {"up": accord.Column(unit=64), "down": accord.Row(unit=64)}
    package = accord.export(TwoLayers().eval(), (torch.ones(2, 8),), path=tmp_path / "model.accord", sharding=rules)
    accord.load(package).close()
    with pytest.raises(accord.InvalidArgument, match="has 1 unit of 64 to share"):
        accord.Engine.load(package, {"tp": (0, 2)})


def model_of(call: Call) -> torch.nn.Module:
    _, name, overload = call.op.split(".")
    op = getattr(getattr(aten, name), overload)

    def run(*inputs):
        def given(one):
            if isinstance(one, In):
                return inputs[one.number]
            return [given(item) for item in one] if isinstance(one, list) and isinstance(one[0], In) else one

        return op(**{key: given(one) for key, one in call.arguments.items()})

    return Model(run).eval()


@pytest.mark.parametrize("every", [127, pytest.param(1, marks=pytest.mark.slow)])
def test_every_pair_of_op_and_dtypes_is_rejected_by_export_or_loads(every, tmp_path):
    seen, pairs = set(), []
    for call in all_calls():
        pair = (call.op, *(one.dtype for one in call.inputs))
        if pair not in seen and call.inputs and call.expected() is not None:
            seen.add(pair)
            pairs.append(call)
    refused = 0
    for call in itertools.islice(pairs, 0, None, every):
        path = tmp_path / "model.accord"
        try:
            accord.export(model_of(call), tuple(call.inputs), path=path)
        except accord.ExportError as error:
            refused += 1
            assert "unsupported op" in str(error) or "aten." in str(error), f"{call}: {error}"
            continue
        accord.load(path).close()
    print(f"{len(pairs)} pairs, every {every}: {refused} refused")
