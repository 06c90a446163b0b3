"""The switch ACCORD_ROUTE: programs that know nothing of accord, with the switch on and off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import accord, program_environment, python_file

pytest.importorskip("torch")

CALLS = Path(__file__).parent / "route_calls.py"
RANKS = 3


def run(folder: Path, *options: str, **variables: str) -> list[dict]:
    folder.mkdir()
    environment = program_environment(**variables)
    result = accord("run", *options, "-n", RANKS, CALLS, folder, env=environment, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    outcomes = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    outcomes[0]["stderr"] = result.stderr
    return outcomes


@pytest.fixture(scope="module")
def off(tmp_path_factory) -> list[dict]:
    return run(tmp_path_factory.mktemp("route") / "off")


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> list[dict]:
    return run(tmp_path_factory.mktemp("route") / "report", "--route=report")


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        pytest.param((), {"ACCORD_ROUTE": "1"}, id="variable", marks=pytest.mark.slow),
        pytest.param(("--route",), {}, id="option", marks=pytest.mark.slow),
        pytest.param(("--route=report",), {}, id="option with report"),
        pytest.param(
            ("--route",), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, id="option without autoload", marks=pytest.mark.slow
        ),
    ],
)
def test_more_than_twenty_calls_give_the_same_results_with_the_switch_on(off, reported, options, variables, tmp_path):
    on = reported if options == ("--route=report",) else run(tmp_path / "on", *options, **variables)
    for rank in range(RANKS):
        assert len(on[rank]["results"]) > 20
        assert on[rank]["results"] == off[rank]["results"]
        assert on[rank]["backend"] == off[rank]["backend"] == "gloo"
        assert "accord.torch.process_group" in on[rank]["modules"]
        groups = on[rank]["report"]
        assert groups[0]["ranks"] == RANKS and {group["asked"] for group in groups} == {"gloo"}
        assert all(group["cpu"] == "accord" and not group["others"] for group in groups)
        assert "init_process_group" in on[rank]["functions_of_others"]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        pytest.param((), {}, id="unset"),
        pytest.param((), {"ACCORD_ROUTE": "0"}, id="0", marks=pytest.mark.slow),
        pytest.param(("--route=off",), {"ACCORD_ROUTE": "1"}, id="--route=off", marks=pytest.mark.slow),
    ],
)
def test_with_the_switch_off_accord_is_not_loaded_and_torch_is_unchanged(off, options, variables, tmp_path):
    without = run(tmp_path / "without", TORCH_DEVICE_BACKEND_AUTOLOAD="0")[0]
    assert without["modules"] == []
    for outcome in off if not options and not variables else run(tmp_path / "off", *options, **variables):
        assert outcome["modules"] == ["accord_autoload"]
        assert outcome["functions_of_others"] == without["functions_of_others"]
        assert outcome["replaced"] == []
        assert "report" not in outcome


def test_the_report_is_printed_at_exit(reported):
    text = reported[0]["stderr"]
    assert "torch.distributed was routed; " in text
    assert "0 (default_pg): 3 ranks, asked for gloo; cpu accord, by torch.distributed" in text
    assert "timeout=0:01:00: applied, to the group's calls" in text


WRITTEN_FOR_GPUS = """
import json, os, torch, torch.distributed as dist
from torch.distributed import new_group
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
value = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(value)
options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.max_ctas = 8
some = new_group([0, 1], backend="nccl", pg_options=options)
both = new_group(backend="cpu:gloo,cuda:nccl")
if dist.get_rank() < 2:
    dist.all_reduce(value, group=some)
dist.barrier(group=both, device_ids=[0])
dist.all_reduce(value, group=both)
found = [None] * 3
dist.all_gather_object(found, value.tolist())
assert dist.get_backend(both) == "cpu:gloo,cuda:nccl" and dist.get_backend_config(both) == "cpu:accord"
import accord.torch.route
assert accord.torch.route.installed()
if dist.get_rank() == 0:
    print(json.dumps([found, accord.torch.route.report()]))
