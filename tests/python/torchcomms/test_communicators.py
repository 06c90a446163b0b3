"""torchcomms communicators over accord: how they connect, split, time out and end; and their use through
torch.distributed."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchcomms", reason="torchcomms is not installed; it is built from its sources")

from accord_command import ROOT, accord, clean_environment, python_file

from accord.torchcomms import rendezvous


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TORCHCOMM_RANK": "1", "TORCHCOMM_SIZE": "2", "RANK": "3", "WORLD_SIZE": "4"}, (1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "PMI_RANK": "0", "PMI_SIZE": "9"}, (1, 3)),
        ({"PMI_RANK": "2", "PMI_SIZE": "5", "RANK": "0", "WORLD_SIZE": "1"}, (2, 5)),
        ({"PALS_RANKID": "1", "PMI_SIZE": "6"}, (1, 6)),
        ({"PALS_RANKID": "1", "WORLD_SIZE": "7", "RANK": "0"}, (1, 7)),
        ({"RANK": " 3 ", "WORLD_SIZE": "4"}, (3, 4)),
        ({"TORCHCOMM_RANK": "1", "RANK": "0", "WORLD_SIZE": "2"}, (0, 2)),
        (
            {
                "TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD": "torchrun",
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "3",
                "RANK": "0",
                "WORLD_SIZE": "2",
            },
            (0, 2),
        ),
    ],
)
def test_rank_and_size_are_read_from_the_variables_of_torchcomms(variables, expected, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("TORCHCOMM_", "OMPI_", "PMI_", "PALS_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rendezvous.rank_and_size() == expected


def test_missing_and_wrong_ranks_are_reported(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="set TORCHCOMM_RANK and TORCHCOMM_SIZE"):
        rendezvous.rank_and_size()
    monkeypatch.setenv("TORCHCOMM_RANK", "first")
    with pytest.raises(RuntimeError, match="TORCHCOMM_RANK: first"):
        rendezvous.rank_and_size()


def many_communicators(comm, folder, with_store):
    """Creates several communicators of one name one after another, and several at once from threads. Each adds in its
    own group."""
    import threading

    rank, found = comm.get_rank(), {}
    store = dist.FileStore(os.path.join(folder, "store"), 2) if with_store else None

    def add(key, name):
        made = torchcomms.new_comm("accord", torch.device("cpu"), name, store=store)
        values = torch.full((3,), float(key * (rank + 1)))
        made.all_reduce(values, torchcomms.ReduceOp.SUM, False)
        found[key] = values.tolist()
        return made

    kept = [add(key, "same") for key in range(3)]
    threads = [threading.Thread(target=add, args=(3 + i, f"thread{i}")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made in kept:
        made.finalize()
    add(7, "same").finalize()
    return found


@pytest.mark.parametrize("with_store", [True, False])
def test_communicators_of_one_name_and_of_several_threads_do_not_interfere(
    torchcomms_ranks, tmp_path, with_store, monkeypatch
):
    ranks = torchcomms_ranks(2)
    if not with_store:
        ranks.end()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29731")
    for found in ranks.run(many_communicators, str(tmp_path), with_store):
        assert found == {key: [3.0 * key] * 3 for key in range(8)}


def parts_of(comm):
    rank = comm.get_rank()
    device = torch.get_default_device()
    turned = comm.split([2, 0], "part", timeout=datetime.timedelta(seconds=20)) if rank != 1 else comm.split([], "part")
    assert (turned is None) == (rank == 1)
    found = None
    if turned is not None:
        values = torch.full((2,), rank + 1.0)
        turned.all_reduce(values, torchcomms.ReduceOp.SUM, False)
        again = turned.split([0, 1], "part")
        again.broadcast(values.add_(rank), 0, False)
        found = turned.get_rank(), turned.get_size(), values.tolist()
        again.finalize()
        turned.finalize()
    errors = []
    for wrong in ([(rank + 1) % 3], [rank, rank], [rank, 3], [-1, rank]):
        try:
            comm.split(wrong, "wrong")
        except RuntimeError as error:
            errors.append(str(error))
    assert torch.get_default_device() == device
    assert not torch.cuda.is_initialized()
    return found, errors


def test_a_split_numbers_ranks_by_the_list_and_rejects_an_invalid_list(torchcomms_ranks):
    first, second, third = torchcomms_ranks(3).run(parts_of)
    assert first[0] == (1, 2, [6.0, 6.0])
    assert second[0] is None
    assert third[0] == (0, 2, [6.0, 6.0])
    for rank, (_, errors) in enumerate((first, second, third)):
        assert f"Current rank {rank} is not included" in errors[0]
        assert "names a rank twice" in errors[1]
        assert "there is no rank 3" in errors[2]
        assert "there is no rank -1" in errors[3]


def life(comm, folder, has_native):
    import accord.torchcomms

    errors = []

    def record_error(call):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))

    unborn = accord.torchcomms.Backend()
    record_error(unborn.finalize)
    record_error(lambda: unborn.barrier(False))
    comm.finalize()
    record_error(comm.finalize)
    record_error(lambda: comm.barrier(False))
    for options in (
        {"device": torch.device("meta")},
        {"hints": {"wayt": "spin"}},
        {"hints": {"wait": "spin,slot_bytes=1k"}},
        {"hints": {"async": "maybe"}},
        *([] if has_native else [{"enable_reconfigure": True}]),
    ):
        given = {"device": torch.device("cpu"), "store": dist.FileStore(os.path.join(folder, "store"), 2)} | options
        record_error(lambda given=given: torchcomms.new_comm("accord", name="refused", **given))
    return errors


def test_unknown_communicators_and_unsupported_options_are_named(torchcomms_ranks, tmp_path):
    has_native = importlib.util.find_spec("accord.torchcomms._native") is not None
    for errors in torchcomms_ranks(2).run(life, str(tmp_path), has_native):
        texts = [
            'communicator "" is not initialized',
            'communicator "" is not initialized',
            'communicator "world" is already finalized',
            'communicator "world" is already finalized',
            'accord cannot create communicator "refused" for meta',
            "wayt.*wait",
            'hint "wait".*comma',
            'hint "async" is "maybe"',
            *([] if has_native else ["enable_reconfigure=true is not supported"]),
        ]
        assert len(errors) == len(texts), errors
        for found, text in zip(errors, texts, strict=True):
            assert re.search(text, found), found


def in_background(comm, folder):
    """Uses two communicators on which the ranks start their all_reduces in opposite orders."""
    rank = comm.get_rank()
    # Kept until both are created: the file of a FileStore is removed with the last one, then the ranks would have two.
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    made = [
        torchcomms.new_comm(
            "accord",
            torch.device("cpu"),
            name,
            store=store,
            hints={"async": "background", "wait": "yield", "select": "all_reduce:0-inf=ring"},
        )
        for name in ("one", "other")
    ]
    values = [torch.full((5, 2), rank + 1.0)[:, 0] for _ in made]
    works = {}
    for i in (0, 1) if rank == 0 else (1, 0):
        works[i] = made[i].all_reduce(values[i], torchcomms.ReduceOp.SUM, True)
    for work in works.values():
        work.wait()
    for one in made:
        one.finalize()
    return [tensor.tolist() for tensor in values]


def test_a_hint_lets_collectives_progress_without_calls(torchcomms_ranks, tmp_path):
    assert torchcomms_ranks(2).run(in_background, str(tmp_path)) == [[[3.0] * 5] * 2] * 2


def failures(comm, folder):
    from accord import Mismatch, PeerLost, Timeout

    rank, errors = comm.get_rank(), []
    late = comm.split([0, 1], "late")
    late.set_timeout(datetime.timedelta(milliseconds=200))
    if rank == 0:
        try:
            late.recv(torch.ones(1), 1, True).wait()
        except RuntimeError as error:
            errors.append((isinstance(error, Timeout), error.ranks, "late" in str(error)))
    try:
        comm.all_reduce(torch.ones(4 + rank), torchcomms.ReduceOp.SUM, False)
    except RuntimeError as error:
        errors.append((isinstance(error, (Mismatch, PeerLost)), "world" in str(error)))
    return errors


def test_failures_are_both_accord_errors_and_runtime_errors(torchcomms_ranks, tmp_path):
    first, second = torchcomms_ranks(2).run(failures, str(tmp_path))
    assert first == [(True, (1,), True), (True, True)]
    assert second == [(True, True)]
    torchcomms_ranks(2).end()


def run_ranks(program: str, folder: Path, **variables: str) -> str:
    """Returns the output of two ranks of `program`."""
    path = python_file(folder, program)
    done = accord("run", "-n", 2, sys.executable, path, env=clean_environment(**variables), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TRAINING = """
