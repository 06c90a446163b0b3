"""Communicators formed by their ranks' handles."""

# ruff: noqa: F821 (names that ranks.py provides)

import os
import signal
import threading

import numpy as np
import pytest
from accord_command import SUPPORT, wait_until

import accord


def total(comm, value):
    sums = np.array([value], np.int64)
    comm.all_reduce(sums)
    return int(sums[0])


def fall_apart_and_merge(comm, support, folder):
    sys.path.append(support)
    from handle_folder import gather_handles

    def total():
        sums = np.array([who + 1])
        comm.all_reduce(sums)
        return int(sums[0])

    who, seen = comm.rank, []
    for number, members in enumerate(([0, 1, 2], [who], [2, 0, 1])):
        handles = gather_handles(folder, f"step {number}", who, members, comm.handle())
        comm = comm.reconfigure(f"step {number} {members}", handles)
        seen.append((comm.rank, comm.size, total(), comm.name))
    handles = gather_handles(folder, "set", who, [0, 1, 2], comm.handle())
    comm = comm.reconfigure("set", set(handles))
    return *seen, (sorted(handles).index(handles[who]) == comm.rank, total())


def test_ranks_fall_apart_and_merge_again(ranks, tmp_path):
    assert [outcome.value for outcome in ranks(3).outcomes(fall_apart_and_merge, SUPPORT, str(tmp_path))] == [
        ((who, 3, 6, "world"), (0, 1, who + 1, "world"), (place, 3, 6, "world"), (True, 6))
        for who, place in enumerate((1, 2, 0))
    ]


def survive(comm, support, folder):
    sys.path.append(support)
    from handle_folder import gather_handles

    who = comm.rank
    os.mkdir(os.path.join(folder, f"ready {who}"))
    try:
        while True:
            comm.barrier()
    except accord.PeerLost:
        handles = gather_handles(folder, "handles", who, [2, 0], comm.handle())
        with comm.reconfigure("without rank 1", handles) as rest:
            sums = np.array([who + 1])
            rest.all_reduce(sums)
            return rest.rank, rest.size, int(sums[0]), comm.state, type(comm.error).__name__


def test_the_survivors_of_a_killed_rank_reconfigure(fresh_ranks, tmp_path):
    def kill(processes):
        wait_until(lambda: len(os.listdir(tmp_path)) >= 3, "all ranks are there")
        processes[1].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(3).outcomes(survive, SUPPORT, str(tmp_path), while_running=kill)
    assert [outcomes[who].value for who in (0, 2)] == [
        (1, 2, 4, "failed", "PeerLost"),
        (0, 2, 4, "failed", "PeerLost"),
    ]


def test_errors_name_what_is_wrong():
    with accord.Communicator.alone(name="lonely") as comm:
        assert (comm.rank, comm.size, comm.name) == (0, 1, "lonely")
        mine = comm.handle()
        assert comm.handle() == mine
        with pytest.raises(accord.InvalidArgument, match="there are no handles"):
            comm.reconfigure("a", [])
        with pytest.raises(accord.InvalidArgument, match='"x" is not a handle'):
            comm.reconfigure("a", [mine, "x"])
        with pytest.raises(accord.InvalidArgument, match="do not contain this rank's"):
            comm.reconfigure("a", [accord.Communicator.alone().handle()])
        with pytest.raises(TypeError, match="a list or a set"):
            comm.reconfigure("a", mine)
        with pytest.raises(TypeError):
            comm.reconfigure("a", [mine, 7])
        with comm.reconfigure("a", [mine]) as same:
            assert same.size == 1
            assert same.handle() != mine
            assert same.error is None
            with pytest.raises(accord.InvalidArgument, match="already used"):
                same.reconfigure("a", [same.handle()])
    with pytest.raises(accord.Closed):
        comm.handle()


def test_a_rank_that_does_not_come_is_named():
    with accord.Communicator.alone() as comm, accord.Communicator.alone() as other:
        with pytest.raises(accord.Timeout) as raised:
            comm.reconfigure("a", [comm.handle(), other.handle()], timeout=0.2)
        assert raised.value.ranks == (1,)


def test_threads_reconfigure_at_the_same_time():
    comms = [accord.Communicator.alone() for _ in range(4)]
    handles = [comm.handle() for comm in comms]
    sums = [0] * 4

    def take_part(who):
        pair = handles[:2] if who < 2 else handles[2:]
        with comms[who].reconfigure("pairs", pair) as formed:
            sums[who] = total(formed, 10**who)

    threads = [threading.Thread(target=take_part, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [11, 11, 1100, 1100]
