"""Ops that engines lack and that are written with others: each gives what PyTorch gives, and an engine runs it."""

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")

X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
ZEROS = torch.zeros(3, 8)
BEST = torch.tensor([[7, 0], [3, 4], [1, 6]])
TIES = torch.tensor([[1.0, 2.0, 2.0], [5.0, 5.0, 5.0]])


def written(whole, part):
    whole = whole.new_empty(whole.shape)
    whole[..., :2].copy_(part[..., :2])
    whole[..., 2:] = part[..., 2:]
    return whole


def row_written(x):
    x = x.clone()
    x[:, 1] = 7
    x[:, -1] = x[:, 0]
    return x


def every_third_written(x):
    x = x.clone()
    x[..., 1:5:3] = x[..., :2] * 2
    return x


def turned(x, angles):
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    factors = torch.polar(torch.ones_like(angles), angles) * 2.0
    return torch.view_as_real(numbers * factors[:, None, :]).flatten(-2)


CASES = {
    "complex numbers": (turned, X, torch.rand(3, 3)),
    "scatter a number": (lambda x, ids: x.scatter(1, ids, 1.0), ZEROS, BEST),
    "scatter along the first dimension": (lambda x, ids: x.scatter(0, ids, -2.5), ZEROS.T, BEST.T),
    "scatter integers": (lambda x, ids: x.scatter(-1, ids, 3), ZEROS.to(torch.int64), BEST),
    "scatter values": (lambda x, ids, values: x.scatter(1, ids, values), ZEROS - 1, BEST, torch.rand(3, 2)),
    "write in parts": (written, X, X + 1),
    "write rows": (row_written, X),
    "write every third column": (every_third_written, X),
    "repeat": (lambda x: x.repeat(2, 1, 3), X),
    "repeat with more dimensions": (lambda x: x.repeat(2, 1, 1, 2, 1), X),
    "largest": (lambda x: (x.max(), x.min()), X),
    "largest and smallest of rows": (lambda x: (*x.max(-1), *x.min(2, keepdim=True)), X),
    "where the largest is": (lambda x: (x.argmax(-1), x.argmin(-1, keepdim=True)), X),
    "the first of equal ones": (lambda x: (*x.max(1), x.argmax(1), x.argmin(1)), TIES),
    "e^x - 1": (torch.expm1, torch.cat([X.flatten(), X.flatten() * 1e-4, torch.tensor([-90.0, 30.0, 0.0])])),
    "clamp by tensors": (lambda x, low: x.clamp(low, low + 1), X, X[:, :1]),
}


@pytest.mark.parametrize("case", CASES)
def test_an_engine_gives_what_pytorch_gives(case, tmp_path):
    function, *inputs = CASES[case]

    class Model(torch.nn.Module):
        def forward(self, *given):
            return function(*given)

    path = accord.export(Model(), inputs, path=tmp_path / "model.accord")
    wanted = function(*inputs)
    with accord.load(path) as engine:
        given = engine.run(*(one.contiguous().numpy() for one in inputs))
        for one, right in zip(given, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            np.testing.assert_allclose(np.array(one), right.numpy(), rtol=1e-6, atol=1e-6)


def test_a_scatter_by_many_indices_is_refused(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, ids):
            return x.scatter(1, ids, 1.0)

    with pytest.raises(accord.UnsupportedOpError, match="aten.scatter.value"):
        accord.export(
            Model(), (torch.zeros(2, 100), torch.zeros(2, 100, dtype=torch.int64)), path=tmp_path / "m.accord"
        )
