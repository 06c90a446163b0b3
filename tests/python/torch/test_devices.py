"""The process group with GPU tensors, with simulated devices in host memory and a library that has NCCL's symbols.
Ranks are threads."""


def run_collectives(_, path):
    import numpy as np
    import torch
    import torch.distributed as dist
    from host_devices import library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    loaded = library(path)

    def body(group, rank, stream):
        ones = of_numpy(loaded, rank, np.ones(6, np.float32))
        assert ones.is_cuda
        opts = dist.AllreduceOptions()
        opts.asyncOp = False
        release = stream.hold()
        group.allreduce([ones], opts).wait()  # enqueued in the stream: no thread waits
        release()
        stream.synchronize()
        assert ones.values.tolist() == [3.0] * 6
        part = of_numpy(loaded, rank, np.full(2, rank, np.int64))
        whole = of_numpy(loaded, rank, np.zeros(6, np.int64))
        work = group._allgather_base(whole, part)
        work.wait()
        stream.synchronize()
        assert whole.values.tolist() == [0, 0, 1, 1, 2, 2]
        assert work.is_completed() and work.is_success()
        mine = of_numpy(loaded, rank, np.zeros(2, np.float32))
        group._reduce_scatter_base(mine, ones).wait()
        group.broadcast([part], 2).wait()
        stream.synchronize()
        assert mine.values.tolist() == [9.0, 9.0]
        assert part.values.tolist() == [2, 2]
        on_cpu = torch.ones(3)
        group.allreduce([on_cpu]).wait()
        assert on_cpu.tolist() == [3.0] * 3

    on_group_ranks(loaded, 3, body)


def test_collectives_accept_gpu_tensors(torch_device_process):
    torch_device_process(run_collectives)


def run_works(_, path):
    import numpy as np
    from host_devices import HostStream, library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    import accord

    loaded = library(path)

    def body(group, rank, stream):
        ones = of_numpy(loaded, rank, np.ones(5, np.float64))
        group.allreduce([ones]).wait()
        stream.synchronize()
        release = stream.hold()
        work = group.allreduce([ones])
        work.wait()  # makes the stream wait
        assert not work.is_completed()
        release()
        (result,) = work.result()
        assert result is ones
        assert ones.values.tolist() == [4.0] * 5
        assert HostStream(loaded, rank)
        # Several calls coalesced into one.
        other = of_numpy(loaded, rank, np.full(4, rank, np.int32))
        got = of_numpy(loaded, rank, np.zeros(4, np.int32))
        device = ones.device
        group._start_coalescing(device)
        group.send([other], 1 - rank, 0)
        group.recv([got], 1 - rank, 0)
        group._end_coalescing(device).wait()
        stream.synchronize()
        assert got.values.tolist() == [1 - rank] * 4
        group.allreduce_coalesced([ones, other]).wait()
        stream.synchronize()
        assert ones.values.tolist() == [8.0] * 5
        assert other.values.tolist() == [1] * 4
        try:
            group.recv_anysource([got], 0).wait()
        except RuntimeError as error:
            assert "this call needs CPU memory" in str(error)
        else:
            raise AssertionError("a message from any rank arrived on a GPU")
        assert group.communicator.state == "ready"
        assert isinstance(group.communicator, accord.Communicator)

    on_group_ranks(loaded, 2, body)


def test_works_make_streams_wait(torch_device_process):
    torch_device_process(run_works)


def run_futures(_, path):
    import numpy as np
    import torch
    from host_devices import library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    from accord.torch.work import DeviceWork, Works

    loaded = library(path)

    def body(group, rank, stream):
        ones = of_numpy(loaded, rank, np.ones(5, np.float64))
        group.allreduce([ones]).wait()
        stream.synchronize()
        release = stream.hold()
        work = group.allreduce([ones])
        future = work.get_future()
        seen = []
        chained = future.then(lambda ended: seen.append(ended.value()[0]))  # as DDP's hooks do
        assert future.done() and chained.done() and seen == [ones], "the future waits for the operation"
        assert future.wait() == [ones] and work.get_future() is future
        assert not work.is_completed()
        other = group.allreduce_coalesced([ones, ones])
        assert other.get_future().wait() == [ones, ones]
        release()
        future.stream.synchronize()  # it follows the operation
        assert work.is_completed() and ones.values[0] >= 4.0
        other.wait()
        stream.synchronize()
        assert ones.values.tolist() == [16.0] * 5

        # Results that were received in other memory are copied once, by the future of several operations here.
        place, memory = torch.zeros(2), torch.ones(2)
        release = stream.hold()
        started = group.communicator.all_reduce_async(ones, stream=stream)
        gathered = DeviceWork(started, [place], [(place, memory)], [0, 1], ones.device)
        both = Works([gathered, group.allreduce([ones])]).get_future()
        assert both.done() and both.wait() == [place, ones]
        assert not gathered.is_completed()
        memory.fill_(2)
        gathered.wait()
        release()
        both.stream.synchronize()
        assert gathered.is_completed()
        assert place.tolist() == [1.0, 1.0]
        stream.synchronize()

    on_group_ranks(loaded, 2, body)


def test_futures_end_once_their_operation_is_in_its_stream(torch_device_process):
    torch_device_process(run_futures)