import torch  # before torchcomms, which torch would not see otherwise
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("cpu:accord")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
alone = [p.detach().clone().requires_grad_() for p in model.parameters()]
data = torch.randn(20, size, 4, 8)
ddp = DistributedDataParallel(model)
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
for step in range(20):
    optimizer.zero_grad()
    loss = ddp(data[step, rank]).pow(2).mean()
    loss.backward()
    optimizer.step()
    whole = loss.detach().clone()
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    losses.append(whole.item())
    # The same on all ranks' data at once, in plain torch.
    hidden = torch.tanh(data[step].reshape(-1, 8) @ alone[0].T + alone[1])
    expected = (hidden @ alone[2].T + alone[3]).pow(2).mean()
    gradients = torch.autograd.grad(expected, alone)
    with torch.no_grad():
        for parameter, gradient in zip(alone, gradients):
            parameter -= 0.1 * gradient
    assert abs(losses[-1] - expected.item()) < 1e-6, (step, losses[-1], expected.item())
torch.manual_seed(1)
sharded = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
for module in (sharded[0], sharded[2], sharded):
    fully_shard(module)
optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = sharded(data[step, rank]).pow(2).mean()
    loss.backward()
    optimizer.step()
    whole = loss.detach().clone()
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    assert abs(whole.item() - losses[step]) < 1e-6, (step, whole.item(), losses[step])
part = dist.new_group([0, 1])
values = torch.ones(2)
dist.all_reduce(values, group=part)
dist.barrier()
assert type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__ == "_BackendWrapper"
print("trained", values.tolist())
dist.destroy_process_group()
"""


def test_ddp_and_fsdp_through_torch_distributed_train_like_plain_torch(tmp_path):
    out = run_ranks(TRAINING, tmp_path, TORCH_DISTRIBUTED_USE_TORCHCOMMS="1")
    assert out.count("trained [2.0, 2.0]") == 2, out


def test_a_process_exits_cleanly_without_finalizing(tmp_path):
    program = """
