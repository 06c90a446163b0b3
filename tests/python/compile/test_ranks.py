"""Compiled models on several ranks: sharded by torch's own parallel styles, with their own collectives, over
groups of any backend."""

import re

import pytest
from accord_command import ROOT, on_ranks, python_file
from ranks import TORCH_PROGRAM
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


def divided_model(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model().eval()
    inputs = [torch.rand(rows, 8) for rows in (4, 3, 6)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        compiled = torch.compile(model, backend="accord", dynamic=True, options={"require_full_compilation": True})
        got = [compiled(x) for x in inputs]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    (report,) = accord.compilation_report(model)
    return report.builds, [(one.op, one.where) for one in report.collectives], [one.numpy().tobytes() for one in got]


@pytest.mark.parametrize("backend", mostly_slow(["gloo", "accord"], "accord"))
def test_a_model_sharded_by_parallelize_module_runs_in_one_engine_with_any_backend(torch_ranks, backend):
    first, second = torch_ranks(2).run(divided_model, backend=backend, deadline=120)
    assert first == second  # bit-identical on both ranks
    assert first[:2] == (1, [("all_reduce", "engine")])


def all_collectives(group):

    class Model(torch.nn.Module):
        def __init__(self, turned):
            super().__init__()
            self.turned = turned

        def forward(self, x):
            ops = torch.ops._c10d_functional
            wait = ops.wait_tensor
            name = group.group_name
            total = wait(ops.all_reduce(x, "sum", name))
            largest = wait(ops.all_reduce(x * 2, "max", name))
            average = wait(ops.all_reduce(x, "avg", name))
            rows = wait(ops.all_gather_into_tensor(self.turned(x), 2, name))
            part = wait(ops.reduce_scatter_tensor(x + 1, "sum", 2, name))
            own = wait(ops.broadcast(x - 1, 1, name))
            halves = wait(ops.all_to_all_single(x, [2, 2], [2, 2], name))
            uneven = [1, 3] if group.rank() == 0 else [3, 1]
            thirds = wait(ops.all_to_all_single(x, uneven, uneven, name))
            return total, largest, average, rows, part, own, halves, thirds

    x = torch.arange(24.0).view(4, 6) * (group.rank() + 1)
    with torch.no_grad():
        expected = Model(lambda x: x.t().contiguous())(x)  # gloo in torch 2.11 requires contiguous tensors
        options = {"min_block_size": 1, "require_full_compilation": True, "strict_collectives": True}
        compiled = accord.compile(Model(torch.t).eval(), (x,), options)
        got = compiled(x)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)
    return len(compiled.report.collectives), {one.group for one in compiled.report.collectives}


def test_functional_collectives_and_their_waits_become_steps_of_the_engine(torch_ranks):
    assert torch_ranks(2).run(all_collectives, backend="gloo") == [(8, {"world"})] * 2


def sum_with_options(group, folder):
    import os

    os.environ["XDG_CACHE_HOME"] = folder

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64, bias=False)

        def forward(self, x):
            ops = torch.ops._c10d_functional
            part = self.down(torch.nn.functional.gelu(self.up(x)))
            return ops.wait_tensor(ops.all_reduce(part, "sum", group.group_name)) + x

    torch.manual_seed(group.rank())
    model = Model().eval()
    x = torch.linspace(-1, 1, 128 * 64).view(128, 64)  # 32 KB
    found = {}
    with torch.no_grad():
        for name, options in (("exact", {}), ("halves", {"overlap_rows": 16}), ("codes", {"all_reduce_dtype": "int8"})):
            for cache in (False, True):
                compiled = accord.compile(model, (x,), {"engine_cache": cache, "min_block_size": 1, **options})
                found[name, cache] = compiled(x)
        part = model.down(torch.nn.functional.gelu(model.up(x)))
        largest = part.abs().view(128, 64).amax(1, keepdim=True)
        dist.all_reduce(largest, group=group)
        error = (found["codes", False] - found["exact", False]).abs()
        errors = []
        for options in ({"overlap_rows": 16 * group.rank()}, {"all_reduce_dtype": "int8" if group.rank() else None}):
            try:
                accord.compile(model, (x,), {"engine_cache": False, "min_block_size": 1, **options})(x)
            except accord.Mismatch:
                errors.append("Mismatch")
    return {
        "same": all(found[name, False].equal(found[name, True]) for name in ("exact", "halves", "codes")),
        "halves are exact": found["exact", False].equal(found["halves", False]),
        "codes are not": error.max().item() > 1e-4,
        "but near": bool((error <= 1.001 * largest / 127 + 1e-5).all()),
        "ranks agree": errors,
        "bits": found["codes", False].numpy().tobytes(),
    }


