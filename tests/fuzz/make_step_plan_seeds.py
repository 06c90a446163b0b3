"""Writes the seed inputs of step_plan_fuzz: make_step_plan_seeds.py DIRECTORY. The seeds are messages with a plan of
two sequences and with an empty plan, in the fuzz target's input format, which has no hash."""

import struct
import sys
from pathlib import Path

MAGIC = 0x32504341
STEP, IDLE, END = b"\x01", b"\x02", b"\x03"


def plan_of_two() -> bytes:
    """One sequence decodes its 6th token; the other computes 3 tokens after its first 8. Blocks hold 4 tokens."""
    header = struct.pack("<IIQIIIIII", MAGIC, 4, 7, 2, 5, 1, 2, 0, 0)
    sequences = struct.pack("<6i", 1, 5, 0, 3, 8, 0)
    tokens = struct.pack("<4i", 9, 10, 11, 99)
    blocks = struct.pack("<5i", 4, 19, 0, 1, 2)
    copies = struct.pack("<2i", 3, 19)
    logit_rows = struct.pack("<2i", 0, 3)
    return header + sequences + tokens + blocks + copies + logit_rows


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"two": plan_of_two() + STEP, "idle": IDLE, "end": END}.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
