"""Exhausted resources and vanished stores: the rank that lacks something gets a clear error, the others soon get one,
nothing is left behind, and the call succeeds once there is enough. See docs/failures.md."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from accord_command import clean_environment, end, next_line, wait_until
from descriptors import open_descriptors

import accord

SIZE = 4


def run_out_of(comm, limited, kind, folder):
    """Rank `limited` creates groups with more and more of a resource, starting with none, until there is enough."""
    import resource

    limit = {"descriptors": resource.RLIMIT_NOFILE, "file size": resource.RLIMIT_FSIZE}[kind.split(" at ")[0]]
    before = resource.getrlimit(limit)

    def more_by(attempt):
        if limit == resource.RLIMIT_FSIZE:
            return 4096 if attempt == 0 else before[0]
        free = (fd for fd in range(10_000) if fd not in held)
        return next(fd for number, fd in enumerate(free) if number == 3 * attempt)

    comm.barrier()
    warm = comm.split(0)  # from then on, threads, epoll descriptors and the like exist
    warm.barrier()
    warm.close()
    comm.barrier()
    held = open_descriptors()
    seen = []
    for attempt in range(30):
        if comm.rank == limited:
            resource.setrlimit(limit, (more_by(attempt), before[1]))
        start = time.monotonic()
        group = error = None
        try:
            if kind.endswith("split"):
                group = comm.split(0, name="tp")
            else:
                store = accord.FileStore(os.path.join(folder, "store"))
                group = accord.Communicator.create(store, comm.rank, comm.size, name=f"tp{attempt}", timeout=2)
            group.barrier()
        except accord.Error as failure:
            error = type(failure).__name__, failure.ranks, str(failure), time.monotonic() - start
        if comm.rank == limited:
            resource.setrlimit(limit, before)
        if group is not None:
            group.close()
        if comm.state == "ready":
            comm.barrier(timeout=30)
        assert comm.rank != limited or error is None or open_descriptors() == held, (attempt, held, open_descriptors())
        seen.append(error)
        if error is None:
            break
    return seen, comm.state


CASES = ["descriptors at split", "descriptors at creation", "file size at split", "file size at creation"]


@pytest.mark.parametrize("kind", CASES)
def test_a_rank_without_a_resource_names_the_resource_and_the_others_name_the_rank(ranks, tmp_path, kind):
    limited = 1
    outcomes = ranks(SIZE).run(run_out_of, limited, kind, str(tmp_path), deadline=120)
    attempts = len(outcomes[0][0])
    assert attempts > 1, "there was enough from the beginning"
    for rank, (seen, state) in enumerate(outcomes):
        assert len(seen) == attempts and seen[-1] is None and state == "ready", (rank, seen)
        for error in seen[:-1]:
            assert error is not None, f"rank {rank} had a group that rank {limited} was not in"
            code, at_fault, text, took = error
            if rank == limited:
                assert code == "ResourceExhausted" and "ulimit" in text, (rank, error)
            else:
                # Another rank may have given up earlier and been the first one that this rank missed.
                assert len(at_fault) == 1 and f"rank {at_fault[0]}" in text, (rank, error)
                # A rank that cannot even open the store's files cannot notify the others, so they wait until their
                # timeout.
                assert code != "Timeout" or kind == "descriptors at creation", (rank, error)
            assert took < 20, "the timeout is 2 s at creation, and 30 s otherwise"
    for attempt in range(attempts - 1):
        assert (limited,) in {outcomes[rank][0][attempt][1] for rank in range(SIZE) if rank != limited}, outcomes


def rank_process(code: str, *arguments: object, prefix: list[str] | None = None, **more) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "import os, sys, time, numpy as np, accord\n" + code, *map(str, arguments)]
    return subprocess.Popen(
        [*(prefix or []), *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more
    )


def outputs(*processes: subprocess.Popen) -> list[str]:
    try:
        texts = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(processes), texts
        return texts
    finally:
        end(*processes)


COMPUTES = """
with accord.Communicator.create(accord.FileStore(sys.argv[1]), int(sys.argv[2]), 2, timeout=20) as comm:
    x = np.ones(1_000_000)
    for _ in range(3):
        comm.all_reduce(x)
    print(x.min(), x.max())
