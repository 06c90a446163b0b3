"""The torchcomms backend with GPU tensors, with simulated devices in host memory and a library that has NCCL's
symbols. A fake module provides the parts of torchcomms that the backend uses."""


def run_calls(_, path):
    import threading

    import numpy as np
    import pytest
    import torch
    import torchcomms_stand_in
    from host_devices import HostStream, library, on_thread_ranks
    from host_tensors import of_numpy

    import accord
    from accord.torch import streams

    make_backend = torchcomms_stand_in.install()
    from accord.torchcomms import rendezvous

    add = torchcomms_stand_in.ADD
    loaded = library(path)
    stream_of = {}
    streams.current = lambda device: stream_of[device.index]
    here, handles, all_here = threading.local(), {}, threading.Barrier(2)
    rendezvous.communicator = lambda name, options: here.comm.split(0, name=name)

    def body(comm, rank):
        options = torchcomms_stand_in.options(hints={"async": "background"})
        stream = stream_of[rank] = HostStream(loaded, rank)
        backend = make_backend()
        here.comm = comm
        with pytest.raises(RuntimeError, match="for meta: it supports the CPU and CUDA devices"):
            backend.init(torch.device("meta"), "gpus", options)
        backend.init(torch.device("cuda", rank), "gpus", options)
        ones = of_numpy(loaded, rank, np.ones(6, np.float32))
        release = stream.hold()
        backend.all_reduce(ones, add, False)  # enqueued in the stream: no thread waits
        release()
        stream.synchronize()
        assert ones.values.tolist() == [2.0] * 6
        work = backend.all_reduce(ones, add, True)
        work.wait()
        stream.synchronize()
        assert ones.values.tolist() == [4.0] * 6
        other = of_numpy(loaded, rank, np.full(4, rank, np.int32))
        got = of_numpy(loaded, rank, np.zeros(4, np.int32))
        backend.batch_op_issue([(True, other, 1 - rank), (False, got, 1 - rank)], True).wait()
        stream.synchronize()
        assert got.values.tolist() == [1 - rank] * 4
        backend.barrier(False)
        part = backend.split([0, 1], "part", options)
        part.all_reduce(ones, add, False)
        stream.synchronize()
        assert ones.values.tolist() == [8.0] * 6
        elsewhere = of_numpy(loaded, 3, np.ones(6, np.float32))
        with pytest.raises(RuntimeError, match=f"takes tensors on cuda:{rank}, not on cuda:3"):
            backend.all_reduce(elsewhere, add, False)
        whole = of_numpy(loaded, rank, np.zeros(12, np.float32))
        handle = backend.all_gather_p_init(whole)
        for value in (3, 4):
            ones.values.fill_(value + rank)
            backend.all_gather_p_exec(handle, ones, True).wait()
            stream.synchronize()
            assert whole.values.tolist() == [value] * 6 + [value + 1] * 6
        backend.tensor_register(ones)
        backend.all_reduce(ones, add, False)
        stream.synchronize()
        assert ones.values.tolist() == [9.0] * 6
        backend.tensor_deregister(ones)
        with pytest.raises(RuntimeError, match="shape .6,. on cuda:. is not registered"):
            backend.tensor_deregister(ones)
        with pytest.raises(RuntimeError, match="a window needs a dense tensor on the CPU, not one on cuda"):
            backend.new_window().tensor_register(ones)
        window, mine = backend.new_window(), torch.full((2,), float(rank))  # a GPU communicator has CPU windows
        window.tensor_register(mine)
        with pytest.raises(RuntimeError, match=f"put of a tensor on cuda:{rank} to a window on the CPU"):
            window.put(ones, 0, 0, False)
        assert window.map_remote_tensor(1 - rank).tolist() == [1.0 - rank] * 2
        window.tensor_deregister()
        part.finalize()
        handles[rank] = backend.get_init_handle()
        backend.tensor_register(whole)
        all_here.wait()
        backend.reconfigure(1, [handles[1], handles[0]], {})
        backend.tensor_deregister(whole)
        ones.values.fill_(rank)
        backend.broadcast(ones, 0, False)
        stream.synchronize()
        assert backend.get_rank() == 1 - rank
        assert ones.values.tolist() == [1.0] * 6
        backend.finalize()
        assert isinstance(comm, accord.Communicator)

    on_thread_ranks(2, body)


def test_calls_are_enqueued_into_the_current_stream(torch_device_process):
    torch_device_process(run_calls)
