"""Calls on GPU arrays, with simulated devices in host memory and a library that has NCCL's symbols."""

import os
import subprocess
import sys

from accord_command import BUILD, program_environment
from host_devices import LIBRARY


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
        assert set(values.requested_streams) == {None}  # no other stream: the call's own stream orders it
        assert whole.values.tolist() == [[0, 0], [1, 1], [2, 2]]
        with comm.batch() as batch:
            batch.send(part, (rank + 1) % 3)
            batch.recv(whole_part := OnDevice(loaded, rank, np.zeros(2, np.int64)), (rank + 2) % 3)
        assert loaded.accord_test_synchronize(rank, None) == 0
        assert whole_part.values.tolist() == [(rank + 2) % 3] * 2
        assert comm.state == "ready"

    on_thread_ranks(3, body)


def test_device_arrays_are_passed_by_dlpack(device_process):
    device_process(run_collectives)


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


def test_works_block_streams_but_not_their_callers(device_process):
    device_process(run_works)


def make_invalid_calls(_, path):
    import numpy as np
    import pytest
    from host_devices import OnDevice, library, on_thread_ranks

    import accord

    loaded = library(path)

    def body(comm, rank):
        values = OnDevice(loaded, 0, np.ones(4, np.float32))
        with pytest.raises(accord.InvalidArgument, match="input is on cuda:0, output is on cpu"):
            comm.all_gather(values, np.ones(4, np.float32))
        for wrong in ("s", 1.5, True, -1, object()):
            with pytest.raises(TypeError, match="stream: expected a cudaStream_t as an integer"):
                comm.all_reduce(values, stream=wrong)
        with pytest.raises(accord.Unsupported, match="array: is on cuda:0; this call takes memory on the CPU"):
            comm.window(64).put(values, 0)
        far = OnDevice(loaded, 0, np.ones(4, np.float32))
        far._device = 77
        with pytest.raises(accord.InvalidArgument, match="a buffer is on cuda:77, but this rank sees 4"):
            comm.all_reduce(far)
        assert comm.state == "ready"

    on_thread_ranks(1, body)


def test_invalid_arguments_are_named(device_process):
    device_process(make_invalid_calls)


def run_hints(_, path):
    import ctypes

    import numpy as np
    from host_devices import OnDevice, library, on_thread_ranks

    loaded = library(path)

    def body(comm, rank):
        comm.all_reduce(OnDevice(loaded, rank, np.ones(4, np.float32)))
        loaded.accord_test_synchronize(rank, None)

    on_thread_ranks(2, body, hints="max_ctas=12,net_name=Socket", select="all_reduce[memory=cuda]:0-inf=nccl")
    text = ctypes.create_string_buffer(1 << 20)
    loaded.accord_test_log(1, text, ctypes.c_size_t(len(text)))
    assert "blocking=1 maxCTAs=12 netName=Socket" in text.value.decode()


def test_hints_of_a_group_reach_nccl(device_process):
    device_process(run_hints)


def run_windows(_, path):
    import ctypes

    import numpy as np
    import pytest
    from host_devices import HostStream, OnDevice, library, on_thread_ranks

    import accord

    loaded = library(path)

    def body(comm, rank):
        stream = HostStream(loaded, rank)
        window = comm.device_window(8192, device=rank)
        assert (window.use, window.nbytes, window.device) == ("symmetric", 8192, rank)
        assert window.is_direct
        assert window.__dlpack_device__() == (2, rank)
        values = np.frombuffer((ctypes.c_byte * 8192).from_address(window.data), np.uint8)
        values[...] = rank + 1
        comm.all_reduce(window, stream=stream)
        stream.synchronize()
        assert values.tolist() == [3] * 8192
        own = OnDevice(loaded, rank, np.zeros(100, np.float32))
        assert comm.device_window(own).use in ("symmetric", "registered")

        class Indexed(OnDevice):  # like arrays of NumPy and torch
            def __index__(self):
                raise TypeError("only integer arrays of one element can be an index")

        assert comm.device_window(Indexed(loaded, rank, np.zeros(100, np.float32))).nbytes == 400
        with pytest.raises(accord.InvalidArgument, match="memory: -1 is not a number of bytes"):
            comm.device_window(-1)
        with pytest.raises(accord.InvalidArgument, match="there is no GPU -2"):
            comm.device_window(64, device=-2)
        with pytest.raises(accord.InvalidArgument, match="a buffer is on cuda:99"):
            comm.device_window(64, device=99)

    on_thread_ranks(2, body)


def test_windows_are_allocated_on_a_device(device_process):
    device_process(run_windows)


def run_lending(_, path):
    import ctypes

    import numpy as np
    import pytest
    from host_devices import OnDevice, library, on_thread_ranks

    import accord

    class UniqueId(ctypes.Structure):
        _fields_ = (("internal", ctypes.c_char * 128),)

    loaded = library(path)
    unique = UniqueId()
    assert loaded.ncclGetUniqueId(ctypes.byref(unique)) == 0
    loaded.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)

    def body(comm, rank):
        loaded.accord_test_current_device(rank)
        own = ctypes.c_void_p()
        assert loaded.ncclCommInitRank(ctypes.byref(own), 2, unique, rank) == 0
        with pytest.raises(accord.InvalidArgument, match="the communicator is null"):
            comm.lend_nccl(0)
        comm.lend_nccl(own.value)
        values = OnDevice(loaded, rank, np.ones(5, np.float32))
        comm.all_reduce(values)
        assert loaded.accord_test_synchronize(rank, None) == 0
        assert values.values.tolist() == [2.0] * 5
        with pytest.raises(accord.WrongState, match="has already made calls on a GPU"):
            comm.lend_nccl(own.value)
        comm.close()
        assert loaded.ncclCommDestroy(own) == 0

    on_thread_ranks(2, body)


def test_an_nccl_communicator_is_borrowed(device_process):
    device_process(run_lending)


def test_the_nccl_python_package_takes_precedence_over_the_system_library(tmp_path):
    # torch loads its own NCCL by the same name, and would get the system's if that had been loaded first.
    package = tmp_path / "nvidia/nccl/lib"
    package.mkdir(parents=True)
    (package / "libnccl.so.2").symlink_to(BUILD / "tests" / LIBRARY)
    environment = program_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    text = 'import accord; print(next(part for part in accord.info()["parts"] if part["name"] == "nccl")["detail"])'
    result = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"2.29.7 ({package / 'libnccl.so.2'})"
