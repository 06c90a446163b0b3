"""Checks that CUDA, cuBLAS and NCCL headers are included only in folders named "cuda", which a build without CUDA
omits."""

import re
import sys
from pathlib import Path

from tree import files_of, root_of_this_tree, text_of

SUFFIXES = (".cpp", ".hpp", ".h", ".c", ".cu", ".cuh")
INCLUDE = re.compile(
    r'^\s*#\s*include\s*["<]((?:cublas|cuda|nccl)\w*\.h|cooperative_groups(?:\.h|/.*)|(?:cub|cuda|thrust|nv)/[^">]*)[">]'
)


def violations(root: Path) -> list[str]:
    """Returns one line per include of a CUDA header outside those folders."""
    found = []
    for name in files_of(root):
        if name.suffix not in SUFFIXES or "cuda" in name.parts[:-1]:
            continue
        for number, line in enumerate((text_of(root / name) or "").splitlines(), start=1):
            match = INCLUDE.match(line)
            if match is not None:
                found.append(f'{name}:{number}: includes {match[1]}; only files in folders called "cuda" may')
    return found


def main() -> int:
    found = violations(root_of_this_tree())
    print("\n".join(found) if found else "cuda: its headers are in their folders")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
