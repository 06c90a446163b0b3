"""Communicator.from_environment under each launcher, end to end, alone and together with torch.distributed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import ACCORD, clean_environment, python_file

# Adds 1 and 2 over two ranks with each of the libraries that its arguments name, one after the other.
SUMS = r"""
import sys

def by_accord():
    import numpy as np
    import accord
    comm = accord.Communicator.from_environment(timeout=60)
    x = np.full(3, comm.rank + 1, np.float32)
    comm.all_reduce(x)
    return comm.rank, comm.size, x.tolist()

def by_torch():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    answer = dist.get_rank(), dist.get_world_size(), x.tolist()
    dist.destroy_process_group()  # a process that ends with one alive is ended by std::terminate now and then
    return answer

for library in sys.argv[1:]:
    rank, size, values = {"accord": by_accord, "torch": by_torch}[library]()
    sys.stdout.write(f"{library} {rank} {size} {values}\n")  # in one piece, as torchrun's ranks share its output
    sys.stdout.flush()
"""
ACCORD_RUN = [str(ACCORD), "run", "-n", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", sys.executable]


def check_sums(launcher: list[str], folder: Path, *libraries: str) -> None:
    """Checks that both ranks get the right sum from each of the libraries."""
    result = subprocess.run(
        [*launcher, str(python_file(folder, SUMS)), *libraries],
        env=clean_environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    sums = sorted(line.removeprefix("[0] ").removeprefix("[1] ") for line in result.stdout.splitlines())
    assert sums == sorted(f"{library} {rank} 2 [3.0, 3.0, 3.0]" for library in libraries for rank in range(2))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun (Debian: openmpi-bin)")
def test_mpirun_needs_nothing_else(tmp_path):
    check_sums(MPIRUN, tmp_path, "accord")


def test_torchrun_needs_nothing_else(tmp_path):
    check_sums(TORCHRUN, tmp_path, "accord", "torch")


@pytest.mark.parametrize("libraries", [("accord", "torch"), ("torch", "accord")], ids=" then ".join)
def test_torch_distributed_connects_at_the_master_port_before_or_after_accord(tmp_path, libraries):
    check_sums(ACCORD_RUN, tmp_path, *libraries)