dist.destroy_process_group()
"""


def test_a_gpu_program_runs_on_cpu_ranks_and_its_options_are_reported(tmp_path):
    program = python_file(tmp_path, WRITTEN_FOR_GPUS)
    result = accord("run", "--route", "-n", 3, program, env=program_environment(), timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("[0] [["))
    found, groups = json.loads(line.removeprefix("[0] "))
    assert found == [[12.0 + 12 + 6] * 3] * 3
    fates = [{option["option"]: option["fate"] for option in group["options"]} for group in groups]
    assert fates[0] == {"timeout": "applied", "device_id": "not applicable"}
    assert fates[1] == {"timeout": "applied", "is_high_priority_stream": "not applicable", "max_ctas": "not applicable"}
    assert [group["asked"] for group in groups] == ["nccl", "nccl", "cpu:gloo,cuda:nccl"]


WITH_A_MESH = """
import torch, torch.distributed as dist
from accord.mesh import MeshPlan, TorchMesh
dist.init_process_group("gloo")
with TorchMesh.create(MeshPlan("tp=2", world_size=2)) as mesh:
    group = mesh.group("tp")
    assert dist.get_backend(group) == "gloo" and dist.get_backend_config(group) == "cpu:accord"
    dist.monitored_barrier(group)  # torch knows it by gloo's name
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_groups_of_a_mesh_have_the_backend_name_that_the_program_requested(tmp_path):
    program = python_file(tmp_path, WITH_A_MESH)
    result = accord("run", "--route", "-n", 2, program, env=program_environment(), timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


SPAWNED = """
import sys, torch, torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value[0] == 2 and type(dist.group.WORLD).__module__ == "accord.torch.process_group"
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def test_child_processes_are_routed_too_and_only_rank_0_reports(tmp_path):
    program = python_file(tmp_path, SPAWNED)
    command = [sys.executable, program, tmp_path / "store"]
    environment = program_environment(ACCORD_ROUTE="report")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("torch.distributed was routed") == 1
    assert "0 (default_pg): 2 ranks, asked for gloo" in result.stderr


def test_an_invalid_value_is_rejected(tmp_path):
    program = python_file(tmp_path, "import torch")
    environment = program_environment(ACCORD_ROUTE="yes")
    result = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode != 0
    assert 'ACCORD_ROUTE is "yes": "1" routes torch.distributed over accord' in result.stderr
    refused = accord("run", "--route=maybe", program)
    assert refused.returncode == 2
    assert "maybe not in {on,off,report}" in refused.stderr


OTHER_BACKENDS = """
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
dist.all_reduce(torch.ones(2))
import accord.torch.route
assert accord.torch.route.report() == []
dist.destroy_process_group()
dist.init_process_group("accord", store=dist.HashStore(), rank=0, world_size=1)
assert accord.torch.communicator().size == 1 and accord.torch.route.report() == []
"""


def test_other_backends_are_not_replaced(tmp_path):
    program = python_file(tmp_path, OTHER_BACKENDS)
    environment = program_environment(ACCORD_ROUTE="1")
    result = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr


# torchcomms is built from source. torch.distributed uses it in the same way whether or not it is installed.
THROUGH_TORCHCOMMS = """
import os, sys, types, torch
requests = []
class Comm:
    def __init__(self, *arguments, **keywords):
        requests.append((arguments, keywords, os.environ["TORCHCOMM_RANK"], os.environ["TORCHCOMM_SIZE"]))
        raise RuntimeError("seen")
import torch.distributed as dist
c10d = dist.distributed_c10d
c10d._TORCHCOMM_AVAILABLE = c10d.dist_config.use_torchcomms = True
c10d.new_comm, c10d.FlightRecorderHook, c10d._BackendWrapper = Comm, None, None
from datetime import timedelta
def foreign():  # a group of ranks of another job
    c10d._new_process_group_helper(3, 1, [], "gloo", dist.HashStore(), group_name="weights", timeout=timedelta(seconds=60))
def default():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=2, world_size=5)
for make in (foreign, default, foreign):
    try:
        make()
    except RuntimeError as error:
        assert str(error) == "seen"
