"""The surviving ranks continue after a death."""

import os
import signal
import subprocess

import numpy as np
from accord_command import wait_until

import accord


def continue_without_dead_ranks(comm, victim, folder):
    import time

    os.mkdir(os.path.join(folder, str(comm.rank)))
    if comm.rank == victim:
        time.sleep(60)
    try:
        comm.barrier()
    except accord.PeerLost:
        with comm.shrink() as rest:
            ranks = np.zeros(rest.size, np.int64)
            rest.all_gather(np.array([comm.rank]), ranks)
            found = rest.name, rest.rank, ranks.tolist(), comm.state, comm.gone()[:1]
            comm.close()
            return *found, comm.gone()


def test_the_survivors_shrink_to_a_new_group(fresh_ranks, tmp_path):
    def kill(processes: list[subprocess.Popen]) -> None:
        wait_until(lambda: len(os.listdir(tmp_path)) == 4, "all ranks are there")
        processes[1].send_signal(signal.SIGKILL)

    outcomes = fresh_ranks(4).outcomes(continue_without_dead_ranks, 1, str(tmp_path), while_running=kill)
    assert [outcomes[rank].value for rank in (0, 2, 3)] == [
        ("world/shrunk", place, [0, 2, 3], "failed", [1], []) for place in range(3)
    ]
