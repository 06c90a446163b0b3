"""ACCORD_DEBUG=info reports where ranks run and which algorithm serves their calls, once each."""

import os
import re
import sys

from accord_command import accord, clean_environment, python_file

PROGRAM = """
import numpy as np
import accord
with accord.Communicator.from_environment(timeout=60) as comm:
    for count in (2, 2, 3, 100_000, 100_000):
        comm.all_reduce(np.ones(count, np.float32))
    half = comm.split(0, name="half")
    half.barrier()
"""


def run(tmp_path, **environment: str) -> str:
    result = accord(
        *("run", "-n", "2", "--", sys.executable, python_file(tmp_path, PROGRAM)),
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), **environment),
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_topology_and_plans_are_logged_once(tmp_path):
    log = run(tmp_path, ACCORD_DEBUG="info", ACCORD_SELECT="all_reduce:0-1k=packet,1k-inf=two_shot")
    for once in (
        r'group "world": 2 ranks on 1 host, over shm',
        r'group "half": 2 ranks on 1 host, over shm',
        r'group "world": all_reduce of 2 x float32 \(sum\), 8 B: packet, \d+ steps? in \d+ lanes?, 1 round',
        r'group "world": all_reduce of 100000 x float32 \(sum\), 390\.6 KiB: two_shot, ',
        r'group "half": barrier, ',
    ):
        assert len(re.findall(once, log)) == 1, (once, log)
    assert "all_reduce of 3 x" not in log
    for rank in (0, 1):
        assert (
            len(re.findall(rf" rank {rank}: process \d+, \d+ cores? \(processors [\d, -]+\), memory nodes? ", log)) == 2
        )


def test_without_the_variable_nothing_is_logged(tmp_path):
    assert run(tmp_path) == ""
