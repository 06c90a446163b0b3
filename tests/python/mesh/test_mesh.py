"""Mesh plans: every rank list compared with megatron-core's own parallel_state, and the Python interface."""

import math
import os
import random
import re
import time

import numpy as np
import pytest
from accord_command import ROOT, on_ranks, python_file
from accord_command import accord as accord_command
from tiers import mostly_slow

import accord
from accord.mesh import MeshPlan

torch = pytest.importorskip("torch")


class Megatron:
    """megatron-core's parallel_state without its process groups: records the groups that it would create."""

    def __init__(self, monkeypatch):
        from megatron.core import parallel_state

        import accord.megatron  # noqa: F401

        self.state = parallel_state
        self.made: dict[str, list[list[int]]] = {}
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: self.world_size)
        monkeypatch.setattr(parallel_state, "create_group", self.create)

    def create(self, ranks, group_desc, **_):
        family = accord.megatron.family_of(group_desc)
        if family is None:  # a group across optimizer instances, which Megatron never uses
            assert group_desc == "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_GLOO_L1"
        else:
            self.made.setdefault(family, []).append(sorted(ranks))
        return object()

    def groups(self, world_size: int, **arguments) -> dict[str, list[list[int]]]:
        self.world_size, self.made = world_size, {}
        for name, value in vars(self.state).items():
            if name.startswith("_") and name.isupper() and value is not None:
                setattr(self.state, name, {} if name == "_HYBRID_DP_CP_GROUPS" else None)
        self.state.initialize_model_parallel(**arguments)
        return self.made


ARGUMENTS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "optimizer_instances": "num_distributed_optimizer_instances",
    "hierarchical_cp": "hierarchical_context_parallel_sizes",
    "hybrid_cp": "hybrid_context_parallel",
    "order": "order",
    "all_gather_group": "create_all_gather_group",
    "gloo_groups": "create_gloo_process_groups",
}


def divisor(choose: random.Random, number: int) -> int:
    return choose.choice([d for d in range(1, number + 1) if number % d == 0])


