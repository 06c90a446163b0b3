"""Integers of every type in every call, coalescing blocks that are left by an error, and groups created one after
another at one port."""
# ruff: noqa: F821 (names that ranks.py provides)

import socket
import subprocess
import sys

from accord_command import program_environment, python_file


def splits(group):
    rank, found = dist.get_rank(), {}
    kinds = {
        "list": list, "tuple": tuple, "array": np.array, "int32": lambda sizes: np.array(sizes, np.int32), "Size": torch.Size,
        "NumPy": lambda sizes: [np.int64(size) for size in sizes],
    }  # fmt: skip
    if dist.get_backend() == "accord":  # gloo does not accept a tensor
        kinds |= {"tensor": torch.tensor}
    for name, kind in kinds.items():
        sizes = [1, 2] if rank == 0 else [2, 1]
        output = torch.empty(3)
        dist.all_to_all_single(output, torch.arange(3.0) + 10 * rank, kind(sizes), kind(sizes))
        found[name] = output.tolist()
    empty = torch.empty(2)
    dist.all_to_all_single(empty, torch.arange(2.0) + 10 * rank, np.array([], int), ())
    try:
        dist.all_to_all_single(torch.empty(3), torch.arange(3.0), [1.0, 2.0], [1, 2])
    except TypeError as error:
        found["refused"] = type(error).__name__
    return found | {"empty": empty.tolist()}


def test_split_sizes_may_be_integers_of_any_kind(torch_ranks):
    over_gloo, found = torch_ranks(2).run(splits, backend="gloo"), torch_ranks(2).run(splits)
    for rank in range(2):
        assert found[rank].pop("tensor") == found[rank]["list"]
        assert found[rank] == over_gloo[rank] and len(found[rank]) == 8


