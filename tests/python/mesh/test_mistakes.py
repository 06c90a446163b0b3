"""Errors of users of meshes in torch.distributed, on one rank or on all: arguments, names, counts, and
closing at the wrong time."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util
from datetime import timedelta

import pytest

pytest.importorskip("torch")

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs the package megatron-core"
)


def wrong_on_rank_1(group, given):
    import datetime

    import accord.mesh as meshes

    def interrupted():
        raise KeyboardInterrupt("in the plan")

    plan = meshes.MeshPlan("tp=2", world_size=2)
    arguments = {"timeout": datetime.timedelta(seconds=20)}
    if dist.get_rank() == 1:
        arguments |= given
        plan = interrupted if given.get("name") == "interrupted" else plan
    began = time.monotonic()
    try:
        meshes.TorchMesh.create(plan, **arguments)
    except (accord.Error, KeyboardInterrupt, UnicodeError) as error:
        failed = type(error).__name__, str(error), time.monotonic() - began
    with meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=2)) as mesh:  # the failure has left nothing behind
        dist.all_reduce(torch.ones(1), group=mesh.group("tp"))
    return failed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout": 5}, "timeout is 5; give a datetime.timedelta above 0"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"timeout": timedelta(0)}, "timeout is datetime.timedelta(0)"),
        ({"timeout": timedelta(seconds=-3)}, "give a datetime.timedelta above 0"),
        ({"name": 3}, "name is 3, expected printable text"),
        ({"name": "a\0b"}, "expected printable text"),
        ({"name": "\ud800"}, "expected printable text"),
        ({"strict": "yes"}, "strict is 'yes', expected True or False"),
        ({"name": "interrupted"}, "in the plan"),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_an_invalid_argument_on_one_rank_fails_on_all_immediately(torch_ranks, given, message, backend):
    peer, own = torch_ranks(2).run(wrong_on_rank_1, given, backend=backend)
    assert own[0] == ("KeyboardInterrupt" if message == "in the plan" else "InvalidArgument")
    assert peer[0] == "PeerLost"
    assert message in own[1]
    assert message in peer[1]
    assert max(peer[2], own[2]) < 5


def close_before_creation(group, by_name):
    import datetime
    import gc

    import accord.mesh as meshes

    plan = meshes.MeshPlan("tp=2", world_size=2)
    mesh = meshes.TorchMesh.create(plan, timeout=datetime.timedelta(seconds=20))
    if dist.get_rank() == 1:
        if by_name:
            mesh.close()
        del mesh
        gc.collect()
        dist.barrier()
        return None
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(4), group=mesh.group("tp"))
    except accord.PeerLost as error:
        lost = list(error.ranks), time.monotonic() - began
    dist.barrier()
    mesh.close()
    return lost


@pytest.mark.alone
@pytest.mark.parametrize("by_name", [True, False], ids=["closed", "released"])
@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_a_rank_that_ends_its_mesh_before_a_group_is_created_is_named_immediately(torch_ranks, backend, by_name):
    (ranks, seconds), _ = torch_ranks(2).run(close_before_creation, by_name, backend=backend)
    assert ranks == [1]
    assert seconds < 5


def create_worlds_in_turn(group, folder, backend):
    import datetime

    import accord.mesh as meshes
    from accord.mesh import parallel_state

    rank, times = dist.get_rank(), datetime.timedelta(seconds=30)
    dist.destroy_process_group()
    sums = []
    for size in (2, 4):
        if rank >= size:
            continue
        store = dist.FileStore(f"{folder}/{size}", size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=times)
        parallel_state.initialize_model_parallel(2)
        grid = meshes.HyperCommGrid([2, size // 2], ["tp", "dp"])
        for made in (parallel_state.get_tensor_model_parallel_group(), grid.create_pg("tp")):
            value = torch.tensor([1 << rank])
            dist.all_reduce(value, group=made)
            sums.append(int(value))
        if size == 2:  # the larger world's mesh is still open when its process group is destroyed
            parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    parallel_state.destroy_model_parallel()
    return sums


@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_ranks_with_different_earlier_meshes_number_new_ones_equally(torch_ranks, tmp_path, backend):
    sums = torch_ranks(4).run(create_worlds_in_turn, str(tmp_path), backend)
    assert sums == [[3] * 4, [3] * 4, [12] * 2, [12] * 2]


def names_and_times(group):
    import datetime

    import accord.mesh as meshes
    from accord.mesh import parallel_state

    plan = meshes.MeshPlan("tp=2", world_size=2)
    first = meshes.TorchMesh.create(plan, name="mine")
    by_itself = [meshes.TorchMesh.create(plan) for _ in range(2)]
    found = {"timeouts": [mesh.group("tp").timeout.total_seconds() for mesh in (first, *by_itself)]}
    try:
        meshes.TorchMesh.create(plan, name="mine")
    except accord.InvalidArgument as error:
        found["taken"] = str(error)
    first.close()
    with meshes.TorchMesh.create(plan, name="mine") as again:
        dist.all_reduce(torch.ones(1), group=again.group("tp"))
    names = [f"mesh{number}" for number in range(8, 11)]  # among them is the next number that accord would choose
    taken = [meshes.TorchMesh.create(plan, name=name) for name in names]
    after = meshes.TorchMesh.create(plan)
    found["names"] = {mesh.group("tp").group_name for mesh in (*by_itself, *taken, after)}

    # Megatron's arguments by position, as its programs may pass them.
    parallel_state.initialize_model_parallel(2, 1, None, None, False, 1, None, False, 1, 1, 1, 1, None, None, 7.0)
    group_of_tensors = parallel_state.get_tensor_model_parallel_group()
    found["by place"] = group_of_tensors.timeout.total_seconds()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1), group_of_tensors)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=50))
    found["set"] = group_of_tensors.timeout.total_seconds()
    began = time.monotonic()
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group_of_tensors)
        except accord.Timeout:
            found["took"] = time.monotonic() - began
    dist.barrier()
    parallel_state.destroy_model_parallel()
    with meshes.TorchMesh.create(plan) as late:
        found["late"] = late.group("tp").timeout.total_seconds()
    for mesh in (*by_itself, *taken, after):
        mesh.close()
    return found


@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_names_and_timeouts_are_taken_from_the_default_group_unless_given(torch_ranks, backend):
    for rank, found in enumerate(torch_ranks(2).run(names_and_times, backend=backend, timeout=40)):
        assert found["timeouts"] == [40.0] * 3
        assert 'another mesh called "mine" is open' in found["taken"]
        assert len(found["names"]) == 6
        assert found["by place"] == 420
        assert found["set"] == 1
        assert found["late"] == 50
        if rank == 0:
            assert found["took"] < 10


def install_twice(group):
    from megatron.core import parallel_state

    from accord import megatron

    own = parallel_state.initialize_model_parallel
    destroy = parallel_state.destroy_model_parallel
    megatron.install()
    parallel_state.initialize_model_parallel(
        2, nccl_communicator_config_path=None, use_sharp=False, distributed_timeout_minutes=2
    )
    megatron.uninstall()
    assert parallel_state.initialize_model_parallel is own
    reports = [megatron.report()]
    megatron.install(strict=True)
    reports.append(megatron.report())
    value = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(value, group=parallel_state.get_tensor_model_parallel_group())
    megatron.uninstall()
    parallel_state.destroy_model_parallel()
    assert parallel_state.destroy_model_parallel is destroy
    try:
        megatron.report()
    except accord.WrongState:
        return int(value), reports[0] == reports[1]


@needs_megatron
@pytest.mark.slow
def test_the_megatron_overrides_can_be_removed_and_reinstalled_while_groups_exist(torch_ranks):
    assert torch_ranks(2).run(install_twice) == [(3, True)] * 2
