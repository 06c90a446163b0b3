"""Rewrites of the traced graph that let ranks share it: joined parts stay apart, rows of heads keep their shape, and
products with a transposed weight are linear layers."""

import json

import numpy as np
import pytest
import torch

import accord


class Fused(torch.nn.Module):
    """Two layers whose outputs are joined, scaled, activated, turned and split again at `cut`, for two others."""

    def __init__(self, cut: int):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 6), torch.nn.Linear(8, 4)
        self.scales = torch.nn.Parameter(torch.linspace(1, 2, 10))
        self.third, self.fourth = torch.nn.Linear(cut, 3), torch.nn.Linear(10 - cut, 2)
        self.cut = cut

    def forward(self, x):
        joined = torch.nn.functional.silu(torch.cat([self.first(x), self.second(x)], -1) * self.scales).transpose(0, 1)
        one, other = joined[: self.cut], joined[self.cut :]
        return self.third(one.T), self.fourth(other.T)


class NormOfHeads(torch.nn.Module):
    """Flattens tokens and heads, scales each row by its own mean, and multiplies it with a gate."""

    def forward(self, x, gate):
        rows, gates = x.view(-1, 4), gate.reshape(-1, 4)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6) * gates.sigmoid()
        return rows.view(x.shape[0], -1) + 1, rows.sum(0)


class Transposed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 6)

    def forward(self, x):
        return x @ self.layer.weight.T * 2


def ops_of(path) -> list[str]:
    return [node["op"].split(".")[1] for node in json.loads((path / "graph.json").read_text())["nodes"]]


@torch.no_grad()
def exported(model, inputs, folder):
    """Exports a model and returns its package, whose outputs must be the model's."""
    path = accord.export(model.eval(), inputs, path=folder / "model.accord")
    with accord.load(path) as engine:
        for given, wanted in zip(engine.run(*(x.numpy() for x in inputs)), _listed(model(*inputs)), strict=True):
            np.testing.assert_allclose(np.asarray(given), wanted.numpy(), rtol=1e-5, atol=1e-6)
    return path


def _listed(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_joined_parts_stay_apart_through_ops_of_single_elements(tmp_path):
    torch.manual_seed(0)
    ops = ops_of(exported(Fused(6), (torch.randn(5, 8),), tmp_path))
    assert "cat" not in ops
    assert ops.count("silu") == 2


def test_parts_that_are_split_elsewhere_are_joined(tmp_path):
    torch.manual_seed(0)
    ops = ops_of(exported(Fused(5), (torch.randn(5, 8),), tmp_path))
    assert ops.count("cat") == 1
    assert ops.count("silu") == 1


def test_rows_of_heads_are_computed_in_their_shape(tmp_path):
    torch.manual_seed(0)
    path = exported(NormOfHeads(), (torch.randn(5, 3, 4), torch.randn(5, 12)), tmp_path)
    nodes = json.loads((path / "graph.json").read_text())["nodes"]
    (mean,) = [node for node in nodes if node["op"] == "aten.mean.dim"]
    assert mean["outputs"][0]["shape"] == [5, 3, 1]


def test_a_product_with_a_transposed_weight_is_a_linear_layer(tmp_path):
    torch.manual_seed(0)
    path = exported(Transposed(), (torch.randn(5, 8),), tmp_path)
    (linear,) = [n for n in json.loads((path / "graph.json").read_text())["nodes"] if n["op"] == "aten.linear.default"]
    assert linear["module"] == "layer"
    assert "permute" not in ops_of(path)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_fused_layers_between_which_are_activations(ranks, tmp_path):
    from thread_ranks import on_threads

    torch.manual_seed(0)
    model, x = Fused(6), torch.randn(5, 8)
    rules = {"first": accord.Column(unit=2), "third": accord.Row(unit=2)}
    rules |= {"second": accord.Column(unit=1), "fourth": accord.Row(unit=1)}
    path = accord.export(model.eval(), (x,), path=tmp_path / "model.accord", sharding=rules)

    def run(comm):
        with accord.load(path, {"tp": comm}) as engine:
            return [np.array(output) for output in engine.run(x.numpy())]

    with torch.no_grad():
        wanted = model(x)
    for outputs in on_threads(ranks, run):
        for given, expected in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(given, expected.numpy(), rtol=1e-5, atol=1e-6)
