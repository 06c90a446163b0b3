"""docs/c.md: its program is the example, its commands work, and every other piece of C code compiles and runs on two
ranks."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from accord_command import ACCORD, BUILD, ROOT, c_interface, clean_environment

PAGE = (ROOT / "docs/c.md").read_text()
PIECES = re.findall(r"^```c\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <accord/accord.h>
static void check(accord_status_t status) {
  if (status == ACCORD_OK) return;
  fprintf(stderr, "%%s: %%s\\n", accord_status_name(status), accord_last_error());
  exit(1);
}
int main(void) {
  accord_communicator_t* comm;
  check(accord_communicator_from_environment(NULL, &comm));
  int32_t rank, size;
  check(accord_communicator_rank(comm, &rank));
  check(accord_communicator_size(comm, &size));
  {
%s
  }
  accord_communicator_free(comm);
  return 0;
}
"""
EXPECTED_OUTPUT = {
    "accord_start(": ["384 tokens, loss 0", "384 tokens, loss 0.5"],
    "accord_prepare(": ["mean 99.5"],
    "accord_communicator_counters(": ["1 barriers, 0 failures"],
    "ACCORD_PEER_LOST": ["lost rank 1: "],
    "accord_window_put(": ["0 hears from 1", "1 hears from 0"],
    "accord_expert_dispatch(": ["0 gets 2 rows", "1 gets 2 rows"],
}


def run(command: list, folder: Path) -> str:
    """Returns the output of a command run in an environment where accord is installed."""
    library = BUILD / "src"
    environment = clean_environment(
        CPATH=str(ROOT / "include"), LIBRARY_PATH=str(library), LD_LIBRARY_PATH=str(library)
    )
    environment["PATH"] = f"{ACCORD.parent}{os.pathsep}{environment['PATH']}"
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_program_shown_is_the_example_and_the_commands_build_and_run_it(tmp_path):
    [(name, text)] = re.findall(r"^```c file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert text == (ROOT / name).read_text(), f"docs/c.md shows another {name}"
    shutil.copy(ROOT / name, tmp_path)
    [commands] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    build, start = commands.splitlines()
    run(shlex.split(build), tmp_path)
    assert run(shlex.split(start), tmp_path).count("of 2: 3 3 3 3") == 2


@pytest.mark.parametrize("piece", PIECES, ids=range(len(PIECES)))
def test_a_c_snippet_compiles_without_warnings_and_runs_on_two_ranks(piece, tmp_path):
    (tmp_path / "piece.c").write_text(PROGRAM % piece)
    run("cc -std=c99 -Wall -Wextra -Wpedantic -Werror piece.c -o piece -laccord".split(), tmp_path)
    output = run(["accord", "run", "-n", "2", "./piece"], tmp_path)
    for words, expected in EXPECTED_OUTPUT.items():
        if words in piece:
            assert all(text in output for text in expected), output


def test_the_snippets_with_expected_output_exist():
    assert all(any(words in piece for piece in PIECES) for words in EXPECTED_OUTPUT)


def test_the_page_names_only_functions_and_types_of_the_header():
    header = c_interface()
    named = set(re.findall(r"\baccord_[a-z_]+\b", PAGE))
    assert {name for name in named if not re.search(rf"\b{name}\b", header)} == set()
