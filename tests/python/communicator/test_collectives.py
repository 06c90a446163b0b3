"""Every collective in every dtype, compared with NumPy, on ranks that are processes."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import ALL_DTYPES, numpy_dtype, ops_of, random_array, reduce
from tiers import mostly_slow

REDUCIBLE_DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "int64"]
SIZES = [1, 2, 3, 4]
COUNTS = [0, 1, 7, 1000, 40_000]


def inputs_of(size: int, dtype: str, count: int) -> list[np.ndarray]:
    return [random_array(dtype, count, seed=100 * rank + count) for rank in range(size)]


def all_reduce_in_place(comm, op, dtype, array):
    comm.all_reduce(array, op, dtype=dtype)
    return array


def all_reduce_out_of_place(comm, op, dtype, array):
    before, out = array.copy(), np.empty_like(array)
    comm.all_reduce(array, op, out=out, dtype=dtype)
    assert np.array_equal(before, array), "the input was changed"
    return out


@pytest.mark.parametrize("size", mostly_slow(SIZES, 3))
@pytest.mark.parametrize("dtype", REDUCIBLE_DTYPES)
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_all_reduce_matches_the_canonical_tree_bit_for_bit_on_every_rank(ranks, size, dtype, op):
    for count in COUNTS:
        inputs = inputs_of(size, dtype, count)
        expected = reduce(inputs, op, dtype)
        for function in (all_reduce_in_place, all_reduce_out_of_place):
            for result in ranks(size).run(function, op, dtype, per_rank=[(array,) for array in inputs]):
                assert result.tobytes() == expected.tobytes(), f"{count} elements, {function.__name__}"


def all_reduce_with_factor(comm, op, dtype, factor, array):
    comm.all_reduce(array, op, dtype=dtype, factor=factor)
    return array


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_op_on_every_dtype_matches_the_canonical_tree_bit_for_bit(ranks, dtype):
    factors = [0.75, -1.3, 2.0]
    for op in ops_of(dtype):
        for count in (7, 3000):
            inputs = inputs_of(3, dtype, count)
            given = factors if op == "premul_sum" else [None] * 3
            expected = reduce(inputs, op, dtype, factors)
            results = ranks(3).run(all_reduce_with_factor, op, dtype, per_rank=list(zip(given, inputs, strict=True)))
            for result in results:
                assert result.tobytes() == expected.tobytes(), f"{op}, {count} elements"


def reduce_scatter(comm, op, dtype, array):
    out = np.empty(array.size // comm.size, array.dtype)
    comm.reduce_scatter(array, out, op, dtype=dtype)
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", REDUCIBLE_DTYPES)
def test_reduce_scatter_gives_each_rank_its_part(ranks, size, dtype):
    for count in COUNTS:
        inputs = inputs_of(size, dtype, size * count)
        expected = reduce(inputs, "sum", dtype)
        results = ranks(size).run(reduce_scatter, "sum", dtype, per_rank=[(array,) for array in inputs])
        assert np.concatenate(results).tobytes() == expected.tobytes(), f"{count} elements"


def all_gather(comm, dtype, array):
    out = np.empty(array.size * comm.size, array.dtype)
    comm.all_gather(array, out, dtype=dtype)
    return out


@pytest.mark.parametrize("size", mostly_slow(SIZES, 3))
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_all_gather_gives_all_inputs_in_rank_order(ranks, size, dtype):
    for count in COUNTS:
        inputs = inputs_of(size, dtype, count)
        for result in ranks(size).run(all_gather, dtype, per_rank=[(array,) for array in inputs]):
            assert result.tobytes() == np.concatenate(inputs).tobytes(), f"{count} elements"


def all_to_all(comm, dtype, array):
    out = np.empty_like(array)
    comm.all_to_all(array, out, dtype=dtype)
    comm.all_to_all_async(array, array, dtype=dtype).wait()
    assert out.tobytes() == array.tobytes(), "in place gives something else"
    return out


@pytest.mark.parametrize("size", mostly_slow(SIZES, 3))
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_all_to_all_transposes_the_parts(ranks, size, dtype):
    for count in COUNTS:
        inputs = inputs_of(size, dtype, size * count)
        results = ranks(size).run(all_to_all, dtype, per_rank=[(array,) for array in inputs])
        for rank, result in enumerate(results):
            expected = np.concatenate([np.split(array, size)[rank] for array in inputs])
            assert result.tobytes() == expected.tobytes(), f"{count} elements"


def through_the_root(comm, root, asynchronous, array):
    """Returns this rank's results of gather, of a scatter of the gathered array, and of reduce."""
    is_root = comm.rank == root
    gathered = np.empty(array.size * comm.size, array.dtype) if is_root else None
    part, total = np.empty_like(array), np.full_like(array, 9)
    if asynchronous:
        comm.gather_async(array, gathered, root).wait()
        comm.scatter_async(gathered, part, root).wait()
        comm.reduce_async(array, root, out=total).wait()
    else:
        comm.gather(array, gathered, root)
        comm.scatter(gathered, part, root)
        comm.reduce(array, root, out=total)
        in_place = array.copy()
        comm.reduce(in_place, root)
        assert np.array_equal(in_place, total if is_root else array)
    return gathered, part, total


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_gather_scatter_and_reduce_go_through_the_root(ranks, size, asynchronous):
    for count in COUNTS:
        inputs = inputs_of(size, "float32", count)
        for root in {0, size - 1}:
            results = ranks(size).run(through_the_root, root, asynchronous, per_rank=[(array,) for array in inputs])
            for rank, (gathered, part, total) in enumerate(results):
                assert part.tobytes() == inputs[rank].tobytes()
                expected = reduce(inputs, "sum", "float32") if rank == root else np.full(count, 9, np.float32)
                assert total.tobytes() == expected.tobytes(), f"{count} elements"
                if rank == root:
                    assert gathered.tobytes() == np.concatenate(inputs).tobytes()


