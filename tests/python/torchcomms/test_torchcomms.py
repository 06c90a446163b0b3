"""torchcomms' calls over the backend "accord", compared with plain torch's results for the inputs of all ranks. Each
rank generates all inputs."""
# ruff: noqa: F821 (names that ranks.py provides)

import re

import pytest

pytest.importorskip("torchcomms", reason="torchcomms is not installed; it is built from its sources")


def all_calls(comm, dtype_name, shape, spread, is_async):
    """spread: tensors are every second column of larger ones, so that they are not contiguous."""
    rank, size, dtype = comm.get_rank(), comm.get_size(), getattr(torch, dtype_name)
    generator = torch.Generator().manual_seed(5)

    def laid_out(tensor):
        if not spread or tensor.dim() == 0:
            return tensor.clone()
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]

    def inputs(*extent):
        """Returns one tensor per rank, equal on all ranks, with small integers, so that sums are the same in
        every order."""
        whole = torch.randint(0, 5, (size, *extent), generator=generator).to(dtype)
        return [laid_out(part) for part in whole]

    def empty(*extent):
        return laid_out(torch.full(extent, 9).to(dtype))

    def run(call, *arguments):
        work = getattr(comm, call)(*arguments, is_async)
        work.wait()
        assert work.is_completed()

    def same(found, expected, label):
        assert torch.equal(found, expected.to(dtype)), f"{label}: {found} is not {expected}"

    def each_same(found, expected, label):
        for one, other in zip(found, expected, strict=True):
            same(one, other, label)

    wide = torch.float64 if dtype.is_floating_point else torch.int64
    operations = {"SUM": lambda t: t.sum(0), "MAX": lambda t: t.amax(0), "MIN": lambda t: t.amin(0)}
    operations["PRODUCT"] = lambda t: t.prod(0)
    operations["AVG"] = lambda t: t.mean(0) if dtype.is_floating_point else t.sum(0) // size
    if not dtype.is_floating_point:
        operations["BAND"] = lambda t: t[0] & t[1] & t[-1]
        operations["BOR"] = lambda t: t[0] | t[1] | t[-1]
        operations["BXOR"] = lambda t: (t[0] ^ t[1]) if size == 2 else (t[0] ^ t[1] ^ t[2])
    for name, of in operations.items():
        op = getattr(torchcomms.ReduceOp, name)

        def reference(tensors, of=of):
            return of(torch.stack(tensors).to(wide))

        given = inputs(*shape)
        mine = laid_out(given[rank])
        run("all_reduce", mine, op)
        same(mine, reference(given), f"all_reduce {name}")
        mine, root = laid_out(given[rank]), size - 1
        run("reduce", mine, root, op)
        same(mine, reference(given) if rank == root else given[rank], f"reduce {name}")

        given = [inputs(*shape) for _ in range(size)]  # [part][rank]
        mine, parts = empty(*shape), [part[rank] for part in given]
        kept = [part.clone() for part in parts]
        run("reduce_scatter", mine, parts, op)
        same(mine, reference(given[rank]), f"reduce_scatter {name}")
        mine = empty(*shape)
        run("reduce_scatter_v", mine, parts, op)
        same(mine, reference(given[rank]), f"reduce_scatter_v {name}")
        if shape:
            mine = empty(*shape)
            run("reduce_scatter_single", mine, laid_out(torch.cat(parts)), op)
            same(mine, reference(given[rank]), f"reduce_scatter_single {name}")
        each_same(parts, kept, f"the input of reduce_scatter {name}")

    given = inputs(*shape)
    for root in range(size):
        mine = laid_out(given[rank])
        run("broadcast", mine, root)
        same(mine, given[root], "broadcast")
        parts = [empty(*shape) for _ in range(size)] if rank == root else []
        run("gather", parts, given[rank], root)
        each_same(parts, given if rank == root else [], "gather")
        mine = empty(*shape)
        run("scatter", mine, given if rank == root else [], root)
        same(mine, given[rank], "scatter")

    parts = [empty(*shape) for _ in range(size)]
    run("all_gather", parts, given[rank])
    each_same(parts, given, "all_gather")
    sent = [inputs(*shape) for _ in range(size)]  # [from][to]
    parts = [empty(*shape) for _ in range(size)]
    run("all_to_all", parts, sent[rank])
    each_same(parts, [sent[source][rank] for source in range(size)], "all_to_all")
    if shape:
        whole = empty(size * shape[0], *shape[1:])
        run("all_gather_single", whole, given[rank])
        same(whole, torch.cat(given), "all_gather_single")
        whole = empty(size * shape[0], *shape[1:])
        run("all_to_all_single", whole, laid_out(torch.cat(sent[rank])))
        same(whole, torch.cat([sent[source][rank] for source in range(size)]), "all_to_all_single")

    # Rank r has r + 1 rows, and sends r + p + 1 rows to rank p.
    rows = [inputs(r + 1, 2)[r] for r in range(size)]
    parts = [empty(r + 1, 2) for r in range(size)]
    run("all_gather_v", parts, rows[rank])
    each_same(parts, rows, "all_gather_v")
    pieces = [inputs(size, size + 2, 2) for _ in range(size)]  # [from]: the same on all ranks
    sent = [[pieces[r][0][p][: r + p + 1].clone() for p in range(size)] for r in range(size)]
    whole = empty(sum(rank + p + 1 for p in range(size)), 2)
    counts = [rank + p + 1 for p in range(size)]
    run("all_to_all_v_single", whole, laid_out(torch.cat(sent[rank])), counts, counts)
    same(whole, torch.cat([sent[source][rank] for source in range(size)]), "all_to_all_v_single")
    run("barrier")

    mine, after, before = empty(*shape), (rank + 1) % size, (rank - 1) % size
    if is_async:
        works = [comm.send(given[rank], after, True), comm.recv(mine, before, True)]
        for work in works:
            work.wait()
    else:
        for turn in range(size):
            if rank == turn:
                comm.send(given[rank], after, False)
            elif before == turn:
                comm.recv(mine, before, False)
    same(mine, given[before], "send and recv")
    return True


