"""The `accord` command: `python -m accord` and the script `accord` run the C++ program that the package contains."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    program = Path(__file__).parent / "bin" / "accord"
    if not program.exists():
        sys.exit(f"accord: the command is not part of this installation: there is no {program}")
    # Interpreter that `accord run` starts a .py with, as torchrun does.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
