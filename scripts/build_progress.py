"""Shows the progress of a build: scripts/build pipes ninja's output through this, with NINJA_STATUS "[%f/%t %es] ".

One line replaces ninja's lines for its steps: steps done, the time so far, and the time left if the other steps take
as long as those done. On a terminal it is always shown; a file gets it every 30 seconds. All other lines, such as
errors and warnings, are passed on.
"""

import re
import signal
import sys
from collections.abc import Iterable, Iterator

STEP = re.compile(r"\[(\d+)/(\d+) (\d+\.\d+)s\] ")
LINES_EVERY = 30.0  # seconds, if the output is not a terminal
FIRST_GUESS = 10.0  # seconds; earlier, too little is known


def duration(seconds: float) -> str:
    """Formats seconds below two minutes, minutes above."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def summary(done: int, total: int, elapsed: float) -> str:
    """Returns one line about the build so far."""
    text = f"{done} of {total} built, {duration(elapsed)}"
    if done < total and done > 0 and elapsed >= FIRST_GUESS:
        text += f", about {duration(elapsed / done * (total - done))} left"
    return text


def shown(lines: Iterable[str], on_terminal: bool) -> Iterator[str]:
    """Yields the text to write for ninja's lines."""
    clear = "\r\033[K" if on_terminal else ""
    state, last = None, 0.0
    for line in lines:
        step = STEP.match(line)
        if step is None:
            yield clear + line
            continue
        state = int(step[1]), int(step[2]), float(step[3])
        if on_terminal:
            yield clear + summary(*state)
        elif state[2] >= last + LINES_EVERY:
            last = state[2]
            yield summary(*state) + "\n"
    if state is not None and (on_terminal or state[2] > last):
        yield f"{clear}{summary(*state)}\n"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ninja ends at once, and its message about that is shown
    for text in shown(sys.stdin, sys.stdout.isatty()):
        sys.stdout.write(text)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