"""


def tmpfs(folder, bytes: int) -> list[str]:
    """Returns a prefix that runs a command in a mount namespace in which `folder` is a full file system of `bytes`
    bytes. Skips the test if the sandbox forbids that."""
    fill = f"mount -t tmpfs -o size={bytes} tmpfs {folder} && head -c {bytes} /dev/zero > {folder}/full"
    prefix = ["unshare", "--mount", "sh", "-c", f'{fill}; exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this sandbox allows no mount namespaces")
    return prefix


def test_a_full_dev_shm_does_not_matter(tmp_path):
    prefix = tmpfs("/dev/shm", 4096)
    assert (
        outputs(*(rank_process(COMPUTES, tmp_path / "s", rank, prefix=prefix) for rank in range(2)))
        == ["8.0 8.0\n"] * 2
    )


def test_a_full_disk_for_the_file_store_is_an_error_that_names_the_file(tmp_path):
    code = """
try:
    accord.Communicator.create(accord.FileStore(sys.argv[1]), 0, 2, timeout=20)
except accord.ResourceExhausted as error:
    print(error)
"""
    (text,) = outputs(rank_process(code, tmp_path, prefix=tmpfs(tmp_path, 4096)))
    assert str(tmp_path) in text and "No space left on device" in text


def test_a_full_disk_for_dumps_does_not_change_the_failure(tmp_path):
    code = """
comm = accord.Communicator.create(accord.MemoryStore(), 0, 1, name="tp")
try:
    comm.dump(sys.argv[1])
except accord.ResourceExhausted as error:
    print(error, flush=True)  # before the warnings, which go to the same pipe
comm.abort("enough")
try:
    comm.barrier()
except accord.Aborted as error:
    print(error)
print(os.listdir(sys.argv[1]))
"""
    environment = clean_environment(ACCORD_DUMP_DIR=str(tmp_path))
    (text,) = outputs(rank_process(code, tmp_path, prefix=tmpfs(tmp_path, 4096), env=environment))
    dump, *warnings, failure, left = text.splitlines()
    assert str(tmp_path) in dump and "No space left on device" in dump
    assert warnings and all("could not be written" in line and "No space left" in line for line in warnings)
    assert 'group "tp"' in failure and "enough" in failure
    assert left == "['full']", "no half of a dump stays"


def test_a_missing_store_is_a_timeout_that_names_it():
    with pytest.raises(accord.Timeout, match=r"127\.0\.0\.1:1\b"):
        accord.TcpStore("127.0.0.1", 1, False, timeout=0.3)


JOINS = """
comm, start = None, time.monotonic()
try:
    store = %s
    print("begins", flush=True)
    comm = accord.Communicator.create(store, int(sys.argv[2]), 3, timeout=50)
except accord.Error as error:
    print(type(error).__name__, time.monotonic() - start < 20, error)
