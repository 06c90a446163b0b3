"""The soak test: random collectives on random groups of random groups, with kills, stops, exits, mismatches and
shrinks.

    scripts/soak --seconds 600 --seed 1

It plays episodes (see rank.py) on rank processes. One process lives for the whole test; the others are killed from
time to time and replaced. The rank that gets a result compares it with NumPy's. This driver checks that no episode
takes too long, that ranks which continue agree on their group, that errors are of the right kind, and that no process
holds more memory, descriptors, threads or shared segments than before. Everything except the moment of a signal
follows from the seed.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from processes import LONGEST, Process, SoakFailed, gather, shared_names, soak_until, weigh

RANKS = 5
FAULTS = {"none": 6, "pause": 2, "kill": 8, "kill two": 2, "exit": 4, "raise": 4, "stop": 1, "mismatch": 2}
# The errors that ranks which are not at fault may get. A rank that gets an error aborts its groups, so the others may
# get Aborted.
ERRORS = {
    "none": set(),
    "pause": set(),
    "kill": {"PeerLost", "Aborted"},
    "kill two": {"PeerLost", "Aborted"},
    "exit": {"PeerLost", "Aborted"},
    "raise": {"OnPurpose", "Aborted", "PeerLost"},
    "stop": {"Timeout", "Aborted", "PeerLost"},
    "mismatch": {"Mismatch", "Timeout", "Aborted", "PeerLost"},
}


class Soak:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.started = 0
        self.processes = [self.start() for _ in range(RANKS)]
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest = 0.0

    def start(self) -> Process:
        self.started += 1
        return Process(self.folder, self.started, "rank.py")

    def episode(self, number: int) -> None:
        choice = random.Random(f"{self.seed}/{number}")
        fault = choice.choices(list(FAULTS), list(FAULTS.values()))[0]
        size = choice.randrange(3 if fault == "kill two" else 1 if fault == "none" else 2, RANKS + 1)
        # The first process is in all episodes and never at fault, so that its memory reveals leaks.
        chosen = [self.processes[0], *choice.sample(self.processes[1:], size - 1)]
        strikes = [] if fault == "none" else chosen[1 : 3 if fault == "kill two" else 2]
        choice.shuffle(chosen)
        victims = [chosen.index(process) for process in strikes]
        steps = choice.choice([20, 60, 150])
        at = choice.randrange(steps)
        store = self.folder / f"store{number}"
        began = time.monotonic()
        self.description = f"episode {number}: {size} ranks, {steps} steps, fault {fault!r} of ranks {victims}"
        deadline = began + LONGEST
        # An episode's timeouts are too short for an interpreter to start on a busy machine.
        gather([process for process in chosen if process.is_new], "ready", deadline)
        for rank, process in enumerate(chosen):
            process.is_new = False
            process.send_episode(
                {
                    "store": str(store),
                    "rank": rank,
                    "size": size,
                    "seed": f"{self.seed}/{number}",
                    "steps": steps,
                    "fault": fault,
                    "victims": victims,
                    "at": at,
                    "timeout": 4 if fault in ("stop", "mismatch") else 60,
                }
            )
        gather(chosen, "began", deadline)
        moment = choice.random() * 0.8
        if fault in ("kill", "kill two", "stop", "pause"):
            time.sleep(moment)
            sign = signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP
            for process in strikes:
                process.child.send_signal(sign)
        if fault == "pause":
            time.sleep(0.1)
            strikes[0].child.send_signal(signal.SIGCONT)
        results: list[dict | None] = [None] * size
        others = [rank for rank in range(size) if not (fault == "stop" and rank in victims)]
        for waited in (others, [rank for rank in range(size) if rank not in others]):
            gathered = gather([chosen[rank] for rank in waited], "resources", deadline)
            for rank, result in zip(waited, gathered, strict=True):
                results[rank] = result
            if fault == "stop" and waited is others:
                strikes[0].child.send_signal(signal.SIGCONT)
        took = time.monotonic() - began
        self.longest = max(self.longest, took)
        self.judge(fault, victims, results)
        for rank, process in enumerate(chosen):
            weigh(process, results[rank])
            if results[rank] is None or (fault.startswith("kill") and process in strikes):
                process.end()
                self.processes[self.processes.index(process)] = self.start()
                self.counts["processes that ended and were restarted"] += 1
        self.counts[f"episodes with fault {fault!r}"] += 1
        self.counts["calls"] += sum(result.get("calls", 0) for result in results if result)
        self.counts["groups that were shrunk"] += sum(bool(r and r.get("errors")) for r in results)
        shutil.rmtree(store)

    @staticmethod
    def judge(fault: str, victims: list[int], results: list[dict | None]) -> None:
        for rank, result in enumerate(results):
            at_fault = rank in victims
            if result is None:
                if not at_fault or fault not in ("kill", "kill two", "exit"):
                    raise SoakFailed(f"rank {rank} ended")
                continue
            if "error" in result:  # a rank that was stopped finds that the others have continued
                if not (at_fault and fault == "stop"):
                    raise SoakFailed(f"rank {rank}: {result['error']}")
                continue
            wrong = [error for error in result["errors"] if error[0] not in ERRORS[fault]]
            if wrong:
                raise SoakFailed(f"rank {rank} saw {wrong}")
            if rank not in result["members"]:
                raise SoakFailed(f"rank {rank} is not in the group that it ended with: {result}")
            for other in result["members"]:
                theirs = results[other]
                if theirs is None or theirs.get("members") == result["members"]:
                    continue
                # After a kill during the very last call, some ranks may be notified when others have completed the
                # call and left.
                ended_before = "members" in theirs and len(result["errors"]) < len(theirs["errors"])
                if not (fault.startswith("kill") and ended_before and rank not in theirs["members"]):
                    raise SoakFailed(f"ranks {rank} and {other} went on in different groups: {result}, {theirs}")
            if fault in ("none", "pause") and len(result["members"]) != len(results):
                raise SoakFailed(f"rank {rank} lost ranks: {result}")

    def end(self) -> None:
        for process in self.processes:
            process.end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="random calls, groups and faults, for a while")
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--seed", type=int, default=None, help="what follows from it is the same every time")
    parser.add_argument("--episode", type=int, default=None, help="only this one, again and again")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(1 << 31)
    print(f"soak: {given.seconds:g} s, --seed {seed}", flush=True)
    before = shared_names()
    with tempfile.TemporaryDirectory(prefix="accord-soak-") as folder:
        soak = Soak(seed, Path(folder))
        began = time.monotonic()
        return soak_until(
            soak,
            is_enough=lambda: time.monotonic() - began >= given.seconds,
            number_of=lambda episode: episode if given.episode is None else given.episode,
            done=lambda: f"{time.monotonic() - began:.0f} s, {soak.counts['calls']} calls",
            seed=seed,
            before=before,
        )


if __name__ == "__main__":
    sys.exit(main())
