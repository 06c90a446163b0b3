"""The stages of scripts/test-gpu: their order, their times, and what each of them does."""

import re
import sys
import time
from functools import partial

import cuda_ranks
import pytest
from accord_command import ROOT
from gpu_machine import ENGINE, PROGRAM, check, context_of, make_machine, program

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_checks
import gpu_report
import gpu_run
import gpu_stages
import gpu_suites


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return make_machine(tmp_path, monkeypatch)


def test_suites_are_selected_by_name_and_a_hang_or_crash_does_not_affect_others(machine, monkeypatch, capsys):
    monkeypatch.setattr(gpu_suites, "SUITE_SECONDS", 2)
    context = context_of(machine)
    stage = next(stage for stage in gpu_stages.STAGES if stage.name == "rest")
    assert stage.work(context, 60) == "failed"
    assert context.tally.passed == 2  # CudaPasses, and the test that had ended before CudaHangs hung
    failed = "\n".join(context.tally.failed)
    assert len(context.tally.failed) == 3
    assert "Ranks/CudaFails" in failed
    assert "1 is not 2" in failed
    assert "CudaHangs\n    took too long in CudaHangs.one" in failed
    assert "CudaCrashes\n    exit code 139 in CudaCrashes.one" in failed
    assert context.tally.skipped == ["accord_unit_some_test: CudaSkips.one: there is no second GPU"]
    printed = capsys.readouterr().out
    assert "    CudaPasses: 1 passed (0 s)\n" in printed
    assert "    CudaHangs: 1 passed, 1 failed (2 s)\n" in printed


def test_suites_run_in_the_order_of_their_groups(machine, capsys):
    """Not in the order of programs and names: those that say most are first."""
    named = [
        "Ranks/CudaNccl",
        "CudaPlansOfEveryDType",
        "Cuda/DeviceOps",
        "Ranks/CudaPlansOfThreads",
        "Ranks/CudaExperts",
    ]
    others = [
        "CudaOfTomorrow",
        "CudaDevice",
        "CudaProducts",
        "Ranks/CudaPlansOfProcesses",
        "CudaNcclGroups",
        "CudaRuntime",
    ]
    for name, suites in (("conformance_comm", named), ("unit_device", others)):
        listing = "\\n".join(f"{suite}.\\n  one" for suite in suites)
        text = re.sub(r'    print\("Plain.*\n.*\n', lambda _: f'    print("{listing}")\n', PROGRAM)  # noqa: B023
        program(machine / f"tests/accord_{name}_test", text)
    (machine / "tests/accord_unit_some_test").unlink()
    context = context_of(machine)
    groups = [stage for stage in gpu_stages.STAGES if stage.what.startswith("C++ suites: ")]
    assert {stage.name: stage.work(context, 60) for stage in groups} == {stage.name: "ok" for stage in groups}
    ran = re.findall(r"^    (\S+): 1 passed", capsys.readouterr().out, re.MULTILINE)
    assert ran == [
        "CudaRuntime",
        "CudaDevice",
        "CudaProducts",
        "Cuda/DeviceOps",
        "Ranks/CudaPlansOfThreads",
        "Ranks/CudaExperts",
        "Ranks/CudaPlansOfProcesses",
        "Ranks/CudaNccl",
        "CudaNcclGroups",
        "CudaPlansOfEveryDType",
        "CudaOfTomorrow",
    ]


def test_the_groups_name_suites_that_exist():
    names = set()
    for file in (ROOT / "tests").rglob("*_test.cpp"):
        text = file.read_text()
        names |= set(re.findall(r"^(?:TEST|TEST_F)\((\w*Cuda\w*),", text, re.MULTILINE))
        for prefix, suite in re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w*), (\w+),", text):
            names |= {f"{prefix}/{suite}".removeprefix("/")} if "Cuda" in prefix + suite else set()
    assert len(names) > 15
    for group in gpu_suites.GROUPS:
        for pattern in group.suites:
            assert any(gpu_suites.fnmatchcase(name, pattern) for name in names), f"{group.name}: {pattern}"
    in_no_group = {name for name in names if gpu_suites.group_of(name).name == "rest" and "EveryDType" not in name}
    assert not in_no_group, "they run last"


