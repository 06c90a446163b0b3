"""Ranks on several hosts: network namespaces with TCP between them, some of which have several ranks."""

import os
import signal
import subprocess

import numpy as np
import pytest
from accord_command import wait_until
from descriptors import open_descriptors
from hosts import Hosts, why_not
from stopped_rank import use_window_of_a_stopped_rank

REASON = why_not()
SHAPES = {"2 x 2": [0, 0, 1, 1], "4 x 1": [0, 1, 2, 3], "3 + 2 + 1": [0, 0, 0, 1, 1, 2], "taking turns": [0, 1, 0, 1]}
COUNTS = [1, 7, 1000, 50_000, 300_001]

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def on_hosts(fresh_ranks):
    """A function that takes the host of each rank and returns (the hosts, the ranks)."""
    made = []

    def start(shape, **environment):
        made.append(Hosts(max(shape) + 1))
        prefixes = [made[-1].prefix(host) for host in shape]
        return made[-1], fresh_ranks(len(shape), environment=environment, prefixes=prefixes)

    yield start
    for hosts in made:
        hosts.close()


def every_collective(comm, counts):
    """Compares every collective with NumPy. Uses small integers, so that sums are exact in any order."""
    rank, size = comm.rank, comm.size

    def data(of, count):
        return ((np.arange(count) * 7 + of * 13) % 101).astype(np.float32)

    for count in counts:
        everyone = [data(r, count) for r in range(size)]
        whole = np.concatenate([data(r, count * size) for r in range(size)]).reshape(size, size, count)
        total = np.sum(everyone, axis=0)

        x = data(rank, count)
        comm.all_reduce(x)
        assert np.array_equal(x, total), ("all_reduce", count)
        y = np.empty_like(x)
        comm.all_reduce(data(rank, count), "max", out=y)
        assert np.array_equal(y, np.max(everyone, axis=0)), ("all_reduce max", count)
        x = data(rank, count)
        comm.all_reduce(x, "avg")
        assert np.allclose(x, total / size), ("avg", count)
        x = data(rank, count)
        comm.all_reduce(x, "premul_sum", factor=float(rank))
        assert np.allclose(x, sum(r * everyone[r] for r in range(size))), ("premul_sum", count)
        half = data(rank, count).astype(np.float16)
        comm.all_reduce(half)
        assert np.array_equal(half, total.astype(np.float16)), ("float16", count)

        gathered = np.empty(count * size, np.float32)
        comm.all_gather(data(rank, count), gathered)
        assert np.array_equal(gathered, np.concatenate(everyone)), ("all_gather", count)
        part = np.empty(count, np.float32)
        comm.reduce_scatter(data(rank, count * size), part)
        assert np.array_equal(part, whole.sum(axis=0)[rank]), ("reduce_scatter", count)
        mine = np.empty(count * size, np.float32)
        comm.all_to_all(data(rank, count * size), mine)
        assert np.array_equal(mine.reshape(size, count), whole[:, rank]), ("all_to_all", count)
        for root in range(size):
            x = data(rank, count)
            comm.broadcast(x, root)
            assert np.array_equal(x, everyone[root]), ("broadcast", count)
            x = data(rank, count)
            comm.reduce(x, root)
            assert rank != root or np.array_equal(x, total), ("reduce", count)
            comm.gather(data(rank, count), gathered if rank == root else None, root)
            assert rank != root or np.array_equal(gathered, np.concatenate(everyone)), ("gather", count)
            comm.scatter(data(root, count * size) if rank == root else None, part, root)
            assert np.array_equal(part, whole[root, rank]), ("scatter", count)
        with comm.batch() as batch:
            batch.recv(part, (rank - 1) % size)
            batch.send(data(rank, count), (rank + 1) % size)
        assert np.array_equal(part, everyone[(rank - 1) % size]), ("send and recv", count)
        parts = [count + r for r in range(size)]
        uneven = np.empty(sum(parts), np.float32)
        comm.all_gather_v(data(rank, parts[rank]), uneven, parts)
        assert np.array_equal(uneven, np.concatenate([data(r, parts[r]) for r in range(size)])), ("all_gather_v", count)
        works = [comm.all_reduce_async(data(rank, count)) for _ in range(5)]
        for work in works:
            work.wait()
        comm.barrier()
    # A group that spans the hosts, and then the parent again.
    with comm.split(rank % 2) as other:
        x = np.full(1000, rank, np.float32)
        other.all_reduce(x)
        assert np.array_equal(x, np.full(1000, sum(r for r in range(size) if r % 2 == rank % 2))), "split"
    comm.barrier()
    return "right"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_collective_matches_numpy(on_hosts, shape):
    _, ranks = on_hosts(SHAPES[shape])
    assert set(ranks.run(every_collective, COUNTS, deadline=240)) == {"right"}


def test_ranks_of_one_machine_can_simulate_several_hosts(fresh_ranks):
    """ACCORD_HOST_ID assigns the ranks to hosts, without namespaces."""
    environments = [{"ACCORD_HOST_ID": f"host {rank // 2}"} for rank in range(4)]
    ranks = fresh_ranks(4, environments=environments)
    assert set(ranks.run(every_collective, [1, 5000], deadline=120)) == {"right"}


