"""Expert parallelism on GPU arrays, with simulated devices in host memory."""


def run_step(_, path):
    import ctypes

    import numpy as np
    import pytest
    from host_devices import HostStream, OnDevice, library, on_thread_ranks

    import accord
    from accord.moe import ExpertGroup

    loaded = library(path)

    def body(comm, rank):
        stream = HostStream(loaded, rank)

        def put(values):
            return OnDevice(loaded, rank, values)

        group = ExpertGroup(
            comm, experts=4, top_k=2, hidden=8, max_tokens_per_rank=3, dtype="float32", device=f"cuda:{rank}"
        )
        assert group.config["device"] == f"cuda:{rank}"
        handle = group.handle()
        random = np.random.default_rng(rank)
        chosen = np.stack([random.permutation(4)[:2] for _ in range(3)])
        chosen[2, 1] = 99  # not an expert
        tokens = random.random((3, 8)).astype(np.float32)
        weights = random.random((3, 2)).astype(np.float32)
        x, w = put(tokens), put(weights)
        recv, recv_w = put(np.zeros((12, 8), np.float32)), put(np.zeros(12, np.float32))
        result, grad_w = put(np.zeros((3, 8), np.float32)), put(np.zeros((3, 2), np.float32))

        release = stream.hold()
        group.prepare(handle, put(chosen), stream=stream)
        group.dispatch(handle, x, recv, weights=w, recv_weights=recv_w, stream=stream)
        group.combine(handle, recv, result, weights=w, stream=stream.cuda_stream)
        group.dispatch_backward(
            handle,
            recv,
            put(np.zeros((3, 8), np.float32)),
            grad_recv_weights=recv_w,
            grad_weights=grad_w,
            stream=stream,
        )
        assert not result.values.any()
        release()
        handle.fetch(stream)
        expected = tokens * weights.sum(1, keepdims=True)
        expected[2] = tokens[2] * weights[2, 0]
        np.testing.assert_allclose(result.values, expected, rtol=1e-6)
        weights[2, 1] = 0
        np.testing.assert_array_equal(grad_w.values, weights)
        assert handle.recv_rows == sum(handle.counts)
        assert handle.ranks[rank]["out_of_range"] == 1
        for array, numbers in (
            (handle.device_counts, handle.counts),
            (handle.device_numbers, [handle.recv_rows, 0, 0, 1, 0]),
            (handle.device_fingerprint, [(handle.fingerprint ^ 1 << 63) - (1 << 63)]),
        ):
            interface = array.__cuda_array_interface__
            assert interface["shape"] == (len(numbers),) and interface["typestr"] == "<i8"
            assert list((ctypes.c_int64 * len(numbers)).from_address(interface["data"][0])) == numbers
        group.combine_backward(handle, x, recv, stream=stream)
        stream.synchronize()

        # Invalid arguments on one rank are an error on that rank only and do not affect the others.
        if rank == 0:
            with pytest.raises(accord.InvalidArgument, match="rows of 2 elements"):
                group.dispatch(handle, put(np.zeros((3, 2), np.float32)), recv, stream=stream)
            with pytest.raises(accord.InvalidArgument, match="tokens is on cpu, but the group's device is cuda:0"):
                group.dispatch(handle, tokens, recv, stream=stream)
        group.dispatch(handle, x, recv, stream=stream)
        handle.fetch(stream)
        if rank == 0:
            with pytest.raises(accord.InvalidArgument, match='device is "cuda:x", expected "cpu" or "cuda:N"'):
                ExpertGroup(comm, experts=4, top_k=2, hidden=8, max_tokens_per_rank=3, device="cuda:x")
        group.close()

    on_thread_ranks(2, body)


def test_a_step_runs_in_the_stream_of_its_calls(device_process):
    device_process(run_step)
