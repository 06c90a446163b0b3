"""The stores that `accord run` hosts for its ranks: PyTorch's store at MASTER_PORT, accord's after it."""

import json
import socket

import pytest
from accord_command import ACCORD, accord, end, program_environment, python_file, start_accord

torch = pytest.importorskip("torch")

# Every request that a client of PyTorch's store can make, on one rank or the other. With "own" as an argument, rank 0
# hosts the store with PyTorch itself.
CALLS = """
import datetime, json, os, sys
from torch.distributed import TCPStore

rank = int(os.environ["RANK"])
short, long = datetime.timedelta(seconds=0.2), datetime.timedelta(seconds=60)
if "own" in sys.argv:
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0 and "own" in sys.argv, timeout=long)
answers = []

def record(call, *arguments):
    try:
        value = getattr(store, call)(*arguments)
    except Exception as error:
        value = type(error).__name__
    answers.append([call, value.decode("latin1") if isinstance(value, bytes) else repr(value)])

def meet(name):
    store.add(name, 1)
    while store.add(name, 0) < 2:
        pass

if rank == 0:
    store.set("before", "1")
meet("first")
record("get", "before")
if rank == 1:
    store.wait(["large", "written"], long)
    record("multi_get", ["small", "before"])
    answers.append(["large", len(store.get("large"))])
    for call in (("append", "small", "er"), ("get", "small"), ("compare_set", "small", "smaller", "least"),
                 ("compare_set", "small", "other", "no"), ("compare_set", "absent", "expected", "no"),
                 ("compare_set", "fresh", "", "made"), ("get", "fresh"), ("check", ["small", "large"]),
                 ("check", ["small", "none"]), ("delete_key", "small"), ("delete_key", "small"), ("num_keys",),
                 ("wait", ["never"], short), ("add", "count", -7), ("add", "count", 2), ("get", "count"),
                 ("multi_set", ["a", "b"], ["1", "2"]), ("multi_get", ["a", "b"]), ("get", "after")):
        record(*call)
    if hasattr(store, "queue_push"):
        for call in (("queue_len", "q"), ("queue_push", "q", "x"), ("queue_push", "q", "y"), ("queue_len", "q"),
                     ("queue_pop", "q"), ("queue_pop", "q"), ("queue_pop", "q", False)):
            record(*call)
    if hasattr(store, "list_keys"):
        answers.append(["list_keys", sorted(store.list_keys())])
    store.set("counted", "")
else:
    store.set("large", "x" * 3_000_000)
    store.set("small", "")
    store.set("small", "small")
    store.set("after", "done")
    store.set("written", "")
    store.wait(["counted"], long)
if hasattr(store, "barrier"):
    store.barrier("all", 2, long)
meet("last")
copy = store.clone()
answers.append(copy.get("before").decode())
if rank == 1:
    print(json.dumps(answers), flush=True)
store.add("read", 1)
while rank == 0 and store.add("read", 0) < 2:
    pass
"""


def run(tmp_path, text: str, *arguments, ranks=2, options=(), environment=None):
    program = python_file(tmp_path, text)
    environment = environment or program_environment()
    return accord("run", "-n", ranks, *options, program, *arguments, timeout=120, env=environment)


def test_the_store_answers_pytorch_clients_like_the_pytorch_server(tmp_path):
    ours = run(tmp_path, CALLS)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    by_rank_0 = program_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    theirs = run(tmp_path, CALLS, "own", environment=by_rank_0)
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    assert json.loads(ours.stdout.removeprefix("[1] ")) == json.loads(theirs.stdout.removeprefix("[1] "))


# Rank 0 ends as soon as its group exists; the other ranks then create groups.
ENDS_FIRST = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    dist.destroy_process_group()
    store.set("rank 0 leaves", "")
    os._exit(0)
store.wait(["rank 0 leaves"])
group = dist.new_group([1, 2], use_local_synchronization=True)
values = torch.ones(1)
dist.all_reduce(values, group=group)
print(values.item(), flush=True)
dist.barrier(group=group)
os._exit(0)  # gloo's end waits for rank 0
"""


@pytest.mark.parametrize("backend", ["accord", "gloo"])
def test_rank_0_may_exit_first(tmp_path, backend):
    result = run(tmp_path, ENDS_FIRST, backend, ranks=3)
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.stdout.splitlines()) == ["[1] 2.0", "[2] 2.0"]


def test_rank_0_may_exit_first_on_another_node(tmp_path):
    program = python_file(tmp_path, ENDS_FIRST)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--nnodes", 2, "--rdzv-endpoint", endpoint]
    launchers = [
        start_accord("run", *options, "--node-rank", node, "-n", node + 1, program, "accord", env=program_environment())
        for node in range(2)
    ]
    try:
        outputs = [launcher.communicate(timeout=120) for launcher in launchers]
    finally:
        end(*launchers)
    assert [launcher.returncode for launcher in launchers] == [0, 0], outputs
    assert sorted(outputs[1][0].splitlines()) == ["[1] 2.0", "[2] 2.0"]


@pytest.mark.parametrize(
    "options",
    [pytest.param([], id="a free port", marks=pytest.mark.slow), pytest.param(["--master-port"], id="one port")],
)
def test_restarted_ranks_get_fresh_stores(tmp_path, options):
    if options:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            options = [*options, free.getsockname()[1]]
    program = """
import os, sys
import accord
from torch.distributed import TCPStore

start, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["RANK"])
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False)
comm = accord.Communicator.from_environment(timeout=60)
if rank == 0:
    print(start, store.check(["left by the last start"]), flush=True)
comm.barrier()
store.set("left by the last start", "")
comm.barrier()
sys.exit(3 if start == "0" and rank == 1 else 0)
"""
    result = run(tmp_path, program, options=["--max-restarts", 1, *options])
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line for line in result.stdout.splitlines() if line] == ["[0] 0 False", "[0] 1 False"]


def test_consecutive_programs_of_every_rank_use_one_store(tmp_path):
    program = python_file(
        tmp_path,
        "import accord\nwith accord.Communicator.from_environment(timeout=60) as comm: comm.barrier(); print(comm.size)",
    )
    result = accord("run", "-n", 2, "sh", "-c", f"python3 {program} && python3 {program}", env=program_environment())
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] 2"] * 2 + ["[1] 2"] * 2


def test_a_job_of_one_rank_inside_a_rank_does_not_inherit_the_store_of_the_outer_job():
    inner = [ACCORD, "run", "-n", 1, "sh", "-c", 'echo "inner [$ACCORD_JOB_STORE]"']
    result = accord("run", "-n", 2, *inner)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("inner []") == 2, result.stdout


def test_a_port_in_use_is_an_immediate_error():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        result = accord("run", "-n", 2, "--master-port", port, "true", timeout=20)
    assert result.returncode == 1
    assert f"--master-port {port}" in result.stderr
    assert "is in use on this machine" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--master-addr", "no-such-host.invalid"], 'host "no-such-host.invalid" has no address'),
        (["--master-addr", "192.0.2.1"], '"192.0.2.1" is not an address of this machine'),
        (
            ["--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", "192.0.2.1"],
            '"192.0.2.1" is not an address of this machine',
        ),
        (["--nnodes", 2, "--node-rank", 1, "--rdzv-endpoint", "no-such-host.invalid"], "has no address"),
        (["--nnodes", 2, "--rdzv-endpoint", "no-such-host.invalid"], "has no address"),
    ],
)
def test_an_unreachable_address_fails_immediately(options, message):
    result = accord("run", *options, "true", timeout=20)
    assert result.returncode == 1
    assert message in result.stderr
