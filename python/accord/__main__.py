"""The `accord` command: `python -m accord` and the script `accord` become the C++ program that the package carries."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    program = Path(__file__).parent / "bin" / "accord"
    if not program.exists():
        sys.exit(f"accord: the command is not part of this installation: there is no {program}")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)  # what `accord run` starts a .py with, as torchrun does
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
