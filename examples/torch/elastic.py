"""Training that goes on while its ranks are killed, started again, and joined by one more.

accord run --elastic 2:5 --max-restarts 100 examples/torch/elastic.py

Four ranks begin. Every few seconds one of them is killed in the midst of its work; the others go on without it, and the
launcher starts it again, so that it joins them. A fifth rank comes later. The work of a step is the same whatever the
number of ranks, so the loss is that of an undisturbed run. --plot draws both over time.
"""

import argparse
import csv
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from character_model import batch, loss_of, make_model
from torch.nn.parallel import DistributedDataParallel

import accord.torch

PARTS = 12  # pieces of the batch of each step, which the ranks share out
PART_ROWS = 4

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--steps", type=int, default=1000)
arguments.add_argument("--kill-every", type=float, default=5, metavar="SECONDS", help="0: no rank is killed [5]")
arguments.add_argument("--late", type=float, default=20, metavar="SECONDS", help="when the fifth rank comes [20]")
arguments.add_argument("--log", type=Path, default=Path("elastic.csv"), help="time, step, ranks and loss [elastic.csv]")
arguments.add_argument("--plot", type=Path, metavar="FILE", help="draw the log: an image of any kind (matplotlib)")
options = arguments.parse_args()


def kill_this_rank_in_its_turn() -> None:
    """The first four ranks take turns: each interval of `--kill-every` seconds ends with the kill of one of them."""
    while True:
        interval = int(time.time() / options.kill_every)
        if steps_are_done.wait(max(0.0, options.kill_every * (interval + 1) - time.time())):
            return
        if interval % 4 == int(os.environ["RANK"]):
            os.kill(os.getpid(), signal.SIGKILL)


steps_are_done = threading.Event()
killer = threading.Thread(target=kill_this_rank_in_its_turn, daemon=True)
model = make_model()
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)


def make_step():
    """Called with each new group."""
    replica = DistributedDataParallel(model)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(f"round {elastic.round}: {ranks} ranks", flush=True)

    def step(number: int) -> None:
        if options.kill_every > 0 and killer.ident is None:
            killer.start()
        optimizer.zero_grad()
        pieces = [batch(number, part, PART_ROWS) for part in range(rank, PARTS, ranks)]
        inputs, targets = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
        # The sum over all ranks is the mean over the whole batch.
        loss = loss_of(replica(inputs), targets) * len(pieces) / PARTS
        (loss * ranks).backward()
        loss = loss.detach()
        dist.all_reduce(loss)
        optimizer.step()
        if rank == 0:
            with options.log.open("a") as log:
                log.write(f"{time.time():.3f},{number},{ranks},{loss.item():.6f}\n")
        if number == options.steps - 1:
            steps_are_done.set()

    return step


def plot(log: Path, image: Path) -> None:
    from matplotlib import pyplot

    times, _, ranks, losses = zip(*(map(float, row) for row in csv.reader(log.open())), strict=True)
    seconds = [moment - times[0] for moment in times]
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), height_ratios=[2, 1])
    above.plot(seconds, losses, linewidth=1)
    above.set_ylabel("loss")
    below.step(seconds, ranks, where="post", linewidth=1)
    below.set_ylabel("ranks")
    below.set_yticks(range(int(max(ranks)) + 1))
    below.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(image)


if int(os.environ["RANK"]) >= 4:
    time.sleep(options.late)
with accord.torch.ElasticGroup.from_environment(last_call=5) as elastic:
    did_last_step = elastic.run(make_step, options.steps, state=[model, optimizer])
    if did_last_step and dist.get_rank() == 0:
        print(f"{options.steps} steps are done", flush=True)
        if options.plot:
            plot(options.log, options.plot)