CASES = [
    # dtype, shape, spread, is_async
    ("float32", (7, 3), False, False),
    ("float32", (7, 3), True, True),
    ("float32", (), False, True),
    ("float32", (0,), False, False),
    ("int64", (5, 2), True, False),
    ("bfloat16", (40_000,), False, True),
    ("float16", (3,), True, False),
    ("uint8", (3,), False, True),
]


@pytest.mark.parametrize("size", [2, 3])
def test_every_call_matches_plain_torch(torchcomms_ranks, size):
    for case in CASES:
        assert all(torchcomms_ranks(size).run(all_calls, *case))


def many_messages(comm, count):
    """Both ranks send before they receive, drop the works, and read the received data after a later call has ended."""
    rank, other = comm.get_rank(), 1 - comm.get_rank()
    received = [torch.zeros(count, 2)[:, 0] for _ in range(5)]
    waited = [comm.send(torch.full((count,), 10.0 * rank + i), other, True) for i in range(5)]
    del waited
    works = [comm.recv(tensor, other, True) for tensor in received]
    last = works.pop()
    del works
    last.wait()
    comm.barrier(False)
    return [tensor.unique().tolist() for tensor in received]


@pytest.mark.parametrize("count", [3, 400_000])
def test_sends_do_not_block_and_messages_arrive_even_if_their_works_are_dropped(torchcomms_ranks, count):
    for rank, found in enumerate(torchcomms_ranks(2).run(many_messages, count)):
        assert found == [[10.0 * (1 - rank) + i] for i in range(5)]


def splits(comm):
    """Rank 1 sends one row to rank 0 and none to itself. The rows beyond the splits remain unchanged."""
    rank = comm.get_rank()
    sent = torch.arange(6.0).reshape(3, 2) + 10 * rank
    received = torch.full((3, 4), -1.0)[:, ::2]
    output = [1, 1] if rank == 0 else [2, 0]
    comm.all_to_all_v_single(received, sent, output, [1, 2] if rank == 0 else [1, 0], False)
    nothing = torch.empty(0, 4)
    comm.all_to_all_v_single(nothing, torch.empty(0, 4), [0, 0], [0, 0], False)
    parts = [torch.empty(0), torch.empty(2)]
    comm.all_gather_v(parts, torch.full((2 * rank,), 5.0), False)
    mine = torch.empty(2 * rank)
    comm.reduce_scatter_v(mine, [torch.ones(0), torch.ones(2)], torchcomms.ReduceOp.SUM, False)
    return received.tolist(), [part.tolist() for part in parts], mine.tolist()


def test_split_sizes_count_rows_may_be_zero_and_may_omit_rows(torchcomms_ranks):
    first, second = torchcomms_ranks(2).run(splits)
    assert first == ([[0, 1], [10, 11], [-1, -1]], [[], [5, 5]], [])
    assert second == ([[2, 3], [4, 5], [-1, -1]], [[], [5, 5]], [2, 2])


def values_of_ops(comm):
    rank = comm.get_rank()
    average = torch.tensor([-7 + 2 * rank, 4 + rank, -1])
    comm.all_reduce(average, torchcomms.ReduceOp.AVG, False)
    bits = torch.tensor([rank == 0, True, False])
    comm.all_reduce(bits, torchcomms.ReduceOp.SUM, False)
    conjugate = torch.tensor([complex(1, 1 + rank)]).conj()
    comm.all_reduce(conjugate, torchcomms.ReduceOp.SUM, False)
    parameter = torch.ones(2, requires_grad=True)
    comm.all_reduce(parameter, torchcomms.ReduceOp.SUM, False)
    joined = torch.zeros(2, 3)
    comm.all_gather(list(joined), torch.full((3,), float(rank)), False)
    within = torch.zeros(2, 3)
    comm.all_gather(list(within.unbind(1))[:2], torch.full((2,), float(rank)), False)
    return [t.tolist() for t in (average, bits, conjugate, parameter, joined, within)]


