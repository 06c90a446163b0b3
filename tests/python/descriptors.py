"""The descriptors of this process."""

import os


def open_descriptors() -> list[int]:
    """All but those of files of /proc, which threads of accord's read now and then."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # closed meanwhile, as that of the directory
            continue
        if not file.startswith("/proc/"):
            found.append(int(number))
    return sorted(found)
