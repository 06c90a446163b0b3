"""The commands that scripts/demo suggests to its user can be run unchanged."""

import re
import shlex
import subprocess

import pytest
from accord_command import ACCORD, BUILD, ROOT, accord, clean_environment

pytestmark = pytest.mark.skipif(
    BUILD != ROOT / "build/release", reason="the demo names the programs of build/release, which are not those tested"
)


@pytest.fixture(scope="module")
def commands() -> list[str]:
    """The indented lines of the demo's closing message that are not comments."""
    demo = [ROOT / "scripts/demo", "--next"]
    shown = subprocess.run(demo, capture_output=True, text=True, timeout=60, check=True).stdout
    return [line.strip() for line in re.findall(r"^    (?! *#).+$", shown, re.MULTILINE)]


def of_accord(commands: list[str]) -> list[list[str]]:
    """Returns the words after `accord` of each accord command."""
    return [shlex.split(command)[1:] for command in commands if command.startswith("accord ")]


def mistakes(words: list[str]) -> str:
    """Returns the errors of an accord command according to the help of its subcommand; empty if nothing is
    wrong."""
    subcommand = words[: 2 if words[0] == "engine" else 1]
    help_text = accord(*subcommand, "--help")
    # If a subcommand does not exist, the command above it prints its own help.
    if help_text.returncode != 0 or f"Usage: accord {' '.join(subcommand)} " not in help_text.stdout:
        return f"there is no accord {' '.join(subcommand)}"
    known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text.stdout)
    return " ".join(f"{word} is no option of {subcommand}" for word in words if word[0] == "-" and word not in known)


def test_the_demo_has_three_commands_after_the_one_that_finds_them(commands):
    first, *others = commands
    assert first == "source build/demo/activate"
    assert len(others) == 3
    assert len(of_accord(commands)) == 3


def test_each_command_has_a_subcommand_and_options_that_exist(commands):
    assert [mistakes(words) for words in of_accord(commands)] == [""] * 3
    assert mistakes(["engine", "converse"]) != ""
    assert mistakes(["informations"]) != ""
    assert mistakes(["run", "--rank-count", "2"]) != ""


def test_each_file_that_a_command_names_exists_or_was_made_by_the_demo(commands):
    files = [word for words in of_accord(commands) for word in words if "/" in word]
    assert files
    made = {
        f"build/demo/{name}.accord" for name in re.findall(r"make_package (\w+) ", (ROOT / "scripts/demo").read_text())
    }
    assert [name for name in files if name not in made and not (ROOT / name).is_file()] == []


def test_the_first_command_finds_the_command_and_the_module_of_this_tree(commands):
    script = f"{commands[0]} && command -v accord && accord info && python3 -c 'import accord; print(accord.__file__)'"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(ACCORD)
    assert lines[-1] == str(BUILD / "python/accord/__init__.py")
