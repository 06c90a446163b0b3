"""`accord bench`, as a user runs it: its own ranks and a launcher's, interruption, failure, output."""

import json
import os
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from accord_command import ACCORD, accord, clean_environment, end, next_line, start_accord, wait_until

pytestmark = pytest.mark.alone

SVG = "{http://www.w3.org/2000/svg}"
SHORT = ("--seconds", "0.002")
SIZED = [
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
    "send_recv_bandwidth",
    "send_recv_bidirectional",
]


def report(*arguments: object) -> dict:
    result = accord("bench", *arguments, *SHORT, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_is_measured_and_correct(ranks):
    answer = report("--all", "-n", ranks, "--min", 4, "--max", "64k", "--factor", 128)
    assert answer["ranks"] == ranks
    assert not answer["interrupted"]
    assert [(row["operation"], row["bytes"]) for row in answer["results"] if row["operation"] != "barrier"] == [
        (name, size) for name in SIZED for size in (4, 512, 65536)
    ]
    for row in answer["results"]:
        assert row["wrong"] == 0
        assert 0 < row["minimum_seconds"] <= row["median_seconds"] <= row["maximum_seconds"]
        assert row["algorithm"]


def test_bandwidths_have_the_factors_of_nccl_tests():
    # From doc/PERFORMANCE.md of nccl-tests, for three ranks. Its size counts all parts; accord's counts one of them.
    parts = {
        "all_gather": 3,
        "reduce_scatter": 3,
        "all_to_all": 3,
        "gather": 3,
        "scatter": 3,
        "send_recv_bidirectional": 2,
    }
    factors = {
        "all_reduce": 4 / 3,
        "all_gather": 2 / 3,
        "reduce_scatter": 2 / 3,
        "all_to_all": 2 / 3,
        "gather": 2 / 3,
        "scatter": 2 / 3,
    }
    for row in report("--all", "-n", 3, "--min", "4k", "--max", "4k")["results"]:
        moved = row["bytes"] * parts.get(row["operation"], 1)
        assert row["algorithm_bandwidth"] == pytest.approx(moved / row["median_seconds"])
        assert row["bus_bandwidth"] == pytest.approx(row["algorithm_bandwidth"] * factors.get(row["operation"], 1))


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float8_e5m2", "sum"),
        ("float8_e4m3fn", "product"),
        ("bfloat16", "avg"),
        ("float16", "premul_sum"),
        ("uint8", "bxor"),
        ("int64", "min"),
        ("complex64", "product"),
        ("bool", "sum"),
    ],
)
def test_results_are_checked_for_every_kind_of_number(dtype, op):
    answer = report(
        "all_reduce",
        "reduce_scatter",
        "-n",
        3,
        "--min",
        16,
        "--max",
        "4k",
        "--factor",
        16,
        "--dtype",
        dtype,
        "--op",
        op,
    )
    assert [row["wrong"] for row in answer["results"]] == [0] * 6


def test_in_place_is_correct_for_every_collective():
    answer = report("--all", "-n", 3, "--in-place", "--min", 64, "--max", "64k", "--factor", 1024)
    assert answer["in_place"]
    assert all(row["wrong"] == 0 for row in answer["results"])


def test_several_algorithms_are_compared_and_the_named_ones_ran():
    answer = report(
        "all_reduce", "--algorithm", "one_shot", "--algorithm", "two_shot@4k", "--min", "64k", "--max", "64k"
    )
    assert [(row["contender"], row["algorithm"]) for row in answer["results"]] == [
        ("one_shot", "one_shot"),
        ("two_shot@4k", "two_shot"),
    ]


def test_the_selection_applies_unless_overridden():
    answer = report("all_reduce", "--select", "all_reduce:0-inf=ring", "--min", 8, "--max", 8)
    assert answer["results"][0]["algorithm"] == "ring"
    assert answer["results"][0]["contender"] == "default"


def test_ranks_of_a_launcher_are_used():
    result = accord("run", "-n", 3, ACCORD, "bench", "all_reduce", "--min", 8, "--max", 8, *SHORT)
    assert result.returncode == 0, result.stderr
    assert "[0] accord" in result.stdout
    assert "3 ranks" in result.stdout
    assert "[1]" not in result.stdout  # only rank 0 prints
    refused = accord("run", "-n", 3, ACCORD, "bench", "all_reduce", "-n", 2)
    assert refused.returncode != 0
    assert "--ranks is 2, but a launcher (RANK and WORLD_SIZE) has started 3 ranks" in refused.stderr


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_ranks_of_mpirun_are_used():
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    command = [*launch, str(ACCORD), "bench", "barrier", *SHORT, "--json", "-"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean_environment())
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ranks"] == 2


