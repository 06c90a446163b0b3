"""Messages with tags, and receives from any rank, on ranks that are processes."""

import numpy as np
import pytest

import accord

TAGS = (0, 1, 5, 2**31 - 1)


def swapped(comm, count, starts, packed):
    """Each rank sends messages of all tags to the other rank, which receives them in the opposite order."""
    peer = 1 - comm.rank
    sent = [np.full(count, 100.0 * comm.rank + i) for i in range(4)]
    arrived = [np.empty(count) for _ in range(4)]
    tags = (0, 1, 5, 2**31 - 1)
    if packed:
        with comm.batch() as batch:
            for i in range(4):
                batch.send(sent[i], peer, tags[i])
                batch.recv(arrived[3 - i], peer, tag=tags[3 - i])
    elif starts:
        works = [comm.recv_async(arrived[i], peer, tags[i]) for i in reversed(range(4))]
        works += [comm.send_async(sent[i], peer, tag=tags[i]) for i in range(4)]
        assert all(work.wait() for work in works)
    else:
        works = [comm.send_async(sent[i], peer, tags[i]) for i in range(4)]
        for i in reversed(range(4)):
            comm.recv(arrived[i], source=peer, tag=tags[i])
        assert all(work.wait() for work in works)
    return [(values.min(), values.max()) if count else (-1, -1) for values in arrived]


@pytest.mark.parametrize(("starts", "packed"), [(False, False), (True, False), (False, True)])
def test_each_message_goes_to_the_receive_of_its_tag(ranks, starts, packed):
    for count in (0, 1, 12_500, 400_000):
        for rank, arrived in enumerate(ranks(2).run(swapped, count, starts, packed)):
            expected = [100.0 * (1 - rank) + i if count else -1 for i in range(len(TAGS))]
            assert arrived == [(value, value) for value in expected]


def wrong(comm):
    refused = []
    for tag in (-1, 2**31, 1.5, "1"):
        try:
            comm.send(np.zeros(1), 1 - comm.rank, tag=tag)
        except (TypeError, ValueError) as error:
            refused.append(type(error).__name__)
    comm.barrier()
    try:
        if comm.rank == 1:
            comm.recv(np.zeros(3), 0, tag=7)
        else:
            comm.send(np.zeros(4), 1, tag=7)
            comm.barrier()
    except accord.Mismatch as error:
        return refused, str(error)
    return refused, ""


def test_invalid_tags_are_rejected_and_a_different_count_is_a_mismatch(ranks):
    for refused, mismatch in ranks(2).run(wrong):
        assert refused == ["InvalidArgument", "TypeError", "TypeError", "TypeError"]
        assert "rank 0 called send of 4 x float64, tag 7, rank 1 called recv of 3 x float64, tag 7" in mismatch


def collected(comm):
    """Rank 0 receives three messages from every other rank in order of arrival, then the messages of another tag from
    each rank in turn."""
    if comm.rank:
        for number in range(3):
            comm.send(np.full(2, -1.0), 0)
            comm.send(np.full(5000, 10.0 * comm.rank + number), 0, tag=4)
        try:
            comm.barrier()  # until rank 0's last receive has timed out
        except accord.Timeout:
            return []
    seen, values, others = [], np.empty(5000), np.empty(2)
    for _ in range(3 * (comm.size - 1)):
        source = comm.recv_any(values, tag=4)
        seen.append((source, values.min(), values.max()))
    for source in range(1, comm.size):
        for _ in range(3):
            comm.recv(others, source)
            assert (others == -1).all()
    try:
        comm.recv_any(values, 4, timeout=0.1)
    except accord.Timeout as error:
        seen.append(error.ranks)
    return seen


@pytest.mark.parametrize("size", [2, 4])
def test_a_receive_from_any_rank_returns_the_sender(ranks, size):
    *seen, missing = ranks(size).run(collected)[0]
    assert list(missing) == list(range(1, size))
    for rank in range(1, size):
        mine = [values for source, *values in seen if source == rank]
        assert mine == [[10.0 * rank + number] * 2 for number in range(3)]
