"""Writes the tables of docs/algorithms.md: algorithm_tables.py ACCORD, the path of the command.

`accord plan list --markdown` prints a table for each collective, from the rows in the files of the algorithms.
"""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/algorithms.md"
TABLE = re.compile(r"^## (\w+)\n((?:\|.*\n)+)", re.MULTILINE)


def with_tables(page: str, printed: str) -> str:
    """Returns `page` with each table below the heading of a collective replaced by the printed one."""
    tables = dict(TABLE.findall(printed))
    assert set(tables) == set(re.findall(r"^## (\w+)\n\|", page, re.MULTILINE)), "the page lacks a collective"
    return TABLE.sub(lambda table: f"## {table[1]}\n{tables[table[1]]}", page)


if __name__ == "__main__":
    command = [sys.argv[1], "plan", "list", "--markdown"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    PAGE.write_text(with_tables(PAGE.read_text(), printed))
