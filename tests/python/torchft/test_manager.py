"""torchft's manager trains over accord's process groups, loses a replica and takes in another one."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accord_command import SUPPORT, clean_environment, wait_until

coordination = pytest.importorskip("torchft.coordination", reason="torchft is not installed")


def start(folder: Path, name: str, lighthouse: str, seed: int = 0) -> subprocess.Popen:
    command = [sys.executable, f"{SUPPORT}/torchft_replica.py", name, lighthouse, str(folder / "last"), str(seed)]
    environment = clean_environment(PYTHONPATH=":".join(filter(None, sys.path)), OMP_NUM_THREADS="1")
    return subprocess.Popen(command, env=environment, stdout=(folder / name).open("w"), stderr=subprocess.STDOUT)


def one_process(steps: int) -> list[float]:
    """Returns the parameters after the same steps in plain PyTorch: every replica has the same batch, so the mean of
    their gradients is that of one."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(step % 7) / 7)).square().mean().backward()
        optimizer.step()
    return [round(value, 5) for value in torch.cat([p.flatten() for p in model.parameters()]).tolist()]


@pytest.mark.alone
def test_a_killed_replica_is_left_out_and_a_new_one_gets_the_state(tmp_path):
    server = coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000)
    lighthouse = "http://127.0.0.1:" + server.address().rpartition(":")[2]
    logs = {name: tmp_path / name for name in ("first", "second", "third")}
    processes = {name: start(tmp_path, name, lighthouse) for name in ("first", "second")}
    try:
        wait_until(lambda: "with 2" in logs["first"].read_text(), "two replicas train", 120)
        processes["second"].send_signal(signal.SIGKILL)
        wait_until(
            lambda: re.search(r"with 1\n", logs["first"].read_text().rpartition("with 2")[2]), "one goes on", 120
        )
        processes["third"] = start(tmp_path, "third", lighthouse, seed=1)  # its own parameters are other ones
        wait_until(lambda: logs["third"].exists() and "with 2" in logs["third"].read_text(), "it is taken in", 120)
        steps = int(re.findall(r"step (\d+)", logs["first"].read_text())[-1]) + 200
        (tmp_path / "draft").write_text(str(steps))
        (tmp_path / "draft").rename(tmp_path / "last")
        for name in ("first", "third"):
            assert processes[name].wait(timeout=120) == 0, logs[name].read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        server.shutdown()
    ends = [json.loads(re.search(rf"{name} parameters (.*)", logs[name].read_text())[1]) for name in ("first", "third")]
    assert ends[0] == ends[1] == pytest.approx(one_process(steps), abs=1e-4)
