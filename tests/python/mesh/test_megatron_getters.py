"""Megatron's getters over a mesh compared with megatron-core's own, with every keyword that they take, in one process
that acts as one rank of many."""

import contextlib
import importlib.util
import inspect
import itertools
import random
from types import SimpleNamespace
from unittest import mock

import pytest

dist = pytest.importorskip("torch.distributed")
pytest.importorskip("megatron.core")

import accord  # noqa: E402
from accord.mesh import megatron_overrides as overrides  # noqa: E402
from accord.mesh import parallel_state as ours  # noqa: E402
from accord.mesh import torch_mesh  # noqa: E402
from accord.mesh.megatron_arguments import MegatronArguments  # noqa: E402

VALUES = {"group_size": [None, 1, 2, 3, 4, 8, 16, 32], "vp_stage": [None, 0, 1, 2]}
REFUSALS = (AssertionError, IndexError, KeyError, TypeError, ZeroDivisionError, accord.Error)


def theirs():
    """Returns a fresh copy of megatron-core's module without earlier groups; destroy_model_parallel() leaves some
    behind."""
    found = importlib.util.find_spec("megatron.core.parallel_state")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def getters():
    """Yields the name of each getter, which is the same in both modules, and the parameters of megatron-core's."""
    for name, function in inspect.getmembers(theirs(), inspect.isfunction):
        is_getter = name.startswith(("get_", "is_pipeline", "is_rank", "has_", "model_parallel_is"))
        if is_getter and "memory_buffer" not in name and name != "get_nccl_options":
            yield name, inspect.signature(function).parameters


def readable(value):
    if isinstance(value, list | tuple):
        return [readable(each) for each in value]
    if isinstance(value, dist.ProcessGroup):
        return dist.get_process_group_ranks(value)
    return getattr(value, "ranks", value)


def answers(module):
    found = {}
    for name, parameters in getters():
        choices = [VALUES.get(parameter, [True, False]) for parameter in parameters]
        for values in itertools.product(*choices):
            keywords = dict(zip(parameters, values, strict=True))
            try:
                found[name, *keywords.items()] = readable(getattr(module, name)(**keywords))
            except REFUSALS:
                found[name, *keywords.items()] = "refused"
    return found


