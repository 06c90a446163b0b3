"""Checks that no file of the tree names a path of a particular machine: home folders, mount points, temporary
folders.

Tests get temporary folders from tempfile and pytest. Tools and data are found through PATH, CMake or arguments.
"""

import re
import sys
from pathlib import Path

from tree import files_of, root_of_this_tree, text_of

PLACES = ("work", "root", "home", "tmp", "farm", "mnt", "Users", "opt/wheels")
ABSOLUTE = re.compile(r"(?<![\w/.$}~*<>)-])/(?:" + "|".join(PLACES) + r")(?=/|\b(?!\w))(?![-\w])")


def violations(root: Path) -> list[str]:
    """Returns one line per machine-specific path that a file names."""
    found = []
    for name in files_of(root):
        for number, line in enumerate((text_of(root / name) or "").splitlines(), start=1):
            match = ABSOLUTE.search(line)
            if match is not None:
                found.append(f"{name}:{number}: absolute path of one machine: {line.strip()[:100]}")
    return found


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else "paths: no absolute path of one machine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
