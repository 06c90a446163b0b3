"""Ranks in containers that share a host and its network. Each is the first process of its container, so all of them
have process id 1."""

import os
import signal
import subprocess

import numpy as np
import pytest
from accord_command import wait_until

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child"]


def why_not() -> str | None:
    """Returns the reason why this machine or sandbox has no PID namespaces, or None if it has them."""
    try:
        tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no namespaces of process ids here: {error}"
    return None if tried.returncode == 0 else f"no namespaces of process ids here: {tried.stderr.strip()}"


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def sums_and_messages(comm):
    total = np.full(5000, comm.rank + 1, np.float32)
    comm.all_reduce(total)
    large = np.full(1 << 20, comm.rank + 1, np.float32)
    comm.all_reduce(large)
    got = np.empty(3, np.float32)
    with comm.batch() as batch:
        batch.recv(got, (comm.rank - 1) % comm.size)
        batch.send(np.full(3, comm.rank, np.float32), (comm.rank + 1) % comm.size)
    window = comm.window(64)
    window.put(np.full(4, comm.rank, np.int64), to=(comm.rank + 1) % comm.size)
    window.signal((comm.rank + 1) % comm.size)
    window.wait((comm.rank - 1) % comm.size)
    put = np.asarray(window.local)[:32].view(np.int64)
    with comm.split(comm.rank % 2) as half:
        sizes = half.size
    return os.getpid(), total[0], large[-1], got[0], int(put[0]), sizes


def test_ranks_with_equal_process_ids_are_not_threads_of_one_process(fresh_ranks):
    ranks = fresh_ranks(4, prefixes=[CONTAINER] * 4)
    assert ranks.run(sums_and_messages) == [(1, 10, 10, (r - 1) % 4, (r - 1) % 4, 2) for r in range(4)]


def test_ranks_in_containers_connect_to_threads_on_the_host(fresh_ranks):
    ranks = fresh_ranks(3, prefixes=[CONTAINER, [], CONTAINER])
    results = ranks.run(sums_and_messages)
    assert [rank[0] == 1 for rank in results] == [True, False, True]
    assert {rank[1] for rank in results} == {6}


def wait_for_a_death(comm, victim, folder):
    comm.barrier()
    open(os.path.join(folder, str(comm.rank)), "w").close()
    if comm.rank == victim:
        time.sleep(60)  # noqa: F821
    try:
        comm.barrier()
    except accord.PeerLost as error:  # noqa: F821
        return error.ranks


def test_a_killed_container_is_named(fresh_ranks, tmp_path):
    ranks = fresh_ranks(3, prefixes=[CONTAINER] * 3)

    def kill(processes: list[subprocess.Popen]) -> None:
        wait_until(lambda: len(os.listdir(tmp_path)) == 3, "all ranks to have begun")
        processes[1].send_signal(signal.SIGKILL)

    outcomes = ranks.outcomes(wait_for_a_death, 1, str(tmp_path), while_running=kill)
    assert [outcomes[rank].value for rank in (0, 2)] == [(1,), (1,)], outcomes
