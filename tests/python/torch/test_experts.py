"""accord.moe's autograd functions, and a mixture of experts trained over several ranks."""
# ruff: noqa: F821 (names that ranks.py provides)

import subprocess
import sys

import pytest
from accord_command import ACCORD
from torch_examples import run_example

import accord.moe


def exact_gradients(group):
    """Compares analytic with numeric gradients of a loss over all ranks, element by element, in float64."""
    import accord.torch
    from accord import moe

    rank, size = dist.get_rank(), dist.get_world_size()
    experts = moe.ExpertGroup(
        accord.torch.communicator(group),
        experts=4,
        top_k=2,
        hidden=3,
        max_tokens_per_rank=4,
        alignment=2,
        dtype="float64",
    )
    handle = experts.handle()
    generator = torch.Generator().manual_seed(rank)
    ids = torch.tensor([[0, 3], [2, -1], [1, 0]][: 3 - rank % 2])
    experts.prepare(handle, ids)
    x = torch.randn(len(ids), 3, dtype=torch.float64, generator=generator).requires_grad_()
    w = torch.randn(len(ids), 2, dtype=torch.float64, generator=generator).requires_grad_()
    factors = torch.randn(handle.recv_rows, 3, dtype=torch.float64, generator=generator)
    wanted = torch.randn(len(ids), 3, dtype=torch.float64, generator=generator)

    def loss_of(x, w):
        rows, row_weights = moe.dispatch(experts, handle, x, w)
        result = moe.combine(experts, handle, torch.tanh(rows * factors) * row_weights[:, None])
        return ((result - wanted) ** 2).sum()

    def total(x, w):
        with torch.no_grad():
            loss = loss_of(x, w)
        dist.all_reduce(loss)
        return loss.item()

    loss_of(x, w).backward()
    worst = 0.0
    for owner in range(size):
        for which in (x, w):
            # Ranks have different numbers of tokens. The owner shares its number, and the others join its
            # evaluations.
            count = torch.tensor(which.numel() if rank == owner else 0)
            dist.all_reduce(count)
            for i in range(int(count)):
                sides = []
                for step in (1e-6, -1e-6):
                    moved = which.detach().clone()
                    if rank == owner:
                        moved.view(-1)[i] += step
                    sides.append(total(moved if which is x else x.detach(), moved if which is w else w.detach()))
                if rank == owner:
                    numeric = (sides[0] - sides[1]) / 2e-6
                    worst = max(worst, abs(numeric - which.grad.view(-1)[i].item()))
    return worst


@pytest.mark.parametrize("size", [1, 2, 4])
def test_gradients_match_the_loss_over_all_ranks(torch_ranks, size):
    assert max(torch_ranks(size).run(exact_gradients)) < 1e-7


def checked_by_torch(group):
    """Runs torch's gradcheck, which requires that no other rank takes part."""
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group),
        experts=3,
        top_k=2,
        hidden=4,
        max_tokens_per_rank=4,
        alignment=4,
        dtype="float64",
    )
    handle = experts.handle()
    experts.prepare(handle, torch.tensor([[2, 0], [-1, 1], [1, 1], [7, -1]], dtype=torch.int32))
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(handle.recv_rows + 2, 4, dtype=torch.float64, requires_grad=True)  # two rows more than needed
    assert torch.autograd.gradcheck(lambda x, w: moe.dispatch(experts, handle, x, w), (x, w))
    assert torch.autograd.gradcheck(lambda y: moe.combine(experts, handle, y), (y,))


def test_gradcheck(torch_ranks):
    torch_ranks(1).run(checked_by_torch)


def of_all_dtypes(group):
    """Rows of every dtype arrive unchanged, also from tensors that are not contiguous."""
    import accord.torch
    from accord import moe

    rank = dist.get_rank()
    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=2, top_k=1, hidden=130, max_tokens_per_rank=5, dtype="float64"
    )
    handle = experts.handle()
    experts.prepare(handle, torch.full((5, 1), 1 - rank))
    for dtype in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        sent = (torch.arange(650).reshape(130, 5).t() % 7 + rank).to(getattr(torch, dtype))
        with torch.no_grad():
            received, none = moe.dispatch(experts, handle, sent)
        assert none is None
        expected = (torch.arange(650).reshape(130, 5).t() % 7 + 1 - rank).to(sent.dtype)
        assert received.dtype == sent.dtype
        assert torch.equal(received.double(), expected.double()), dtype
        if not dtype.startswith("float8"):
            assert torch.equal(moe.combine(experts, handle, received), sent)


def test_rows_of_every_dtype(torch_ranks):
    torch_ranks(2).run(of_all_dtypes)


def in_other_shapes(group):
    """Passes tokens as a batch of texts, and the weights of one choice as a list. Gradients have the shapes of the
    arguments."""
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=2, top_k=1, hidden=4, max_tokens_per_rank=6, dtype="float32"
    )
    handle = experts.handle()
    experts.prepare(handle, torch.tensor([0, 1, 0, 1, 1, 0]))
    x, weights = torch.randn(2, 3, 4, requires_grad=True), torch.rand(6, requires_grad=True)
    received, received_weights = moe.dispatch(experts, handle, x, weights)
    moe.combine(experts, handle, received * received_weights[:, None]).sum().backward()
    torch.testing.assert_close(x.grad, weights.detach().view(2, 3, 1).expand(2, 3, 4))
    torch.testing.assert_close(weights.grad, x.detach().sum(-1).view(6))


def test_gradients_have_the_shapes_of_the_inputs(torch_ranks):
    torch_ranks(2).run(in_other_shapes)


def prepare_again(group):
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=2, top_k=1, hidden=2, max_tokens_per_rank=2, dtype="float32"
    )
    first, second = experts.handle(), experts.handle()
    x = torch.ones(2, 2, requires_grad=True)
    ids = torch.tensor([[0], [1]])
    results = []
    for handle in (first, second):  # two microbatches in flight
        experts.prepare(handle, ids)
        results.append(moe.dispatch(experts, handle, x)[0].sum())
    for result in results:
        result.backward()
    assert torch.equal(x.grad, torch.full((2, 2), 2.0))
    late = moe.dispatch(experts, first, x)[0].sum()
    experts.prepare(first, ids.flip(0))
    try:
        late.backward()
    except accord.WrongState as error:
        return str(error)


def test_a_map_prepared_again_is_rejected_in_backward(torch_ranks):
    for text in torch_ranks(2).run(prepare_again):
        assert "was prepared again for other ids after the forward" in text


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_four_ranks_train_like_one(dtype, tolerance):
    launch = [str(ACCORD), "run", "-n"]
    arguments = ("train_experts.py", "--steps", 50, "--dtype", dtype)
    alone, _ = run_example([*launch, "1"], *arguments)
    together, _ = run_example([*launch, "4"], *arguments)
    assert list(alone) == list(together) == list(range(1, 51))
    assert max(abs(alone[step] - together[step]) for step in alone) < tolerance
    assert alone[50] < alone[1] - 0.5


def test_accord_moe_imports_torch_only_when_needed():
    program = "import sys, accord.moe; accord.moe.ExpertGroup; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="no attribute 'dispach'"):
        _ = accord.moe.dispach
