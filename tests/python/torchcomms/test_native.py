"""accord.torchcomms._native: data that torchcomms passes to a backend in C++ only. Built if ACCORD_TORCHCOMMS is
set."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util

import pytest

pytest.importorskip("torchcomms", reason="torchcomms is not installed; it is built from its sources")
if importlib.util.find_spec("accord.torchcomms._native") is None:
    pytest.skip("accord.torchcomms._native is not built (ACCORD_TORCHCOMMS)", allow_module_level=True)


def premultiplied(comm, dtype_name):
    rank, dtype = comm.get_rank(), getattr(torch, dtype_name)
    found = []
    for factor in (0.5, torch.tensor([rank + 2.0]), torch.tensor(3.0, dtype=dtype)):
        op = torchcomms.ReduceOp.PREMUL_SUM(factor)
        values = torch.full((6,), 4.0, dtype=dtype)[::2]
        comm.all_reduce(values, op, False)
        part, on_root = torch.empty(2, dtype=dtype), torch.full((2,), 4.0, dtype=dtype)
        comm.reduce_scatter_single(part, torch.full((4,), 4.0, dtype=dtype), op, True).wait()
        comm.reduce(on_root, 1, op, False)
        found.append([t.unique().tolist() for t in (values, part, on_root)])
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_premul_sum_uses_each_ranks_factor(torchcomms_ranks, dtype):
    for rank, found in enumerate(torchcomms_ranks(2).run(premultiplied, dtype)):
        assert found == [[[s], [s], [s if rank == 1 else 4.0]] for s in (4.0, 20.0, 24.0)]


def batches(comm):
    rank, other = comm.get_rank(), 1 - comm.get_rank()
    received = []
    for is_async in [False, True]:
        batch = comm.batch_op_create()
        mine = [torch.full((200_000,), 10.0 * rank + i) for i in range(2)]
        theirs = [torch.zeros(200_000, 2)[:, 1] for _ in range(2)]
        for i in range(2):
            batch.send(mine[i], other)
        for i in range(2):
            batch.recv(theirs[i], other)
        batch.issue(is_async).wait()
        received.append([tensor.unique().tolist() for tensor in theirs])
    try:
        comm.batch_op_create().issue(False)
    except RuntimeError as error:
        return received, str(error)


def test_messages_of_a_batch_may_be_in_any_order(torchcomms_ranks):
    for rank, (received, errors) in enumerate(torchcomms_ranks(2).run(batches)):
        expected = [[10.0 * (1 - rank)], [10.0 * (1 - rank) + 1]]
        assert received == [expected, expected]
        assert "Cannot issue empty batch operation" in errors


def tags(comm):
    """Sends through c10d, whose messages have tags. Rank 1 receives the second message first."""
    from torchcomms._comms import _BackendWrapper

    wrapper, found = _BackendWrapper(comm), []
    if comm.get_rank() == 0:
        works = [wrapper.send([torch.full((3,), float(tag))], 1, tag) for tag in (5, 7)]
    else:
        received = {tag: torch.zeros(3) for tag in (7, 5)}
        works = [wrapper.recv([received[tag]], 0, tag) for tag in (7, 5)]
    for work in works:
        work.wait()
    if comm.get_rank() == 1:
        found = [received[tag].tolist() for tag in (5, 7)]
    comm.barrier(False)
    return found


def test_messages_are_matched_by_their_tags(torchcomms_ranks):
    assert torchcomms_ranks(2).run(tags) == [[], [[5.0] * 3, [7.0] * 3]]


def options_of_calls(comm):
    rank, errors = comm.get_rank(), []

    def record_error(call):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))

    assert comm.get_backend_version() == accord.__version__
    assert comm.get_backend_impl().communicator.size == 2
    assert comm.is_abort_supported()
    assert not comm.is_aborted()
    quick = comm.split([0, 1], "quick")
    if rank == 0:
        work = quick.recv(torch.ones(1), 1, True, timeout=datetime.timedelta(milliseconds=200))
        assert not work.is_completed()
        record_error(work.wait)
        assert not work.is_completed()
        assert quick.is_aborted()
    comm.barrier(False)
    if rank == 1:
        comm.abort()
        assert comm.is_aborted()
    record_error(lambda: comm.barrier(False))
    return errors


def test_a_call_has_its_own_timeout_and_abort_ends_all_ranks(torchcomms_ranks):
    first, second = torchcomms_ranks(2).run(options_of_calls)
    for errors in (first, second):
        assert "abort() of torchcomms" in errors[-1]
    assert 'recv from rank 1 on group "quick" (ranks 0 and 1): rank 1 did not arrive in time' in first[0]
    assert [len(first), len(second)] == [2, 1]