def test_every_collective_matches_numpy_by_hierarchical_plans(on_hosts):
    names = "all_reduce broadcast reduce all_gather reduce_scatter all_to_all barrier".split()
    _, ranks = on_hosts([0, 0, 1, 1, 2], ACCORD_SELECT=";".join(f"{name}:0-inf=hierarchical" for name in names))
    assert set(ranks.run(every_collective, [1, 7, 50_000], deadline=240)) == {"right"}


def same_bits(comm, count):
    data = (np.random.default_rng(comm.rank).standard_normal(count * comm.size)).astype(np.float32)
    total = data[:count].copy()
    comm.all_reduce(total)
    reduced = data[:count].copy()
    comm.reduce(reduced, 2)
    part = np.empty(count, np.float32)
    comm.reduce_scatter(data, part)
    return total.tobytes(), comm.rank == 2 and reduced.tobytes(), part.tobytes()


def test_sums_between_hosts_are_bit_identical_to_one_host(on_hosts, ranks):
    expected = ranks(4).run(same_bits, 100_003)
    assert len({total for total, _, _ in expected}) == 1 and expected[2][0] == expected[2][1]
    for shape in ([0, 0, 1, 1], [0, 0, 0, 1]):
        assert on_hosts(shape)[1].run(same_bits, 100_003) == expected


def test_a_slow_link_only_costs_time(on_hosts):
    hosts, ranks = on_hosts([0, 0, 1, 1])
    hosts.slow_down("200mbit")
    assert set(ranks.run(every_collective, [100_000], deadline=240)) == {"right"}


def exchange_by_windows(comm, count):
    """Every rank puts data into all other ranks' windows and gets it back from there. Three signals end three
    waits."""
    rank, size = comm.rank, comm.size

    def data(source, to):
        return ((np.arange(count) * 7 + source * 13 + to * 5) % 251).astype(np.uint8)

    window = comm.window(count * size)
    for to in range(size):
        window.put(data(rank, to), to, count * rank)
        for _ in range(3):
            window.signal(to)
    for source in range(size):
        for _ in range(3):
            window.wait(source)
    arrived = np.asarray(window.local).reshape(size, count)
    assert all(np.array_equal(arrived[source], data(source, rank)) for source in range(size)), "put"
    comm.barrier()  # all data has arrived on all ranks
    for owner in range(size):
        got = np.empty(count, np.uint8)
        window.get(got, owner, count * ((rank + 1) % size))
        assert np.array_equal(got, data((rank + 1) % size, owner)), "get"
    for bad in (lambda: window.put(got, owner, count * size), lambda: window.get(got, owner, 1 + count * (size - 1))):
        try:
            bad()
        except accord.InvalidArgument:  # noqa: F821
            continue
        raise AssertionError("a transfer past the end")
    try:
        window.wait((rank + 1) % size, timeout=0.05)
    except accord.Timeout as error:  # noqa: F821
        assert error.ranks == ((rank + 1) % size,)
    mapped = [window.peer(peer) is not None for peer in range(size)]
    comm.barrier()
    return mapped


@pytest.mark.parametrize("count", [100, 9_000_001])  # one message; several pieces
def test_windows_work_between_hosts(on_hosts, count):
    _, ranks = on_hosts([0, 0, 1])
    assert ranks.run(exchange_by_windows, count) == [[True, True, False], [True, True, False], [False, False, True]]


def test_little_is_buffered_for_a_stopped_peer_and_the_timeout_names_it(on_hosts):
    _, ranks = on_hosts([0, 1])
    (errors, _, grown, _), byte = ranks.run(use_window_of_a_stopped_rank, None, timeout=1)
    assert [(kind, at_fault) for kind, at_fault, _ in errors] == [("Timeout", (1,))] * 3
    for (*_, text), operation in zip(errors, ("put to", "signal to", "get from"), strict=True):
        assert f"window {operation} rank 1" in text and "nothing arrived in time" in text
    assert byte == 7
    assert grown < 64, f"{grown} MiB"


def count_descriptors(comm):
    def held():
        return len(open_descriptors())

    comm.split(0).close()  # opens what a process has only once: its worker's descriptors
    start = held()
    groups = [comm.split(0) for _ in range(10)]
    for group in groups:
        group.barrier()
    between = held()
    windows = [comm.window(4096) for _ in range(10)]
    comm.barrier()
    end = held()
    assert len(windows) == 10
    return between - start, end - between


def test_a_group_and_a_window_cost_two_descriptors_for_each_peer_on_another_host(on_hosts):
    for shape in ([0, 0, 1, 1], [0, 0, 0, 1]):
        _, ranks = on_hosts(shape)
        far = [sum(host != own for host in shape) for own in shape]
        assert ranks.run(count_descriptors) == [(20 * peers, 20 * peers) for peers in far]


