"""Invalid arguments to an expert group on one rank: all ranks are notified, and the group remains usable."""

import re
import time

import numpy as np
import pytest
from thread_ranks import on_threads

import accord
from accord.moe import ExpertGroup


def test_invalid_ids_are_counted_on_all_ranks():
    def body(comm):
        group = ExpertGroup(comm, experts=4, top_k=3, hidden=2, max_tokens_per_rank=4)
        handle = group.handle()
        group.prepare(handle, np.array([[0, 0, 9], [-1, -5, 3]] if comm.rank == 0 else [[1, 2, 1]]))
        assert handle.loads == [1, 1, 1, 1]
        assert handle.traffic == [[1, 1], [1, 1]]
        return handle.ranks

    first, second = on_threads(2, body)
    assert first == second
    assert [(r["tokens"], r["out_of_range"], r["duplicates"]) for r in first] == [(2, 2, 1), (1, 0, 1)]


def test_a_handle_that_is_not_prepared_has_no_results():
    def body(comm):
        group = ExpertGroup(comm, experts=2, top_k=1, hidden=2, max_tokens_per_rank=4)
        handle = group.handle()
        assert not handle.prepared
        with pytest.raises(accord.WrongState, match="not prepared"):
            _ = handle.counts
        with pytest.raises(accord.InvalidArgument, match=r"rank 0: ids are float64"):
            group.prepare(handle, np.zeros((1, 1)))
        with pytest.raises(
            accord.InvalidArgument, match='unknown overflow policy "drop_by_wait"; did you mean "drop_by_weight"'
        ):
            ExpertGroup(comm, experts=2, top_k=1, hidden=2, max_tokens_per_rank=4, overflow="drop_by_wait")

    on_threads(1, body)


def _read_only(array):
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda group, handle, x, rows: group.dispatch(handle, np.zeros((3, 8), "f4")[:, ::2], rows), "not contiguous"),
        (lambda group, handle, x, rows: group.dispatch(handle, x, _read_only(rows)), "read-only"),
        (lambda group, handle, x, rows: group.dispatch(handle, x.tolist(), rows), "expected an array"),
        (lambda group, handle, x, rows: group.dispatch(handle, x, rows, dtype="bfloat61"), 'unknown dtype "bfloat61"'),
        (lambda group, handle, x, rows: group.dispatch(handle, np.zeros((4, 3), "f4"), rows), "has rows of 3 elements"),
        (lambda group, handle, x, rows: group.combine(handle, x.T, x), "not contiguous"),
        (lambda group, handle, x, rows: group.prepare(handle, np.zeros((2, 3), int)), "ids has rows of 3 elements"),
        (lambda group, handle, x, rows: group.prepare(handle, [[0, 1]]), "expected an array"),
    ],
)
def test_an_error_in_python_on_one_rank_is_reported_to_the_others_immediately(wrong, text):
    def body(comm):
        group = ExpertGroup(comm, experts=4, top_k=2, hidden=4, max_tokens_per_rank=4, dtype="float32")
        handle = group.handle()
        ids = np.array([[0, 1], [1, 2], [3, 0]])
        group.prepare(handle, ids)
        x, rows = np.ones((3, 4), np.float32), np.empty((handle.recv_rows, 4), np.float32)
        began = time.monotonic()
        with pytest.raises((accord.InvalidArgument, TypeError), match=re.escape(text)) as caught:
            if comm.rank == 1:
                wrong(group, handle, x, rows)
            else:
                group.dispatch(handle, x, rows)
        assert time.monotonic() - began < 10
        if comm.rank == 0:
            assert "rank 1: " in str(caught.value)
        # The group remains usable, with a new map if prepare was the call that failed.
        group.prepare(handle, ids)
        group.dispatch(handle, x, np.empty((handle.recv_rows, 4), np.float32))

    on_threads(2, body)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"overflow": "drop"}, 'unknown overflow policy "drop"'),
        ({"algorithm": "ring"}, 'unknown expert algorithm "ring"'),
        ({"dtype": "bfloat61"}, 'unknown dtype "bfloat61"'),
        ({"staging_bytes": -1}, "staging_bytes"),
        ({"placement": [1, 2]}, "placement: expected an accord.ExpertPlacement, got list"),
        ({"device": "cuda:x"}, 'device is "cuda:x"'),
    ],
)
def test_a_configuration_that_one_rank_cannot_read_is_an_error_on_all(wrong, text):
    def body(comm):
        given = {"experts": 4, "top_k": 1, "hidden": 2, "max_tokens_per_rank": 4}
        with pytest.raises((accord.InvalidArgument, TypeError, RuntimeError), match=re.escape(text)) as caught:
            ExpertGroup(comm, **given, **(wrong if comm.rank == 1 else {}))
        if comm.rank == 0:
            assert "rank 1: " in str(caught.value)
        ExpertGroup(comm, **given).close()

    on_threads(2, body)


def test_windows_that_differ_are_rejected():
    def body(comm):
        group = ExpertGroup(comm, experts=2, top_k=1, hidden=4, max_tokens_per_rank=4, dtype="float32")
        first, second = (comm.split(0, name=name).window(1 << 12) for name in ("first", "second"))
        with pytest.raises(accord.Mismatch, match="add_window of window 0 of group"):
            group.add_window(first if comm.rank == 0 else second)
        group.add_window(first)

    on_threads(2, body)
