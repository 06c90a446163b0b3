"""Calls that run together in a batch, and the report of a Work when it ends, on ranks that are processes."""

import sys
import threading

import numpy as np
import pytest

import accord


def ring(comm, count, starts):
    """Sends to the next rank and receives from the previous one, in a batch with an all_reduce and an all_gather of
    its sum."""
    total, everywhere = np.full(count, comm.rank + 1.0), np.empty(comm.size * count)
    arrived = np.empty(count)
    batch = comm.batch()
    batch.all_reduce(total)
    if comm.size > 1:
        batch.send(np.full(count, comm.rank * 1.0), (comm.rank + 1) % comm.size)
        batch.recv(arrived, (comm.rank - 1) % comm.size)
    batch.barrier()
    batch.all_gather(total, everywhere)
    assert len(batch) == (5 if comm.size > 1 else 3)
    if starts:
        assert batch.start().wait()
    else:
        batch.run(timeout=60)
    assert len(batch) == 0
    return total, everywhere, arrived


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("starts", [False, True])
def test_messages_and_collectives_of_a_batch_run_together(ranks, size, starts):
    for count in (0, 5, 60_000):
        for rank, (total, everywhere, arrived) in enumerate(ranks(size).run(ring, count, starts)):
            assert (total == size * (size + 1) / 2).all()
            assert (everywhere == size * (size + 1) / 2).all()
            assert size == 1 or (arrived == (rank - 1) % size).all()


def prepared_many_times(comm):
    total, mine, theirs = np.empty(3000), np.full(10, comm.rank + 1.0), np.empty(10)
    batch = comm.batch()
    batch.all_reduce(total)
    batch.recv(theirs, 1 - comm.rank)
    batch.send(mine, 1 - comm.rank)
    prepared = batch.prepare(timeout=60)
    del batch
    seen = []
    for turn in range(6):
        total[:] = turn
        theirs[:] = -1
        if turn % 2:
            prepared.run()
        else:
            assert prepared.start().wait()
        seen.append((float(total.min()), float(total.max()), float(theirs.min())))
    work = prepared.start()
    del prepared, total, mine
    assert work.wait()
    return seen


def test_a_prepared_batch_runs_any_number_of_times(ranks):
    for rank, seen in enumerate(ranks(2).run(prepared_many_times)):
        assert seen == [(2.0 * turn, 2.0 * turn, 2.0 - rank) for turn in range(6)]


def test_a_call_that_cannot_be_prepared_raises_an_error_with_the_reason():
    batch = alone().batch()
    batch.send(np.ones(3), 1)
    with pytest.raises(accord.InvalidArgument, match="peer 1 is not a rank of the group"):
        batch.prepare()


def exchange_in_a_with_block(comm):
    mine, theirs = np.arange(1000.0) + comm.rank, np.empty(1000)
    with comm.batch() as batch:
        batch.recv(theirs, 1 - comm.rank)
        batch.send(mine, 1 - comm.rank)
    return theirs


def test_a_with_block_runs_the_batch_at_its_end(ranks):
    for rank, theirs in enumerate(ranks(2).run(exchange_in_a_with_block)):
        assert np.array_equal(theirs, np.arange(1000.0) + 1 - rank)


def alone() -> accord.Communicator:
    return accord.Communicator.create(accord.MemoryStore(), 0, 1)


def test_a_block_that_raises_runs_nothing():
    comm, values = alone(), np.ones(3)
    with pytest.raises(KeyError), comm.batch() as batch:
        batch.all_reduce(values, "premul_sum", factor=3.0)
        raise KeyError
    assert (values == 1).all()


def test_one_invalid_call_prevents_the_whole_batch_from_starting():
    comm, values = alone(), np.ones(3)
    batch = comm.batch()
    batch.all_reduce(values, "premul_sum", factor=3.0)
    batch.send(values, 1)
    with pytest.raises(
        accord.InvalidArgument, match=r"call 2 of 2: send on group .*: peer 1 is not a rank of the group"
    ):
        batch.run()
    assert (values == 1).all()
    with pytest.raises(TypeError):
        batch.all_reduce(object())


def test_a_work_calls_callbacks_even_if_they_are_added_after_its_end():
    comm, values = alone(), np.ones(3)
    called = threading.Event()
    seen = []
    work = comm.all_reduce_async(values)
    work.on_end(lambda error: (seen.append(error), called.set()))
    assert called.wait(60)
    work.on_end(seen.append)
    assert seen == [None, None]
    assert work.wait()
    assert work.error is None
    with pytest.raises(TypeError, match="callback"):
        work.on_end(3)


def wait_for_a_failure(comm):
    import threading

    if comm.rank == 1:
        comm.abort("enough")
        return None
    called = threading.Event()
    seen = []
    work = comm.all_reduce_async(np.ones(3))
    work.on_end(lambda error: (seen.append(error), called.set()))
    assert called.wait(60)
    assert type(work.error) is type(seen[0])
    return str(seen[0])


def test_a_callback_gets_the_error(fresh_ranks):
    assert "enough" in fresh_ranks(2).run(wait_for_a_failure)[0]


def test_an_exception_in_a_callback_is_reported_and_ignored(monkeypatch):
    reported = threading.Event()
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda entry: (caught.append(entry.exc_value), reported.set()))
    comm, values = alone(), np.ones(3)

    def fail(_error):
        raise KeyError("mine")

    work = comm.all_reduce_async(values)
    work.on_end(fail)
    assert work.wait()
    assert reported.wait(60)
    assert isinstance(caught[0], KeyError)
    comm.barrier()


def test_an_array_whose_finalizer_uses_its_work_is_safe():
    comm, works = alone(), []

    class UsesItsWork(np.ndarray):
        def __del__(self):
            for work in works:
                assert work.test()

    for end in ("wait", "test"):
        array = np.ones(4, np.float32).view(UsesItsWork)
        works.append(comm.all_reduce_async(array))
        del array
        while not getattr(works[-1], end)():
            pass
    comm.barrier()
