"""Which objects count as arrays, which are rejected, and that no array is kept. Runs on a group of one rank in this
process."""

import array
import ctypes
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ALL_DTYPES, numpy_dtype

import accord


@pytest.fixture
def comm():
    with accord.Communicator.create(accord.MemoryStore(), 0, 1, name="solo", timeout=10) as comm:
        yield comm


def test_the_package_works_without_numpy_and_torch():
    program = """
import sys, array, accord
comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
x = array.array("f", [1.0, 2.0])
comm.all_reduce(x)
comm.all_reduce_async(x).wait()
assert list(x) == [1.0, 2.0]
assert accord.info()["version"] == accord.__version__
assert not {"numpy", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(6, dtype=np.float32).reshape(2, 3),
        lambda: np.ones((), np.float32),
        lambda: array.array("f", [1, 2]),
        lambda: array.array("q", [1, 2]),
        lambda: bytearray(b"abc"),
        lambda: memoryview(bytearray(8)).cast("i"),
        lambda: (ctypes.c_float * 4)(1, 2, 3, 4),
        lambda: np.zeros((0, 3), np.int64),
        lambda: np.asfortranarray(np.zeros((5, 1), np.float16)),
    ],
)
def test_objects_with_the_buffer_protocol_are_arrays(comm, make):
    given = make()
    before = bytes(memoryview(given))
    comm.broadcast(given, 0)
    assert bytes(memoryview(given)) == before


def test_torch_tensors_are_arrays_of_every_dtype(comm):
    torch = pytest.importorskip("torch")
    for dtype in ALL_DTYPES:
        tensor = torch.ones(2, 3, dtype=getattr(torch, dtype))
        gathered = torch.zeros(2, 3, dtype=tensor.dtype)
        comm.all_gather(tensor, gathered)
        assert torch.equal(tensor, gathered), dtype
    tensor = torch.zeros(4, 4)[:, 0]
    with pytest.raises(ValueError, match="array: is not contiguous"):
        comm.all_reduce(tensor)
    with pytest.raises(TypeError, match="array: its dtype is .*; accord supports int8, int16"):
        comm.all_reduce(torch.zeros(2, dtype=torch.float8_e4m3fnuz))
    conjugate = torch.tensor([1 + 2j]).conj()
    for lazy in (conjugate, conjugate.imag):
        with pytest.raises(accord.InvalidArgument, match="array: is .* only when it is read; pass tensor.resolve_"):
            comm.all_reduce(lazy)
    comm.all_gather(conjugate.resolve_conj(), out := torch.zeros(1, dtype=torch.complex64))
    assert out.tolist() == [1 - 2j]
    offset = torch.arange(10.0)[4:]
    comm.all_gather(offset, out := torch.zeros(6))
    assert out.tolist() == offset.tolist()


class OnlyDlpack:
    """A producer older than DLPack 1.0, which does not know max_version."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Broken(OnlyDlpack):
    def __dlpack__(self, stream=None):
        raise BufferError("it is lazy")


def test_objects_with_dlpack_are_arrays(comm):
    inner = np.arange(4, dtype=np.int32)
    comm.all_gather(OnlyDlpack(inner), out := np.zeros(4, np.int32))
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="array: its memory cannot be used.*it is lazy"):
        comm.all_reduce(Broken(inner))