@pytest.mark.slow
def test_options_decide_how_sums_are_transferred(fresh_ranks, tmp_path):
    ranks = fresh_ranks(2, program=TORCH_PROGRAM)
    first, second = ranks.run(sum_with_options, str(tmp_path), backend="gloo", deadline=120)
    assert first == second  # bit-identical on both ranks
    names = ("same", "halves are exact", "codes are not", "but near")
    assert {name: first[name] for name in names} == dict.fromkeys(names, True)
    assert first["ranks agree"] == ["Mismatch", "Mismatch"]


def collectives_outside(group):
    class Model(torch.nn.Module):
        def forward(self, x):
            ops = torch.ops._c10d_functional
            return ops.wait_tensor(ops.all_reduce(x.exp(), "sum", group.group_name)).log()

    x = torch.ones(3)
    left = {"torch_executed_ops": {"_c10d_functional.all_reduce"}, "min_block_size": 1}
    with torch.no_grad():
        compiled = accord.compile(Model().eval(), (x,), left)
        torch.testing.assert_close(compiled(x), Model()(x))
        where = [one.where for one in compiled.report.collectives]
        try:
            accord.compile(Model().eval(), (x,), {**left, "strict_collectives": True})
        except accord.ExportError as error:
            errors = [str(error).split("\n")[0]]
        try:
            accord.export(Model().eval(), (x,), path="never.accord", options=left)
        except accord.ExportError as error:
            errors.append(str(error).split(":")[0])
    return where, errors


def test_a_collective_outside_the_engine_is_reported_and_rejected_in_strict_mode(torch_ranks):
    errors = [
        "strict_collectives, but these stay in PyTorch: all_reduce",
        "_c10d_functional.all_reduce.default stays in PyTorch, where a saved program has no groups",
    ]
    assert torch_ranks(2).run(collectives_outside, backend="gloo") == [(["pytorch"], errors)] * 2


def groups_at_run_time(group):
    import gc
    import weakref

    from accord import process_groups

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            ops = torch.ops._c10d_functional
            return ops.wait_tensor(ops.all_reduce(self.linear(x), "sum", group.group_name))

    def refused(kind, call, *arguments):
        try:
            call(*arguments)
        except kind as error:
            return str(error)
        raise AssertionError(f"no {kind}")

    torch._dynamo.reset()
    gc.collect()  # releases the engines of earlier tests
    x = torch.ones(2, 4)
    torch.manual_seed(0)
    models = [Sum().eval(), Sum().eval()]
    with torch.no_grad():
        expected = [model.linear(x) * 2 for model in models]
        compiled = [accord.compile(model, (x,), {"min_block_size": 1}) for model in models]

        def check():
            for one, other in zip(modules, expected, strict=True):
                torch.testing.assert_close(one()(x), other)

        modules = [weakref.ref(one) for one in compiled]
        check()
        held = list(process_groups._shared.values())
        assert len(held) == 1, held  # one communicator for both engines
        # A second group of the same ranks: a group for one module, a name for both, a group for a module that holds
        # both, and a group for all.
        other = dist.new_group([0, 1], group_desc="other")
        holder = torch.nn.Module()
        holder.first, holder.plain = compiled[0], [compiled[1]]
        for groups, module in ((other, compiled[0]), ({"world": other}, compiled), (other, holder), (other, None)):
            with accord.distributed_context(groups, module) as given:
                assert given is module
                assert len(process_groups._shared) == 2, (groups, list(process_groups._shared))
                check()
            check()
        # Permanently: set_groups finds the compiled modules by the weights of the models that were compiled.
        accord.set_groups(models, other)
        check()
        del held
        gc.collect()
        names = list(process_groups._shared)
        assert names == [f"accord/engines/{other.group_name}/0"], names
        # A group of another size, one with another rank order, and one under an unknown name.
        alone = dist.new_subgroups(1)[0]
        mine = accord.Communicator.create(
            dist.PrefixStore("turned", process_groups._meeting_store(group)), 1 - group.rank(), 2
        )
        errors = [
            refused(accord.Mismatch, accord.set_groups, models, alone),
            refused(accord.Mismatch, accord.set_groups, models, mine),
            refused(accord.InvalidArgument, accord.set_groups, models, {"wrld": other}),
        ]
        check()
        del compiled, holder, given, module
        gc.collect()
        assert not process_groups._shared, list(process_groups._shared)
    return errors


def test_engines_are_bound_and_rebound_at_run_time_and_share_one_communicator_per_group(torch_ranks):
    for rank, (size, order, name) in enumerate(torch_ranks(2).run(groups_at_run_time, backend="gloo")):
        assert f"made for rank {rank} of 2, but this is rank 0 of 1" in size
        assert f"made for rank {rank} of 2, but this is rank {1 - rank} of 2" in order
        assert 'the engine has a group "world", but the groups given are "wrld"; is it "wrld"?' in name


