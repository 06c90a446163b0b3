"""The README and the guides show the examples as they are, so that code copied by a reader runs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def test_code_quoted_from_a_file_matches_the_file():
    shown = [
        (page, name, text)
        for page in PAGES
        for name, text in re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert {name for _, name, _ in shown} == {
        "examples/hello_communicator.c",
        "examples/hello_communicator.cpp",
        "examples/hello_communicator.py",
        "examples/own_plan.cpp",
        "examples/own_plan.py",
        "examples/torch/train_ddp.py",
    }
    for page, name, text in shown:
        assert text == (ROOT / name).read_text(), f"{page.relative_to(ROOT)} shows another {name}"


def test_the_readme_names_the_two_commands_that_ci_and_users_run():
    commands = re.findall(r"^    make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["demo", "test"]
    assert "make test" in (ROOT / ".ci/run").read_text()