def test_the_number_of_calls_can_be_given():
    row = report("all_reduce", "--min", "1m", "--max", "1m", "--iterations", 7)["results"][0]
    assert row["calls"] >= 7


@pytest.mark.parametrize("interrupted", ["all ranks", "one rank"])
def test_an_interrupt_ends_the_run_with_the_results_so_far(tmp_path, interrupted):
    path = tmp_path / "results.json"
    sweep = ("bench", "all_reduce", "--min", 8, "--max", "1g", "--seconds", 0.2, "--json", path)
    job = start_accord(*sweep, start_new_session=True)
    try:
        lines = iter(lambda: next_line(job.stdout), "")
        while " packet" not in next(lines):
            pass  # the first size is done
        if interrupted == "all ranks":
            os.killpg(job.pid, signal.SIGINT)
        else:
            os.kill(job.pid, signal.SIGINT)
        assert job.wait(timeout=60) == 130
        [line] = job.stderr.read().splitlines()
        assert re.fullmatch(rf"accord bench: interrupted; \d+ results? (was|were) measured before, see {path}", line)
    finally:
        end(job)
    answer = json.loads(path.read_text())
    assert answer["interrupted"]
    assert answer["results"][0]["bytes"] == 8


def test_an_interrupt_ends_a_hanging_call(tmp_path):
    path = tmp_path / "results.json"
    sizes = ("--min", 8, "--max", "64m", "--factor", 1024, "--seconds", 0.5)
    job = start_accord("bench", "all_reduce", *sizes, "--json", path)
    try:
        while " packet" not in next_line(job.stdout):
            pass  # the first size is done
        [other] = children_of(job.pid)
        os.kill(other, signal.SIGSTOP)
        os.kill(job.pid, signal.SIGINT)
        assert job.wait(timeout=30) == 130
        assert job.stderr.read().count("\n") == 1
    finally:
        end(job)
    answer = json.loads(path.read_text())
    assert answer["interrupted"]
    assert answer["results"][0]["bytes"] == 8
    wait_until(lambda: not Path(f"/proc/{other}").exists(), "the end of the other rank")


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_reported_before_anything_is_measured(tmp_path, option):
    for path in (tmp_path / "absent/results", tmp_path):
        refused = accord("bench", "all_reduce", "--seconds", 3600, option, path, timeout=30)
        assert refused.returncode == 1
        assert str(path) in refused.stderr
        assert refused.stdout == ""
    assert list(tmp_path.iterdir()) == []


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_killed_rank_is_named_and_nothing_hangs():
    job = start_accord("bench", "all_reduce", "-n", 3, "--seconds", 60, "--min", "64k", "--max", "64k")
    try:
        wait_until(lambda: "bytes" in next_line(job.stdout), "the head of the table")
        others = wait_until(lambda: children_of(job.pid), "the other ranks")
        os.kill(others[1], signal.SIGKILL)
        assert job.wait(timeout=60) == 1
        assert "rank 2" in job.stderr.read()
    finally:
        end(job)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduc",), 'unknown operation "all_reduc"; did you mean "all_reduce"?'),
        ((), "no operation was given"),
        (("all_reduce", "--min", "8k", "--max", "4k"), "the range of sizes from 8k to 4k is empty or invalid"),
        (("all_reduce", "--op", "bxor"), "bxor has no meaning for float32"),
        (("all_reduce", "--algorithm", "bruck"), "bruck"),
        (("all_reduce", "--select", "all_reduce:0-inf=nothing"), "--select"),
        (("send_recv", "-n", 1), "send_recv requires two ranks"),
        (("all_reduce", "--plot", "-"), "--plot writes a file; standard output is for --json alone"),
        (("all_reduce", "--json", "one", "--plot", "./one"), "--json and --plot cannot both write one"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    refused = accord("bench", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_the_plot_has_a_chart_for_time_and_bandwidth_and_names_the_algorithms(tmp_path):
    path = tmp_path / "plot.svg"
    result = accord("bench", "all_reduce", "barrier", "--min", 8, "--max", "1m", "--factor", 8, *SHORT, "--plot", path)
    assert result.returncode == 0, result.stderr
    picture = ElementTree.parse(path).getroot()
    words = [text.text for text in picture.iter(f"{SVG}text")]
    for word in ("time, us", "bus bandwidth, GB/s"):
        assert words.count(word) == 1
    for algorithm in ("packet", "one_shot", "two_shot"):  # the algorithms of the default table, in each of the charts
        assert words.count(algorithm) == 2
    assert len(list(picture.iter(f"{SVG}polyline"))) == 2
