"""The README shows what the examples are, so that a reader copies something that runs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_code_shown_from_a_file_is_that_file():
    shown = re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} == {
        "examples/hello_communicator.py",
        "examples/hello_communicator.cpp",
        "examples/torch/train_ddp.py",
    }
    for name, text in shown:
        assert text == (ROOT / name).read_text(), f"README.md shows another {name}"


def test_the_readme_names_the_two_commands_that_ci_and_users_run():
    commands = re.findall(r"^    make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
    assert "make test" in (ROOT / ".ci/run").read_text()