def test_the_engine_benchmark_has_its_own_time_and_a_table_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    program(tmp_path / "bench/gpu_engine/__main__.py", ENGINE)
    context = context_of(tmp_path, module=tmp_path)
    assert gpu_stages.llama(context, 60.5) == "ok"
    assert context.tally.passed == 1
    (line,) = context.figures["llama"]
    assert 45 <= line["accord"] <= 60.5 - gpu_stages.ENDING_SECONDS
    stage = {"name": "llama", "what": "a Llama", "outcome": "ok", "seconds": 1.0}
    report = {"gpus": ["A GPU"], "origin": "", "seconds": 1.0, "passed": 1, "failed": [], "skipped": []}
    text = gpu_report.markdown_of(report | {"stages": [stage], "figures": {"llama": [line | {"accord": 2.5}]}})
    assert "## A Llama\n" in text
    assert "| | unit | accord | torch eager | ratio |\n|---|---|---|---|---|\n" in text
    assert "| decode, batch 1 | ms | 2.500 | 9.000 | 3.500 |" in text
    program(tmp_path / "bench/gpu_engine/__main__.py", "raise SystemExit('error: that is more than 0.05')")
    (tmp_path / "logs/llama.json").unlink()
    assert gpu_stages.llama(context, 60.5) == "failed"
    assert "exit code 1: error: that is more than 0.05" in context.tally.failed[0]


def test_stages_without_their_requirements_are_left_out_with_the_reason(tmp_path, monkeypatch):
    context = context_of(tmp_path)
    assert gpu_stages.torch_tensors(context, 60) == gpu_stages.llama(context, 60) == gpu_stages.NO_MODULE
    assert gpu_stages.calls("moe", context, 60) == "left out: there is no bench_gpu"
    context.module = tmp_path
    monkeypatch.setattr(gpu_run, "ROOT", tmp_path)
    program(tmp_path / "bench/gpu_engine/__main__.py", "print('skipped: torch sees no GPU')")
    assert gpu_stages.llama(context, 60) == "left out: torch sees no GPU"
    for missing, why in (({"numpy"}, "no numpy"), ({"pytest", "numpy"}, "no pytest and no numpy")):
        monkeypatch.setattr(
            gpu_stages.importlib.util, "find_spec", lambda name, lacks=missing: name not in lacks or None
        )
        assert gpu_stages.torch_tensors(context, 60) == f"left out: this Python has {why}"
    assert not context.tally.failed


def test_programs_but_not_python_get_cublaslt_from_the_python_packages(machine, monkeypatch):
    library = machine / "packages/nvidia/cu13/lib/libcublasLt.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setenv("PYTHONPATH", str(machine / "packages"))
    monkeypatch.delenv("ACCORD_CUBLASLT", raising=False)
    program(machine / "bin/bench_gpu", "#!/bin/sh\necho library: $ACCORD_CUBLASLT\nexit 77\n")
    assert f"library: {library}\n" in check(machine).stdout
    monkeypatch.setenv("ACCORD_CUBLASLT", "another")
    assert "library: another\n" in check(machine).stdout
    monkeypatch.delenv("ACCORD_CUBLASLT")
    context = context_of(machine, libraries={"ACCORD_CUBLASLT": "there"}, module=machine)
    monkeypatch.setattr(gpu_run, "ROOT", machine)
    program(machine / "bench/gpu_engine/__main__.py", "import os\nprint('skipped:', os.environ.get('ACCORD_CUBLASLT'))")
    assert gpu_stages.llama(context, 60) == "left out: None"


