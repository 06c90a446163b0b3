"""`accord run --elastic`: ranks that die are started again, and join the others, which go on meanwhile."""

import re
import signal
import socket

import pytest
from accord_command import ACCORD, BUILD, ROOT, accord, python_file, wait_until
from elastic_job import ElasticJob


@pytest.fixture
def job(tmp_path):
    with ElasticJob(tmp_path) as started:
        yield started


def ends(job):
    return [line.split("] ")[1].strip() for line in job.lines if "end " in line]


def test_a_killed_rank_is_started_again_and_joins(job):
    job.start("--elastic", "1:3")
    first = job.await_size(3)
    killed = [job.kill(first, 1)]
    second = job.await_size(3, first)
    killed.append(job.kill(second, 0))
    third = job.await_size(3, second)
    assert not {process for _, process in job.rounds()[third].values()} & set(killed)
    assert job.finish() == [0]
    wait_until(lambda: ends(job) == ["end True"] * 3, "the ends of all ranks")
    said = [line for line in job.messages if "starting it again" in line]
    assert len(said) == 2
    assert "killed by SIGKILL; starting it again (1 of 10)" in said[0]
    assert "killed by SIGKILL; starting it again (2 of 10)" in said[1]


def test_the_others_go_on_without_a_rank_that_is_not_started_again(job):
    job.start("--elastic", "1:3", "--max-restarts", 0)
    first = job.await_size(3)
    job.kill(first, 2)
    second = job.await_size(2, first)
    assert [job.rounds()[second][rank][1] for rank in (0, 1)] == [job.rounds()[first][rank][1] for rank in (0, 1)]
    assert job.finish() == [0]
    assert any("killed by SIGKILL; going on without it" in line for line in job.messages)


def test_a_spare_takes_the_place_of_a_killed_rank(job):
    job.start("--elastic", "2:2", "-n", 3, "--max-restarts", 0)
    first = job.await_size(2)
    job.kill(first, 0)
    second = job.await_size(2, first)
    assert job.rounds()[second][0][1] == job.rounds()[first][1][1]
    assert job.finish() == [0]


def test_too_few_ranks_end_the_job_with_the_failure(job):
    job.start("--elastic", "2:2", "--max-restarts", 0)
    job.kill(job.await_size(2), 1)
    assert job.launchers[0].wait(60) == 128 + signal.SIGKILL
    wait_until(lambda: any("killed by SIGKILL; ending the others" in line for line in job.messages), "the reason")


def test_a_program_that_always_fails_ends_the_job(tmp_path):
    starts = tmp_path / "starts"
    result = accord("run", "--elastic", "1:2", "--max-restarts", 3, "sh", "-c", f"echo x >> {starts}; exit 7")
    assert result.returncode == 7
    assert len(starts.read_text().splitlines()) == 2 + 3
    assert "exited with code 7; starting it again (3 of 3)" in result.stderr


def test_each_start_of_a_rank_has_a_log_of_its_own(job, tmp_path):
    job.start("--elastic", "1:2", "--log-dir", tmp_path / "logs")
    first = job.await_size(2)
    job.kill(first, 1)
    job.await_size(2, first)
    assert job.finish() == [0]
    logs = sorted(str(path.relative_to(tmp_path / "logs")) for path in (tmp_path / "logs").rglob("*.log"))
    assert len(logs) == 3
    assert logs[:2] == ["restart_0/rank_0.log", "restart_0/rank_1.log"]
    assert logs[2].startswith("restart_1/rank_")


def test_ranks_know_the_numbers_and_inner_jobs_do_not(tmp_path):
    program = python_file(tmp_path, "import os; print(os.environ.get('ACCORD_ELASTIC'), os.environ['WORLD_SIZE'])")
    result = accord("run", "--elastic", "1:3", program)
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] 1:3 3" for rank in range(3)]
    inside = python_file(
        tmp_path,
        "import os, subprocess, sys; subprocess.run([sys.argv[1], 'run', '-n', '1', 'sh', '-c', 'echo [$ACCORD_ELASTIC]'])",
        "inside.py",
    )
    assert "[]" in accord("run", "--elastic", "1:1", inside, ACCORD).stdout


def test_the_example_of_the_page_is_the_program():
    (program,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/elastic.md").read_text(), re.DOTALL)
    assert program in (ROOT / "examples/elastic_job.cpp").read_text()


@pytest.mark.parametrize("program", ["elastic_job", "elastic_job_c"])
def test_the_examples_run(program):
    result = accord("run", "--elastic", "1:3", BUILD / "examples" / program)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--elastic", "4"), '"4" is not MIN:MAX'),
        (("--elastic", "4:2"), '"4:2" is not MIN:MAX'),
        (("--elastic", "0:2"), '"0:2" is not MIN:MAX'),
        (("--elastic", "3:4", "-n", "2"), "MIN is larger than the number of ranks, 2"),
    ],
)
def test_impossible_numbers_are_refused(options, reason):
    result = accord("run", *options, "true")
    assert result.returncode == 2
    assert reason in result.stderr


def test_a_lost_launcher_is_replaced(job):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    common = ["--elastic", "1:4", "--nnodes", 2, "--rdzv-endpoint", endpoint, "-n", 2]
    job.start(*common, "--node-rank", 0)
    job.start(*common, "--node-rank", 1)
    first = job.await_size(4)
    job.launchers[1].kill()
    job.await_size(2, first)
    wait_until(lambda: any("another one may take its place" in line for line in job.messages), "the message")
    job.start(*common, "--node-rank", 1)
    job.await_size(4, first)
    assert job.finish() == [0, -signal.SIGKILL, 0]
