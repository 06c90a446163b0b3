"""The benchmark `elastic`: its training gives the same losses with any number of ranks, its check finds a wrong one, and
it kills ranks over both backends."""

import json
import math
import subprocess
import sys

import pytest
import torch
from accord_command import ROOT, clean_environment

sys.path.insert(0, str(ROOT))

from bench.elastic import training


def test_parts_of_a_global_batch_add_up_to_its_loss_and_gradient():
    model = training.Model()
    pieces = training.samples(7, range(training.GLOBAL_BATCH))
    predicted = model(pieces[:, :-1])
    whole = torch.nn.functional.cross_entropy(predicted.transpose(1, 2), pieces[:, 1:])
    expected = torch.autograd.grad(whole, list(model.parameters()))
    for size in (1, 2, 3, 4, 5):
        shares = [training.share(rank, size) for rank in range(size)]
        assert sorted(number for share in shares for number in share) == list(range(training.GLOBAL_BATCH))
        total = sum(training.loss_of(model, training.samples(7, share)) for share in shares)
        torch.testing.assert_close(total, whole, rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.autograd.grad(total, list(model.parameters())), expected)


def run(training_of, step: int, numbers: range) -> float:
    training_of.optimizer.zero_grad()
    loss = training.loss_of(training_of.model, training.samples(step, numbers))
    loss.backward()
    training_of.optimizer.step()
    return loss.item()


def test_a_sample_lost_in_one_step_and_state_that_was_not_copied_are_wrong_losses():
    everything = range(training.GLOBAL_BATCH)
    reference, right, lossy = training.Reference(), training.Training(), training.Training()
    assert reference.difference(0, run(right, 0, everything)) <= training.TOLERANCE
    run(lossy, 0, everything[1:])
    assert reference.difference(1, run(lossy, 1, everything)) > training.TOLERANCE
    late = training.Training()
    late.load_state(right.state())
    assert reference.difference(1, run(late, 1, everything)) <= training.TOLERANCE
    weights_only = training.Training()
    weights_only.model.load_state_dict(late.model.state_dict())  # without the momenta
    assert reference.difference(2, run(late, 2, everything)) <= training.TOLERANCE
    run(weights_only, 2, everything)
    assert reference.difference(3, run(weights_only, 3, everything)) > training.TOLERANCE
    assert not reference.difference(3, math.nan) <= training.TOLERANCE


def elastic(folder, *options: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    output = folder / "elastic.json"
    command = [sys.executable, "-m", "bench.elastic", "--output", str(output), *options]
    done = subprocess.run(
        command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    lines = json.loads(output.read_text()) if output.exists() else []
    return done, {line["case"]: {"accord": line["accord"], **line["peers"]} for line in lines}


@pytest.mark.slow
def test_ranks_of_both_backends_are_killed_and_go_on_or_the_reason_is_printed(tmp_path):
    done, values = elastic(tmp_path, "--kills", "3", "--gloo-kills", "2", "--block", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    if not hasattr(torch.distributed, "_reconfigure"):
        assert "nothing measured" in done.stdout and "no dist._reconfigure" in done.stdout
        assert values == {}
        return
    assert values["kills"] == {"accord": 3, "gloo": 2}
    assert values["hangs"] == values["wrong"] == {"accord": 0, "gloo": 0}
    assert values["kill to next step, median"]["accord"] > 0


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.distributed, "_reconfigure"),
    reason=f"torch {torch.__version__} has no dist._reconfigure (2.14 has)",
)
def test_ranks_that_make_no_step_in_time_count_as_a_hang(tmp_path):
    done, values = elastic(tmp_path, "--kills", "1", "--gloo-kills", "0", "--limit", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert values["kills"]["accord"] == 0 and values["hangs"]["accord"] > 0
