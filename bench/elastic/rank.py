"""Ranks of the benchmark `elastic`, forked from a process that has imported torch already.

python -m bench.elastic.rank BACKEND PORT REPORTS     REPORTS: a descriptor that the ranks write their reports to

Reads requests, one a line: "BLOCK NAME" forks a rank and prints its process id. The store at PORT has these keys for
each block:

    GENERATION members          the names of the ranks that form the group, written by the driver; empty at the end
    NAME begins                 the first generation of that rank
    GENERATION handle NAME      the rank's handle for that generation
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.elastic.training import Training, loss_of, samples, share

try:
    import accord.torch  # noqa: F401 (before ranks are forked)
except ImportError as error:
    sys.exit(f"accord cannot be imported: {error}")

# Far longer than the driver waits before it counts a hang: no timeout may end one.
TIMEOUT = timedelta(minutes=30)
PR_SET_PDEATHSIG = 1


class Rank:
    """A rank that trains until the driver ends the block. It goes on in the next generation after an error, and when
    the driver has announced one."""

    def __init__(self, training: Training, backend: str, port: int, reports: int, block: int, name: str) -> None:
        self._training, self._reports, self._block, self._name = training, reports, block, name
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        self._store = dist.PrefixStore(f"block {block}", store)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("torch", self._store),
            rank=int(name),  # gloo puts it into the handle, and the handles of a group must differ
            world_size=int(name) + 1,
            timeout=TIMEOUT,
            enable_reconfigure=True,
        )
        self._backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def run(self) -> None:
        self._report(event="ready")
        generation = int(self._store.get(f"{self._name} begins"))
        while members := json.loads(self._store.get(f"{generation} members")):
            try:
                self._form(generation, members)
                self._train(generation)
            except RuntimeError as error:
                self._report(event="failed", generation=generation, text=f"{type(error).__name__}: {error}"[:500])
                self._leave(generation)
            generation += 1

    def _leave(self, generation: int) -> None:
        """Makes calls of ranks that still wait for this one fail. abort() does that, but gloo's does nothing: there, a
        group of this rank alone closes the connections."""
        if dist.get_backend() == "gloo":
            uuid = self._uuid(generation) + 1 + int(self._name)
            dist._reconfigure(uuid, [dist._get_reconfigure_handle()], timeout=TIMEOUT).wait()
        else:
            self._backend.abort()

    def _form(self, generation: int, members: list[str]) -> None:
        """Forms the group of the members. All of them get the state of the one that has finished most steps."""
        self._store.set(f"{generation} handle {self._name}", dist._get_reconfigure_handle())
        handles = self._store.multi_get([f"{generation} handle {member}" for member in members])
        dist._reconfigure(self._uuid(generation), [handle.decode() for handle in handles], timeout=TIMEOUT).wait()
        training = self._training
        steps = torch.empty(len(members), dtype=torch.int64)
        dist.all_gather_into_tensor(steps, torch.tensor([training.step]))
        if steps.min() < steps.max():
            state = training.state()
            dist.broadcast(state, int(steps.argmax()))
            training.load_state(state)
            training.step = int(steps.max())

    def _train(self, generation: int) -> None:
        """Trains until the driver announces the next generation."""
        training, size = self._training, dist.get_world_size()
        model = DistributedDataParallel(training.model, init_sync=False)
        announced = torch.zeros(())
        while not announced:
            training.optimizer.zero_grad()
            loss = loss_of(model, samples(training.step, share(dist.get_rank(), size)))
            (loss * size).backward()  # DDP takes the mean over the ranks
            # One sum tells all ranks the loss, and whether any of them has seen an announcement: they leave together.
            is_announced = self._store.check([f"{generation + 1} members"])
            totals = torch.stack((loss.detach(), torch.tensor(is_announced, dtype=loss.dtype)))
            dist.all_reduce(totals)
            training.optimizer.step()
            self._report(
                event="step", generation=generation, step=training.step, time=time.monotonic(), loss=totals[0].item()
            )
            training.step += 1
            announced = totals[1]

    def _uuid(self, generation: int) -> int:
        return (self._block << 40) + (generation << 20)

    def _report(self, **fields: object) -> None:
        """Writes one line, whole even if the process is killed."""
        text = json.dumps({"name": self._name, "block": self._block, **fields})
        os.write(self._reports, text.encode() + b"\n")  # less than PIPE_BUF


def main() -> None:
    backend, port, reports = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    training = Training()  # torch.optim imports for seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead ranks leave no zombies
    for line in sys.stdin:
        block, name = line.split()
        process = os.fork()
        if process == 0:
            break
        print(process, flush=True)
    else:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ranks end with the driver, however it ends
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)  # the driver asks a rank that hangs where it is
    Rank(training, backend, port, reports, int(block), name).run()
    sys.stderr.flush()
    os._exit(0)  # at the end of a block nobody waits for the others


if __name__ == "__main__":
    main()
