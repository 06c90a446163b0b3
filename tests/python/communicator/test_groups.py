"""Groups of some of a communicator's ranks."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
from accord_command import end, wait_until

import accord


def split_listed_ranks(comm):
    if comm.rank == 1:
        return comm.split_ranks([])
    part = comm.split_ranks([3, 0, 2])
    ranks = np.zeros(3, np.int64)
    part.all_gather(np.array([comm.rank]), ranks)
    inner = part.split_ranks([part.rank], name="inner", timeout=3)
    return part.name, part.rank, ranks.tolist(), inner.name, inner.size


def test_split_ranks_is_called_by_the_listed_ranks_only(ranks):
    assert ranks(4).run(split_listed_ranks) == [
        ("world/3,0,2", 1, [3, 0, 2], "inner", 1),
        None,
        ("world/3,0,2", 2, [3, 0, 2], "inner", 1),
        ("world/3,0,2", 0, [3, 0, 2], "inner", 1),
    ]


def refused(comm):
    failures = []
    for ranks in ([], [1 - comm.rank], [0, 1, 1], [0, 1, 2]):
        try:
            failures.append(comm.split_ranks(ranks))
        except accord.InvalidArgument as error:
            failures.append(str(error).rsplit(": ", 1)[1])
    try:
        comm.split_ranks([comm.rank, 1 - comm.rank], name="both")
    except accord.Mismatch as error:
        failures.append(error.ranks)
    return failures, comm.state


def test_invalid_lists_and_lists_that_differ_are_rejected(ranks):
    for rank, (failures, state) in enumerate(ranks(2).run(refused)):
        assert failures == [
            None,
            f"the list does not name rank {rank}, which makes the call; only listed ranks need to call",
            "the list names rank 1 twice",
            "the list names rank 2, but the group has ranks 0 and 1",
            (1 - rank,),
        ]
        assert state == "ready"


def split_with_options(comm):
    failures = []
    for options in ({"transport": "inproc"}, {"select": f"barrier:0-inf={('direct', 'binomial')[comm.rank]}"}):
        try:
            comm.split(0, **options)
        except accord.Error as error:
            failures.append((type(error).__name__, str(error)))
    start = time.monotonic()
    try:
        if comm.rank == 0:
            comm.split(0, timeout=0.1)
        else:
            comm.recv(np.zeros(1), 0)
    except accord.Timeout as error:
        failures.append((error.ranks, time.monotonic() - start < 15))
    return failures


def test_a_split_by_color_accepts_options(ranks):
    for rank, (transport, select, timeout) in enumerate(ranks(2).run(split_with_options)):
        assert transport[0] == "Unsupported" and "inproc: does not reach from rank 0 to rank 1" in transport[1]
        assert select[0] == "Mismatch" and "barrier:0-inf=binomial" in select[1]
        assert timeout == ((1,), True), f"rank {rank}"


def split_with_a_dead_rank(comm, victim, folder):
    import time

    if comm.rank == victim:
        os.mkdir(os.path.join(folder, "there"))
        time.sleep(60)
    if comm.rank == 3:
        return None  # not listed
    try:
        comm.split_ranks([2, 1, 0], timeout=30)
    except accord.PeerLost as error:
        return error.ranks


def test_a_listed_rank_that_dies_is_named(fresh_ranks, tmp_path):
    def kill(processes: list[subprocess.Popen]) -> None:
        wait_until(lambda: len(os.listdir(tmp_path)) == 1, "the victim is there")
        processes[1].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(4).outcomes(split_with_a_dead_rank, 1, str(tmp_path), while_running=kill)
    assert [outcomes[rank].value for rank in (0, 2, 3)] == [(1,), (1,), None]


def create_groups_until_one_rank_dies(comm, victim, folder):
    ranks, made = [2, 0, 1], 0
    try:
        while True:
            comm.split_ranks(ranks, name=f"listed {made}", timeout=30)
            comm.split(0, name=f"colored {made}")
            made += 1
            if comm.rank == victim and made == 3:
                os.mkdir(os.path.join(folder, "there"))
    except accord.PeerLost as error:
        return error.ranks


def test_only_the_rank_that_dies_while_groups_are_created_is_named(fresh_ranks, tmp_path):
    def kill(processes: list[subprocess.Popen]) -> None:
        wait_until(lambda: len(os.listdir(tmp_path)) == 1, "groups are being made")
        processes[1].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(3).outcomes(create_groups_until_one_rank_dies, 1, str(tmp_path), while_running=kill)
    assert [outcomes[rank].value for rank in (0, 2)] == [(1,), (1,)], outcomes


def wait_for_a_missing_rank(comm):
    if comm.rank == 2:
        comm.recv(np.zeros(1), 0)
        return None
    try:
        comm.split_ranks([0, 1, 2], timeout=0.3)
    except accord.Timeout as error:
        if comm.rank == 0:
            comm.send(np.zeros(1), 2)
        return error.ranks, comm.state


def test_a_listed_rank_that_does_not_call_is_named(ranks):
    assert ranks(3).run(wait_for_a_missing_rank) == [((2,), "ready"), ((2,), "ready"), None]


def grow_by_three(comm, folder):
    try:
        comm.grow(accord.FileStore(folder), 3, timeout=50)
    except accord.PeerLost as error:
        return error.ranks, time.time(), comm.state


def test_a_joiner_that_dies_while_joining_is_named_immediately(fresh_ranks, tmp_path):
    program = f"import accord; accord.Communicator.join(accord.FileStore({str(tmp_path)!r}), 'world/grown', timeout=50)"
    store, joiners, killed = accord.FileStore(str(tmp_path)), [], []

    def kill_the_first(_: list[subprocess.Popen]) -> None:
        for rank in (2, 3):
            joiners.append(subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True))
            store.get(f"accord/world/grown/growth/1/joiner/{rank}", timeout=30)
        joiners[0].send_signal(signal.SIGKILL)
        killed.append(time.time())

    try:
        outcomes = fresh_ranks(2).outcomes(grow_by_three, str(tmp_path), while_running=kill_the_first)
        for outcome in outcomes:
            ranks_at_fault, when, state = outcome.value
            assert ranks_at_fault == (2,) and when - killed[0] < 15 and state == "ready"
        errors = joiners[1].communicate(timeout=30)[1]
        assert "PeerLost" in errors and "rank 2 died while it joined" in errors
    finally:
        end(*joiners)


def grow_in(comm, folder):
    store = accord.FileStore(folder)
    if comm.rank < 2:
        grown = comm.split_ranks([0, 1], name="two").grow(store, 1)
    else:
        grown = accord.Communicator.join(store, "two/grown")
    ranks = np.zeros(grown.size, np.int64)
    grown.all_gather(np.array([comm.rank]), ranks)
    return grown.name, grown.rank, ranks.tolist()


def test_a_process_joins_a_running_group(ranks, tmp_path):
    assert ranks(3).run(grow_in, str(tmp_path)) == [("two/grown", rank, [0, 1, 2]) for rank in range(3)]
