"""torch.distributed's calls over the backend "accord", compared with plain torch's results for the inputs of all
ranks. Each rank generates all inputs."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest


def all_calls(group, dtype_name, shape, is_async):
    rank, size, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, dtype_name)
    generator = torch.Generator().manual_seed(5)

    def inputs(*extent):
        """Returns one tensor per rank, with small integers, so that sums are the same in every order."""
        whole = torch.randint(0, 5, (size, *extent), generator=generator)
        return list(whole.to(dtype))

    def whole(tensors):
        return torch.stack(tensors).to(torch.float64)

    def run(call, *arguments, **keywords):
        work = call(*arguments, async_op=is_async, **keywords)
        assert (work is not None) == is_async
        if work is not None:
            assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None

    def same(found, expected, label):
        assert torch.equal(found, expected.to(dtype)), f"{label}: {found} is not {expected}"

    ops = {"SUM": lambda t: t.sum(0), "MAX": lambda t: t.amax(0), "MIN": lambda t: t.amin(0)}
    if dtype != torch.bool:
        ops["PRODUCT"] = lambda t: t.prod(0)
    if dtype.is_floating_point:
        ops["AVG"] = lambda t: t.mean(0)
    for name, reference in ops.items():
        op = getattr(dist.ReduceOp, name)
        given = inputs(*shape)
        expected = reference(whole(given))
        mine = given[rank].clone()
        run(dist.all_reduce, mine, op)
        same(mine, expected, f"all_reduce {name}")

        mine, root = given[rank].clone(), size - 1
        run(dist.reduce, mine, root, op)
        same(mine, expected if rank == root else given[rank], f"reduce {name}")

        given = [inputs(*shape) for _ in range(size)]  # [part][rank]
        mine = torch.empty(shape, dtype=dtype)
        run(dist.reduce_scatter, mine, [part[rank] for part in given], op)
        same(mine, reference(whole(given[rank])), f"reduce_scatter {name}")

    given = inputs(*shape)
    for root in range(size):
        mine = given[rank].clone()
        run(dist.broadcast, mine, root)
        same(mine, given[root], "broadcast")

        parts = [torch.empty(shape, dtype=dtype) for _ in range(size)] if rank == root else None
        run(dist.gather, given[rank], parts, root)
        for found, expected in zip(parts or [], given, strict=False):
            same(found, expected, "gather")

        mine = torch.empty(shape, dtype=dtype)
        run(dist.scatter, mine, given if rank == root else None, root)
        same(mine, given[rank], "scatter")

    parts = [torch.empty(shape, dtype=dtype) for _ in range(size)]
    run(dist.all_gather, parts, given[rank])
    for found, expected in zip(parts, given, strict=True):
        same(found, expected, "all_gather")

    sent = [inputs(*shape) for _ in range(size)]  # [from][to]
    parts = [torch.empty(shape, dtype=dtype) for _ in range(size)]
    run(dist.all_to_all, parts, sent[rank])
    for found, source in zip(parts, sent, strict=True):
        same(found, source[rank], "all_to_all")
    return True


@pytest.mark.parametrize("size", [2, 3])
def test_every_call_matches_plain_torch(torch_ranks, size):
    for dtype in ["float32", "bfloat16", "float64", "int64", "uint8", "bool", "float16"]:
        for shape in [(7, 3), (), (0,), (40_000,)]:
            for is_async in [False, True]:
                if dtype not in {"float32", "bfloat16", "int64"} and shape != (7, 3):
                    continue
                assert all(torch_ranks(size).run(all_calls, dtype, shape, is_async))


def single_forms(group):
    """The forms that take one tensor for all parts, under names that all torch versions since 2.11 have."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = torch.empty(size * 3)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank)))
    stacked = torch.empty(size, 3)
    dist.all_gather_into_tensor(stacked, torch.full((3,), float(rank)))
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    inside = torch.zeros(size * 3)
    inside[rank * 3 : rank * 3 + 3] = rank
    dist.all_gather_into_tensor(inside, inside[rank * 3 : rank * 3 + 3])

    # Rank r sends r + p + 1 rows of two to rank p, filled with 10 r + p.
    counts = [rank + p + 1 for p in range(size)]
    sent = torch.cat([torch.full((c, 2), 10.0 * rank + p) for p, c in enumerate(counts)])
    received = torch.empty(sum(counts), 2)
    dist.all_to_all_single(received, sent, counts, counts)
    even = torch.empty(size)
    dist.all_to_all_single(even, torch.arange(size) + 10.0 * rank)
    none = torch.empty(0)
    dist.all_to_all_single(none, torch.empty(0), [0] * size, [0] * size)
    return [t.tolist() for t in (gathered, stacked, part, inside, received, even)]


