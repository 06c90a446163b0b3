"""Calls on arrays of GPUs, over devices of host memory and a library with NCCL's symbols."""

import os
from pathlib import Path

import pytest
from accord_command import BUILD
from host_devices import LIBRARY
from ranks import Ranks

PATH = str(BUILD / "tests" / LIBRARY)


@pytest.fixture(scope="module")
def process():
    """One that has the devices of the test library; accord reads ACCORD_NCCL once."""
    path = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    started = Ranks(1, environment={"ACCORD_NCCL": PATH, "PYTHONPATH": path})
    yield lambda function, *arguments: started.run(function, PATH, *arguments)[0]
    started.end()


def run_collectives(_, path):
    import numpy as np
    from host_devices import HostStream, OnDevice, library, on_thread_ranks

    loaded = library(path)

    def body(comm, rank):
        stream = HostStream(loaded, rank)
        values = OnDevice(loaded, rank, np.full(7, rank + 1, np.float32))
        whole = OnDevice(loaded, rank, np.zeros((3, 2), np.int64))
        part = OnDevice(loaded, rank, np.full(2, rank, np.int64))
        comm.all_reduce(values, "sum", stream=stream)
        comm.all_gather(part, whole, stream=stream.cuda_stream)
        stream.synchronize()
        assert values.values.tolist() == [6.0] * 7
        assert whole.values.tolist() == [[0, 0], [1, 1], [2, 2]]
        with comm.batch() as batch:
            batch.send(part, (rank + 1) % 3)
            batch.recv(whole_part := OnDevice(loaded, rank, np.zeros(2, np.int64)), (rank + 2) % 3)
        assert loaded.accord_test_synchronize(rank, None) == 0
        assert whole_part.values.tolist() == [(rank + 2) % 3] * 2
        assert comm.state == "ready"

    on_thread_ranks(3, body)


def test_arrays_of_a_device_by_dlpack(process):
    process(run_collectives)


def run_works(_, path):
    import numpy as np
    from host_devices import HostStream, OnDevice, library, on_thread_ranks

    loaded = library(path)

    def body(comm, rank):
        stream, other = HostStream(loaded, rank), HostStream(loaded, rank)
        values = OnDevice(loaded, rank, np.ones(5, np.float64))
        comm.all_reduce(values, "sum", stream=stream)
        release = stream.hold()
        work = comm.all_reduce_async(values, "sum", stream=stream)
        assert not work.test()
        work.block(other)  # returns at once
        assert not work.test()
        release()
        assert work.wait()
        other.synchronize()
        assert values.values.tolist() == [4.0] * 5
        batch = comm.batch()
        batch.all_reduce(values, "max")
        prepared = batch.prepare(stream=stream)
        prepared.run()
        prepared.start().wait()
        assert values.values.tolist() == [4.0] * 5
        with_block = comm.barrier_async()
        with_block.block(stream)
        assert with_block.test()

    on_thread_ranks(2, body)


def test_works_block_streams_and_not_their_callers(process):
    process(run_works)


def run_mistakes(_, path):
    import numpy as np
    import pytest
    from host_devices import OnDevice, library, on_thread_ranks

    import accord

    loaded = library(path)

    def body(comm, rank):
        values = OnDevice(loaded, 0, np.ones(4, np.float32))
        with pytest.raises(accord.InvalidArgument, match="input lies on cuda:0, output on cpu"):
            comm.all_gather(values, np.ones(4, np.float32))
        for wrong in ("s", 1.5, True, -1, object()):
            with pytest.raises(TypeError, match="stream: expected a cudaStream_t as an integer"):
                comm.all_reduce(values, stream=wrong)
        with pytest.raises(accord.Unsupported, match="array: lies on cuda:0; this takes memory of the cpu"):
            comm.window(64).put(values, 0)
        far = OnDevice(loaded, 0, np.ones(4, np.float32))
        far._device = 77
        with pytest.raises(accord.InvalidArgument, match="a buffer lies on cuda:77, but this rank sees 4"):
            comm.all_reduce(far)
        assert comm.state == "ready"

    on_thread_ranks(1, body)


def test_mistakes_are_named(process):
    process(run_mistakes)


def run_hints(_, path):
    import ctypes

    import numpy as np
    from host_devices import OnDevice, library, on_thread_ranks

    loaded = library(path)

    def body(comm, rank):
        comm.all_reduce(OnDevice(loaded, rank, np.ones(4, np.float32)))
        loaded.accord_test_synchronize(rank, None)

    on_thread_ranks(2, body, hints="max_ctas=12,net_name=Socket")
    text = ctypes.create_string_buffer(1 << 20)
    loaded.accord_test_log(1, text, ctypes.c_size_t(len(text)))
    assert "blocking=0 maxCTAs=12 netName=Socket" in text.value.decode()


def test_hints_of_a_group_get_to_nccl(process):
    process(run_hints)
