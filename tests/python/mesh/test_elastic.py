"""Meshes of a group whose ranks change: each group has a mesh of its size, created in one step."""

import pytest
from elastic_job import ElasticJob

PROGRAM = """
import sys
from contextlib import contextmanager
import numpy
from accord.mesh import Mesh, MeshPlan
from elastic_loop import go_on

def total(comm, value):
    values = numpy.array([value])
    comm.all_reduce(values)
    return int(values[0])

@contextmanager
def begin(elastic, comm):
    mesh = Mesh.create(MeshPlan("tp=2" if comm.size % 2 == 0 else "tp=1", world_size=comm.size), comm)
    sums = [total(mesh.group(family), comm.rank + 1) for family in ("tp", "dp")]
    print("sums of round", elastic.round, comm.rank, *sums, flush=True)
    yield lambda: total(mesh.group("dp"), 1)

go_on(sys.argv[1], begin)
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
    words = [line.split()[-3:] for line in job.lines if f"sums of round {number} " in line]
    return {int(rank): [int(value) for value in sums] for rank, *sums in words}


def test_each_group_has_a_mesh_of_its_size(job):
    job.start("--elastic", "1:4", "--max-restarts", 0)
    number = job.await_size(4)
    for size in (3, 2):
        assert sums_of(job, number) == SUMS[size + 1]
        job.kill(number, 1)
        number = job.await_size(size, number)
    assert sums_of(job, number) == SUMS[2]
    assert job.finish() == [0]
