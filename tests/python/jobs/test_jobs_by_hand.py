"""Ranks started by hand, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: errors in these are reported, and two
jobs never mix."""

import re
import socket
import subprocess
import sys
import time

import pytest
from accord_command import end, next_line, program_environment, python_file

# Creates a group, through from_environment() or through torch.distributed over its own store, and uses it once more
# on request.
RANK = """
import datetime, os, sys
import accord

def by_accord():
    comm = accord.Communicator.from_environment(timeout=float(sys.argv[2]))
    return comm.barrier

def by_torch():
    import torch.distributed as dist
    dist.init_process_group("accord", timeout=datetime.timedelta(seconds=float(sys.argv[2])))
    return dist.barrier

def its_place():
    accord._core.job_store(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

try:
    barrier = {"accord": by_accord, "torch": by_torch, "its place": its_place}[sys.argv[1]]()
except Exception as error:
    print(type(error).__name__, str(error).replace(chr(10), " "), flush=True)
    os._exit(1)
print("ready", flush=True)
sys.stdin.readline()
barrier()
print("done", flush=True)
sys.stdin.readline()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    """A function that starts one rank. All ranks are ended after the test."""
    program, started = python_file(tmp_path, RANK), []

    def one(rank, size, *, library="accord", timeout=60.0, address="127.0.0.1", **more):
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address}
        environment = program_environment(**place, **{name: str(value) for name, value in more.items()})
        started.append(
            subprocess.Popen(
                [sys.executable, str(program), library, str(timeout)],
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        )
        return started[-1]

    yield one
    end(*started)


def finish(*ranks) -> None:
    """Checks that the ranks still compute together."""
    for rank in ranks:
        rank.stdin.write("\n")
        rank.stdin.flush()
    assert [next_line(rank.stdout) for rank in ranks] == ["done\n"] * len(ranks)


def test_a_second_job_at_one_port_is_rejected_and_the_first_continues(start):
    port = free_port()
    first = [start(rank, 2, MASTER_PORT=port) for rank in range(2)]
    assert [next_line(rank.stdout) for rank in first] == ["ready\n"] * 2
    began = time.monotonic()
    second = [start(rank, 2, MASTER_PORT=port) for rank in range(2)]
    messages = [next_line(rank.stdout) for rank in second]
    assert time.monotonic() - began < 30, "before its timeout"
    assert re.search(
        rf"rank 0 cannot host .* MASTER_PORT {port} and 2 ranks.* give one of the jobs another", messages[0]
    )
    assert re.search(
        rf"rank 1 of 2 has already joined.*process {first[1].pid} of this host.*MASTER_PORT \({port}\)", messages[1]
    )
    finish(*first)


def test_jobs_of_different_sizes_at_one_port_do_not_connect(start):
    port = free_port()
    first = [start(rank, 2, MASTER_PORT=port) for rank in range(2)]
    assert [next_line(rank.stdout) for rank in first] == ["ready\n"] * 2
    lonely = start(1, 3, MASTER_PORT=port, timeout=5)
    assert "is the store of another job, which has 2 ranks" in next_line(lonely.stdout)
    other = [start(rank, 3, MASTER_PORT=port) for rank in range(3)]
    assert [next_line(rank.stdout) for rank in other] == ["ready\n"] * 3
    finish(*first)
    finish(*other)


def test_a_dead_rank_is_restarted(start):
    port = free_port()
    zero = start(0, 2, MASTER_PORT=port)
    lost = start(1, 2, MASTER_PORT=port, library="its place")
    assert next_line(lost.stdout) == "ready\n"
    lost.kill()
    lost.wait(60)
    again = start(1, 2, MASTER_PORT=port)
    assert [next_line(rank.stdout) for rank in (zero, again)] == ["ready\n"] * 2
    finish(zero, again)


def test_a_duplicate_rank_in_a_pytorch_store_is_rejected_and_the_first_job_continues(start):
    torch = pytest.importorskip("torch")
    assert torch
    port = free_port()
    first = [start(rank, 2, MASTER_PORT=port, library="torch") for rank in range(2)]
    assert [next_line(rank.stdout) for rank in first] == ["ready\n"] * 2
    second = start(1, 2, MASTER_PORT=port, library="torch", timeout=3)
    assert "a process joined as rank 1 before: if that was another job" in next_line(second.stdout)
    finish(*first)


@pytest.mark.parametrize(
    ("rank", "place", "message"),
    [
        (1, {"address": "no-such-host.invalid"}, 'MASTER_ADDR: .*host "no-such-host.invalid" has no address'),
        (0, {"address": "no-such-host.invalid"}, 'host "no-such-host.invalid" has no address'),
        (0, {"address": "192.0.2.1"}, '"192.0.2.1" is not an address of this machine'),
        (0, {"MASTER_PORT": "0"}, "MASTER_PORT=0 is out of range"),
        (1, {"MASTER_PORT": "http"}, "MASTER_PORT"),
        (1, {"MASTER_PORT": "65536"}, "MASTER_PORT=65536 is out of range"),
    ],
)
def test_an_unreachable_rendezvous_fails_immediately(start, rank, place, message):
    began = time.monotonic()
    process = start(rank, 2, **({"MASTER_PORT": free_port()} | place))
    assert re.search(message, next_line(process.stdout))
    assert time.monotonic() - began < 30


def test_an_invalid_store_address_fails_immediately():
    import accord

    began = time.monotonic()
    with pytest.raises(accord.NotFound, match='host "no-such-host.invalid" has no address'):
        accord.TcpStore("no-such-host.invalid", 29500)
    with pytest.raises(accord.InvalidArgument, match="is not an address of this machine"):
        accord.TcpStore("192.0.2.1", 0, is_host=True)
    with pytest.raises(accord.InvalidArgument, match="port 70000 is not in 1-65535"):
        accord.TcpStore("127.0.0.1", 70000)
    assert time.monotonic() - began < 20
