"""torchcomms' windows, persistent all_gather and registered tensors, over a stand-in for torchcomms, which passes these
calls to a backend in C++ only (test_native.py)."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from accord_command import SUPPORT

torch = pytest.importorskip("torch")

DTYPES = ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2", "uint16"]


def exchange(group, support, folder, dtypes):
    sys.path.append(support)
    import torchcomms_stand_in as stand_in

    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(size))
    backend, found = stand_in.install()(), []
    backend.init(torch.device("cpu"), "windows", stand_in.options(store=dist.FileStore(f"{folder}/store", size)))
    right, left = (rank + 1) % size, (rank - 1) % size
    for name in dtypes:
        dtype = getattr(torch, name)
        mine, given = torch.zeros(2, 4).to(dtype), torch.arange(8.0).reshape(4, 2)[:, rank % 2].to(dtype)
        window = backend.new_window()
        window.tensor_register(mine)
        window.put(given, right, 3, True).wait()  # not contiguous
        window.signal(right, True).wait()
        window.wait_signal(left, False).wait()
        copy = window.clone()
        window.tensor_deregister()
        found.append((mine.float() if dtype != torch.complex64 else mine.real).flatten().tolist())
        other = copy.map_remote_tensor(left)
        assert torch.equal(copy.tensor.view(torch.uint8), mine.view(torch.uint8))
        assert other.dtype == dtype and other.shape == mine.shape
        copy.tensor_deregister()
    found.append(backend.new_window().clone().tensor)
    backend.finalize()
    return found


def test_windows_carry_all_dtypes_and_are_cloned(torch_ranks, tmp_path):
    for rank, found in enumerate(torch_ranks(3).run(exchange, SUPPORT, str(tmp_path), DTYPES)):
        assert found.pop() is None
        left = (rank - 1) % 3
        for name, values in zip(DTYPES, found, strict=True):
            expected = [0.0] * 8
            expected[3:7] = [float(bool(v)) if name == "bool" else v for v in (2.0 * i + left % 2 for i in range(4))]
            assert values == expected, name


def misuse(group, support, folder):
    import datetime

    sys.path.append(support)
    import torchcomms_stand_in as stand_in

    rank = dist.get_rank()
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE="2")
    backend, texts = stand_in.install()(), []
    backend.init(torch.device("cpu"), "misused", stand_in.options(store=dist.FileStore(f"{folder}/store", 2)))

    def refused(call, *arguments, **keywords):
        try:
            call(*arguments, **keywords)
        except (RuntimeError, TypeError) as error:
            texts.append(str(error))
        else:
            texts.append("not refused")

    window = backend.new_window()
    refused(window.signal, 1 - rank, False)
    refused(window.tensor_deregister)
    refused(window.tensor_register, torch.zeros(4, 2)[:, 0])
    refused(window.tensor_register, torch.zeros(4, device="meta"))
    refused(window.tensor_register, torch.zeros(4).to_sparse())
    window.tensor_register(torch.zeros(4))
    refused(window.tensor_register, torch.zeros(4))
    refused(window.put, torch.zeros(2), 1 - rank, 3, False)
    refused(window.put, torch.zeros(2), 2, 0, False)
    refused(window.put, torch.zeros(2, dtype=torch.float64), 1 - rank, 0, False)
    refused(window.put, torch.zeros(2, device="meta"), 1 - rank, 0, False)
    refused(window.wait_signal, 1 - rank, False, timeout=datetime.timedelta(milliseconds=20))
    window.tensor_deregister()
    refused(backend.all_gather_p_init, torch.zeros(3))
    handle = backend.all_gather_p_init(torch.zeros(4))
    refused(backend.all_gather_p_exec, handle, torch.zeros(3), False)
    refused(backend.all_gather_p_exec, handle, torch.zeros(2, dtype=torch.int32), False)
    tensor = torch.zeros(4)
    backend.tensor_register(tensor)
    backend.tensor_register(tensor)
    backend.tensor_deregister(tensor)
    refused(backend.tensor_deregister, tensor)
    refused(backend.tensor_register, tensor[::2])
    refused(backend.tensor_register, torch.zeros(4, device="meta"))
    backend.barrier(False)
    backend.finalize()
    refused(backend.new_window)
    return texts


def test_misuse_is_refused_by_name(torch_ranks, tmp_path):
    for rank, texts in enumerate(torch_ranks(2).run(misuse, SUPPORT, str(tmp_path))):
        for expected in (
            "the window has no tensor",
            "the window has no tensor",
            "a window needs a dense tensor on the CPU, not one with strides (2,)",
            "a window needs a dense tensor on the CPU, not one on meta",
            "a window needs a dense tensor on the CPU, not one of layout torch.sparse_coo",
            "the window has a tensor already",
            "offset 12",
            "2 is not a rank of the group",
            "put of torch.float64 to a window of torch.float32",
            "put of a tensor on meta to a window on the CPU",
            f"rank {1 - rank}",
            "the output has 3 elements, which do not split evenly over 2 ranks",
            "all_gather",
            "all_gather",
            "tensor_deregister: a tensor of shape (4,) on cpu is not registered",
            "tensor_register needs a dense tensor, not one with strides (2,)",
            "takes tensors on the CPU, not on meta",
            'communicator "misused" is already finalized',
        ):
            found = texts.pop(0)
            assert expected in found, (expected, found)
        assert texts == []


def gather_again_and_again(group, support, folder, hint):
    sys.path.append(support)
    import torchcomms_stand_in as stand_in

    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(size))
    backend = stand_in.install()()
    store = dist.FileStore(f"{folder}/store", size)
    backend.init(torch.device("cpu"), "gathers", stand_in.options(store=store, hints={"async": hint}))
    found = []
    for dense_input in (True, False):
        for dense_output in (True, False):
            output = torch.zeros(2 * size, 3) if dense_output else torch.zeros(3, 2 * size).T
            inputs = [torch.zeros(2, 3) if dense_input else torch.zeros(3, 2).T for _ in range(2)]
            handle = backend.all_gather_p_init(output)
            for step in range(6):
                given = inputs[step // 3]
                given[:] = torch.arange(6.0).reshape(2, 3) + 100 * rank + 10 * step
                work = backend.all_gather_p_exec(handle, given, step % 2 == 0)
                if work is not None:
                    work.wait()
                found.append(output.tolist())
    backend.finalize()
    return found


@pytest.mark.parametrize("hint", ["at_once", "background"])
def test_a_persistent_all_gather_follows_its_input(torch_ranks, tmp_path, hint):
    for found in torch_ranks(3).run(gather_again_and_again, SUPPORT, str(tmp_path), hint):
        assert len(found) == 24
        for call, output in enumerate(found):
            parts = [torch.arange(6.0).reshape(2, 3) + 100 * rank + 10 * (call % 6) for rank in range(3)]
            assert output == torch.cat(parts).tolist()


def reduce_in_windows(group, support, folder):
    import json

    sys.path.append(support)
    import torchcomms_stand_in as stand_in

    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE=str(size))
    backend = stand_in.install()()
    backend.init(torch.device("cpu"), "reduced", stand_in.options(store=dist.FileStore(f"{folder}/store", size)))
    tensor, window = torch.full((100_000,), rank + 1.0), backend.new_window()
    window.tensor_register(tensor)
    backend.all_reduce(tensor, stand_in.ADD, False)
    with open(backend.communicator.dump(folder)) as dump:
        (collectives,) = (order for order in json.load(dump)["orders"] if order["kind"] == "collectives")
    window.tensor_deregister()
    backend.finalize()
    return collectives["operations"][-1]["algorithm"], tensor.unique().tolist()


def test_collectives_on_windows_copy_nothing_in_between(torch_ranks, tmp_path):
    found = torch_ranks(2).run(reduce_in_windows, SUPPORT, str(tmp_path))
    assert found == [("two_shot_zero_copy", [3.0])] * 2
