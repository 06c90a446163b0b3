"""Meshes of torch.distributed's process groups: getters with megatron-core's names compared with its own, grids,
device meshes, failures."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util

import pytest
from ranks import TORCH_PROGRAM

import accord

torch = pytest.importorskip("torch")

from accord.mesh.megatron_arguments import MegatronArguments  # noqa: E402
from accord.mesh.options import group_options  # noqa: E402

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs the package megatron-core"
)


# Calls everything that the two modules have in common.


def all_getters(group, module_name, arguments, installs=False):
    import importlib
    import inspect
    import warnings

    # megatron-core's destroy_model_parallel() leaves groups in the module.
    module = importlib.reload(importlib.import_module(module_name))
    if installs:
        from accord import megatron

        megatron.install()
    module.initialize_model_parallel(**arguments)

    def readable(value):
        if isinstance(value, list | tuple):
            return [readable(each) for each in value]
        return dist.get_process_group_ranks(value) if isinstance(value, dist.ProcessGroup) else value

    answers = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if not name.startswith(("get_", "is_pipeline", "is_rank", "has_")) or "memory_buffer" in name:
            continue
        parameters = inspect.signature(function).parameters.items()
        flags = [p for p, known in parameters if isinstance(known.default, bool)]
        for number in range(1 << len(flags)):
            keywords = {flag: bool(number >> i & 1) for i, flag in enumerate(flags)}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    answers[f"{name} {keywords}"] = readable(function(**keywords))
            except (AssertionError, accord.Error, TypeError, KeyError):
                answers[f"{name} {keywords}"] = "refused"
    module.destroy_model_parallel()
    left = [name for name, value in vars(module).items() if isinstance(value, dist.ProcessGroup)]
    if installs:
        megatron.uninstall()
        assert module.initialize_model_parallel.__module__ == module_name
    return answers, left


CONFIGURATIONS = [
    {"tensor_model_parallel_size": 2, "create_gloo_process_groups": False},
    {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "order": "tp-cp-pp-ep-dp"},
    {"context_parallel_size": 2, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 2], "create_all_gather_group": True},
    {"num_distributed_optimizer_instances": 2, "expert_model_parallel_size": 2},
    {"hybrid_context_parallel": True, "create_gloo_process_groups": False},
]


@needs_megatron
@pytest.mark.parametrize("arguments", CONFIGURATIONS, ids=lambda a: "-".join(a))
def test_getters_match_megatron_core(torch_ranks, arguments):
    ours, theirs = "accord.mesh.parallel_state", "megatron.core.parallel_state"
    expected = torch_ranks(4).run(all_getters, theirs, arguments, backend="gloo", deadline=120)
    found = torch_ranks(4).run(all_getters, ours, arguments, backend="gloo", deadline=120)
    for rank in range(4):
        answers, left = found[rank]
        assert not left
        for call, answer in expected[rank][0].items():
            if call in answers:
                assert answers[call] == answer, (rank, call)
    common = set(found[0][0]) & set(expected[0][0])
    assert len(common) > 60


@needs_megatron
@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_megatron_core_gives_the_same_results_through_a_mesh(torch_ranks, backend):
    for arguments in CONFIGURATIONS:
        module = "megatron.core.parallel_state"
        expected = torch_ranks(4).run(all_getters, module, arguments, backend="gloo", deadline=120)
        found = torch_ranks(4).run(all_getters, module, arguments, True, backend=backend, deadline=120)
        for rank in range(4):
            assert found[rank][0] == expected[rank][0], (rank, arguments)
            assert not found[rank][1]


def refused_arguments(group, arguments, only_first):
    import accord.mesh

    began = time.monotonic()
    try:
        accord.mesh.initialize_model_parallel(**(arguments if not only_first or dist.get_rank() == 0 else {}))
    except accord.Error as error:
        accord.mesh.initialize_model_parallel(2)  # the failure has left nothing behind
        accord.mesh.destroy_model_parallel()
        return type(error).__name__, str(error), time.monotonic() - began


@pytest.mark.alone
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_model_parallel_size": 3}, "tp = 3, which does not divide the 4 ranks"),
        ({"order": "tp-tp-dp"}, "tp"),
        ({"order": "tp-xp-dp"}, "xp"),
        ({"virtual_pipeline_model_parallel_size": 2}, "requires a pipeline of more than one stage"),
        ({"tensor_model_parallel_size": 2.0}, "tensor_model_parallel_size is 2.0, expected an integer"),
        (
            {"distributed_timeout_minutes": "30"},
            "distributed_timeout_minutes is '30'; give a number above 0, at most 5256000",
        ),
        ({"distributed_timeout_minutes": 0}, "distributed_timeout_minutes is 0"),
        ({"distributed_timeout_minutes": float("inf")}, "distributed_timeout_minutes is inf"),
        ({"distributed_timeout_minutes": float("nan")}, "distributed_timeout_minutes is nan"),
        ({"distributed_timeout_minutes": True}, "distributed_timeout_minutes is True"),
        ({"high_priority_stream_groups": "dp"}, "is a str, expected a list of names"),
        ({"nccl_communicator_config_path": {"dpp": {}}}, 'did you mean "dp"'),
        ({"nccl_communicator_config_path": {"dp": {"max_cta": 1}}}, 'did you mean "max_ctas"'),
        ({"nccl_communicator_config_path": "/nowhere.yaml"}, "/nowhere.yaml: No such file or directory"),
        ({"high_priority_stream_groups": ["dpcp"]}, "dp_cp"),
        ({"sharp_enabled_group": "dp"}, "requires use_sharp=True"),
        ({"use_sharp": True, "strict": True}, "use_sharp has no effect"),
        ({"nccl_communicator_config_path": {"tp": {"max_ctas": 4}}, "strict": True}, "max_ctas=4"),
    ],
)
@pytest.mark.parametrize("only_first", [False, True], ids=["everywhere", "on rank 0"])
def test_invalid_arguments_are_reported_to_every_rank_immediately(torch_ranks, arguments, message, only_first):
    outcomes = torch_ranks(4).run(refused_arguments, arguments, only_first, deadline=60)
    for rank, (kind, text, seconds) in enumerate(outcomes):
        assert message in text, (rank, text)
        assert seconds < 5
        assert (kind == "PeerLost") == (only_first and rank > 0)


def different_sizes(group):
    import accord.mesh

    try:
        accord.mesh.initialize_model_parallel(1 + dist.get_rank() % 2)
    except accord.Mismatch as error:
        return str(error)


def test_sizes_that_differ_between_ranks_are_quoted_on_all(torch_ranks):
    for text in torch_ranks(2).run(different_sizes):
        assert "tp=1" in text and "tp=2" in text


def report_of(group):
    import accord.mesh
    from accord.mesh import parallel_state

    options = {"tp": {"max_ctas": 4}, "dp_cp": {"net_name": "IB", "timeout_seconds": 7}}
    accord.mesh.initialize_model_parallel(
        nccl_communicator_config_path=options, high_priority_stream_groups=["ep"], use_sharp=True
    )
    report = {(one["key"], one["option"]): (one["value"], one["fate"]) for one in parallel_state.report()}
    accord.mesh.destroy_model_parallel()
    return report


def test_the_report_lists_the_fate_of_each_option(torch_ranks):
    expected = {
        ("dp_cp", "net_name"): ("IB", "not applicable"),
        ("dp_cp", "timeout_seconds"): ("7", "applied"),
        ("dp_cp", "use_sharp"): ("true", "not applicable"),
        ("ep", "is_high_priority_stream"): ("true", "not applicable"),
        ("tp", "max_ctas"): ("4", "not applicable"),
    }
    assert torch_ranks(2).run(report_of) == [expected, expected]


def test_options_are_read_from_a_megatron_file(tmp_path):
    path = tmp_path / "communicators.yaml"
    path.write_text("dp_cp:\n  max_ctas: 32\n  net_name: IB\ntp: {is_high_priority_stream: true}\nep:\n")
    expected = {"dp_cp": {"max_ctas": 32, "net_name": "IB"}, "tp": {"is_high_priority_stream": True}, "ep": {}}
    assert group_options(path) == expected
    assert group_options(path, ["ep"])["ep"] == {"is_high_priority_stream": True}
    for text, message in (
        ("a: [", "is not valid YAML"),
        ("- dp", "does not contain options by names"),
        ("dp: 7", "are not a dict"),
    ):
        path.write_text(text)
        with pytest.raises(accord.InvalidArgument, match=message):
            group_options(path)


def test_callables_decide_where_embeddings_are():
    arguments = MegatronArguments(
        pipeline_model_parallel_size=4,
        get_embedding_ranks=lambda ranks: [ranks[0], ranks[2], ranks[-1]],
        get_position_embedding_ranks=lambda ranks: [ranks[0], ranks[2]],
    )
    plan = arguments.plan(8)
    assert plan.all_groups("embd") == [[0, 4, 6], [1, 5, 7]]
    assert plan.all_groups("pos_embd") == [[0, 4], [1, 5]]
    for choose, message in (
        (lambda ranks: [99], "not in the pipeline"),
        (lambda ranks: ranks[: ranks[0]], "different stages in different pipelines"),
    ):
        with pytest.raises(accord.InvalidArgument, match=message):
            MegatronArguments(pipeline_model_parallel_size=4, get_embedding_ranks=choose).plan(8)


def one_is_killed(group):
    import accord.mesh as meshes

    mesh = meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=4))
    groups = [mesh.group("tp"), mesh.group("dp")]
    for each in groups:
        dist.all_reduce(torch.ones(10), group=each)
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    passed = store.add("passed", 1)
    if dist.get_rank() == 1:
        while passed < 4:
            passed = store.add("passed", 0)
        os.kill(os.getpid(), 9)
    found = []
    for each in groups:
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(100000), group=each)
            found.append("fine")
        except accord.PeerLost as error:
            found.append((list(error.ranks), " ".join(getattr(error, "__notes__", [])), time.monotonic() - began < 1))
    mesh.close()
    return found


@pytest.mark.alone
@pytest.mark.parametrize("backend", ["gloo", "accord"])
def test_a_killed_rank_is_named_in_its_groups(fresh_ranks, backend):
    outcomes = fresh_ranks(4, program=TORCH_PROGRAM).outcomes(one_is_killed, backend=backend, deadline=60)
    assert outcomes[1].exit_code == -9
    lost = ([1], "", True), ([0], "global ranks: 1", True)
    assert not [outcome.error for outcome in outcomes if outcome.error]
    for rank, expected in ((0, (lost[0], None)), (2, (None, None)), (3, (None, lost[1]))):
        for found, wanted in zip(outcomes[rank].value, expected, strict=True):
            if wanted is None:
                assert found == "fine"
            else:
                assert found[0] == wanted[0] and wanted[1] in found[1] and found[2], (rank, found)


def one_rank_is_missing(group):
    import datetime

    import accord.mesh as meshes

    if dist.get_rank() == 1:
        return None
    began = time.monotonic()
    try:
        meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=4), timeout=datetime.timedelta(seconds=2))
    except accord.Error as error:
        return type(error).__name__, list(error.ranks), time.monotonic() - began


@pytest.mark.alone
def test_a_missing_rank_is_named_where_the_default_group_uses_gloo(fresh_ranks):
    outcomes = fresh_ranks(4, program=TORCH_PROGRAM).outcomes(one_rank_is_missing, backend="gloo", deadline=60)
    for rank in (0, 2, 3):
        kind, ranks, seconds = outcomes[rank].value
        assert (kind, ranks) == ("Timeout", [1])
        assert seconds < 10


def use_after_destruction(group):
    import accord.mesh as meshes

    errors = []

    def refused(call):
        try:
            call()
        except accord.Error as error:
            errors.append(str(error))

    mesh = meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=2))
    refused(lambda: meshes.TorchMesh.create("tp=2"))
    for axes in (("tp", "ep"), ("xx",), (), ("tp", "tp")):
        refused(lambda axes=axes: mesh.device_mesh(*axes))
    mesh.group("tp")
    dist.destroy_process_group()
    refused(lambda: mesh.group("tp"))
    mesh.close()
    refused(lambda: mesh.mesh.group("tp"))
    refused(lambda: meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=2)))
    return errors


def test_unsupported_uses_of_a_mesh_are_reported(torch_ranks):
    messages = [
        "the plan is 'tp=2', expected a MeshPlan",
        'axis "tp" does not exist; the axes are',
        'axis "xx" does not exist; the axes are',
        "give each of one or more axes once",
        "give each of one or more axes once",
        'group "tp" was destroyed',
        "was closed on this rank",
        "has no default group yet",
    ]
    for errors in torch_ranks(2).run(use_after_destruction):
        assert len(errors) == len(messages)
        for error, message in zip(errors, messages, strict=True):
            assert message in error


def many_meshes(group):
    import accord.mesh as meshes

    counts = []
    for _ in range(12):
        several = [
            meshes.TorchMesh.create(meshes.MeshPlan(sizes, world_size=4)) for sizes in ("tp=2", "tp=2,pp=2", "cp=4")
        ]
        for mesh in several:
            for family in mesh.plan.families:
                made = mesh.group(family.name)
                if made is not None:
                    dist.barrier(group=made)
        for mesh in several:
            mesh.close()
            mesh.close()
        del several, mesh, made
        dist.barrier()
        counts.append((len(open_descriptors()), len(dist.distributed_c10d._world.pg_map)))
    return counts


def test_meshes_release_all_resources(torch_ranks):
    for counts in torch_ranks(4).run(many_meshes, deadline=120):
        assert counts[-1] == counts[1], counts
        assert counts[-1][1] == 1


def any_order(group, order):
    import accord.mesh as meshes

    mesh = meshes.TorchMesh.create(meshes.MeshPlan("tp=2", world_size=2))
    made = mesh.group("tp")
    steps = {
        "mesh": mesh.close,
        "group": lambda: dist.destroy_process_group(made),
        "world": dist.destroy_process_group,
    }
    for step in order:
        if step != "group" or dist.is_initialized():
            steps[step]()
    return True


@pytest.mark.parametrize("order", [["mesh", "world"], ["group", "mesh", "world"], ["world", "mesh"], ["world"]])
def test_meshes_and_groups_may_be_destroyed_in_any_order(torch_ranks, order):
    for backend in ("gloo", "accord"):
        assert torch_ranks(2).run(any_order, order, backend=backend) == [True, True]


def from_communicator(group):
    import accord.torch

    parts = accord.torch.communicator().split(dist.get_rank() % 2, name="parts")
    ranks = [r for r in range(4) if r % 2 == dist.get_rank() % 2]
    made = accord.torch.from_communicator(parts, ranks)
    value = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(value, group=made)
    found = int(value), dist.get_process_group_ranks(made), dist.get_rank(made)
    try:
        accord.torch.from_communicator(parts, [4, 5])
    except accord.InvalidArgument as error:
        refused = str(error)
    dist.destroy_process_group(made)
    return *found, refused, parts.state


def test_a_communicator_becomes_a_process_group(torch_ranks):
    for rank, (total, ranks, place, refused, state) in enumerate(torch_ranks(4).run(from_communicator)):
        assert (total, ranks, place) == ([5, 10][rank % 2], [[0, 2], [1, 3]][rank % 2], rank // 2)
        assert "are not those of" in refused and state == "closed"