def test_floats_of_ml_dtypes_are_supported(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        numbers = np.array([1, 2, 3], dtype)
        comm.all_gather(numbers, out := np.zeros(3, dtype))
        assert out.tolist() == [1, 2, 3]
        with pytest.raises(accord.InvalidArgument, match="input is .*float(16|8).*, output is float32"):
            comm.all_gather(numbers, np.zeros(3, np.float32))


def test_numpy_arrays_are_arrays_of_every_dtype(comm):
    for dtype in ALL_DTYPES:
        array = np.ones(3, numpy_dtype(dtype))
        comm.all_gather(array, out := np.zeros_like(array))
        assert np.array_equal(array, out), dtype


def test_premul_sum_accepts_a_number_or_an_array_of_one_element(comm):
    for factor in (3, 3.0, np.array([3], np.float32), array.array("f", [3])):
        x = np.array([1, 2], np.float32)
        comm.all_reduce(x, "premul_sum", factor=factor)
        assert x.tolist() == [3, 6]
    z = np.array([1j], np.complex64)
    comm.all_reduce_async(z, "premul_sum", factor=2j).wait()
    assert z.tolist() == [-2]
    with pytest.raises(accord.InvalidArgument, match="factor: premul_sum needs one"):
        comm.all_reduce(x, "premul_sum")
    with pytest.raises(accord.InvalidArgument, match="factor: only premul_sum takes one, not sum"):
        comm.all_reduce(x, factor=2)
    with pytest.raises(OverflowError, match="int too large to convert to float"):
        comm.all_reduce(x, "premul_sum", factor=10**400)
    with pytest.raises(accord.InvalidArgument, match="factor is a complex number, the input is float32"):
        comm.all_reduce(x, "premul_sum", factor=1j)
    with pytest.raises(accord.InvalidArgument, match="factor has 2 x float32, expected 1 x float32"):
        comm.all_reduce(x, "premul_sum", factor=np.ones(2, np.float32))
    with pytest.raises(TypeError, match="factor: expected an array"):
        comm.all_reduce(x, "premul_sum", factor="2")


def test_an_explicit_dtype_reads_memory_of_the_same_width(comm):
    comm.all_reduce(np.zeros(3, np.uint16), dtype="bfloat16")
    comm.all_reduce(np.zeros(3, np.int16), dtype="float16")
    comm.all_reduce(bytearray(12), dtype="float32")
    with pytest.raises(ValueError, match="array: cannot be read as bfloat16: its elements have 4 bytes, not 2"):
        comm.all_reduce(np.zeros(3, np.float32), dtype="bfloat16")
    with pytest.raises(ValueError, match="array: cannot be read as float32"):
        comm.all_reduce(bytearray(7), dtype="float32")
    with pytest.raises(ValueError, match='"bfloat61".*"bfloat16"'):
        comm.all_reduce(np.zeros(3, np.uint16), dtype="bfloat61")
    with pytest.raises(TypeError, match="dtype: expected a name"):
        comm.all_reduce(np.zeros(3, np.uint16), dtype=np.float32)


READ_ONLY = np.zeros(4, np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1.0, 2.0], TypeError, "array: expected an array .* got list"),
        (3.0, TypeError, "array: expected an array .* got float"),
        (None, TypeError, "NoneType"),
        ("text", TypeError, "array: expected an array .* got str"),
        (np.zeros(3, np.longdouble), TypeError, "array: its dtype is of format .*; accord supports int8, int16"),
        (np.zeros(3, "M8[s]"), TypeError, "array: its memory cannot be used"),
        (np.zeros(3, [("a", "f4")]), TypeError, "array: its dtype is of format"),
        (np.zeros(3, object), TypeError, "array: its"),
        (np.zeros(3, ">f4"), ValueError, "array: its elements are in big-endian order"),
        (np.zeros((4, 4), np.float32)[:, 1], ValueError, "array: is not contiguous"),
        (np.zeros((4, 3), np.float32).T, ValueError, "array: is not contiguous"),
        (np.zeros(6, np.float32)[::-1], ValueError, "array: is not contiguous"),
        (READ_ONLY, ValueError, "array: is read-only"),
        (b"bytes", ValueError, "array: is read-only"),
    ],
)
def test_unsuitable_arrays_are_rejected_by_name(comm, given, error, message):
    with pytest.raises(error, match=message):
        comm.all_reduce(given)
    with pytest.raises(error, match=message.replace("array: ", "output: ")):
        comm.all_gather(np.zeros(1, np.float32), given)
    assert comm.state == "ready", "an invalid argument is not a failure of the group"


def test_inputs_may_be_read_only(comm):
    out = np.ones(4, np.float32)
    comm.all_reduce(READ_ONLY, out=out)
    comm.all_gather(READ_ONLY, out)
    comm.broadcast(READ_ONLY, root=0)
    assert out.tolist() == [0] * 4


def test_counts_dtypes_ops_and_ranks_are_checked(comm):
    x = np.zeros(4, np.float32)
    with pytest.raises(accord.InvalidArgument, match="output has 3 elements, expected 4"):
        comm.all_reduce(x, out=np.zeros(3, np.float32))
    with pytest.raises(accord.InvalidArgument, match="input is float32, output is int32"):
        comm.all_gather(x, np.zeros(4, np.int32))
    with pytest.raises(accord.InvalidArgument, match="band has no meaning for float32, which has sum, product, min"):
        comm.all_reduce(x, "band")
    with pytest.raises(accord.InvalidArgument, match="min has no meaning for complex64"):
        comm.reduce(np.zeros(4, np.complex64), 0, "min")
    with pytest.raises(ValueError, match='"summ".*"sum"'):
        comm.all_reduce(x, "summ")
    with pytest.raises(ValueError, match="root 1 is not a rank"):
        comm.broadcast(x, root=1)
    with pytest.raises(ValueError, match="peer 7 is not a rank"):
        comm.send(x, to=7)
    with pytest.raises(TypeError):
        comm.all_reduce()
    with pytest.raises(TypeError):
        comm.all_reduce(x, "sum", None, 3)
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            comm.barrier(timeout=timeout)
    with pytest.raises(TypeError, match="timeout: expected seconds"):
        comm.barrier(timeout="1s")
    comm.barrier(timeout=float("inf"))
    comm.barrier(timeout=np.float32(2))
    with pytest.raises(accord.InvalidArgument):
        comm.all_reduce_async(x, out=np.zeros(3, np.float32)).wait()
    assert comm.state == "ready"