def test_process_ranks_use_the_first_visible_gpu(monkeypatch):
    monkeypatch.setattr(cuda_ranks, "Ranks", lambda size, environment, **_: environment["CUDA_VISIBLE_DEVICES"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_ranks.started(2, "") == "0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5e2a,1")
    assert cuda_ranks.started(2, "") == "GPU-5e2a"


def test_the_first_three_minutes_tell_most():
    names = [stage.name for stage in gpu_stages.STAGES]
    assert sum(stage.seconds for stage in gpu_stages.STAGES) <= 9 * 60
    first = ["look", "devices", "products", "engines", "threads", "experts", "sums"]
    assert names[: len(first)] == first
    assert sum(stage.seconds for stage in gpu_stages.STAGES[: len(first)]) <= 3 * 60
    assert len(set(names)) == len(names)


class Waits:
    """A stage that uses a given share of its time."""

    def __init__(self, name: str, seconds: int, used: float):
        self.given: list[float] = []
        self.stage = gpu_stages.Stage(name, seconds, name, partial(self.work, used))

    def work(self, used: float, _: gpu_run.Context, seconds: float) -> str:
        self.given.append(seconds)
        time.sleep(used)
        return "ok"


def test_a_stage_may_use_time_that_others_left_but_not_the_shares_of_later_ones(tmp_path):
    stages = [Waits("quick", 20, 0.1), Waits("slow", 20, 0.5), Waits("last", 20, 0.0)]
    gpu_checks.run_stages([waits.stage for waits in stages], context_of(tmp_path), 60, lambda _: None)
    assert [waits.given[0] for waits in stages] == pytest.approx([20, 39.9, 59.4], abs=0.3)


def test_a_stage_with_less_than_ten_seconds_left_is_left_out_and_named(tmp_path):
    stages = [Waits("slow", 20, 0.5), Waits("too late", 20, 0.0)]
    done = gpu_checks.run_stages([waits.stage for waits in stages], context_of(tmp_path), 10.4, lambda _: None)
    assert [(each.name, each.outcome) for each in done] == [("slow", "ok"), ("too late", "left out: the time was over")]
    assert stages[1].given == []


def test_more_time_is_distributed_among_the_stages(tmp_path):
    stages = [Waits("one", 10, 0.0), Waits("two", 30, 0.0)]
    gpu_checks.run_stages([waits.stage for waits in stages], context_of(tmp_path), 80, lambda _: None)
    assert [waits.given[0] for waits in stages] == pytest.approx([20, 80], abs=0.5)


def test_an_error_of_a_stage_itself_does_not_end_the_others(tmp_path):
    def breaks(*_: object) -> str:
        raise KeyError("figures")

    stages = [gpu_stages.Stage("breaks", 20, "", breaks), Waits("next", 20, 0.0).stage]
    context = context_of(tmp_path)
    done = gpu_checks.run_stages(stages, context, 60, lambda _: None)
    assert [each.outcome for each in done] == ["failed", "ok"]
    assert context.tally.failed == ["breaks\n    KeyError: 'figures'"]
    assert "in breaks" in (tmp_path / "logs/breaks-error.log").read_text()


def test_suites_that_do_not_fit_into_the_time_are_named(machine):
    context = context_of(machine)
    stage = next(stage for stage in gpu_stages.STAGES if stage.name == "rest")
    assert stage.work(context, 0) == "ok"
    assert "suite CudaPasses: the time was over" in context.tally.skipped


def test_tests_skipped_for_the_same_reason_share_a_line():
    skipped = ["a_test: CudaOne.b: no NVIDIA driver was found: libcuda.so.1", "suite CudaTwo: the time was over"]
    skipped += ["a_test: CudaThree.c: no NVIDIA driver was found: libcuda.so.1", "stage x: y"]
    report = {"gpus": [], "origin": "", "seconds": 1.0, "passed": 0, "failed": [], "stages": [], "figures": {}}
    text = gpu_report.markdown_of(report | {"skipped": skipped})
    assert text.endswith(
        "## Skipped\n- a_test: CudaOne.b and 1 more: no NVIDIA driver was found: libcuda.so.1\n"
        "- suite CudaTwo: the time was over\n- stage x: y\n"
    )


def test_long_logs_are_shortened(tmp_path):
    context = context_of(tmp_path)
    context.log("a/b", "begin" + "x" * 2**20 + "end")
    text = (tmp_path / "logs/a.b.log").read_text()
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < 2**19