def ranks_and_tags(group):
    import accord.torch

    rank, peer, found = dist.get_rank(), 1 - dist.get_rank(), []
    for kind in (int, np.int64, np.uint8, torch.tensor):
        one = torch.full((2,), float(rank))
        dist.broadcast(one, kind(1))
        dist.reduce(one, group_dst=kind(0))
        group.broadcast(one, kind(0)).wait()  # called directly
        into = torch.zeros(2)
        messages = [
            dist.P2POp(dist.isend, one + rank, kind(peer), tag=kind(3)),
            dist.P2POp(dist.irecv, into, kind(peer), tag=kind(3)),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        found.append([one.tolist(), into.tolist()])
    if dist.get_backend() == "accord":
        comm = accord.torch.communicator()
        for number, kind in enumerate((np.array, torch.tensor, tuple)):
            part = comm.split_ranks(kind([1, 0]), f"part {number}")
            made = accord.torch.from_communicator(part, kind([1, 0]), name=f"made {number}")
            assert dist.get_process_group_ranks(made) == [1, 0] and dist.get_group_rank(made, 1) == 0
            split = group.split_group(kind([0, 1]), group_name=f"split {number}")
            assert split.size() == 2
            split.shutdown()
            assert tuple(comm.window(4096).empty(kind([2, 3])).shape) == (2, 3)
    return found


def test_ranks_and_tags_may_be_integers_of_any_kind(torch_ranks):
    expected = torch_ranks(2).run(ranks_and_tags, backend="gloo")
    assert torch_ranks(2).run(ranks_and_tags) == expected
    assert expected[0][0] == expected[0][3]


def blocks_left_by_errors(group):
    """After a block that ends with an error, every call runs and no call listed in the block ever does. Other blocks
    list calls as before."""
    rank, found = dist.get_rank(), {}
    block_of, cpu = dist.distributed_c10d._coalescing_manager, torch.device("cpu")
    ones = torch.ones(2)

    def message():
        into = torch.full((2,), float(rank))
        dist.send(into, 1) if rank == 0 else dist.recv(into, 0)
        return into

    def calls():
        same, gathered, part = torch.full((2,), float(rank)), torch.zeros(4), torch.zeros(1)
        dist.broadcast(same, 1)
        dist.all_reduce(same)
        work = dist.all_reduce(same, async_op=True)
        work.wait()
        dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
        dist.reduce_scatter_tensor(part, torch.ones(2))
        dist.barrier()
        return [same.tolist(), gathered.tolist(), part.tolist(), message().tolist()]

    expected = [[4.0, 4.0], [0.0, 0.0, 1.0, 1.0], [2.0], [0.0, 0.0]]
    for name, options in {"fast": {}, "device": {"device": cpu}, "async": {"device": cpu, "async_ops": True}}.items():
        listed = None
        try:
            with block_of(group, **options):
                if name != "fast":
                    listed = group.send([ones], 1 - rank)
                    listed.wait()  # does nothing inside a block
                else:
                    dist.all_reduce(ones)
                raise KeyError("bad batch")
        except KeyError:
            found[name] = calls() == expected
        if listed is not None:
            assert not listed.is_completed()
            try:
                listed.wait()
            except RuntimeError as error:
                assert "never made" in str(error)
            else:
                raise AssertionError("a message that was never sent is done")
    first, second = torch.ones(2), torch.ones(3)
    with block_of(group, async_ops=True) as block:
        dist.all_reduce(first)
        dist.all_reduce(second)
    block.wait()
    with block_of(group, cpu):
        listed = group.broadcast([second], 1)
        message_work = group.send([first], 1) if rank == 0 else group.recv([first], 0)
    assert listed.wait() and message_work.wait() and message_work.is_completed()
    batch = accord.torch.communicator().batch()
    try:
        with batch:
            batch.all_reduce(ones)
            raise KeyError("bad batch")
    except KeyError:
        found["batch"] = len(batch) == 0
    return found, first.tolist(), second.tolist(), ones.tolist()


def test_a_coalescing_block_left_by_an_error_does_not_swallow_later_calls(torch_ranks):
    for found, first, second, ones in torch_ranks(2).run(blocks_left_by_errors):
        assert found == {"fast": True, "device": True, "async": True, "batch": True}
        assert (first, second, ones) == ([2.0] * 2, [2.0] * 3, [1.0] * 2)


def test_meshes_and_plans_accept_integers_of_any_kind():
    import numpy as np
    import torch

    import accord.plan
    from accord.mesh import HyperCommGrid, MeshPlan
    from accord.mesh.megatron_arguments import MegatronArguments

    sizes = {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 2]}
    levels = MeshPlan(world_size=8, cp=4, hierarchical_cp=[2, 2])
    for kind in (np.array, torch.tensor, tuple):
        assert MeshPlan(world_size=8, cp=4, hierarchical_cp=kind([2, 2])) == levels
        given = MegatronArguments(np.int64(2), **sizes | {"hierarchical_context_parallel_sizes": kind([2, 2])})
        assert given.plan(8) == MegatronArguments(2, **sizes).plan(8)
        grid = HyperCommGrid(kind([2, 4]), ["tp", "dp"])
        assert grid.shape == [2, 4] and grid.get_rank_enum("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    written = []
    for kind in (int, np.int64, torch.tensor):
        program = accord.plan.Program("broadcast", ranks=kind(2), name="some", root=kind(0))
        first, second = program.rank(kind(0)), program.rank(kind(1))
        first.copy(first.input[kind(0)], second.scratch[kind(0)]).signal(kind(1), id=kind(0))
        written.append(program.json())
    assert written[0] == written[1] == written[2]


ONE_AFTER_THE_OTHER = """
import os, sys, torch, torch.distributed as dist
rank, made, kept = int(os.environ["RANK"]), 0, []
meet = dist.TCPStore("127.0.0.1", int(os.environ["MEETING_PORT"]), 2, rank == 0)
class Store(dist.TCPStore):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        if rank == 1:
            meet.set(f"connected {made}", "")
sys.modules["torch.distributed.rendezvous"].TCPStore = Store
for made in range(4):
    dist.init_process_group("accord")
    values = torch.full((1000,), float(made))
    work = dist.all_reduce(values, async_op=True)
    if made % 2:
        work.wait()
        assert values[0] == 2 * made
    kept.append(work)
    if rank == 0 and made < 3:  # the other is early: it has come to the store of this group for the next one
        meet.wait([f"connected {made + 1}"])
    dist.destroy_process_group()
if rank == 0:
    meet.wait(["ended"])
else:
    meet.set("ended", "")
"""


def _free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_a_rank_may_arrive_early_at_the_next_default_group_at_the_same_port(tmp_path):
    program = python_file(tmp_path, ONE_AFTER_THE_OTHER)
    port, meeting = _free_ports(2)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MEETING_PORT": meeting, "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program],
            env=program_environment(**variables, RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
