"""Meshes from grids and from torch's device meshes, and back."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util
import math

import pytest

import accord

torch = pytest.importorskip("torch")

from accord.mesh import HyperCommGrid, plan_of_device_mesh  # noqa: E402

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs the package megatron-core"
)


def over_device_mesh(group):
    from torch.distributed.tensor import Shard, distribute_tensor

    import accord.mesh as meshes

    with meshes.TorchMesh.create(meshes.MeshPlan("tp=2,ep=2,etp=1,pp=2", world_size=4)) as mesh:
        dense, experts = mesh.device_mesh("pp", "dp", "tp"), mesh.device_mesh("ep", "etp")
        tensor = distribute_tensor(torch.arange(8.0), dense["tp"], [Shard(0)])
        found = [dense.mesh.tolist(), experts.mesh.tolist(), tensor.to_local().tolist(), tensor.full_tensor().tolist()]
        found.append(dist.get_backend(dense.get_group("tp")))
    theirs = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with meshes.TorchMesh.create(meshes.plan_of_device_mesh(theirs, [["tp"], ["tp", "dp"]])) as mesh:
        names = [family.name for family in mesh.plan.families]
        value = torch.tensor([1 << dist.get_rank()])
        dist.all_reduce(value, group=mesh.group("tp"))
        found += [names, int(value), mesh.plan.all_groups(names[1])]
    return found


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.slow), "accord"])
def test_meshes_convert_to_device_meshes_and_back(torch_ranks, backend):
    for rank, found in enumerate(torch_ranks(4).run(over_device_mesh, backend=backend, deadline=60)):
        dense, experts, local, full, used, names, total, everyone = found
        assert dense == [[[0, 1]], [[2, 3]]]
        assert experts == [[rank // 2 * 2], [rank // 2 * 2 + 1]]
        assert local == [[0, 1, 2, 3], [4, 5, 6, 7]][rank % 2] and full == list(range(8))
        assert used == "accord"
        assert names == ["tp", "tp-dp"] and everyone == [[0, 1, 2, 3]]
        assert total == [3, 12][rank // 2]


class _Mesh:
    """The attributes that are read from a DeviceMesh."""

    def __init__(self, ranks: torch.Tensor, names: tuple[str, ...] | None) -> None:
        self.mesh, self.mesh_dim_names = ranks, names

    def __repr__(self) -> str:
        return f"mesh of {self.mesh.tolist()}"


def test_plans_follow_the_strides_of_a_device_mesh():
    ranks = torch.arange(4, 28).reshape(2, 3, 4)
    plan = plan_of_device_mesh(_Mesh(ranks.permute(2, 0, 1), ("a", "b", "c")))
    for family, groups in {"a": ranks.flatten(0, 1), "b": ranks.permute(1, 2, 0), "c": ranks.permute(0, 2, 1)}.items():
        expected = sorted(sorted(group) for group in groups.reshape(-1, groups.shape[-1]).tolist())
        assert sorted(plan.all_groups(family)) == expected
    for ranks, names, message in (
        (torch.tensor([0, 2, 3]), ("a",), "do not form a grid of consecutive ranks"),
        (torch.tensor([[0, 1], [3, 2]]), ("a", "b"), "do not form a grid of consecutive ranks"),
        (torch.arange(2), None, "has no mesh_dim_names"),
    ):
        with pytest.raises(accord.InvalidArgument, match=message):
            plan_of_device_mesh(_Mesh(ranks, names))


# The expected lists are those of megatron-core's HyperCommGrid.
def test_grids_have_the_rank_lists_of_megatron_core():
    assert HyperCommGrid([2, 4], ["tp", "dp"]).get_rank_enum("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    cube = HyperCommGrid([2, 2, 2], ["tp", "cp", "dp"])
    assert cube.get_rank_enum(["tp", "cp"]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cube.get_rank_enum(["cp", "tp"]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cube.get_rank_enum("dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert HyperCommGrid([2, 2], ["tp", "dp"], rank_offset=4).get_rank_enum("dp") == [[4, 6], [5, 7]]


@needs_megatron
@pytest.mark.parametrize("shape", [[2, 3, 4], [1, 4, 2], [3, 1, 2]])
def test_grids_match_megatron_core(shape, monkeypatch):
    from megatron.core.hyper_comm_grid import HyperCommGrid as Theirs

    monkeypatch.setenv("WORLD_SIZE", str(math.prod(shape) + 2))
    names = ["tp", "cp", "dp"]
    ours, theirs = HyperCommGrid(shape, names, 2), Theirs(shape, names, 2)
    for dims in (["tp"], ["cp"], ["dp"], ["tp", "cp"], ["dp", "tp"], names):
        assert ours.get_rank_enum(dims) == theirs._gen_rank_enum(theirs._order_dims(dims)[0])


def sums_in_grid(group):
    import accord.mesh as meshes

    grid = meshes.HyperCommGrid([2, 1], ["tp", "dp"], rank_offset=1)
    grid.register_view("experts", [1, 2], ["etp", "ep"])
    found = []
    for dims, view in (("tp", None), (["tp", "dp"], None), ("ep", "experts"), ("etp", "experts")):
        made = grid.create_pg(dims, view=view)
        value = torch.tensor([1 << dist.get_rank()])
        if made is not None:
            dist.all_reduce(value, group=made)
            assert grid.get_pg(dims, view=view) is made
        found.append(int(value) if made is not None else None)
    errors = []
    for call in (lambda: grid.create_pg("tp"), lambda: grid.get_pg("dp"), lambda: grid.create_pg("xp")):
        try:
            call()
        except accord.Error as error:
            errors.append(str(error))
    grid.close()
    return found, errors


def test_a_grid_creates_its_groups_one_by_one(torch_ranks):
    for rank, (found, errors) in enumerate(torch_ranks(4).run(sums_in_grid)):
        own = [6, 6, 6, 1 << rank] if rank in (1, 2) else [None] * 4
        assert found == own
        assert ["already been created" in errors[0], "call create_pg first" in errors[1], "xp" in errors[2]] == [
            True
        ] * 3


def test_invalid_grids_are_rejected():
    for arguments, message in (
        (([2, 2], ["tp"]), "2 sizes for 1 names"),
        (([2, 2], ["tp", "tp"]), "appears twice"),
        (([2, 0], ["tp", "dp"]), "0"),
    ):
        with pytest.raises(accord.InvalidArgument, match=message):
            HyperCommGrid(*arguments)
    grid = HyperCommGrid([2, 2], ["tp", "dp"])
    for name, shape, message in (("e", [3], "has 3 ranks, but the grid has 4"), ("f", [2, 2], "2 sizes for 1 names")):
        with pytest.raises(accord.InvalidArgument, match=message):
            grid.register_view(name, shape, ["ep"])
    with pytest.raises(accord.NotFound, match='no view "g"'):
        grid.get_rank_enum("tp", view="g")


def options_in_grid(group):
    import accord.mesh as meshes

    grid = meshes.HyperCommGrid([2, 1], ["tp", "dp"], backend="nccl")
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    made = grid.create_pg("tp", pg_options=options, group_desc="TENSORS")
    assert made.group_desc == "TENSORS"
    fates = [(one["key"], one["option"], one["value"], one["fate"]) for one in grid.report()]
    try:
        grid.create_pg("dp", pg_options=options, strict=True)
    except accord.Unsupported as error:
        refused = str(error)
    grid.close()
    return fates, grid.report(), refused


def test_a_grid_accepts_megatron_cores_keywords_and_reports_their_effect(torch_ranks):
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no options of NCCL's groups")
    for fates, left, refused in torch_ranks(2).run(options_in_grid):
        assert fates == [
            ("tp", "backend", "nccl", "translated"),
            ("tp", "is_high_priority_stream", "True", "not applicable"),
        ]
        assert left == []
        assert "is_high_priority_stream has no effect" in refused
