"""Tensors on a real GPU that all rank processes share: NCCL accepts several ranks on one GPU if it takes each for a
its own host. Run by scripts/test-gpu."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from cuda_ranks import started
from ranks import RANK_PROGRAM, TORCH_PROGRAM

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)


@pytest.fixture(scope="module", params=[1, 2])
def torch_ranks(request):
    ranks = started(request.param, TORCH_PROGRAM)
    yield lambda function, backend="cpu:accord,cuda:accord": ranks.run(function, backend=backend, deadline=90)
    ranks.end()


@pytest.fixture(scope="module", params=[1, 2])
def plain_ranks(request):
    ranks = started(request.param, RANK_PROGRAM)
    yield lambda function: ranks.run(function, deadline=90, torch=True)
    ranks.end()


def collectives(group):
    rank, size = group.rank(), group.size()
    device = torch.device("cuda", 0)
    values = torch.full((1000,), rank + 1.0, device=device)
    dist.all_reduce(values)
    assert values.tolist() == [size * (size + 1) / 2] * 1000
    part = torch.full((3, 4), rank, dtype=torch.bfloat16, device=device)
    whole = torch.empty(3 * size, 4, dtype=torch.bfloat16, device=device)
    dist.all_gather_into_tensor(whole, part)
    assert whole.float().mean().item() == (size - 1) / 2
    mine = torch.empty(2, dtype=torch.int64, device=device)
    dist.reduce_scatter_tensor(mine, torch.arange(2 * size, device=device))
    assert mine.tolist() == [size * 2 * rank, size * (2 * rank + 1)]
    sent = torch.arange(size, device=device) + 10 * rank
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    assert got.tolist() == [10 * other + rank for other in range(size)]
    spread = torch.ones(4, 4, device=device)[:, ::2]  # not contiguous
    dist.broadcast(spread, 0)
    dist.all_reduce(spread, op=dist.ReduceOp.MAX)
    assert spread.tolist() == [[1.0, 1.0]] * 4
    dist.barrier()
    on_cpu = torch.ones(3)
    dist.all_reduce(on_cpu)
    assert on_cpu.tolist() == [float(size)] * 3


def test_collectives(torch_ranks):
    torch_ranks(collectives)


def streams(group):
    size = group.size()
    side = torch.cuda.Stream()
    values = torch.ones(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        values.mul_(2)
        work = dist.all_reduce(values, async_op=True)
        work.wait()
        values.add_(1)
    side.synchronize()
    assert work.is_completed() and work.is_success()
    assert values[::4096].tolist() == [2.0 * size + 1] * 256
    works = [dist.all_reduce(torch.ones(100, device="cuda"), async_op=True) for _ in range(20)]
    for one in works:
        one.wait()
    torch.cuda.synchronize()
    assert all(one.is_completed() for one in works)
    if size > 1:
        peer = 1 - group.rank()
        sent, got = torch.full((9,), group.rank(), device="cuda"), torch.empty(9, dtype=torch.int64, device="cuda")
        for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got, peer)]):
            request.wait()
        assert got.tolist() == [peer] * 9


def test_works_and_streams(torch_ranks):
    torch_ranks(streams)


def futures(group):
    size = group.size()
    values = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(values)  # connects the ranks
    torch.cuda.synchronize()
    values.fill_(1)
    torch.cuda._sleep(500_000_000)  # cycles, some 0.3 s, before the operation
    work = dist.all_reduce(values, async_op=True)
    future = work.get_future().then(lambda ended: ended.value()[0].mul_(2))  # as DDP's hooks do
    assert future.done() and not work.is_completed(), "the future waits for the GPU"
    result = future.wait()  # makes the current stream wait
    copy = result.clone()
    torch.cuda.synchronize()
    assert copy[::4096].tolist() == [2.0 * size] * 256
    spread = torch.zeros(2 * size, device="cuda")[::2]  # results are copied into it
    work = dist.all_gather_into_tensor(spread, torch.full((1,), group.rank() + 1.0, device="cuda"), async_op=True)
    work.get_future().wait()
    assert spread.tolist() == [rank + 1.0 for rank in range(size)]


def test_futures_do_not_wait_for_the_gpu(torch_ranks):
    torch_ranks(futures)


def captures(group):
    values = torch.ones(256, device="cuda")
    dist.all_reduce(values)  # connects the ranks
    torch.cuda.synchronize()
    values.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(values)
        values.add_(1)
    expected = 1.0
    for _ in range(3):
        graph.replay()
        expected = expected * group.size() + 1
    torch.cuda.synchronize()
    assert values.tolist() == [expected] * 256


def test_a_cuda_graph(torch_ranks):
    torch_ranks(captures)


def trains(group):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda()
    plain = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    data = torch.randn(group.size(), 8, 16, device="cuda")
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    ddp(data[group.rank()]).square().mean().backward()
    first, bias, second, last = plain
    torch.nn.functional.linear(
        torch.relu(torch.nn.functional.linear(data, first, bias)), second, last
    ).square().mean().backward()
    for found, expected in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_ddp(torch_ranks):
    torch_ranks(trains)


def borrow_nccl(group):
    import accord.torch

    values = torch.ones(64, device="cuda")
    dist.all_reduce(values)
    store = dist.distributed_c10d._get_default_store()
    comm = accord.Communicator.create(accord.PrefixStore(store, "lent"), group.rank(), group.size(), timeout=30)
    accord.torch.lend_nccl(comm, group)
    comm.all_reduce(values, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert values.tolist() == [float(group.size() ** 2)] * 64
    comm.close()


def test_the_nccl_communicator_of_torch_is_borrowed(torch_ranks):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    torch_ranks(borrow_nccl, backend="nccl")


def windows(comm):
    import torch

    window = comm.device_window(1 << 20)
    values = torch.from_dlpack(window).view(torch.float32)[:1000]
    assert values.is_cuda and values.data_ptr() == window.data
    values.fill_(1)
    comm.all_reduce(values, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert values.tolist() == [float(comm.size)] * 1000
    return window.use


def test_windows(plain_ranks):
    assert set(plain_ranks(windows)) <= {"plain", "registered", "symmetric"}