def test_calls_keep_no_reference_to_their_arrays(comm):
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(50):
        comm.all_reduce(x, out=y)
        comm.all_gather(x, y)
        comm.all_reduce_async(x).wait()
        with pytest.raises(TypeError):
            comm.all_gather(x, [])
        with pytest.raises(ValueError):
            comm.all_reduce(x, out=y[:3])
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    grown = bytearray(4)
    comm.all_reduce_async(grown, dtype="float32").wait()
    grown.extend(b"more")  # fails if the buffer is still exported


def test_calls_keep_no_reference_to_their_tensors(comm):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(8)
    reference = weakref.ref(tensor)
    work = comm.all_reduce_async(tensor)
    work.wait()
    with pytest.raises(ValueError):
        comm.all_reduce(tensor, out=tensor[:3])
    del tensor
    gc.collect()
    assert reference() is None


def drop_work_unfinished(comm):
    import gc
    import time
    import weakref

    class Tracked(np.ndarray):
        pass

    flag = np.zeros(1, np.float32)
    array = np.full(200_000, comm.rank + 1, np.float32).view(Tracked)
    if comm.rank == 1:
        comm.recv(flag, 0)
        comm.all_reduce(array)
        return float(array[0])
    reference = weakref.ref(array)
    work = comm.all_reduce_async(array)
    del array, work
    gc.collect()
    held = reference() is not None
    comm.send(flag, 1)
    until = time.monotonic() + 20
    while reference() is not None and time.monotonic() < until:
        # Rejected at once. Every new Work also releases the finished ones that were dropped.
        comm.send_async(flag, 0).test()
        time.sleep(0.01)
    return held, reference() is None


def test_arrays_of_a_dropped_work_are_held_until_it_completes(ranks):
    assert ranks(2).run(drop_work_unfinished) == [(True, True), 3.0]


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(ALL_DTYPES),
    shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    order=st.permutations(range(4)),
    steps=st.lists(st.sampled_from([1, 2, -1]), min_size=4, max_size=4),
)
def test_an_array_is_accepted_exactly_if_it_is_row_major(shared, dtype, shape, order, steps):
    whole = np.zeros(shape, numpy_dtype(dtype)).transpose([axis for axis in order if axis < len(shape)])
    part = whole[tuple(slice(None, None, step) for step in steps[: whole.ndim])]
    if part.flags.c_contiguous:
        shared.broadcast(part, 0, dtype=dtype)
    else:
        with pytest.raises(ValueError, match="not contiguous"):
            shared.broadcast(part, 0, dtype=dtype)


@pytest.fixture(scope="module")
def shared():
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as comm:
        yield comm


def test_ranks_may_be_threads_of_one_process():
    store, results = accord.MemoryStore(), {}

    def rank(number: int) -> None:
        with accord.Communicator.create(store, number, 3, timeout=20) as comm:
            x = np.full(1000, number + 1, np.int32)
            comm.all_reduce(x)
            results[number] = x[0]

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert results == {0: 6, 1: 6, 2: 6}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_torch_tensors_are_rounded_as_torch_rounds(dtype, op):
    torch = pytest.importorskip("torch")
    store, results = accord.MemoryStore(), {}
    inputs = [(torch.arange(-200, 200) * 2.37 * (rank + 1)).to(getattr(torch, dtype)) for rank in range(2)]
    total = inputs[0].float() + inputs[1].float()
    expected = (total / 2 if op == "avg" else total).to(getattr(torch, dtype)).float()

    def rank(number: int) -> None:
        with accord.Communicator.create(store, number, 2, timeout=20) as comm:
            comm.all_reduce(inputs[number], op)
            results[number] = inputs[number].float().numpy()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for number in range(2):
        np.testing.assert_array_equal(results[number], expected.numpy())
