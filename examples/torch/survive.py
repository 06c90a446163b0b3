"""Training that continues when ranks die: the others notice within a second, form a group of the remaining ranks, and
load the last checkpoint.

python examples/torch/survive.py

starts three ranks, one of which is killed during training. On a cluster, start each rank with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT and with --checkpoints, with a launcher that lets the others live when one dies: `srun
--kill-on-bad-exit=0`, or a container for each rank (torchrun and `accord run` end all ranks, to restart all of them).
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from character_model import batch, loss_of, make_model
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

import accord.torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--checkpoints", type=Path, help="a folder that all ranks reach, where there is a RANK")
parser.add_argument("--ranks", type=int, default=3, help="how many to start, where there is no RANK")
parser.add_argument("--kill", type=int, default=0, help="the rank that is killed")
parser.add_argument("--kill-at", type=int, default=17, help="in which step")
options = parser.parse_args()


def start_ranks() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--checkpoints", folder]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **master, "RANK": str(rank), "WORLD_SIZE": str(options.ranks)})
            for rank in range(options.ranks)
        ]
        codes = [rank.wait() for rank in ranks]
    return int(any(code for rank, code in enumerate(codes) if rank != options.kill))


def die_in_a_step(rank: int, step: int) -> None:
    """A hook of the first layer, whose gradient arrives last: kills this rank while the others add gradients."""
    if rank == options.kill and step == options.kill_at:
        (options.checkpoints / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def since_the_kill() -> str:
    killed = options.checkpoints / "killed"
    return f", {time.time() - killed.stat().st_mtime:.2f} s after the kill" if killed.exists() else ""


class Training:
    """The model over the current ranks, in the state of the last checkpoint."""

    def __init__(self) -> None:
        bare = make_model()
        self.step = 0
        self.model = DistributedDataParallel(bare)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        # .metadata is written last, after all ranks have written their parts.
        complete = sorted(path.parent for path in options.checkpoints.glob("*/.metadata"))
        if complete:
            found = self.state()
            dcp.load(found, checkpoint_id=complete[-1])
            set_state_dict(
                self.model, self.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"]
            )
            self.step = int(found["step"])

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def run_a_step(self, original_rank: int) -> float:
        characters, following = batch(self.step, dist.get_rank())
        loss = loss_of(self.model(characters), following)
        first = next(self.model.parameters())
        first.register_hook(lambda _: die_in_a_step(original_rank, self.step))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        if self.step % 10 == 0:
            dcp.save(self.state(), checkpoint_id=options.checkpoints / f"{self.step:06}")
        return loss.item()


def main() -> None:
    dist.init_process_group("accord")
    rank = dist.get_rank()
    training = Training()
    while training.step < options.steps:
        try:
            loss = training.run_a_step(rank)
        except RuntimeError as error:
            if accord.torch.communicator().state != "failed":
                raise
            print(f"rank {rank}{since_the_kill()}: {str(error).splitlines()[0]}", flush=True)
            left = accord.torch.shrink()
            training = Training()
            print(f"rank {rank} goes on from step {training.step} with ranks {left} of the old group", flush=True)
            continue
        if training.step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {training.step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(start_ranks())
    if options.checkpoints is None:
        parser.error(
            "start it without a launcher: python examples/torch/survive.py (torchrun and `accord run` end all ranks when one "
            "dies); a launcher that lets the others live gives each rank --checkpoints FOLDER, too"
        )
    main()
