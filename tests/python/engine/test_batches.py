"""Packages loaded as replicas: the ranks of group "dp" divide a batch, with and without tensor parallelism."""

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.down(torch.relu(self.up(x))) + bias
        return y, y.sum(-1) > 0


def x(rows: int) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))


BIAS = torch.arange(8.0)


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("batches") / "m.accord"
    batch = torch.export.Dim("batch", min=2, max=6)
    sharding = {"up": accord.Column(unit=8), "down": accord.Row(unit=8)}
    return str(
        accord.export(Model().eval(), (x(4), BIAS), path=path, sharding=sharding, dynamic_shapes=({0: batch}, None))
    )


def run_batches(comm, path, inputs, bias, tensor_ranks):
    tp = comm.split(comm.rank // tensor_ranks, name="tp")
    dp = comm.split(comm.rank % tensor_ranks, name="dp")
    with accord.load(path, {"tp": tp, "dp": dp}) as engine:
        return [[np.array(output) for output in engine.run(each, bias)] for each in inputs]


@pytest.mark.parametrize(("replicas", "tensor_ranks"), [(2, 1), (3, 1), (2, 2)])
def test_every_rank_gets_the_outputs_of_the_whole_batch(replicas, tensor_ranks, ranks, package):
    # The largest batch of all replicas together, sizes that the replicas do not divide, and one so small that some
    # get no row.
    batches = [6 * replicas, 5, 2, 7]
    given = [x(rows).numpy() for rows in batches]
    results = ranks(replicas * tensor_ranks).run(run_batches, package, given, BIAS.numpy(), tensor_ranks)
    for outputs in results:
        for rows, (y, positive) in zip(batches, outputs, strict=True):
            with torch.no_grad():
                right, right_positive = Model()(x(rows), BIAS)
            torch.testing.assert_close(torch.from_numpy(y), right)
            assert np.array_equal(positive, right_positive.numpy())
            assert y.tobytes() == results[0][batches.index(rows)][0].tobytes()


def run_and_return_error(comm, path, given, bias):
    with accord.load(path, {"dp": comm}) as engine:
        try:
            engine.run(given, bias)
        except accord.InvalidArgument as error:
            return str(error)


@pytest.mark.parametrize(("rows", "batch"), [(1, "a batch of 1"), (13, "a batch of 13")])
def test_a_batch_that_the_ranks_cannot_divide_is_rejected_by_all(rows, batch, ranks, package):
    for message in ranks(2).run(run_and_return_error, package, x(rows).numpy(), BIAS.numpy()):
        assert f'{batch} rows cannot be divided among the 2 ranks of group "dp"' in message, message
        assert 'dimension "batch" of each rank must be 2 to 6' in message, message


def load_and_return_error(comm, path):
    try:
        accord.load(path, {"dp": comm})
    except accord.Unsupported as error:
        return str(error)


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


def test_outputs_that_are_not_a_batch_are_rejected(ranks, tmp_path):
    batch = torch.export.Dim("batch", min=1, max=6)
    path = accord.export(Sums().eval(), (x(4),), path=tmp_path / "m.accord", dynamic_shapes=({0: batch},))
    for message in ranks(2).run(load_and_return_error, str(path)):
        assert "do not all begin with one dynamic dimension of an input" in message