assert all(arguments == ("accord", torch.device("cpu")) for arguments, *_ in requests), requests
assert [(rank, size) for _, _, rank, size in requests] == [("1", "3"), ("2", "5"), ("1", "3")], requests
assert (os.environ["TORCHCOMM_RANK"], os.environ["TORCHCOMM_SIZE"]) == ("2", "5")
"""


def _succeeds_with_the_switch(program):
    environment = program_environment(ACCORD_ROUTE="1")
    result = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_torchcomms_is_requested_to_use_accord_and_given_the_rank(tmp_path):
    import torch.distributed as dist

    if not hasattr(dist.distributed_c10d, "_use_torchcomms_enabled"):
        pytest.skip("this torch has no torchcomms")
    if hasattr(dist.distributed_c10d, "_torchcomms_handles_backend"):
        pytest.skip("this torch asks torchcomms itself what it has, which needs the real one")
    _succeeds_with_the_switch(python_file(tmp_path, THROUGH_TORCHCOMMS))


EVERY_CALL_FORM = """
import inspect, torch, torch.distributed as dist
from datetime import timedelta
c10d = dist.distributed_c10d
dist.init_process_group("gloo", None, timedelta(seconds=60), 1, 0, dist.HashStore(), "", None, None)
make = c10d._new_process_group_helper
names = list(inspect.signature(make).parameters)
needed = {"group_size": 1, "group_rank": 0, "global_ranks_in_group": [], "backend": "gloo", "store": dist.HashStore()}
for count in range(len(needed) + 1):
    arguments = needed | {"group_name": f"made {count}", "timeout": timedelta(seconds=60)}
    group, _ = make(*[arguments.pop(name) for name in names[:count]], **arguments)
    c10d._world.pg_group_ranks[group] = {0: 0}
    values = torch.ones(2)
    dist.broadcast(values, 0, group=group)
    assert type(group).__module__ == "accord.torch.process_group", group
for wrong in ({}, needed | {"nothing": 1}):
    try:
        make(**wrong)
    except TypeError as error:
        assert "_new_process_group_helper()" in str(error), error
    else:
        raise AssertionError(wrong)
c10d._set_pg_timeout(timeout=timedelta(seconds=30), group=dist.group.WORLD)
with c10d._coalescing_manager(group=None, device=torch.device("cpu"), async_ops=True):
    pass
import accord.torch.route
groups = accord.torch.route.report()
assert [group["description"] for group in groups] == ["default_pg"] + ["undefined"] * 6, groups
"""


def test_replaced_functions_accept_every_call_form_of_torch(tmp_path):
    _succeeds_with_the_switch(python_file(tmp_path, EVERY_CALL_FORM))


WITH_FOREIGN_RANKS = """
import os, subprocess, sys, torch, torch.distributed as dist
from datetime import timedelta
c10d = dist.distributed_c10d
port = int(os.environ["MASTER_PORT"]) + 11

def weights(rank):
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=timedelta(seconds=30))
    group, _ = c10d._new_process_group_helper(2, rank, [], "accord", store, group_name="weights", timeout=timedelta(seconds=30))
    c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    values = torch.full((4,), float(rank + 1))
    dist.broadcast(values, 0, group=group)
    assert values.tolist() == [1.0] * 4

if len(sys.argv) > 1:  # another job's rank 1
    sys.exit(weights(1))
dist.init_process_group("accord", timeout=timedelta(seconds=30))
if dist.get_rank() == 1:
    dist.destroy_process_group()
    sys.exit(0)
import accord.torch
while accord.torch.communicator().gone() != [1]:
    pass
alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
other = subprocess.Popen([sys.executable, __file__, "1"], env=alone)
weights(0)
assert other.wait(60) == 0
"""


@pytest.mark.slow
def test_a_group_with_ranks_of_another_job_does_not_use_the_default_group(tmp_path):
    program = python_file(tmp_path, WITH_FOREIGN_RANKS)
    result = accord("run", "-n", 2, program, env=program_environment(), timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