def test_averages_truncate_and_views_conjugates_and_parameters_are_correct(torchcomms_ranks):
    for found in torchcomms_ranks(2).run(values_of_ops):
        assert found == [
            [-6, 4, -1],
            [True, True, False],
            [2 - 3j],
            [2.0, 2.0],
            [[0] * 3, [1] * 3],
            [[0, 1, 0], [0, 1, 0]],
        ]


def refusals(comm):
    """Returns the error texts of calls that are rejected, each before anything is sent."""
    sum_, ones = torchcomms.ReduceOp.SUM, torch.ones(4)
    errors = {}

    def refused(name, call, *arguments):
        for is_async in [False, True]:
            try:
                getattr(comm, call)(*arguments, is_async)
            except (RuntimeError, TypeError) as error:
                errors[name] = str(error)
            else:
                raise AssertionError(f"{name} was taken")

    if type(comm.get_backend_impl()).__module__ == "accord.torchcomms.backend":
        refused("premul", "all_reduce", ones, torchcomms.ReduceOp.PREMUL_SUM(2.0))
    refused("band", "all_reduce", ones, torchcomms.ReduceOp.BAND)
    refused("complex32", "all_reduce", torch.ones(2, dtype=torch.complex32), sum_)
    refused("complex min", "all_reduce", torch.ones(2, dtype=torch.complex64), torchcomms.ReduceOp.MIN)
    refused("sparse", "all_reduce", ones.to_sparse(), sum_)
    refused("meta", "all_reduce", torch.ones(2, device="meta"), sum_)
    refused("short list", "all_gather", [torch.ones(4)], ones)
    refused("unequal list", "all_gather", [torch.ones(4), torch.ones(3)], ones)
    refused("unequal dtypes", "all_gather", [torch.ones(4), torch.ones(4).double()], ones)
    refused("long list", "scatter", ones, [ones] * 3, comm.get_rank())
    refused("long gather", "gather", [torch.ones(4)] * 3, ones, comm.get_rank())
    refused("root", "broadcast", ones, 2)
    refused("peer", "send", ones, -1)
    refused("size", "all_gather_single", torch.ones(7), ones)
    refused("odd", "all_to_all_single", torch.ones(3), torch.ones(3))
    refused("splits", "all_to_all_v_single", torch.ones(4), ones, [2, 2], [3, 2])
    refused("few splits", "all_to_all_v_single", torch.ones(4), ones, [4], [2, 2])
    refused("no rows", "all_to_all_v_single", torch.ones(()), ones, [1, 0], [2, 2])
    comm.all_reduce(ones, sum_, False)
    assert ones.tolist() == [2.0] * 4, "a rejected call had an effect"
    return errors


def test_unsupported_calls_are_rejected_by_name_and_the_communicator_stays_usable(torchcomms_ranks):
    expected = {
        "premul": "PREMUL_SUM.*get_backend_impl",
        "band": "band has no meaning for float32",
        "complex32": "complex32",
        "complex min": "min has no meaning for complex64",
        "sparse": "sparse",
        "meta": "takes tensors on the CPU, not on meta",
        "short list": "all_gather: the list has 1 tensors; expected 2",
        "unequal list": "all_gather: a tensor of the list has 3 elements, but the other has 4",
        "unequal dtypes": "float32.*float64",
        "long list": "scatter: the list has 3 tensors",
        "long gather": "gather: the list has 3 tensors",
        "root": "root must be in range",
        "peer": "dst must be in range",
        "size": "7",
        "odd": "3",
        "splits": "split sizes of input add up to 5 rows, but it has 4",
        "few splits": "output has 1 split sizes; expected 2",
        "no rows": "output has no dimension",
    }
    for errors in torchcomms_ranks(2).run(refusals):
        assert errors.keys() | {"premul"} == expected.keys()
        for name, text in errors.items():
            assert re.search(expected[name], text), f"{name}: {text}"


def own_plan(comm, folder):
    program = accord.plan.Program("all_reduce", ranks=2, name="of_a_user")
    for mine, peer in ((program.rank(0), program.rank(1)), (program.rank(1), program.rank(0))):
        mine.copy(mine.input[0], mine.scratch[0]).signal(peer).wait(peer)
        mine.reduce(sorted([mine.input[0], peer.scratch[0]]), mine.output[0])
    program.register(bytes="0-4k")
    sums = [torch.full((n,), comm.get_rank() + 1.0) for n in (100, 4000)]
    for values in sums:
        comm.all_reduce(values, torchcomms.ReduceOp.SUM, False)
    with open(comm.get_backend_impl().communicator.dump(folder)) as dumped:
        served = dumped.read().count("of_a_user")
    return [values.unique().tolist() for values in sums], served


def test_a_user_plan_serves_calls_of_its_sizes(torchcomms_ranks, tmp_path):
    for sums, served in torchcomms_ranks(2).run(own_plan, str(tmp_path)):
        assert sums == [[3.0], [3.0]]
        assert served == 1