"""


def test_a_store_whose_host_is_killed_during_the_rendezvous_ends_the_wait():
    host = rank_process('store = accord.TcpStore("127.0.0.1", 0, True); print(store.port, flush=True); sys.stdin.read()',
                        stdin=subprocess.PIPE)  # fmt: skip
    port = int(next_line(host.stdout))
    clients = [
        rank_process(JOINS % "accord.TcpStore('127.0.0.1', int(sys.argv[1]), False)", port, rank) for rank in (1, 2)
    ]
    assert [next_line(client.stdout) for client in clients] == ["begins\n"] * 2
    end(host)  # ranks 1 and 2 have reached it; they already wait for rank 0 or will find that it has left
    for text in outputs(*clients):
        name, soon, message = text.split(" ", 2)
        assert name == "PeerLost" and soon == "True" and f"127.0.0.1:{port}" in message, text


def test_a_directory_removed_during_the_rendezvous_ends_the_wait(tmp_path):
    folder = tmp_path / "store"
    clients = [rank_process(JOINS % "accord.FileStore(sys.argv[1])", folder, rank) for rank in (0, 1)]
    wait_until(lambda: (folder / "accord%2Fworld%2F1%2Fhello%2F1").exists(), "the arrival of rank 1")
    shutil.rmtree(folder)
    for text in outputs(*clients):
        name, soon, message = text.removeprefix("begins\n").split(" ", 2)
        assert name == "NotFound" and soon == "True" and str(folder) in message, text


def test_a_created_group_no_longer_needs_its_store(fresh_ranks, tmp_path):
    host = rank_process('store = accord.TcpStore("127.0.0.1", 0, True); print(store.port, flush=True); sys.stdin.read()',
                        stdin=subprocess.PIPE)  # fmt: skip
    port = int(next_line(host.stdout))

    def kill(_processes):
        wait_until(lambda: len(os.listdir(tmp_path)) == SIZE, "all to have joined")
        end(host)
        (tmp_path / "gone").mkdir()

    outcomes = fresh_ranks(SIZE).outcomes(continue_without_the_store, port, 3, str(tmp_path), while_running=kill)
    assert [outcome.value for outcome in outcomes[:3]] == [(4.0, 2, 3)] * 3, outcomes


def continue_without_the_store(_comm, port, victim, folder):

    comm = accord.Communicator.create(
        accord.TcpStore("127.0.0.1", port, False), _comm.rank, _comm.size, name="tp", timeout=20
    )
    os.mkdir(os.path.join(folder, str(comm.rank)))
    while not os.path.exists(os.path.join(folder, "gone")):
        time.sleep(0.01)
    total = np.ones(1)
    comm.all_reduce(total)
    with comm.split(comm.rank % 2) as half:
        half.barrier()
        size = half.size
    comm.barrier()
    if comm.rank == victim:
        os._exit(0)
    try:
        while True:
            comm.barrier()
    except accord.PeerLost:
        with comm.shrink() as rest:
            rest.barrier()
            return float(total[0]), size, rest.size


def test_a_rank_rejected_at_creation_reports_the_reason_to_the_others(tmp_path):
    code = """
start = time.monotonic()
rank = int(sys.argv[2])
bad = {} if rank != int(sys.argv[3]) else {"select": "all_reduce:0-inf=nothing_like_it"}
try:
    accord.Communicator.create(accord.FileStore(sys.argv[1]), rank, 3, timeout=50, **bad)
except accord.Error as error:
    print(type(error).__name__, error.ranks, time.monotonic() - start < 20, error)
"""
    for refused in (0, 1):
        folder = tmp_path / str(refused)
        texts = outputs(*(rank_process(code, folder, rank, refused) for rank in range(3)))
        for rank, text in enumerate(texts):
            assert "nothing_like_it" in text and " True " in text, (rank, text)
            if rank != refused:
                assert text.startswith(f"PeerLost ({refused},)") and f"rank {refused} does not take part" in text


def test_a_misspelt_variable_of_one_rank_is_reported_to_the_others(tmp_path):
    code = """
try:
    accord.Communicator.create(accord.FileStore(sys.argv[1]), int(sys.argv[2]), 2, timeout=50)
except accord.Error as error:
    print(error.ranks, error)
"""
    texts = outputs(
        *(
            rank_process(
                code, tmp_path / "s", rank, env=clean_environment(**({"ACCORD_SELCT": "x"} if rank == 0 else {}))
            )
            for rank in range(2)
        )
    )
    assert all("ACCORD_SELCT" in text for text in texts), texts
    assert texts[1].startswith("(0,)"), texts


def test_too_few_descriptors_for_the_store_are_an_immediate_error():
    code = """
import resource
held = len(os.listdir("/proc/self/fd"))
server = accord.TcpStore("127.0.0.1", 0, True)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
start = time.monotonic()
for make in (lambda: accord.TcpStore("127.0.0.1", server.port, False, timeout=60), lambda: accord.FileStore(".").get("x")):
    try:
        make()
    except accord.ResourceExhausted as error:
        print("ulimit -n" in str(error), time.monotonic() - start < 20)
"""
    assert outputs(rank_process(code)) == ["True True\nTrue True\n"]
