"""`accord sim calibrate`: the file that it writes, and what it says where it cannot measure."""

import json
import os
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
from accord_command import ACCORD, accord, clean_environment, end, start_accord, wait_until
from hosts import Hosts, why_not

pytestmark = pytest.mark.alone

QUICK = ("--seconds", 0.002)
REASON = why_not()


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The file of this host and the JSON that the command printed."""
    path = tmp_path_factory.mktemp("calibrate") / "host.toml"
    result = accord("sim", "calibrate", "-n", 4, *QUICK, "-o", path, "--json", timeout=120)
    assert result.returncode == 0, result.stderr
    return path, json.loads(result.stdout)


def test_the_file_has_every_figure_of_a_host_and_how_it_was_measured(host):
    path, printed = host
    text = path.read_text()
    written = tomllib.loads(text)["host"]
    assert written["ranks"] == 4
    assert written["cores"] == len(os.sched_getaffinity(0))
    for key in ("call_seconds", "step_seconds", "hop_seconds", "core_switch_seconds"):
        assert 0 <= written[key] < 1, key
        assert printed["host"][key] == pytest.approx(written[key], rel=1e-3), key
    for key in ("bytes_per_second", "exchanged_bytes_per_second", "packet_bytes_per_second"):
        assert all(rate >= 1 for _, rate in written[key]), key
        assert len(printed["host"][key]) == len(written[key]), key
    assert 1e8 < written["bytes_per_second"][0][1] < 1e13  # a cache of any processor
    assert written["memory_bytes_per_second"] > 1e8
    assert 1e6 < written["packet_sum_bytes_per_second"] < 1e13
    lines = text.splitlines()
    assert lines[0].startswith("# measured by accord sim calibrate on ")
    for key in set(written) - {"ranks", "cores"}:
        (line,) = [number for number, line in enumerate(lines) if line.startswith(f"{key} = ")]
        assert lines[line - 1].startswith("# "), key


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "barrier"])
def test_the_simulator_accepts_the_file(host, collective):
    path, _ = host
    for ranks in (2, 4):
        result = accord("sim", "run", collective, "64k", "-n", ranks, "--machine", path, "--json")
        assert result.returncode == 0, result.stderr
        assert 0 < json.loads(result.stdout)["seconds"] < 1


def test_the_minimum_of_the_samples_is_said_in_the_file(tmp_path):
    path = tmp_path / "host.toml"
    result = accord("sim", "calibrate", *QUICK, "--statistic", "minimum", "-o", path, timeout=120)
    assert result.returncode == 0, result.stderr
    assert f"written to {path}" in result.stdout
    assert path.read_text().splitlines()[0].endswith("minimum of the samples")


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_two_namespaces_add_their_network(host, tmp_path):
    path, _ = host
    made = tmp_path / "network.toml"
    hosts = Hosts(2)
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.83.0.1", "MASTER_PORT": "29500"}
    ranks = []
    try:
        hosts.slow_down("200mbit")
        for rank in range(2):
            ranks.append(
                subprocess.Popen(
                    [*hosts.prefix(rank), str(ACCORD), "sim", "calibrate", "--network", path, "-n", "1", "-o", made]
                    + [str(word) for word in QUICK],
                    env={**clean_environment(), **where, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [rank.communicate(timeout=240) for rank in ranks]
    finally:
        end(*ranks)
        hosts.close()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[1][0] == ""
    machine = tomllib.loads(made.read_text())
    assert machine["host"]["ranks"] == 1
    assert machine["host"]["hop_seconds"] == tomllib.loads(path.read_text())["host"]["hop_seconds"]
    network = machine["network"]
    assert (network["shape"], network["hosts_share_cores"]) == ("crossbar", True)
    assert 5e6 < network["nic_bytes_per_second"] < 200e6  # 25 MB/s, and bursts
    result = accord("sim", "run", "all_reduce", "1M", "-n", 2, "--machine", made, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["hosts"] == 2


def test_an_interrupt_writes_nothing(tmp_path):
    path = tmp_path / "host.toml"
    job = start_accord("sim", "calibrate", "--seconds", 20, "-o", path, start_new_session=True)
    try:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        wait_until(lambda: children.read_text(), "the other rank")
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(timeout=60) == 130
        assert job.stderr.read() == "accord sim calibrate: interrupted; nothing was written\n"
    finally:
        end(job)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("-o", "/nowhere/host.toml"), {}, "/nowhere/host.toml"),
        (("--network", "host.toml"), {}, "--network needs two ranks of a launcher, on two hosts"),
        ((), {"RANK": "0", "WORLD_SIZE": "2"}, "calibrating a host starts its own ranks"),
        (("--seconds", "0"), {}, "--seconds"),
        (("--statistic", "mean"), {}, "--statistic"),
        (("-n", "0"), {}, "--ranks"),
    ],
)
def test_what_cannot_be_measured_is_named(tmp_path, arguments, environment, message):
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} if environment else {}
    result = accord("sim", "calibrate", *arguments, env={**clean_environment(), **environment, **where}, cwd=tmp_path)
    assert result.returncode != 0
    assert message in result.stderr
    assert not (tmp_path / "machine.toml").exists()
