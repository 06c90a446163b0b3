"""Programs in core ATen: each has the same calls as torch's own run_decompositions produces."""

import operator

import pytest
import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_iter

import accord.graph.decomposition
from accord.graph.decomposition import core_aten, decompose

ROWS = torch.export.Dim("rows", min=2, max=64)


class Layers(torch.nn.Module):
    """Attention and a feed-forward part, `count` times."""

    def __init__(self, count: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(count)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Views(torch.nn.Module):
    def forward(self, x):
        turned = x.transpose(0, 1).reshape(-1)
        parts = x.half().split(4, dim=1)
        joined = torch.cat([parts[1], parts[0]], dim=1).to(torch.float32)
        return turned.view(x.shape[1], -1), joined @ x.T, x.flatten().unflatten(0, (x.shape[0], 2, -1)).contiguous()


class Sizes(torch.nn.Module):
    def forward(self, x):
        rows = x.shape[0]
        positions = torch.arange(rows).unsqueeze(1).expand(rows, x.shape[1])
        return torch.where(positions > rows // 2, x, x.new_zeros(())), x.mean(), torch.tril(x @ x.T)


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2)
        )

    def forward(self, x):
        return self.stages(x).flatten(1).softmax(-1)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.long = torch.nn.LSTM(8, 4, batch_first=True)
        self.gated = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.gated(self.long(x)[0])[0]


class Unused(torch.nn.Module):
    """Draws random numbers that only training would use."""

    def forward(self, x):
        noise = torch.randn_like(x)
        return x * 2 + noise if self.training else x * 2


class Complex(torch.nn.Module):
    """Applies the same op to two tensors that differ in their negation bit, which says that the stored values stand
    for their negatives."""

    def forward(self, x):
        y = torch.complex(x, x + 1)
        return y.imag + 1, y.conj().imag + 1


class Written(torch.nn.Module):
    """Writes to its own tensors, which have no aliases."""

    def forward(self, x):
        weights, places = torch.topk(x, 2)
        weights /= weights.sum(-1, keepdim=True)
        y = x * 2
        z = y
        y += weights.sum(-1, keepdim=True)
        y.relu_()
        return y.mul_(y), z + 1, weights, places


class WrittenPart(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 0] = 1
        return y


class SeenInView(torch.nn.Module):
    """Writes to a tensor and reads an earlier view of it afterwards."""

    def forward(self, x):
        y = x + 1
        column = y[:, 0]
        y.mul_(3)
        return column + 1, y


class PerhapsTheSame(torch.nn.Module):
    """Writes to the result of `to`, which is the same tensor because there is nothing to convert."""

    def forward(self, x):
        y = x + 1
        return y.to(x.dtype).add_(1), y


class WrittenList(torch.nn.Module):
    """Writes to several tensors in one call."""

    def forward(self, x):
        parts = [x + 1, x * 2]
        torch._foreach_add_(parts, 1.0)
        return parts[0], torch.ops.aten.mul_.Tensor(self=parts[1], other=x)


class WrittenInput(torch.nn.Module):
    def forward(self, x):
        return x.add_(1) * 2


def program_of(model: torch.nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    shapes = tuple({0: ROWS} for _ in inputs)
    return torch.export.export(model.eval(), inputs, dynamic_shapes=(shapes[0],) if len(shapes) == 1 else shapes)


def calls_of(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the calls that produce tensors. Names are replaced by numbers, because they have no meaning; sizes are
    shown as expressions."""
    names: dict[torch.fx.Node, object] = {}
    calls = []
    for node in program.graph.nodes:
        values = list(tree_iter(node.meta.get("val")))
        if node.op != "call_function":
            names[node] = node.name
        elif any(isinstance(value, torch.Tensor) for value in values):
            names[node] = f"%{len(calls)}"
        else:
            names[node] = str(values[0]) if values else ""
            continue
        given = map_arg((node.args, node.kwargs), lambda one: Name(names[one]))
        shapes = [f"{value.dtype} {list(value.shape)}" for value in values if isinstance(value, torch.Tensor)]
        modules = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
        target = "" if node.op == "output" else node.target
        calls.append(f"{node.op} {target} {given} -> {shapes} in {modules[-1:]}")
    return calls


class Name:
    def __init__(self, name: object):
        self.name = name

    def __repr__(self) -> str:
        return str(self.name)


@torch.no_grad()
def assert_same_values(program: torch.export.ExportedProgram, model: torch.nn.Module, given: torch.Tensor) -> None:
    results = [list(tree_iter(run(given.clone()))) for run in (program.module(), model)]
    for made, expected in zip(*results, strict=True):
        torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Layers(2), (4, 6, 16)),
        (Views(), (4, 8)),
        (Sizes(), (6, 5)),
        (Images(), (2, 3, 8, 8)),
        (Recurrent(), (2, 3, 8)),
        (Unused(), (4, 5)),
        (Written(), (4, 5)),
        (WrittenPart(), (4, 5)),
        (SeenInView(), (4, 5)),
        (PerhapsTheSame(), (4, 5)),
        (WrittenList(), (4, 5)),
        (WrittenInput(), (4, 5)),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, torch.nn.Module) else "",
)
def test_calls_match_run_decompositions(model, shape):
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    program = program_of(model, given.clone())
    ours, theirs = decompose(program), program.run_decompositions(core_aten())
    assert calls_of(ours) == calls_of(theirs)
    assert ours.range_constraints == theirs.range_constraints
    assert [spec.kind for spec in ours.graph_signature.output_specs] == [
        spec.kind for spec in theirs.graph_signature.output_specs
    ]
    assert_same_values(ours, model, given)


def test_calls_on_conjugates_are_traced_separately():
    model, given = Complex(), torch.randn(4, 5)
    assert_same_values(decompose(program_of(model, given)), model, given)


@pytest.mark.parametrize(
    ("model", "is_left"),
    [(Written(), False), (WrittenPart(), True), (SeenInView(), True), (PerhapsTheSame(), True), (WrittenInput(), True)],
    ids=lambda given: type(given).__name__ if isinstance(given, torch.nn.Module) else "",
)
def test_only_programs_that_write_to_aliased_tensors_are_left_to_torch(monkeypatch, model, is_left):
    program = program_of(model, torch.randn(4, 5))
    left = []
    whole = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram, "run_decompositions", lambda self, table: left.append(self) or whole(self, table)
    )
    decompose(program)
    assert left == [program] * is_left


def test_a_call_that_each_layer_makes_is_traced_once(monkeypatch):
    traced = []
    make_fx = accord.graph.decomposition.make_fx
    monkeypatch.setattr(
        accord.graph.decomposition, "make_fx", lambda call, **table: traced.append(call) or make_fx(call, **table)
    )
    numbers = []
    for count in (2, 6):
        traced.clear()
        decompose(program_of(Layers(count), torch.randn(4, 6, 16)))
        numbers.append(len(traced))
    assert 0 < numbers[0] == numbers[1]


def test_decomposing_again_changes_nothing():
    once = decompose(program_of(Layers(1), torch.randn(4, 6, 16)))
    assert calls_of(decompose(once)) == calls_of(once)


def test_inputs_keep_their_names():
    class Named(torch.nn.Module):
        def forward(self, input, sum):
            return input.reshape(-1) * sum.reshape(-1), operator.getitem(input.split(2, 1), 1)

    program = decompose(program_of(Named(), torch.randn(4, 4), torch.randn(4, 4)))
    assert [node.name for node in program.graph.find_nodes(op="placeholder")] == ["input", "sum"]