def broadcast(comm, root, dtype, array):
    comm.broadcast(array, root, dtype=dtype)
    return array


@pytest.mark.parametrize("size", mostly_slow(SIZES, 3))
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_broadcast_gives_every_rank_the_array_of_the_root(ranks, size, dtype):
    for count in COUNTS:
        inputs, root = inputs_of(size, dtype, count), count % size
        for result in ranks(size).run(broadcast, root, dtype, per_rank=[(array,) for array in inputs]):
            assert result.tobytes() == inputs[root].tobytes(), f"{count} elements"


def pass_around(comm, dtype, array):
    received = np.empty_like(array)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    works = [comm.send_async(array, right, dtype=dtype), comm.recv_async(received, left, dtype=dtype)]
    assert all(work.wait() for work in works)
    if comm.rank == 0:
        comm.send(array, 1, dtype=dtype)
    if comm.rank == 1:
        comm.recv(received, source=0, dtype=dtype)
    return received


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_send_and_recv_carry_arrays_between_pairs(ranks, size, dtype):
    for count in COUNTS:
        inputs = inputs_of(size, dtype, count)
        results = ranks(size).run(pass_around, dtype, per_rank=[(array,) for array in inputs])
        for rank, result in enumerate(results):
            assert result.tobytes() == inputs[(rank - 1) % size].tobytes(), f"{count} elements"


def barrier_order(comm, folder):
    open(os.path.join(folder, str(comm.rank)), "w").close()
    comm.barrier()
    return len(os.listdir(folder))


def test_barrier_returns_once_all_ranks_have_called_it(ranks, tmp_path):
    assert ranks(3).run(barrier_order, str(tmp_path)) == [3, 3, 3]


def every_async(comm):
    n, r = comm.size, comm.rank
    a = np.full(5, r + 1, np.int64)
    gathered, part, root = np.zeros(5 * n, np.int64), np.zeros(5, np.int64), np.full(3, r, np.int32)
    wide, out = np.tile(a, n), np.zeros(5, np.int64)
    works = [
        comm.all_reduce_async(a, out=out),
        comm.all_gather_async(a, gathered),
        comm.reduce_scatter_async(wide, part, "max"),
        comm.broadcast_async(root, 1),
        comm.barrier_async(),
    ]
    assert [work.wait(timeout=20) for work in works] == [True] * 5
    assert all(work.test() for work in works)
    assert works[0].wait(), "a second wait gives the same"
    return out.tolist(), gathered.tolist(), part.tolist(), root.tolist()


def test_asynchronous_operations_have_the_results_of_synchronous_ones(ranks):
    for result in ranks(3).run(every_async):
        assert result == ([6] * 5, [1] * 5 + [2] * 5 + [3] * 5, [3] * 5, [1, 1, 1])


def opposite_orders(comm):
    first, second = comm.split(0, comm.rank, "first"), comm.split(0, comm.rank, "second")
    order = [first, second] if comm.rank == 0 else [second, first]
    arrays = {group.name: np.ones(1000, np.float32) for group in order}
    works = [group.all_reduce_async(arrays[group.name]) for group in order]
    return [work.wait(timeout=20) for work in works] + [array[0] == comm.size for array in arrays.values()]


def test_works_of_two_communicators_started_in_opposite_orders_complete(ranks):
    assert ranks(2).run(opposite_orders) == [[True] * 4] * 2


def split_by_parity(comm):
    group = comm.split(comm.rank % 2, key=-comm.rank)
    x = np.array([comm.rank], np.int64)
    group.all_reduce(x)
    none = comm.split(-1 if comm.rank == 0 else 5, name="rest")
    return group.name, group.rank, group.size, int(x[0]), none is None


def test_split_creates_groups_by_color_ordered_by_key(ranks):
    assert ranks(4).run(split_by_parity) == [
        ("world/0", 1, 2, 2, True),
        ("world/1", 1, 2, 4, False),
        ("world/0", 0, 2, 2, False),
        ("world/1", 0, 2, 4, False),
    ]


def outlives_its_parent(comm):
    group = comm.split(0)
    comm.close()
    x = np.ones(3, np.float32)
    group.all_reduce(x)
    return x.tolist()


def test_a_split_communicator_outlives_its_parent(ranks):
    assert ranks(2).run(outlives_its_parent) == [[2.0] * 3] * 2


def all_reduce_shape(comm, dtype, array):
    out = np.zeros_like(array)
    comm.all_reduce(array, out=out, dtype=dtype)
    return out


BITS = {"bfloat16": (0x3F80, 0x4000, 0x4040), "float8_e4m3fn": (0x38, 0x40, 0x44)}  # codes of 1, 2 and 3


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dtype=st.sampled_from(REDUCIBLE_DTYPES), shape=st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple))
def test_all_reduce_accepts_arrays_of_any_shape(ranks, dtype, shape):
    one, two, three = (np.full(shape, bits, numpy_dtype(dtype)) for bits in BITS.get(dtype, (1, 2, 3)))
    for result in ranks(2).run(all_reduce_shape, dtype, per_rank=[(one,), (two,)]):
        assert result.shape == shape and np.array_equal(result, three)