def random_configuration(generator):
    def divisor(number):
        return generator.choice([d for d in range(1, number + 1) if number % d == 0])

    world = generator.choice([1, 2, 4, 6, 8, 12, 16, 24, 32])
    tensor = divisor(min(world, 4) if world % 4 == 0 else divisor(world))
    pipeline = divisor(world // tensor)
    context = divisor(world // tensor // pipeline)
    replicas = world // tensor // pipeline // context
    expert_tensor = generator.choice([None, 1, tensor])
    per_stage = world // pipeline
    expert = divisor(per_stage // (expert_tensor or tensor))
    expert_replicas = per_stage // (expert_tensor or tensor) // expert
    both = [n for n in (1, 2, 4) if replicas * context % n == 0 and expert_replicas % n == 0]
    arguments = {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "context_parallel_size": context,
        "expert_model_parallel_size": expert,
        "expert_tensor_parallel_size": expert_tensor,
        "num_distributed_optimizer_instances": generator.choice(both),
        "order": generator.choice(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]),
        "create_gloo_process_groups": generator.choice([True, False]),
        "create_all_gather_group": generator.choice([True, False]),
    }
    if pipeline > 1 and generator.random() < 0.5:
        arguments["virtual_pipeline_model_parallel_size"] = generator.choice([2, 3])
    if context > 1 and generator.random() < 0.5:
        inner = divisor(context)
        arguments["hierarchical_context_parallel_sizes"] = [inner, context // inner]
    if generator.random() < 0.4:
        arguments["hybrid_context_parallel"] = True
    return world, generator.randrange(world), arguments


@contextlib.contextmanager
def rank_of(rank, world):
    """Makes torch.distributed behave as on that rank. Groups are created without any other rank."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    make = dist.new_group

    def new_group(ranks=None, *_, **keywords):
        return make(ranks, backend="fake", group_desc=keywords.get("group_desc"))

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        with mock.patch.object(dist, "new_group", new_group):
            yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def our_state(rank, world, arguments):
    """Sets up our parallel_state over a planned mesh, in which a group is represented by its ranks."""
    given = MegatronArguments(**arguments)
    planned = SimpleNamespace(plan=given.plan(world), rank=rank, has_groups=True, group=lambda _: None)
    mesh = torch_mesh.TorchMesh(planned, SimpleNamespace(shared=None), "mesh", None)
    virtual = given.virtual_pipeline_model_parallel_size
    with (
        mock.patch.object(torch_mesh, "from_communicator", lambda _, ranks, **__: SimpleNamespace(ranks=ranks)),
        mock.patch.object(torch_mesh.c10d, "is_registered", lambda _: True),
        mock.patch.object(ours, "_state", ours._State(mesh, given)),
        mock.patch.dict(overrides.sizes, {} if virtual is None else {"virtual": virtual}),
        mock.patch.dict(overrides.ranks, {} if virtual is None else {"virtual": 0}),
    ):
        yield


def test_getters_have_megatron_cores_parameters():
    for name, parameters in getters():
        mine = inspect.signature(getattr(ours, name)).parameters
        assert [(p.name, p.default) for p in mine.values()] == [(p.name, p.default) for p in parameters.values()], name


def test_getters_match_megatron_core_in_random_configurations():
    generator = random.Random(5)
    compared, calls, refused = 0, set(), []
    while compared < 100:
        world, rank, arguments = random_configuration(generator)
        with rank_of(rank, world):
            try:
                module = theirs()
                module.initialize_model_parallel(**arguments)
            except (AssertionError, RuntimeError):
                continue  # megatron-core rejects these sizes
            expected = answers(module)
            try:
                with our_state(rank, world, arguments):
                    found = answers(ours)
            except accord.InvalidArgument as error:
                refused.append((str(error), arguments))
                continue
            compared += 1
        for call, answer in expected.items():
            assert found[call] == answer, (world, rank, arguments, call)
            if answer != "refused":
                calls.add(call)
    assert all("hybrid" in text for text, _ in refused), refused
    assert len(calls) > 120


def test_before_groups_are_created_getters_fail_like_megatron_core():
    with rank_of(1, 4):
        expected, found = answers(theirs()), answers(ours)
    assert found == expected
    assert found["get_inter_distributed_optimizer_instance_group", ("check_initialized", False)] is None


def setters():
    """Yields the name of each setter, which is the same in both modules, and its parameter."""
    for name, function in inspect.getmembers(theirs(), inspect.isfunction):
        if name.startswith("set_"):
            yield name, list(inspect.signature(function).parameters)


def differences_after(module, calls):
    """Returns the getters' answers after each of the `calls`, made one after the other, and after all of them are
    undone."""
    found = []
    for name, value in calls:
        getattr(module, name)(value)
        found.append(answers(module))
    for name, _ in calls:
        getattr(module, name)(None)
    return [*found, answers(module)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("has_groups", [True, False])
def test_setters_change_the_getters_as_in_megatron_core(has_groups):
    names = list(setters())
    assert len(names) == 11
    for name, parameters in names:
        assert list(inspect.signature(getattr(ours, name)).parameters) == parameters, name
    arguments = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    # Sizes come first, and none of them equals the groups' size.
    calls = [(name, 1 + index % 2) for index, (name, _) in enumerate(sorted(names, key=lambda each: "rank" in each[0]))]
    for order in (calls, calls[::-1]):
        with rank_of(5, 8):
            module = theirs()
            if has_groups:
                module.initialize_model_parallel(**arguments)
            expected = differences_after(module, order)
            with our_state(5, 8, arguments) if has_groups else contextlib.nullcontext():
                found = differences_after(ours, order)
        for step, (theirs_now, ours_now) in enumerate(zip(expected, found, strict=True)):
            assert theirs_now == ours_now, order[: step + 1]
        assert expected[-1] != expected[-2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_destroy_model_parallel_resets_all_values():
    with rank_of(1, 4):
        before = answers(ours)
        for name, _ in setters():
            getattr(ours, name)(3)
        assert ours.get_tensor_model_parallel_rank() == 3 and answers(ours) != before
        ours.destroy_model_parallel()
        assert answers(ours) == before


def test_is_unitialized_exists_and_is_deprecated():
    for module in (theirs(), ours):
        with pytest.warns(DeprecationWarning):
            assert module.is_unitialized()
