"""torch's one-sided windows over a process group."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
import torch


def exchange_halos(group):
    import datetime
    import types

    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    mine = torch.full((4, 3), float(rank))
    window = group.new_window(mine)
    window.put(torch.tensor([10.0 + rank, 20.0 + rank], requires_grad=True), right, 5, False).wait()
    window.signal(right, False).wait()
    window.wait_signal(left, False).wait()
    seen = [mine.flatten().tolist(), group.supports_window]
    peer = window.map_remote_tensor(right)
    dist.barrier()
    seen.append((tuple(peer.shape), peer.flatten().tolist()))
    seen.append(str(window.get_attr(right).access_type).rpartition(".")[2])

    waiting = window.wait_signal(left, True)
    seen.append(waiting.is_completed())
    dist.barrier()
    window.signal(right, True).wait()
    seen.append((waiting.wait(), waiting.is_success()))
    try:
        window.wait_signal(left, False, types.SimpleNamespace(timeout=datetime.timedelta(milliseconds=30)))
    except RuntimeError as error:
        seen.append((type(error).__name__, list(error.ranks) == [left]))

    def refused(call, *arguments):
        try:
            call(*arguments)
        except (RuntimeError, ValueError, accord.Error) as error:
            return str(error)

    seen.append(refused(window.put, torch.ones(3), right, 10, False))
    seen.append(refused(window.put, torch.ones(3, dtype=torch.int32), right, 0, False))
    seen.append(refused(window.tensor_register, mine))
    dist.barrier()
    window.tensor_deregister()
    seen.append(refused(window.signal, right, False))
    mine += 1  # the tensor stays usable
    window.tensor_register(torch.zeros(rank + 1, dtype=torch.bfloat16))
    seen.append([window.map_remote_tensor(peer).numel() for peer in range(size)])
    parameter = torch.nn.Parameter(torch.ones(2))
    other = group.new_window(parameter)
    (parameter * 3).sum().backward()
    seen.append((other.map_remote_tensor(left).tolist(), parameter.grad.tolist()))
    dist.barrier()
    return seen


def test_ranks_put_signal_and_map(torch_ranks):
    outcomes = torch_ranks(3).outcomes(exchange_halos)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        seen, right, left = outcome.value, (rank + 1) % 3, (rank - 1) % 3

        def part_of(owner: int, before: int) -> list[float]:
            return [*[float(owner)] * 5, 10.0 + before, 20.0 + before, *[float(owner)] * 5]

        assert seen.pop(0) == part_of(rank, left)
        assert seen.pop(0)
        assert seen.pop(0) == ((4, 3), part_of(right, rank))
        assert seen.pop(0) == "UNIFIED"
        assert seen.pop(0) is False
        assert seen.pop(0) == (True, True)
        assert seen.pop(0) == ("Timeout", True)
        assert "offset 40" in seen.pop(0)
        assert "put of torch.int32 to a window of torch.float32" in seen.pop(0)
        assert "has a tensor already" in seen.pop(0)
        assert "has no tensor" in seen.pop(0)
        assert seen.pop(0) == [1, 2, 3]
        assert seen.pop(0) == ([1, 1], [3, 3])
        assert seen == []


def exchange_between_hosts(group):
    import accord.torch

    group = dist.new_group(pg_options=accord.torch.Options(transport="ucx"))  # as between hosts: nothing is mapped
    other = 1 - dist.get_rank()
    mine = torch.zeros(4, dtype=torch.float64)
    window = group.new_window(mine)
    window.put(torch.tensor([1.0 + other], dtype=torch.float64), other, 3, True).wait()
    window.signal(other, True).wait()
    window.wait_signal(other, True).wait()
    kind = str(window.get_attr(other).access_type).rpartition(".")[2]
    try:
        window.map_remote_tensor(other)
    except accord.Unsupported as error:
        return mine.tolist(), kind, isinstance(error, RuntimeError)


def test_between_hosts_ranks_put_and_signal(torch_ranks):
    outcomes = torch_ranks(2).outcomes(exchange_between_hosts)
    assert [outcome.value for outcome in outcomes] == [([0, 0, 0, 1 + rank], "SEPARATE", True) for rank in range(2)]


def use_torchs_functions(group):
    tensor = torch.zeros(2)
    window = dist._new_window()
    window.tensor_register(tensor)
    other = 1 - dist.get_rank()
    window.put(torch.ones(2), other, 0, async_op=False)
    window.signal(other, async_op=False)
    window.wait_signal(other, async_op=False)
    dist.barrier()
    kind = torch._C._distributed_c10d.WindowAccessType.UNIFIED
    return dist._supports_window(), tensor.tolist(), window.get_attr(other).access_type == kind


@pytest.mark.skipif(
    not hasattr(torch.distributed, "_new_window"),
    reason=f"torch {torch.__version__} has no dist._new_window (2.14 has)",
)
def test_torchs_functions_call_it(torch_ranks):
    assert [outcome.value for outcome in torch_ranks(2).outcomes(use_torchs_functions)] == [(True, [1, 1], True)] * 2


def refuse_on_one_rank(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.zeros(4, 2)[:, 0] if rank == 1 else torch.zeros(4)
    try:
        group.new_window(tensor)
    except accord.InvalidArgument as error:
        text = str(error)
    window = group.new_window(torch.full((4,), float(rank)))
    return text, [window.map_remote_tensor(peer)[0].item() for peer in range(size)]


def register_other_dtypes(group):
    rank = dist.get_rank()
    try:
        group.new_window(torch.zeros(4, dtype=torch.float64 if rank == 1 else torch.float32))
    except accord.Mismatch as error:
        text = str(error)
    mine = torch.zeros(400)
    window = group.new_window(mine)
    window.put(torch.ones(1), 1 - rank, torch.tensor(65, dtype=torch.int8), False).wait()
    dist.barrier()
    try:
        window.put(torch.ones(1), 1 - rank, "1", False)
    except accord.InvalidArgument as error:
        return text, mine.nonzero().flatten().tolist(), str(error)


def test_ranks_register_one_dtype_and_offsets_are_integers_of_any_kind(torch_ranks):
    for rank, outcome in enumerate(torch_ranks(2).outcomes(register_other_dtypes)):
        assert outcome.error is None, outcome.error
        text, places, refused = outcome.value
        names = ("torch.float32", "torch.float64")
        assert f"rank {1 - rank} registers {names[1 - rank]}, rank {rank} {names[rank]}" in text
        assert places == [65]
        assert "the offset is '1', expected an integer" in refused


def test_a_tensor_that_one_rank_refuses_is_an_error_on_all(torch_ranks):
    outcomes = torch_ranks(3).outcomes(refuse_on_one_rank)
    for rank, outcome in enumerate(outcomes):
        text, values = outcome.value
        assert ("not one with strides (2,)" if rank == 1 else "rank 1 refused its tensor") in text
        assert values == [0.0, 1.0, 2.0]