def test_single_tensor_forms_and_uneven_splits(torch_ranks):
    size = 3
    for rank, found in enumerate(torch_ranks(size).run(single_forms)):
        gathered, stacked, part, inside, received, even = found
        assert gathered == inside == [float(r) for r in range(size) for _ in range(3)]
        assert stacked == [[float(r)] * 3 for r in range(size)]
        assert part == [size * 2.0 * rank, size * (2.0 * rank + 1)]
        assert received == [[10.0 * p + rank] * 2 for p in range(size) for _ in range(p + rank + 1)]
        assert even == [10.0 * p + rank for p in range(size)]


def uneven_lists(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(p + 1, 2) for p in range(size)]
    dist.all_gather(parts, torch.full((rank + 1, 2), float(rank)))
    mine = torch.empty(rank + 1)
    dist.reduce_scatter(mine, [torch.full((p + 1,), float(rank + p)) for p in range(size)])
    return [p.tolist() for p in parts], mine.tolist()


def test_lists_of_unequal_tensors(torch_ranks):
    for rank, (parts, mine) in enumerate(torch_ranks(3).run(uneven_lists)):
        assert parts == [[[float(p)] * 2] * (p + 1) for p in range(3)]
        assert mine == [sum(r + rank for r in range(3)) * 1.0] * (rank + 1)


def unusual_tensors(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}
    for is_async in (False, True):
        turned = (torch.arange(12.0).reshape(3, 4) + rank).t()
        every_other = torch.arange(10.0)[::2] + 0.0
        spread = torch.zeros(6)
        spread[::2] = rank + 1
        works = [
            dist.all_reduce(turned, async_op=is_async),
            dist.broadcast(spread[::2], 1, async_op=is_async),
        ]
        columns = torch.zeros(4, size)
        works.append(dist.all_gather(list(columns.unbind(1)), torch.arange(4.0) + rank, async_op=is_async))
        wanted = torch.zeros(3, requires_grad=True)
        works.append(dist.all_reduce(wanted, async_op=is_async))
        conjugated = torch.tensor([1 + 2j]).conj()
        works.append(group.broadcast([conjugated], 0))
        tiny = (
            torch.tensor([1.0, 2.0]).to(torch.float8_e5m2fnuz)
            if rank == 0
            else torch.zeros(2).to(torch.float8_e5m2fnuz)
        )
        works.append(dist.broadcast(tiny, 0, async_op=is_async))
        for work in works:
            if work is not None:
                work.wait()
        found[is_async] = (
            turned.tolist(),
            spread.tolist(),
            columns.tolist(),
            conjugated.tolist(),
            tiny.float().tolist(),
            every_other[0].item(),
        )
    errors = []
    for call in (
        lambda: dist.all_reduce(torch.eye(3).to_sparse()),
        lambda: dist.all_reduce(torch.empty(3, device="meta")),
        lambda: dist.all_reduce(torch.zeros(2).to(torch.float8_e5m2fnuz)),
        lambda: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BXOR),
        lambda: dist.all_to_all_single(torch.empty(size), torch.empty(size), [size] * size, [1] * size),
        lambda: dist.all_gather([torch.empty(2)] * (size + 1), torch.empty(2)),
    ):
        try:
            call()
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    dist.barrier()
    return found, errors


def test_unusual_tensors_are_handled_correctly_or_rejected(torch_ranks):
    for _, (found, errors) in enumerate(torch_ranks(2).run(unusual_tensors)):
        for turned, spread, columns, conjugated, tiny, _ in found.values():
            assert turned == [[2.0 * (4 * j + i) + 1 for j in range(3)] for i in range(4)]
            assert spread == [2.0, 0.0, 2.0, 0.0, 2.0, 0.0]
            assert columns == [[i + 0.0, i + 1.0] for i in range(4)]
            assert conjugated == [1 - 2j]
            assert tiny == [1.0, 2.0]
        messages = [text for _, text in errors]
        assert len(errors) == 6
        assert "sparse" in messages[0] and "to_dense" in messages[0] and "sparse=False" in messages[0]
        assert "meta" in messages[1] and "cpu:accord,meta:BACKEND" in messages[1]
        assert "float8_e5m2fnuz" in messages[2]
        assert "bxor" in messages[3] and errors[3][0] == "InvalidArgument"
        assert "output splits [2, 2] for 2 ranks and 2 rows" in messages[4]
        assert "2 outputs" in messages[5] or "2" in messages[5]


