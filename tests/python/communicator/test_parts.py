"""Collectives with parts of unequal counts, compared with NumPy, on ranks that are processes."""

import numpy as np
import pytest
from reference import random_array, reduce

import accord

SIZES = [1, 2, 3, 4]
DTYPES = ["float32", "bfloat16", "int64", "bool"]


def counts_of(size: int, scale: int) -> list[int]:
    return [scale * ((rank * 3 + 1) % 4) for rank in range(size)]


def gather_and_back(comm, counts, root, dtype, array):
    """Returns the result of all_gather_v, and what scatter_v returns of the array that gather_v collected at the
    root."""
    is_root = comm.rank == root
    everywhere = np.empty(sum(counts), array.dtype)
    comm.all_gather_v(array, everywhere, counts, dtype=dtype)
    gathered = np.empty(sum(counts), array.dtype) if is_root else None
    comm.gather_v(array, gathered, counts if is_root else None, root, dtype=dtype)
    back = np.empty_like(array)
    comm.scatter_v_async(gathered, counts if is_root else None, back, root, dtype=dtype).wait()
    return everywhere, gathered, back


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unequal_parts_are_gathered_and_scattered_in_rank_order(ranks, size, dtype):
    for scale in (0, 1, 5000):
        counts = counts_of(size, scale)
        inputs = [random_array(dtype, count, seed=rank) for rank, count in enumerate(counts)]
        everything, root = np.concatenate(inputs).tobytes(), size - 1
        results = ranks(size).run(gather_and_back, counts, root, dtype, per_rank=[(array,) for array in inputs])
        for rank, (everywhere, gathered, back) in enumerate(results):
            assert everywhere.tobytes() == everything
            assert (gathered is None) == (rank != root)
            assert back.tobytes() == inputs[rank].tobytes()
        assert results[root][1].tobytes() == everything


def reduce_scatter_v(comm, counts, op, dtype, array):
    out = np.empty(counts[comm.rank], array.dtype)
    comm.reduce_scatter_v(array, out, counts, op, dtype=dtype)
    return out


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "sum"), ("bfloat16", "sum"), ("int64", "max"), ("float32", "avg")]
)
def test_reduce_scatter_v_gives_each_rank_its_part_of_the_canonical_result(ranks, size, dtype, op):
    for scale in (0, 1, 3000):
        counts = counts_of(size, scale)
        inputs = [random_array(dtype, sum(counts), seed=rank) for rank in range(size)]
        parts = np.split(reduce(inputs, op, dtype), np.cumsum(counts)[:-1])
        results = ranks(size).run(reduce_scatter_v, counts, op, dtype, per_rank=[(array,) for array in inputs])
        for rank, result in enumerate(results):
            assert result.tobytes() == parts[rank].tobytes(), f"rank {rank}, {counts}"


def all_to_all_v(comm, input_counts, output_counts, array):
    out = np.empty(sum(output_counts), array.dtype)
    comm.all_to_all_v(array, np.array(input_counts), out, output_counts)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_v_sends_every_part_to_its_rank(ranks, size):
    for scale in (1, 2000):
        elements = [[scale * ((7 * source + 3 * to) % 5) for to in range(size)] for source in range(size)]
        inputs = [random_array("float32", sum(row), seed=rank) for rank, row in enumerate(elements)]
        columns = [[elements[source][to] for source in range(size)] for to in range(size)]
        results = ranks(size).run(all_to_all_v, per_rank=list(zip(elements, columns, inputs, strict=True)))
        cut = [np.split(array, np.cumsum(row)[:-1]) for array, row in zip(inputs, elements, strict=True)]
        for rank, result in enumerate(results):
            assert np.array_equal(result, np.concatenate([cut[source][rank] for source in range(size)]))


def disagree(comm):
    sends, expects = ([1, 4], [1, 1]) if comm.rank == 0 else ([1, 2], [1, 2])
    try:
        comm.all_to_all_v(np.zeros(sum(sends)), sends, np.zeros(sum(expects)), expects)
    except accord.Mismatch as error:
        return str(error), error.ranks
    return None


def test_counts_on_which_two_ranks_disagree_are_named(fresh_ranks):
    for message, _ in fresh_ranks(2).run(disagree):
        assert "rank 0 sends 4 x float64 to rank 1, which expects 1" in message


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([], "0 counts of the output are given, expected one for each of 1 ranks"),
        ([1, 2], "2 counts of the output"),
        ([-1], "counts: -1 is not a count of elements"),
        (["a"], "counts: 'a' is not a count of elements"),
        ([2.0], "counts: 2.0 is not a count of elements"),
        ([1 << 70], "is not a count of elements"),
        ([5], "output has 2 elements, but its counts add up to 5"),
    ],
)
def test_invalid_counts_are_rejected(counts, message):
    comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
    with pytest.raises(accord.InvalidArgument, match=message):
        comm.all_gather_v(np.zeros(2), np.zeros(2), counts)