def package_groups(comm, path):
    import torch

    module = accord.Engine.load(path, {"tp": (comm.rank, comm.size)}).module()
    x = torch.ones(2, 8)
    try:
        module(x)
    except accord.WrongState as error:
        unbound = str(error)
    holder = torch.nn.Module()
    holder.model = module
    with accord.distributed_context({"tp": comm}, holder):
        inside = module(x).numpy()
    try:
        module(x)
    except accord.WrongState:
        accord.set_groups(module, comm)
    lasting = module(x).numpy()
    # An engine that was loaded with its groups has them again after the block.
    again = accord.load(path, {"tp": comm}).module()
    other = comm.split(0, name="other")
    with accord.distributed_context(other, again):
        within = again(x).numpy()
    return unbound, [inside, lasting, within, again(x).numpy()]


def test_a_package_runs_only_when_bound_and_takes_its_groups_from_a_with_block(fresh_ranks, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).eval()
    x = torch.ones(2, 8)
    sharding = {"0": accord.Column(unit=8), "2": accord.Row(unit=8)}
    path = str(accord.export(model, (x,), path=tmp_path / "model.accord", sharding=sharding))
    with torch.no_grad():
        expected = model(x)
    for unbound, outputs in fresh_ranks(2).run(package_groups, path, torch=True):
        assert "this engine is not bound to its groups (tp)" in unbound
        for output in outputs:
            torch.testing.assert_close(torch.from_numpy(output), expected)


def bind_same_engines(comm, path):
    import gc

    import torch

    module = accord.load(path, {"tp": comm}).module()
    x = torch.ones(2, 8)
    outputs = [module(x).numpy()]
    garbage = [accord.load(path, {"tp": comm}).module()]
    garbage.append(garbage)
    if comm.rank == 0:  # rank 0 still has the engine: it collects no garbage
        gc.disable()
    del garbage
    if comm.rank > 0:
        gc.collect()
    other = comm.split(0, name="other")
    with accord.distributed_context({"tp": other}):
        outputs.append(module(x).numpy())
    turned = comm.split(0, -comm.rank, name="turned")  # rank 1 keeps its position
    try:
        with accord.distributed_context({"tp": turned}, module):
            refused = ""
    except accord.Mismatch as error:
        refused = str(error)
    return [*outputs, module(x).numpy()], refused


@pytest.mark.slow
def test_ranks_bind_the_same_engines_and_all_report_a_rank_that_cannot(fresh_ranks, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    x = torch.ones(2, 8)
    sharding = {"0": accord.Column(unit=8), "2": accord.Row(unit=8)}
    path = str(accord.export(model, (x,), path=tmp_path / "model.accord", sharding=sharding))
    with torch.no_grad():
        expected = model(x)
    for rank, (outputs, refused) in enumerate(fresh_ranks(3).run(bind_same_engines, path, torch=True, deadline=60)):
        for output in outputs:
            torch.testing.assert_close(torch.from_numpy(output), expected)
        own = f"made for rank {rank} of 3, but this is rank {2 - rank} of 3"
        assert (own if rank != 1 else 'could not get ready: group "tp" was loaded for rank') in refused


ENDS = """
import sys
import torch, torch.distributed as dist
import accord

class Sum(torch.nn.Module):
    def forward(self, x):
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(ops.all_reduce(x * 2, "sum", dist.group.WORLD.group_name))

dist.init_process_group(sys.argv[1])
x = torch.ones(3)
with torch.no_grad():
    compiled = accord.compile(Sum().eval(), (x,), {"min_block_size": 1})
    assert compiled(x).tolist() == [4.0] * 3
    end = sys.argv[2]
    if end == "group first":
        dist.destroy_process_group()
        assert compiled(x).tolist() == [4.0] * 3  # the communicator is the engine's own
    if end == "engine first":
        del compiled
        dist.destroy_process_group()
print("done", dist.is_initialized())
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "accord"])
@pytest.mark.parametrize("end", ["group first", "engine first", "neither"])
def test_programs_exit_cleanly_in_any_order_of_destruction(tmp_path, backend, end):
    text = on_ranks(2, python_file(tmp_path, ENDS), backend, end)
    assert len(re.findall(r"done (True|False)", text)) == 2


@pytest.mark.slow
def test_the_guide_runs(tmp_path):
    snippets = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/compile.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 7
    folder = f"folder = {str(tmp_path)!r}\n"
    program = python_file(tmp_path, folder + "\n".join(snippets) + "print('end', tuple(y.shape))\n")
    assert on_ranks(2, program).count("end (4, 16)") == 2
