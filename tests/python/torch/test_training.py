"""Training on torch.distributed gives the same over accord as over gloo, in the same processes.

Two ranks give bit-identical results, because two numbers can be added in one order only. More ranks agree to 1e-6.
"""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from accord_command import SUPPORT
from ranks import torch_is
from tiers import mostly_slow

ON_TWO_RANKS = [
    "ddp",
    "ddp_small_buckets",
    "ddp_buckets_as_gradients",
    "ddp_static_graph",
    "ddp_unused_parameters",
    "ddp_buffers",
    "ddp_no_sync",
    "ddp_uneven_inputs",
    "ddp_zero",
    "ddp_hook_allreduce",
    "ddp_hook_fp16",
    "ddp_hook_bf16",
    "ddp_hook_power_sgd",
    "ddp_hook_own",
    "ddp_local_sgd",
    "fsdp2",
    "fsdp2_kept_and_clipped",
    pytest.param(
        "fsdp2_bfloat16",
        marks=pytest.mark.skipif(torch_is("2.11"), reason="torch 2.11 cannot train it, over gloo neither"),
    ),
    "fsdp2_divide_factor",
    "fsdp1",
    "tensor_parallel",
    "sequence_parallel",
    "sharded_tensors",
    "pipeline_gpipe",
    "pipeline_1f1b",
    "pipeline_interleaved",
    "compiled_aot",
    "ddp_compiled",
    pytest.param("compiled_inductor", marks=pytest.mark.slow),
]
ON_FOUR_RANKS = ["ddp", "fsdp2", "hsdp", "fsdp2_of_tensor_parallel", "sharded_tensors", "meshes", "pipeline_1f1b"]
QUICK_ON_FOUR_RANKS = ["ddp", "fsdp2", "fsdp2_of_tensor_parallel", "sharded_tensors", "meshes"]


def training(group, folder, name):
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import ddp_runs
    import training_runs

    return getattr(ddp_runs if name.startswith("ddp") else training_runs, name)()


@pytest.mark.parametrize("name", ON_TWO_RANKS)
def test_two_ranks_are_bit_identical_to_gloo(torch_ranks, name):
    expected = torch_ranks(2).run(training, SUPPORT, name, backend="gloo", deadline=120)
    found = torch_ranks(2).run(training, SUPPORT, name, deadline=120)
    assert len(expected[0]) > 0
    assert found == expected


@pytest.mark.parametrize("name", mostly_slow(ON_FOUR_RANKS, *QUICK_ON_FOUR_RANKS))
def test_four_ranks_match_gloo(torch_ranks, name):
    expected = torch_ranks(4).run(training, SUPPORT, name, backend="gloo", deadline=120)
    found = torch_ranks(4).run(training, SUPPORT, name, deadline=120)
    assert len(expected[0]) > 0
    for mine, other in zip(found, expected, strict=True):
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-6)
