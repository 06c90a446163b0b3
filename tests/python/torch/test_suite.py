"""torch's own distributed tests (tests/torch) over accord: some in the gate, all of them compared with gloo in make
test-full."""

import json
import subprocess
import sys

import pytest
from accord_command import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests/torch"))

import torch_suite

# One test of each kind. gloo passes all of them on 4 ranks.
GATE = """
test_all_gather_coalesced_with_empty test_all_gather_group test_all_gather_object_subgroup test_all_reduce_coalesced_group_max
test_all_reduce_full_group_product test_all_reduce_sum_async test_all_reduce_sum_complex test_all_to_all_single_unequal_split_group
test_barrier_group test_barrier_timeout_full_group test_batch_isend_irecv_gloo_tags test_broadcast test_ddp_logging_data_cpu
test_DistributedDataParallelCPU_grad_is_view test_destroy_group test_gather_checks test_get_backend test_get_future test_isend
test_isend_torch_profiler test_monitored_barrier_gloo test_new_subgroups test_reduce_group_sum test_scatter_complex
test_scatter_object_list test_send_recv_any_source test_send_recv_with_tag
""".split()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BUILD / "python"))


@pytest.mark.slow
def test_some_tests_of_torch_pass():
    outcomes = torch_suite.run("accord", 4, GATE, seconds=300)
    assert list(outcomes) == GATE
    worse = {test: row["detail"] for test, row in outcomes.items() if row["outcome"] != "passed"}
    assert not worse, "\n".join(f"{test}: {detail}" for test, detail in worse.items())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_accord_passes_all_tests_of_torch_that_gloo_passes(ranks, tmp_path):
    output = tmp_path / "rows.json"
    command = [sys.executable, "tests/torch/torch_suite.py", "--ranks", str(ranks), "--output", str(output)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    rows = json.loads(output.read_text())
    assert sum(row["gloo"] == "passed" for row in rows) > 80  # torch's tests were found and run
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]


def test_the_differences_are_reported():
    text = (ROOT / "docs/pytorch.md").read_text()
    assert [test for test in torch_suite.DIFFERENCES if f"`{test}`" not in text] == []


def row(outcome: str, message: str = "") -> dict:
    return {"outcome": outcome, "message": message}


def test_a_test_that_only_gloo_passes_is_a_difference():
    gloo = {"a": row("passed"), "b": row("passed"), "c": row("failed"), "d": row("skipped"), "e": row("passed")}
    accord = {"a": row("passed"), "b": row("skipped", "why"), "c": row("failed"), "d": row("skipped")}
    rows = torch_suite.compare(accord, gloo)
    assert [row["test"] for row in rows] == ["a", "b", "c", "e"]
    assert [(row["test"], row["accord"], row["message"]) for row in rows if torch_suite.is_worse(row)] == [
        ("b", "skipped", "why"),
        ("e", "missing", "did not end"),
    ]


def test_hanging_tests_and_ranks_with_different_outcomes_are_failures(tmp_path):
    """Runs the runner with tests that fail, in place of torch's."""
    program = tmp_path / "wrong.py"
    program.write_text(
        """
import os, sys, time
sys.path.insert(0, sys.argv[2])
import distributed_tests
from pathlib import Path
original = distributed_tests.torchs_tests
def torchs_tests(backend, ranks):
    module = original(backend, ranks)
    from torch.testing._internal import common_distributed
    base = module.DistributedTest._DistTestBase
    common_distributed.TIMEOUT_OVERRIDE["test_hangs"] = 2
    base.test_hangs = lambda self: time.sleep(1000) if self.rank == 1 else None
    base.test_dies = lambda self: os._exit(3) if self.rank == 1 else os._exit(0)
    base.test_raises = lambda self: self.fail("on purpose") if self.rank == 1 else None
    return module
distributed_tests.torchs_tests = torchs_tests
sys.argv = [sys.argv[0], "gloo", "2", sys.argv[1], *"test_hangs test_dies test_raises test_get_rank".split()]
distributed_tests.main()
"""
    )
    outcomes = tmp_path / "outcomes.jsonl"
    subprocess.run([sys.executable, program, outcomes, ROOT / "tests/torch"], timeout=60, capture_output=True)
    rows = {row["test"]: row for row in map(json.loads, outcomes.read_text().splitlines())}
    assert {test: row["outcome"] for test, row in rows.items()} == {
        "test_hangs": "failed",
        "test_dies": "failed",
        "test_raises": "failed",
        "test_get_rank": "passed",
    }
    assert "different exit codes: [0, 3]" in rows["test_dies"]["message"]
    assert "on purpose" in rows["test_raises"]["message"]
