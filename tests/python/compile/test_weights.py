"""torch.compile(backend="accord") computes with the current weights, however they were changed."""

import pytest
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
dist = torch.distributed
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(10, 8)
        self.up = torch.nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.up(self.table(tokens)))


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 10, shape, generator=torch.Generator().manual_seed(sum(shape)))


def of_a_base(model):
    """Makes the weight a view of a base tensor, with its own version counter, and returns the base."""
    base = torch.rand(20, 30)
    model.up.weight = torch.nn.Parameter(torch.as_strided(base.data, (16, 8), (1, 20)))
    return base


UNCOUNTED = {
    "data": lambda model, base: model.up.weight.data.mul_(-1),
    "a row of data": lambda model, base: model.up.bias.data[3].fill_(7),
    "numpy": lambda model, base: model.table.weight.detach().numpy().fill(0.25),
    "a base": lambda model, base: base.mul_(2),
    "dlpack": lambda model, base: torch.from_dlpack(model.up.weight.detach()).neg_(),
}


@pytest.mark.parametrize("change", UNCOUNTED.values(), ids=UNCOUNTED)
@torch.no_grad()
def test_weight_changes_that_torch_does_not_track_are_detected(change, fresh):
    model = Model().eval()
    base = of_a_base(model)
    compiled = torch.compile(model, backend="accord", dynamic=True, options={"min_block_size": 1})
    for _ in range(2):
        torch.testing.assert_close(compiled(tokens(2, 5)), model(tokens(2, 5)))
        versions = [weight._version for weight in model.parameters()]
        change(model, base)
        assert versions == [weight._version for weight in model.parameters()]
    torch.testing.assert_close(compiled(tokens(2, 5)), model(tokens(2, 5)))


def test_weights_created_in_inference_mode_may_also_change(fresh):
    with torch.inference_mode():
        model = Model().eval()
        compiled = torch.compile(model, backend="accord", dynamic=True, options={"min_block_size": 1})
        for _ in range(3):
            torch.testing.assert_close(compiled(tokens(2, 5)), model(tokens(2, 5)))
            model.up.weight.mul_(1.5)
    (report,) = accord.compilation_report(model)
    assert report.builds == 3


@torch.no_grad()
def test_large_weights_are_compared_completely_but_bytes_between_them_are_not():
    from accord.jit.weight_state import WeightState

    whole = torch.zeros(100, 200)
    part = whole[10:90, ::2]
    states = {"whole": WeightState([whole]), "part": WeightState([part])}
    held = {"whole": [whole], "part": [part]}
    for changed, place in (({"whole"}, (0, 0)), ({"whole"}, (99, 199)), ({"whole", "part"}, (slice(10, 90),))):
        whole.data[place] += 1
        assert {name for name, state in states.items() if not state.holds(held[name])} == changed
        states = {name: WeightState(weights) for name, weights in held.items()}
    part.data[0, 0], part.data[-1, -1] = -1, -1
    assert not states["part"].holds([part])
    states = {"part": WeightState([part])}
    whole.data[:, 1::2] = 5
    assert states["part"].holds([part])


def weights_from_other_ranks(group):
    rank, other = dist.get_rank(), 1 - dist.get_rank()

    def exchange(weight):
        given = torch.full_like(weight, rank + 2.0)
        return [dist.P2POp(dist.isend, given, other), dist.P2POp(dist.irecv, weight, other)]

    ways = (
        lambda weight: dist.broadcast(weight, 0),
        lambda weight: dist.all_reduce(weight.detach(), async_op=True).wait(),
        lambda weight: dist.scatter(weight, [torch.ones_like(weight)] * 2 if rank == 0 else None),
        lambda weight: [work.wait() for work in dist.batch_isend_irecv(exchange(weight))],
    )
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6)).eval()
    compiled = torch.compile(model, backend="accord", options={"require_full_compilation": True})
    x = torch.rand(4, 6)
    with torch.no_grad():
        compiled(x)
        for way in ways:
            for weight in model.parameters():
                way(weight)
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("backend", mostly_slow(["gloo", "accord"], "accord"))
def test_weights_received_by_a_collective_or_a_message_are_detected(torch_ranks, backend):
    torch_ranks(2).run(weights_from_other_ranks, backend=backend, deadline=120)
