"""torch.distributed.checkpoint over accord: a checkpoint can be loaded by the same or another number of ranks, and
training continues as it would have."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from accord_command import SUPPORT


def training(group, folder, name, *arguments):
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import checkpoint_runs

    return getattr(checkpoint_runs, name)(*arguments)


@pytest.mark.parametrize("save", ["save", "save_in_the_background"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_training_resumes_from_its_checkpoint(torch_ranks, tmp_path, kind, save):
    expected = torch_ranks(2).run(training, SUPPORT, save, kind, str(tmp_path))
    assert torch_ranks(2).run(training, SUPPORT, "load", kind, str(tmp_path)) == expected


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_other_numbers_of_ranks_load_a_sharded_checkpoint(torch_ranks, tmp_path, before, after):
    expected = torch_ranks(before).run(training, SUPPORT, "save", "fsdp2", str(tmp_path))
    found = torch_ranks(after).run(training, SUPPORT, "load", "fsdp2", str(tmp_path))
    for losses in found:
        assert losses == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_whole_state_dict_is_gathered_and_distributed(torch_ranks, kind):
    found = torch_ranks(2).run(training, SUPPORT, "whole_state", kind)
    assert found == torch_ranks(2).run(training, SUPPORT, "whole_state", kind, backend="gloo")
