"""The torchcomms backend with GPU tensors, with simulated devices in host memory and a library that has NCCL's
symbols. A fake module provides the parts of torchcomms that the backend uses."""


def run_calls(_, path):
    import enum
    import sys
    import threading
    import types
    from datetime import timedelta

    import numpy as np
    import pytest
    import torch
    from host_devices import HostStream, library, on_thread_ranks
    from host_tensors import of_numpy

    import accord
    from accord.torch import streams

    class RedOpType(enum.Enum):
        SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR, AVG = range(8)

    torchcomms = types.ModuleType("torchcomms")
    torchcomms.RedOpType, torchcomms.ReduceOp = RedOpType, types.SimpleNamespace
    torchcomms.CommOptions, torchcomms.TorchCommBackend = types.SimpleNamespace, object
    torchcomms.register_backend = lambda name, kind: None
    sys.modules["torchcomms"] = torchcomms
    from accord.torchcomms.backend import Backend, rendezvous

    add = types.SimpleNamespace(type=RedOpType.SUM)
    loaded = library(path)
    stream_of = {}
    streams.current = lambda device: stream_of[device.index]
    here = threading.local()
    rendezvous.communicator = lambda name, options: here.comm.split(0, name=name)

    def body(comm, rank):
        options = types.SimpleNamespace(timeout=timedelta(seconds=30), hints={"async": "background"}, store=None)
        stream = stream_of[rank] = HostStream(loaded, rank)
        backend = Backend()
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
        part.finalize()
        backend.finalize()
        assert isinstance(comm, accord.Communicator)

    on_thread_ranks(2, body)


def test_calls_are_enqueued_into_the_current_stream(torch_device_process):
    torch_device_process(run_calls)