import torch, torchcomms
comm = torchcomms.new_comm("accord", torch.device("cpu"), "left")
values = torch.ones(2)
comm.all_reduce(values, torchcomms.ReduceOp.SUM, False)
print("sum", values.tolist())
"""
    assert run_ranks(program, tmp_path).count("sum [2.0, 2.0]") == 2


def test_importing_torch_does_not_import_the_torchcomms_backend():
    script = (
        "import torch, torchcomms, sys; assert not [m for m in sys.modules if m.startswith('accord.')], sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_guide_runs(tmp_path):
    snippets = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/torchcomms.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(snippets) == 4
    program = "\n".join(snippets[:2]) + "print(values.tolist(), theirs.tolist())\n"
    assert run_ranks(program, tmp_path).count("[1.0, 1.0, 1.0, 1.0] [1.0, 1.0, 1.0]") == 2
    if importlib.util.find_spec("accord.torchcomms._native") is not None:
        out = run_ranks("\n".join(snippets[2:]) + "print(rank, halo[4:].tolist(), whole.tolist())\n", tmp_path)
        for rank in range(2):
            assert f"{rank} {[1.0 - rank] * 4} {[90.0] * 3 + [91.0] * 3}" in out


def use_the_backend_itself(comm):
    backend, other = comm.get_backend_impl(), 1 - comm.get_rank()
    mine, window = torch.zeros(2), backend.new_window()
    window.tensor_register(mine)
    window.put(torch.ones(1), other, 1, False)
    window.signal(other, False)
    window.wait_signal(other, False)
    output = torch.zeros(4)
    backend.all_gather_p_exec(backend.all_gather_p_init(output), mine + comm.get_rank(), False)
    backend.tensor_register(output)
    backend.tensor_deregister(output)
    backend.set_hints({"async": "background"})
    work = comm.all_reduce(torch.ones(1), torchcomms.ReduceOp.SUM, True)
    completed = work.is_completed()
    work.wait()
    window.tensor_deregister()
    return mine.tolist(), output.tolist(), completed


@pytest.mark.skipif(
    importlib.util.find_spec("accord.torchcomms._native") is not None,
    reason="accord.torchcomms._native takes the place of the backend in Python",
)
def test_the_backend_in_python_has_what_torchcomms_refuses(torchcomms_ranks):
    assert torchcomms_ranks(2).run(use_the_backend_itself) == [([0, 1], [0, 1, 1, 2], False)] * 2
