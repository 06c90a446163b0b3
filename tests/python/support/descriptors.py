"""The open file descriptors of this process."""

import os


def open_descriptors() -> list[int]:
    """Returns all open descriptors except those of files in /proc, which accord's threads read from time to time."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # closed in the meantime, like the directory's own descriptor
            continue
        if not file.startswith("/proc/"):
            found.append(int(number))
    return sorted(found)