def run_failed_futures(_, path):
    import threading

    import numpy as np
    import pytest
    from accord_command import wait_until
    from host_devices import library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    loaded, started = library(path), threading.Event()

    def body(group, rank, stream):
        ones = of_numpy(loaded, rank, np.ones(5, np.float64))
        group.allreduce([ones]).wait()
        stream.synchronize()
        if rank == 1:
            started.wait()
            group.abort()
            with pytest.raises(RuntimeError, match="torch.distributed aborted the process group"):
                group.allreduce([ones])
            return
        work = group.allreduce([ones])
        started.set()
        wait_until(work.is_completed, "the operation has ended")
        with pytest.raises(RuntimeError, match="torch.distributed aborted the process group"):
            work.result()
        with pytest.raises(RuntimeError, match="torch.distributed aborted the process group"):
            work.get_future().wait()
        seen = []
        with pytest.raises(RuntimeError, match="torch.distributed aborted the process group"):
            work.get_future().then(lambda ended: seen.append(ended.value())).wait()
        assert not seen

    on_group_ranks(loaded, 2, body)


def test_futures_of_failed_operations_end_with_the_error(torch_device_process):
    torch_device_process(run_failed_futures)


def run_batches_of_messages(_, path):
    import numpy as np
    import torch.distributed as dist
    from host_devices import library
    from host_tensors import of_numpy
    from torch.distributed import distributed_c10d
    from torch_device_groups import on_group_ranks

    from accord.torch import c10d
    from accord.torch.process_group import ProcessGroup

    loaded = library(path)
    c10d.batch_messages(ProcessGroup)

    def body(group, rank, stream):
        distributed_c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
        mine = of_numpy(loaded, rank, np.full(4, rank, np.int32))
        got = of_numpy(loaded, rank, np.zeros(4, np.int32))
        ops = [dist.P2POp(dist.isend, mine, 1 - rank, group), dist.P2POp(dist.irecv, got, 1 - rank, group)]
        (work,) = dist.batch_isend_irecv(ops)
        work.wait()
        stream.synchronize()
        assert got.values.tolist() == [1 - rank] * 4

    on_group_ranks(loaded, 2, body)


def test_messages_of_a_batch_run_as_one_call(torch_device_process):
    torch_device_process(run_batches_of_messages)


def run_failure(_, path):
    import threading

    import numpy as np
    from host_devices import library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    loaded = library(path)
    has_started = threading.Event()  # a call that starts after the abort raises at once

    def body(group, rank, stream):
        ones = of_numpy(loaded, rank, np.ones(5, np.float64))
        group.allreduce([ones]).wait()
        stream.synchronize()
        if rank == 1:
            has_started.wait()
            group.abort()
            return
        work = group.allreduce([ones])
        has_started.set()
        try:
            work.result()
        except RuntimeError as error:
            assert "torch.distributed aborted the process group" in str(error)
        else:
            raise AssertionError("the call of an aborted group ended well")
        stream.synchronize()

    on_group_ranks(loaded, 2, body)


def test_a_failure_is_an_error_of_torch_and_releases_the_stream(torch_device_process):
    torch_device_process(run_failure)


def run_others(_, path):
    import numpy as np
    import pytest
    from host_devices import library
    from host_tensors import of_numpy
    from torch_device_groups import on_group_ranks

    loaded = library(path)

    def body(group, rank, stream):
        with pytest.raises(TypeError, match="cpu:accord,cuda:BACKEND"):
            group.allreduce([of_numpy(loaded, rank, np.ones(5, np.float64))])

    on_group_ranks(loaded, 1, body, backends="cpu:accord")


def test_the_error_of_a_cpu_group_names_the_backend_to_request(torch_device_process):
    torch_device_process(run_others)


def run_lending(_, path):
    import ctypes

    import numpy as np
    import pytest
    import torch
    import torch.distributed as dist
    from host_devices import OnDevice, library, on_thread_ranks

    import accord.torch

    class UniqueId(ctypes.Structure):
        _fields_ = (("internal", ctypes.c_char * 128),)

    class Backend:
        """Reports its communicator as torch's ProcessGroupNCCL does."""

        pointer = 0

        def _comm_ptr(self):
            return self.pointer

    class Group:
        def __init__(self, backend):
            self.backend = backend

        def _get_backend(self, device):
            assert device.type == "cuda"
            return self.backend

    loaded = library(path)
    unique = UniqueId()
    assert loaded.ncclGetUniqueId(ctypes.byref(unique)) == 0
    loaded.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)

    def body(comm, rank):
        loaded.accord_test_current_device(rank)
        device = torch.device("cuda", rank)
        group = Group(Backend())
        with pytest.raises(RuntimeError, match="no NCCL communicator for cuda:. yet"):
            accord.torch.lend_nccl(comm, group, device)
        own = ctypes.c_void_p()
        assert loaded.ncclCommInitRank(ctypes.byref(own), 2, unique, rank) == 0
        group.backend.pointer = own.value
        accord.torch.lend_nccl(comm, group, device)
        values = OnDevice(loaded, rank, np.ones(5, np.float32))
        comm.all_reduce(values)
        assert loaded.accord_test_synchronize(rank, None) == 0
        assert values.values.tolist() == [2.0] * 5
        with pytest.raises(TypeError, match="is object, which does not expose an NCCL communicator"):
            accord.torch.lend_nccl(comm, Group(object()), device)
        comm.close()
        assert loaded.ncclCommDestroy(own) == 0

    on_thread_ranks(2, body)
    assert dist.is_nccl_available() == hasattr(getattr(dist, "ProcessGroupNCCL", None), "_comm_ptr")


def test_the_nccl_communicator_of_a_torch_group_is_borrowed(torch_device_process):
    torch_device_process(run_lending)
