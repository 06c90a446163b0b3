"""A job of `accord run --elastic` whose ranks tests kill."""

import os
import re
import signal
import threading
from pathlib import Path

from accord_command import program_environment, python_file, start_accord, wait_until

# Adds up the numbers below 12 in each step, whatever the number of ranks, until the file in its argument exists.
PROGRAM = """
import sys
from contextlib import contextmanager
import numpy
from elastic_loop import go_on

steps, total = -1, 0

@contextmanager
def begin(elastic, comm):
    global steps, total
    state = numpy.array([steps, total])
    comm.broadcast(state, elastic.most_advanced(steps))
    if state[0] > steps:
        steps, total = state.tolist()
    steps = max(steps, 0)

    def step():
        global steps, total
        share = numpy.array([sum(range(comm.rank, 12, comm.size))])
        comm.all_reduce(share)
        steps, total = steps + 1, total + int(share[0])

    yield step

go_on(sys.argv[1], begin)
print("end", total == 66 * steps, flush=True)
"""


class ElasticJob:
    """Started launchers, and what their ranks print. A context manager, which ends what still runs."""

    def __init__(self, folder: Path, program: str = PROGRAM, *arguments: object) -> None:
        """program: calls go_on() of elastic_loop.py, like PROGRAM, with its first argument."""
        self.lines: list[str] = []
        self.messages: list[str] = []
        self.launchers = []
        self._end_file = folder / "end"
        self._program = [python_file(folder, program), self._end_file, *arguments]

    def start(self, *options: object) -> None:
        launcher = start_accord("run", *options, *self._program, env=program_environment())
        self.launchers.append(launcher)
        for stream, lines in ((launcher.stdout, self.lines), (launcher.stderr, self.messages)):
            threading.Thread(target=lambda s=stream, to=lines: to.extend(s), daemon=True).start()

    def rounds(self) -> dict[int, dict[int, tuple[int, int]]]:
        """Returns, by round and rank, the size and the process."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        for line in self.lines:
            if match := re.search(r"round (\d+) rank (\d+) of (\d+) process (\d+)", line):
                number, rank, size, process = map(int, match.groups())
                found.setdefault(number, {})[rank] = (size, process)
        return found

    def await_size(self, size: int, after: int = 0) -> int:
        """Waits until a round after `after` has this size, and all its ranks are in it; returns its number."""

        def newest() -> int | None:
            for number, ranks in sorted(self.rounds().items()):
                if number > after and len(ranks) == size and ranks[0][0] == size:
                    return number
            return None

        try:
            return wait_until(newest, f"a group of {size} ranks", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.rounds()}; {''.join(self.messages)}") from None

    def kill(self, number: int, rank: int) -> int:
        """Kills the process that is `rank` of round `number`."""
        process = self.rounds()[number][rank][1]
        os.kill(process, signal.SIGKILL)
        return process

    def finish(self) -> list[int]:
        """Ends the job and returns the exit codes of the launchers."""
        self._end_file.touch()
        return [launcher.wait(60) for launcher in self.launchers]

    def __enter__(self) -> "ElasticJob":
        return self

    def __exit__(self, *exception: object) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
            launcher.wait()