def wait_for_a_death(comm, victim, folder):
    import time

    comm.barrier()
    open(os.path.join(folder, str(comm.rank)), "w").close()
    if comm.rank == victim:
        time.sleep(60)
    try:
        comm.barrier()
    except accord.PeerLost as error:  # noqa: F821
        when = time.time()
        with comm.shrink() as rest:
            x = np.full(100_000, comm.rank, np.float32)
            rest.all_reduce(x)
            return when, error.ranks, rest.size, float(x[0])


@pytest.mark.parametrize("victim", [0, 3])
def test_a_killed_rank_is_named_on_all_hosts_within_a_second(on_hosts, tmp_path, victim):
    delays = []
    # One attempt in time is enough: on a busy machine the ranks may not run for a second.
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        killed = []

        def kill(processes: list[subprocess.Popen], folder=folder, killed=killed) -> None:
            import time

            wait_until(lambda: len(os.listdir(folder)) == 4, "all ranks to have begun")
            killed.append(time.time())
            processes[victim].send_signal(signal.SIGKILL)

        _, ranks = on_hosts([0, 0, 1, 1])
        outcomes = ranks.outcomes(wait_for_a_death, victim, str(folder), while_running=kill)
        assert outcomes[victim].exit_code == -signal.SIGKILL
        survivors = sorted({0, 1, 2, 3} - {victim})
        delays.append(0.0)
        for rank in survivors:
            assert outcomes[rank].error is None, outcomes[rank].error
            when, at_fault, size, total = outcomes[rank].value
            assert (at_fault, size, total) == ((victim,), 3, sum(survivors))
            delays[-1] = max(delays[-1], when - killed[0])
        if delays[-1] < 1.0:
            return
    raise AssertionError(f"the survivors learned of it after {delays} s")


def use_a_cut_link(comm, folder):
    x = np.ones(100_000, np.float32)
    comm.all_reduce(x)
    open(os.path.join(folder, str(comm.rank)), "w").close()
    try:
        while True:
            comm.all_reduce(x, timeout=3)
    except accord.Timeout as error:  # noqa: F821
        with comm.shrink(timeout=10) as rest:
            x = np.full(1000, comm.rank, np.float32)
            rest.all_reduce(x)
            return error.ranks, rest.size, float(x[0])


def test_a_cut_link_ends_in_a_timeout_and_each_side_continues_alone(on_hosts, tmp_path):
    hosts, ranks = on_hosts([0, 0, 1, 1])

    def cut(_processes: list[subprocess.Popen]) -> None:
        wait_until(lambda: len(os.listdir(tmp_path)) == 4, "all ranks are there")
        hosts.cut(1)

    outcomes = ranks.outcomes(use_a_cut_link, str(tmp_path), while_running=cut, deadline=120)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        at_fault, size, total = outcome.value
        assert at_fault and rank not in at_fault
        assert (size, total) == (2, 1 if rank < 2 else 5)
    # A rank may wait for a neighbour that waits for the other host.
    for side, other_side in (({0, 1}, {2, 3}), ({2, 3}, {0, 1})):
        named = set().union(*(outcomes[rank].value[0] for rank in side))
        assert named & other_side, (side, named)


def experts_between_hosts(comm):
    """Runs one step of expert parallelism. The dispatched rows are integers; the combined sums are inexact and
    are returned."""
    from accord.moe import ExpertGroup

    rank, size, hidden, top_k, experts = comm.rank, comm.size, 100, 3, 12
    generators = [np.random.default_rng(r) for r in range(size)]
    ids = [
        np.stack([random.permutation(experts)[:top_k] for _ in range(40 + 7 * r)])
        for r, random in enumerate(generators)
    ]
    tokens = [
        random.integers(-9, 9, (len(own), hidden)).astype(np.float32)
        for random, own in zip(generators, ids, strict=True)
    ]
    owners = [[e for e in range(experts) if e * size // experts == r] for r in range(size)]
    group = ExpertGroup(
        comm, experts=experts, top_k=top_k, hidden=hidden, max_tokens_per_rank=200, dtype="float32", placement=owners
    )
    handle = group.handle()
    group.prepare(handle, ids[rank])
    recv = np.empty((handle.recv_rows, hidden), np.float32)
    group.dispatch(handle, tokens[rank], recv)
    expected = [tokens[r][t] for e in owners[rank] for r in range(size) for t in range(len(ids[r])) if e in ids[r][t]]
    assert np.array_equal(recv, np.array(expected).reshape(-1, hidden))
    # Each expert multiplies by its own inexact number.
    first = 0
    for e, count in zip(group.local_experts, handle.counts, strict=True):
        recv[first : first + count] *= np.float32(1 / (e + 3))
        first += count
    result = np.empty_like(tokens[rank])
    group.combine(handle, recv, result)
    return result


@pytest.mark.parametrize("shape", ["2 x 2", "3 + 2 + 1"])
def test_experts_on_several_hosts_are_bit_identical_to_one_host(on_hosts, fresh_ranks, shape):
    ranks = SHAPES[shape]
    together = fresh_ranks(len(ranks)).run(experts_between_hosts)
    apart = on_hosts(ranks)[1].run(experts_between_hosts, deadline=120)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_array_equal(one, other)
