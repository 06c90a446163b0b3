"""Meshes of a group whose ranks change: each group has a mesh of its size, created in one step."""

import pytest
from elastic_job import ElasticJob

PROGRAM = """
import os, sys
import numpy, accord
from accord.mesh import Mesh, MeshPlan

def total(comm, value):
    values = numpy.array([value])
    comm.all_reduce(values)
    return int(values[0])

with accord.ElasticGroup.from_environment(last_call=60, form_timeout=60, timeout=60) as elastic:
    while (comm := elastic.form()) is not None:
        try:
            plan = MeshPlan("tp=2" if comm.size % 2 == 0 else "tp=1", world_size=comm.size)
            mesh = Mesh.create(plan, comm)
            sums = [total(mesh.group(family), comm.rank + 1) for family in ("tp", "dp")]
            print(f"round {elastic.round} rank {comm.rank} of {comm.size} process {os.getpid()} sums", *sums, flush=True)
            while not elastic.others_wait():
                total(mesh.group("dp"), 1)
                is_over = numpy.array([os.path.exists(sys.argv[1])])
                comm.broadcast(is_over, 0)
                if is_over[0]:
                    elastic.finish()
                    break
        except (accord.PeerLost, accord.Aborted):
            pass
"""

# By rank: the sums of rank + 1 over its ranks in tp and in dp.
SUMS = {
    4: {0: [1 + 2, 1 + 3], 1: [1 + 2, 2 + 4], 2: [3 + 4, 1 + 3], 3: [3 + 4, 2 + 4]},
    3: {0: [1, 1 + 2 + 3], 1: [2, 1 + 2 + 3], 2: [3, 1 + 2 + 3]},
    2: {0: [1 + 2, 1], 1: [1 + 2, 2]},
}


@pytest.fixture
def job(tmp_path):
    with ElasticJob(tmp_path, PROGRAM) as started:
        yield started


def sums_of(job, number):
    words = [line.split() for line in job.lines if f"round {number} " in line]
    return {int(line[line.index("rank") + 1]): [int(value) for value in line[-2:]] for line in words}


def test_each_group_has_a_mesh_of_its_size(job):
    job.start("--elastic", "1:4", "--max-restarts", 0)
    number = job.await_size(4)
    for size in (3, 2):
        assert sums_of(job, number) == SUMS[size + 1]
        job.kill(number, 1)
        number = job.await_size(size, number)
    assert sums_of(job, number) == SUMS[2]
    assert job.finish() == [0]
