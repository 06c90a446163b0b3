"""The documentation and the software agree."""

import json
import re
import sys
from pathlib import Path

import pytest
from accord_command import ROOT, accord, c_interface

sys.path.insert(0, str(ROOT / "scripts"))

import algorithm_tables

PAGES = sorted(
    path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("src/*.md")]
)
COMMANDS = {
    ("info",): "cli.md",
    ("bench",): "bench.md",
    ("diagnose",): "diagnose.md",
    ("tune",): "tuning.md",
    ("engine", "run"): "cli.md",
    ("engine", "generate"): "cli.md",
    ("engine", "verify"): "cli.md",
    ("engine", "report"): "cli.md",
    ("engine", "compare"): "cli.md",
    ("engine", "cache", "list"): "cli.md",
    ("engine", "cache", "clear"): "cli.md",
    ("mesh", "show"): "cli.md",
    ("moe", "report"): "cli.md",
    ("moe", "balance"): "cli.md",
    ("plan", "list"): "cli.md",
    ("plan", "show"): "cli.md",
    ("plan", "verify"): "cli.md",
    ("plan", "export"): "cli.md",
    ("plan", "import"): "cli.md",
    ("plan", "run"): "cli.md",
    ("plan", "why"): "cli.md",
    ("sim", "run"): "simulation.md",
    ("sim", "calibrate"): "simulation.md",
    ("run",): "launcher.md",
    ("serve",): "serving.md",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path):
    text = page.read_text()
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_line_outside_tables_and_code_has_at_most_120_columns(page: Path):
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    prose = code.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
    lines = enumerate(prose.splitlines(), start=1)
    assert [number for number, line in lines if len(line) > 120 and not line.startswith(("|", "    "))] == []


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_is_documented_and_every_documented_one_exists(command):
    help_text = accord(*command, "--help").stdout
    options = set(re.findall(r"--[a-z][a-z-]+(?![a-z_-])", help_text)) - {"--help"}
    assert options
    page = (ROOT / "docs" / COMMANDS[command]).read_text()
    documented = set(re.findall(r"--[a-z][a-z-]+", page))
    assert options - documented == set()
    if COMMANDS[command] == "launcher.md":
        belongs_to_programs = {"--epochs"}
        assert documented - options == belongs_to_programs


def test_every_row_of_the_table_of_failures_names_a_test():
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*_test.cpp"))
    sources += "\n".join(path.read_text() for path in (ROOT / "tests/python").rglob("test_*.py"))
    rows = re.findall(r"^\| .*\|$", (ROOT / "docs/failures.md").read_text(), re.MULTILINE)
    rows = [row for row in rows if not row.startswith(("| what", "|--"))]
    assert len(rows) > 20
    for row in rows:
        (test,) = re.findall(r"`(\w+)` \|$", row)
        assert re.search(rf"\b(def|TEST\w*\(.*,) {test}\b", sources), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_page_names_exists(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= targets


def test_every_variable_that_a_page_names_exists():
    known = set(re.findall(r"ACCORD_[A-Z_]+", accord("info").stdout))
    known |= set(re.findall(r"ACCORD_[A-Z_]+", c_interface()))
    build_options = set(re.findall(r"set\((ACCORD_[A-Z_]+)", (ROOT / "CMakeLists.txt").read_text()))
    for page in PAGES:
        unknown = {
            name
            for name in re.findall(r"\bACCORD_[A-Z_]+\b", page.read_text())
            if name not in known | build_options | {"ACCORD_COMMAND"}
        }
        assert unknown == set(), f"{page}: {unknown}"


def test_the_list_has_exactly_the_built_in_algorithms():
    rows = json.loads(accord("plan", "list", "--json").stdout)
    files = (ROOT / "src/plan/algorithms").glob("*/*.cpp")
    built_in = sorted((path.parent.name, path.stem) for path in files)
    assert sorted((row["collective"], row["name"]) for row in rows) == built_in


def test_the_tables_of_algorithms_match_the_command():
    printed = accord("plan", "list", "--markdown").stdout
    one = accord("plan", "list", "all_reduce", "--markdown").stdout
    page = algorithm_tables.PAGE.read_text()
    assert algorithm_tables.with_tables(page, printed) == page, "scripts/algorithm_tables.py writes them"
    assert one in printed and one.count("\n## ") == 0


def test_a_test_runs_the_program_of_the_page_on_gpus():
    of_a_call, of_a_kernel = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/gpu.md").read_text(), re.DOTALL)
    assert of_a_call in (ROOT / "tests/conformance/comm/device_streams_test.cpp").read_text()
    assert of_a_kernel in (ROOT / "tests/conformance/comm/cuda/channel_kernels.cu").read_text()