def coalesced(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    with dist._coalescing_manager(group):
        tensors = [torch.full((i + 1,), float(rank)) for i in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    outs, halves = [torch.empty(size), torch.empty(2 * size)], [torch.empty(1), torch.empty(2)]
    group.allgather_into_tensor_coalesced(outs, [torch.full((i + 1,), float(rank)) for i in range(2)]).wait()
    group.reduce_scatter_tensor_coalesced(halves, [torch.arange(1.0 * size), torch.arange(2.0 * size)]).wait()
    lists = [[torch.empty(1), torch.empty(2)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.full((i + 1,), float(rank)) for i in range(2)]).wait()
    return [t.tolist() for t in (*tensors, *outs, *halves)], [[t.tolist() for t in part] for part in lists]


def test_coalesced_forms(torch_ranks):
    for rank, (found, lists) in enumerate(torch_ranks(2).run(coalesced)):
        assert found[:3] == [[1.0], [1.0, 1.0], [1.0, 1.0, 1.0]]
        assert found[3:5] == [[0.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
        assert found[5:] == [[2.0 * rank], [4.0 * rank, 4.0 * rank + 2]]
        assert lists == [[[0.0], [0.0, 0.0]], [[1.0], [1.0, 1.0]]]


def coalesced_for_a_device(group):
    """Blocks that name a device: torch lists their calls itself and makes one call of them inside the group's own
    block."""
    rank, found = dist.get_rank(), []

    def block(*, is_async):
        return dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=is_async)

    for is_async in (False, True):
        sums = [torch.full((count,), float(rank + 1)) for count in (2, 3)]
        with block(is_async=is_async) as works:
            for tensor in sums:
                dist.all_reduce(tensor)
        gathered, wide = torch.empty(4), torch.zeros(2, 2)  # every other element of `wide` is written
        if is_async:
            works.wait()
        with block(is_async=is_async) as works:
            dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
            dist.all_gather_into_tensor(wide[:, 0], torch.full((1,), float(rank)))
        if is_async:
            works.wait()
        halves, last = torch.empty(1), torch.full((1,), float(rank))
        with block(is_async=is_async) as works:
            dist.reduce_scatter_tensor(halves, torch.arange(2.0))
            dist.broadcast(last, 1)
        if is_async:
            works.wait()
        found.append([t.tolist() for t in (*sums, gathered, wide, halves, last)])
    try:
        with dist.distributed_c10d._time_estimator(group, torch.device("cpu")):
            pass
    except NotImplementedError:
        found.append("no estimates")
    return found


def test_a_coalescing_block_ends_with_all_of_its_calls(torch_ranks):
    for rank, found in enumerate(torch_ranks(2).run(coalesced_for_a_device)):
        sums = [[3.0, 3.0], [3.0, 3.0, 3.0], [0.0, 0.0, 1.0, 1.0], [[0.0, 0.0], [1.0, 0.0]], [2.0 * rank], [1.0]]
        assert found == [sums, sums, "no estimates"]


def factors(group):
    from torch._C._distributed_c10d import _make_nccl_premul_sum

    rank = dist.get_rank()
    found = []
    for factor in (0.5 * (rank + 1), torch.tensor([0.5 * (rank + 1)])):
        x = torch.full((3,), 4.0)
        dist.all_reduce(x, _make_nccl_premul_sum(factor))
        found.append(x.tolist())
    return found


def test_premul_sum_uses_each_ranks_factor(torch_ranks):
    assert torch_ranks(2).run(factors) == [[[6.0] * 3] * 2] * 2


def objects(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered, given = [None] * size, [{"rank": rank, "text": "x" * 1000 * rank}]
    dist.all_gather_object(gathered, given[0])
    dist.broadcast_object_list(given, 1)
    scattered = [None]
    dist.scatter_object_list(scattered, [f"for {p}" for p in range(size)] if rank == 0 else None, 0)
    return gathered, given, scattered


def test_objects(torch_ranks):
    for rank, (gathered, given, scattered) in enumerate(torch_ranks(2).run(objects)):
        assert gathered == [{"rank": r, "text": "x" * 1000 * r} for r in range(2)]
        assert given == [gathered[1]] and scattered == [f"for {rank}"]
