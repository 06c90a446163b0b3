"""Large buffers that ranks copy from each other's memory: correct where the kernel permits it, and avoided where it
does not."""

import json
from pathlib import Path

import numpy as np
import pytest
from accord_command import accord as accord_command

import accord

COLLECTIVES = ("all_gather", "all_to_all", "broadcast", "gather", "scatter")
ALWAYS = {"ACCORD_SELECT": ";".join(f"{name}:0-inf=zero_copy" for name in COLLECTIVES)}


def all_of_them(comm, folder):
    n, me, part = comm.size, comm.rank, 200_003

    def values(rank, parts=1):
        return np.arange(part * parts, dtype=np.float32) + 1000 * rank

    everything = np.concatenate([values(r) for r in range(n)])
    gathered = np.empty_like(everything)
    comm.all_gather(values(me), gathered)
    np.testing.assert_array_equal(gathered, everything)
    gathered[:] = -1
    gathered[me * part : (me + 1) * part] = values(me)
    comm.all_gather(gathered[me * part : (me + 1) * part], gathered)
    np.testing.assert_array_equal(gathered, everything)

    expected = np.concatenate([values(r, n)[me * part : (me + 1) * part] for r in range(n)])
    exchanged = np.empty_like(everything)
    comm.all_to_all(values(me, n), exchanged)
    np.testing.assert_array_equal(exchanged, expected)
    mixed = values(me, n)  # in place on one rank only
    comm.all_to_all(mixed, mixed if me == 0 else exchanged)
    np.testing.assert_array_equal(mixed if me == 0 else exchanged, expected)

    for root in range(n):
        received = values(me)
        comm.broadcast(received, root)
        np.testing.assert_array_equal(received, values(root))
        collected = np.empty_like(everything) if me == root else None
        comm.gather(values(me), collected, root)
        if me == root:
            np.testing.assert_array_equal(collected, everything)
        piece = np.empty(part, dtype=np.float32)
        comm.scatter(values(root, n) if me == root else None, piece, root)
        np.testing.assert_array_equal(piece, values(root, n)[me * part : (me + 1) * part])
    return comm.dump(folder)


def algorithms(dumps):
    """Returns, by collective, the algorithms of the calls of which the flight records show a message."""
    used = {}
    for dump in dumps:
        for order in json.loads(Path(dump).read_text())["orders"]:
            for operation in order["operations"]:
                used.setdefault(operation["collective"], set()).add(operation["algorithm"])
    return used


def can_read() -> bool:
    result = accord_command("plan", "why", "all_gather", "128K", "-n", "2", "--json")
    return json.loads(result.stdout)["algorithm"] == "zero_copy"


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_copy_the_right_data_from_each_other(fresh_ranks, tmp_path, size):
    used = algorithms(fresh_ranks(size, environment=ALWAYS).run(all_of_them, str(tmp_path)))
    if not can_read():
        pytest.skip("here processes may not read each other's memory")
    assert used == {name: {"zero_copy"} for name in COLLECTIVES}


def test_one_unreadable_rank_disables_single_copy_for_all(fresh_ranks, tmp_path):
    own = [ALWAYS, ALWAYS | {"ACCORD_SINGLE_COPY": "off"}, ALWAYS]
    used = algorithms(fresh_ranks(3, environments=own).run(all_of_them, str(tmp_path)))
    assert not any("zero_copy" in names for names in used.values()), used


def broadcast_unreadable_memory(comm):
    import mmap

    kept = mmap.mmap(-1, 1 << 20, prot=0)
    data = np.frombuffer(kept, dtype=np.float32) if comm.rank == 0 else np.zeros(1 << 18, dtype=np.float32)
    try:
        comm.broadcast(data, 0)
        comm.barrier()
    except accord.Error as error:
        return type(error).__name__, error.ranks, str(error)


def test_memory_that_cannot_be_read_is_an_error_that_names_its_rank(fresh_ranks):
    if not can_read():
        pytest.skip("here processes may not read each other's memory")
    for name, ranks, text in fresh_ranks(2, environment=ALWAYS).run(broadcast_unreadable_memory):
        assert name == "IoError" and ranks == (0,)
        assert "the memory of rank 0 cannot be read: Bad address" in text and "ACCORD_SINGLE_COPY=off" in text