def configuration(choose: random.Random) -> tuple[int, dict]:
    """Returns random sizes that often fit together."""
    world_size = choose.choice([1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256])
    tp = divisor(choose, min(world_size, 8) if world_size % 8 == 0 else world_size)
    pp = divisor(choose, world_size // tp)
    cp = divisor(choose, world_size // tp // pp)
    etp = choose.choice([tp, 1, divisor(choose, world_size // pp)])
    ep = divisor(choose, world_size // pp // etp) if world_size // pp % etp == 0 else 1
    sizes = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp}
    sizes["order"] = choose.choice(
        ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "tp-cp-pp-ep-dp", "-".join(permutation(choose))]
    )
    dp = world_size // (tp * pp * cp)
    if choose.random() < 0.4:
        sizes["optimizer_instances"] = divisor(choose, dp * cp)
    if cp > 1 and choose.random() < 0.5:
        first = divisor(choose, cp)
        second = divisor(choose, cp // first)
        sizes["hierarchical_cp"] = [first, second, cp // first // second]
    sizes["hybrid_cp"] = choose.random() < 0.2
    sizes["all_gather_group"] = choose.random() < 0.2
    sizes["gloo_groups"] = choose.random() < 0.5
    return world_size, sizes


def permutation(choose: random.Random) -> list[str]:
    axes = ["tp", "cp", "ep", "dp", "pp"]
    choose.shuffle(axes)
    return axes


def test_every_rank_list_matches_megatron(monkeypatch):
    """Compares 600 configurations that both accept. Each rejects what the other rejects, apart from known
    differences."""
    megatron, choose = Megatron(monkeypatch), random.Random(8)
    compared = refused = 0
    differences = []
    while compared < 600:
        world_size, sizes = configuration(choose)
        try:
            expected = megatron.groups(world_size, **{ARGUMENTS[name]: value for name, value in sizes.items()})
        except (AssertionError, RuntimeError) as error:
            expected, why = None, str(error)
        try:
            plan = MeshPlan(world_size=world_size, **sizes)
        except accord.InvalidArgument as error:
            if expected is not None:
                differences.append((world_size, sizes, str(error)))
            refused += 1
            continue
        if expected is None:
            # Stages consist of the same ranks for dense layers and experts, though their data-parallel sizes differ.
            assert "When not using pp-last rank ordering" in why, (world_size, sizes, why)
            continue
        compared += 1
        names = {family.name for family in plan.families}
        assert names == set(expected), (world_size, sizes)
        for name in names:
            assert plan.all_groups(name) == expected[name], (name, world_size, sizes)
    assert refused > 50
    # Megatron creates wrong groups for these: the last hybrid group of a row is smaller than the others.
    for world_size, sizes, message in differences:
        neighbours = world_size // sizes["tp"] // sizes["pp"]
        largest = 2 ** (int(math.log2(neighbours)) - 1)
        assert sizes["hybrid_cp"], (world_size, sizes, message)
        assert "hybrid_cp needs dp * cp" in message
        assert neighbours % largest or neighbours % 2


PAGE = (ROOT / "docs/mesh.md").read_text()


@pytest.mark.parametrize("size", mostly_slow([2, 4], 2))
def test_the_whole_guide_runs(tmp_path, size):
    program = tmp_path / "guide.py"
    program.write_text("".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)))
    result = accord_command("run", "-n", str(size), str(program))
    assert result.returncode == 0, result.stdout + result.stderr


def create_and_use(comm, sizes, world_size, strict=False):
    from accord.mesh import Mesh, MeshPlan

    with Mesh.create(MeshPlan(sizes, world_size=world_size), comm, strict=strict) as mesh:
        sums = {}
        for family in mesh.plan.families:
            group = mesh.group(family.name)
            value = np.array([1 << comm.rank])
            sums[family.name] = None if group is None else int(group.all_reduce(value) or value[0])
        return sums


def test_processes_compute_in_every_group(ranks):
    sizes = "tp=2,ep=2,etp=1"
    plan = MeshPlan(sizes, world_size=4)
    for rank, sums in enumerate(ranks(4).run(create_and_use, sizes, 4)):
        assert len(sums) == len(plan.families)
        for family, value in sums.items():
            own = plan.ranks_of(family, rank)
            assert value == (sum(1 << r for r in own) if own else None), family


OVER_HOSTS = """
import os
os.environ["ACCORD_HOST_ID"] = f"host{int(os.environ['RANK']) // 2}"
import numpy as np
import accord
from accord.mesh import Mesh, MeshPlan
comm = accord.Communicator.from_environment()
plan = MeshPlan("tp=2,pp=2,ep=2,etp=1", world_size=8)
with Mesh.create(plan, comm) as mesh:
    for size in (3, 1000, 300000):
        for family in plan.families:
            group = mesh.group(family.name)
            if group is not None:
                values = np.full(size, 1 << comm.rank)
                group.all_reduce(values)
                assert (values == sum(1 << rank for rank in plan.ranks_of(family.name, comm.rank))).all(), family
    comm.barrier()
print("done")
"""


def test_groups_work_within_and_across_hosts(tmp_path):
    assert on_ranks(8, python_file(tmp_path, OVER_HOSTS)).count("done") == 8


def create_with_another_plan(comm, sizes):
    from accord.mesh import Mesh, MeshPlan

    try:
        Mesh.create(MeshPlan(sizes[comm.rank], world_size=comm.size), comm)
    except accord.Mismatch as error:
        return str(error), list(error.ranks)


def test_plans_that_differ_are_reported_on_every_rank(ranks):
    first, second, third = ranks(3).run(create_with_another_plan, ["tp=3", "tp=3", "cp=3"])
    for message, named in (first, second):
        assert named == [2]
        assert "rank 2 has cp=3" in message
        assert "tp=3" in message
    assert third[1] == [0]


def die_during_creation(comm, dies, folder):
    from accord.mesh import Mesh, MeshPlan

    plan = MeshPlan("tp=2", world_size=comm.size)
    comm.barrier()
    began = time.monotonic()
    if comm.rank == 1:
        if dies:
            os.kill(os.getpid(), 9)
        while len(os.listdir(folder)) < comm.size - 1 and time.monotonic() - began < 30:
            time.sleep(0.01)
        return None
    try:
        Mesh.create(plan, comm, timeout=3)
    except accord.Error as error:
        os.mkdir(os.path.join(folder, str(comm.rank)))
        return type(error).__name__, list(error.ranks), time.monotonic() - began


@pytest.mark.alone
@pytest.mark.parametrize(("dies", "kind", "seconds"), [(True, "PeerLost", 1.0), (False, "Timeout", 6.0)])
def test_a_dead_or_missing_rank_is_named(dies, kind, seconds, fresh_ranks, tmp_path):
    outcomes = fresh_ranks(4).outcomes(die_during_creation, dies, str(tmp_path))
    for rank in (0, 2, 3):
        name, named, took = outcomes[rank].value
        assert name == kind
        assert named == [1]
        assert took < seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp": 3, "world_size": 8}, "tp = 3, which does not divide the 8 ranks"),
        ({"sizes": "tp=2,tp=2", "world_size": 8}, '"tp" appears twice'),
        ({"xp": 3, "world_size": 8}, 'unknown axis or setting "xp"'),
        ({"world_size": 8, "options": {"dpp": {}}}, 'did you mean "dp"'),
        ({"world_size": 8, "options": {"dp": {"max_cta": 1}}}, 'did you mean "max_ctas"'),
        ({"world_size": 8, "options": {"dp": {"max_ctas": "many"}}}, "max_ctas is 'many', which has the wrong type"),
        ({"world_size": 8, "options": {"dp": {"max_ctas": True}}}, "max_ctas is True, which has the wrong type"),
        ({"world_size": 8, "options": {3: {}}}, "a key of options is 3, expected a str"),
        ({"world_size": 8, "options": {"dp": {3: 1}}}, 'the name of an option of "dp" is 3, expected a str'),
        ({"world_size": 8, "options": [1]}, "options are [1], expected a dict"),
        (
            {"world_size": 8, "options": {"dp": {"timeout_seconds": 1e10}}},
            "timeout_seconds is 10000000000, expected 0.001 to",
        ),
        ({"world_size": 8, "options": {"dp": 8}}, 'options of "dp" are not a dict'),
    ],
)
def test_invalid_plans_are_rejected(arguments, message):
    with pytest.raises(accord.InvalidArgument, match=re.escape(message)):
        MeshPlan(**arguments)


def test_nonexistent_ranks_are_rejected():
    plan = MeshPlan("tp=2,rank_offset=8", world_size=4)
    for rank in (7, 12):
        with pytest.raises(accord.InvalidArgument, match=f"rank {rank} does not exist; the ranks are 8 to 11"):
            plan.groups_of(rank)
    with pytest.raises(accord.NotFound, match='did you mean "tp_cp"'):
        plan.all_groups("tp-cp")


@pytest.mark.parametrize("size", [2.0, None, 1 << 70, [1, 2.5]])
def test_a_size_that_is_not_an_integer_is_named(size):
    with pytest.raises(accord.InvalidArgument, match=r"mesh: tp is .*, expected a 64-bit integer"):
        MeshPlan(tp=size, dp=2)
    with pytest.raises(accord.InvalidArgument, match=r'mesh: axis "a" is .*, expected a 64-bit integer'):
        MeshPlan.of_axes({"a": size}, [["a"]])
