"""The parts of torch's private interface that accord uses (accord.torch.c10d), with the installed version:
scripts/test --torch VERSION."""
# ruff: noqa: F821 (names that ranks.py provides)


def uses(group):
    from datetime import timedelta

    from torch._C._distributed_c10d import _make_nccl_premul_sum

    import accord.torch
    from accord.torch import c10d

    assert c10d.factor_of(_make_nccl_premul_sum(0.25)) == 0.25
    assert c10d.backends_of(group) == {"cpu": "accord"}
    assert c10d.BarrierOptions().timeout == c10d.AllreduceOptions().timeout

    assert not c10d.profiler_enabled()
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        assert c10d.profiler_enabled()
        last = torch.futures.Future()
        ended = c10d.record_until("accord:some", [torch.ones(2, 3), torch.ones(4)], last)
        assert not ended.done()
        last.set_result(None)
        ended.wait()
    assert [event.input_shapes for event in profiler.function_events if event.name == "accord:some"] == [[[2, 3], [4]]]

    others = c10d.make_group("gloo", "meta", group.get_group_store(), group.rank(), group.size(), timedelta(seconds=20))
    dist.barrier()  # a gloo group that is destroyed at once disturbs a peer that is still connecting
    assert others._device_types == [torch.device("meta")] and others._get_backend(torch.device("meta")).name() == "gloo"

    assert c10d.timeout_of(others) == timedelta(seconds=20)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=19), group)
    assert group.timeout == timedelta(seconds=19)

    assert c10d.carried_by("cpu:gloo,cuda:nccl") == {"cpu": "gloo", "cuda": "nccl"} and not c10d.torchcomms_enabled()
    with c10d.without_torchcomms():
        pass
    alone = accord.torch.communicator().split(dist.get_rank(), name="alone")
    made = accord.torch.from_communicator(alone, [dist.get_rank()])
    assert c10d.is_registered(made) and dist.get_process_group_ranks(made) == [dist.get_rank()]
    c10d.name_backends(made, "gloo", {"cpu": "accord", "cuda": "nccl"})
    assert dist.get_backend(made) == "gloo" and c10d.backends_of(made) == {"cpu": "accord", "cuda": "nccl"}
    dist.destroy_process_group(made)
    assert not c10d.is_registered(made)

    assert group._device_types == [torch.device("cpu")] and group._get_backend(torch.device("cpu")) is group
    assert group.supports_splitting == c10d.splits_own_backend_only() == (torch.__version__ >= "2.15")
    assert group.options._timeout == group.timeout
    try:
        group._get_backend(torch.device("cuda"))
    except RuntimeError as error:
        assert "cuda" in str(error)
    else:
        raise AssertionError("a backend for cuda")
    return torch.__version__


def test_torch_has_the_internals_that_accord_uses(torch_ranks):
    import torch

    assert torch_ranks(2).run(uses) == [torch.__version__] * 2
