"""One of four processes makes a different call from the others. All of them soon get an error that says which rank
called what, and shrink() gives all four a working group. See docs/failures.md."""

import os
import time

import numpy as np
import pytest

import accord

SIZE, ODD = 4, 2

# The call of the odd rank. The others call all_reduce of 1000 float32 unless noted otherwise.
DIFFERENT = [
    "another collective",
    "another root",
    "another root of many bytes",
    "another count",
    "a much larger count",
    "another dtype",
    "another op",
    "gather instead of broadcast",
    "nothing but a barrier",
    "other counts of the parts",
]


def make_a_different_call(comm, odd, cases, how, patience):
    """Returns, for each case, the error of this rank's group and the result of shrinking it."""
    size = comm.size

    def call_of(case, group, is_odd):
        x, y = np.ones(1000, np.float32), np.ones(1000 * size, np.float32)
        many = np.ones(1 << 20, np.float32)
        if case == "another collective" and is_odd:
            return "all_gather", x, y
        if case == "another root":
            return "broadcast", x, 1 if is_odd else 0
        if case == "another root of many bytes":
            return "broadcast", many, 1 if is_odd else 0
        if case == "another count" and is_odd:
            return "all_reduce", x[:999]
        if case == "a much larger count" and is_odd:
            return "all_reduce", many
        if case == "another dtype" and is_odd:
            return "all_reduce", np.ones(1000, np.int32)
        if case == "another op" and is_odd:
            return "all_reduce", x, "max"
        if case == "gather instead of broadcast":
            return ("gather", x, None, 0) if is_odd else ("broadcast", x, 0)
        if case == "nothing but a barrier" and is_odd:
            return ("barrier",)
        if case == "other counts of the parts":
            counts = [10, 20, 30, 40] if is_odd else [10, 30, 20, 40]
            return "all_gather_v", np.ones(counts[group.rank], np.float32), np.ones(100, np.float32), counts
        return "all_reduce", x

    outcomes = []
    for case in cases:
        group = comm.split(0, name="tp")
        name, *arguments = call_of(case, group, group.rank == odd)
        try:
            if how == "sync":
                getattr(group, name)(*arguments, timeout=patience)
            elif how == "async":
                getattr(group, name + "_async")(*arguments, timeout=patience).wait()
            else:
                batch = group.batch()
                getattr(batch, name)(*arguments)
                if how == "batch":
                    batch.run(timeout=patience)
                else:
                    batch.prepare(timeout=patience).run()
            group.barrier(timeout=patience)  # notifies ranks that waited for no other rank
            outcomes.append((case, None))
            continue
        except accord.Error as error:
            seen = type(error).__name__, error.ranks, str(error)
        with group.shrink(timeout=patience) as rest:
            total = np.ones(10)
            rest.all_reduce(total)
            outcomes.append((case, (*seen, rest.size, total[0])))
            rest.barrier()
    return outcomes


@pytest.mark.parametrize("how", ["sync", "async", "batch", "prepared"])
def test_a_mismatch_reports_the_call_of_each_rank_on_all_ranks(ranks, how):
    for rank, outcomes in enumerate(ranks(SIZE).run(make_a_different_call, ODD, DIFFERENT, how, 20)):
        assert [case for case, _ in outcomes] == DIFFERENT
        for case, seen in outcomes:
            assert seen is not None, f"rank {rank} did not notice {case}"
            code, at_fault, text, left, total = seen
            assert (code, left, total) == ("Mismatch", SIZE, SIZE), (case, rank, seen)
            assert at_fault == (ODD,) or rank == ODD or "reported" in text, (case, rank, seen)
            assert f"rank {ODD}" in text and '"tp"' in text, (case, rank, text)


def never_arrives(comm, absent, folder):
    def others_have_finished():
        return len(os.listdir(folder)) == comm.size - 1

    if comm.rank == absent:
        while not others_have_finished():
            time.sleep(0.01)
    start = time.monotonic()
    try:
        comm.split(0, name="half")
        seen = None
    except accord.Error as error:
        seen = type(error).__name__, error.ranks, str(error), time.monotonic() - start
    if comm.rank != absent:
        os.mkdir(os.path.join(folder, str(comm.rank)))
    with comm.shrink(timeout=20) as rest:
        rest.barrier()
        return seen, rest.size


def test_a_rank_that_never_arrives_at_a_split_is_named_within_the_timeout(ranks, tmp_path):
    for rank, (seen, left) in enumerate(ranks(SIZE).run(never_arrives, 1, str(tmp_path), timeout=1)):
        code, at_fault, text, took = seen
        assert (code, at_fault, left) == ("Timeout", (1,), SIZE), (rank, seen)
        assert '"world"' in text and "rank 1" in text
        assert took < 20, "the communicator's timeout of 1 s"
