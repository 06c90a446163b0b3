"""torchft's manager trains over accord's process groups, loses a replica and takes in another one."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accord_command import SUPPORT, clean_environment, end, program_environment, start_accord, wait_until
from local_rounds import NAMES, ROUNDS, STEPS, inner_optimizer, loss, make_model, outer_optimizer

coordination = pytest.importorskip("torchft.coordination", reason="torchft is not installed")


def start(folder: Path, name: str, program: str, *arguments: object) -> subprocess.Popen:
    """Starts a replica, which writes its output to the file `name`."""
    command = [sys.executable, f"{SUPPORT}/{program}", name, *map(str, arguments)]
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

    def replica(name: str, seed: int = 0) -> subprocess.Popen:
        return start(tmp_path, name, "torchft_replica.py", lighthouse, tmp_path / "last", seed)

    processes = {name: replica(name) for name in ("first", "second")}
    try:
        wait_until(lambda: "with 2" in logs["first"].read_text(), "two replicas train", 120)
        processes["second"].send_signal(signal.SIGKILL)
        wait_until(
            lambda: re.search(r"with 1\n", logs["first"].read_text().rpartition("with 2")[2]), "one goes on", 120
        )
        processes["third"] = replica("third", seed=1)  # its own parameters are other ones
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


def in_one_process(kind: str) -> list[float]:
    """Returns the parameters after all rounds: each replica trains by itself, then LocalSGD averages the parameters,
    and DiLoCo takes the mean way of the replicas as a gradient of the common parameters."""
    common = make_model()
    outer = outer_optimizer(common)
    for round_ in range(ROUNDS):
        replicas = []
        for name in NAMES:
            model = make_model()
            model.load_state_dict(common.state_dict())
            inner = inner_optimizer(model)
            for step in range(round_ * STEPS, (round_ + 1) * STEPS):
                inner.zero_grad()
                loss(model, step, name).backward()
                inner.step()
            replicas.append(model)
        for parameter, *trained in zip(*(model.parameters() for model in (common, *replicas)), strict=True):
            mean = sum(values.detach() for values in trained) / len(NAMES)
            if kind == "LocalSGD":
                parameter.data.copy_(mean)
            parameter.grad = parameter.detach() - mean
        if kind == "DiLoCo":
            outer.step()
    return torch.cat([p.detach().flatten() for p in common.parameters()]).tolist()


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo"])
def test_replicas_train_by_themselves_and_exchange_parameters(tmp_path, kind):
    server = coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000)
    lighthouse = "http://127.0.0.1:" + server.address().rpartition(":")[2]
    processes = {name: start(tmp_path, name, "torchft_local.py", lighthouse, kind) for name in NAMES}
    try:
        for name, process in processes.items():
            assert process.wait(timeout=120) == 0, (tmp_path / name).read_text()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        server.shutdown()
    for name in NAMES:
        values = json.loads(re.search(r"parameters (.*)", (tmp_path / name).read_text())[1])
        assert values == pytest.approx(in_one_process(kind), abs=1e-6)


@pytest.mark.alone
def test_replicas_of_sharded_models_train_as_one_process(tmp_path):
    server = coordination.LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=1000)
    lighthouse = "http://127.0.0.1:" + server.address().rpartition(":")[2]
    steps, ranks = 3, range(4)
    program = f"{SUPPORT}/torchft_sharded.py"
    environment = program_environment()
    replicas = [
        start_accord("run", "-n", 2, program, replica, lighthouse, steps, env=environment) for replica in range(2)
    ]
    try:
        outputs = [replica.communicate(timeout=120) for replica in replicas]
    finally:
        end(*replicas)
        server.shutdown()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        batches = [torch.full((2, 4), (1 + step + 10 * rank) / 40) for rank in ranks]
        sum(model(batch).square().mean() / len(ranks) for batch in batches).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    for output, errors in outputs:
        found = re.findall(r"parameters (.*)", output)
        assert len(found) == 2, errors
        for parameters in found:
            assert json.loads(parameters) == pytest.approx(expected, abs=1e-6)
