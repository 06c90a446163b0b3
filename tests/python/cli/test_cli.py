"""`accord info`, and behaviour that all commands share."""

import json
import os
import re
import sys

import pytest
from accord_command import accord, clean_environment


def info(**environment: str) -> dict:
    result = accord("info", "--json", env=clean_environment(**environment))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def named(parts: list[dict]) -> dict[str, dict]:
    return {part["name"]: part for part in parts}


def test_info_shows_version_machine_and_kernels():
    facts = info()
    assert re.fullmatch(r"\d+\.\d+\.\d+", facts["version"])
    assert accord("--version").stdout.strip() == facts["version"]
    assert facts["cpus"] == len(os.sched_getaffinity(0))
    assert 1 <= facts["cores"] <= facts["cpus"]
    assert facts["numa_nodes"] >= 1
    assert facts["instruction_set"]
    assert re.match(r"(GNU|Clang) \d+", facts["compiler"])


def test_info_shows_why_each_missing_part_is_off():
    facts = info()
    parts = named(facts["transports"]) | named(facts["parts"])
    assert parts["shm"]["available"]
    assert parts["inproc"]["available"]
    assert re.match(r"built with (CUDA \d+\.\d+; |ACCORD_CUDA=(AUTO|OFF): )", parts["cuda"]["detail"])
    assert parts["cublaslt"]["available"] == parts["cublaslt"]["detail"].startswith("cuBLASLt ")
    assert all(part["detail"] for part in parts.values())


def test_info_finds_the_torch_of_the_python_in_path(tmp_path):
    importlib = pytest.importorskip("importlib.metadata")
    torch = named(info()["parts"])["torch"]
    assert torch["available"]
    assert torch["detail"].startswith(importlib.version("torch"))
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    without = named(info(PATH=f"{tmp_path}:{os.environ['PATH']}")["parts"])["torch"]
    assert not without["available"]
    assert f"{tmp_path}/python3 has no package torch" in without["detail"]


def test_info_uses_the_python_named_by_torchruns_variable(tmp_path):
    broken = tmp_path / "a python"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for path, words in {broken: "has no package torch", tmp_path / "absent": f"there is no {tmp_path}/absent"}.items():
        torch = named(info(PYTHON_EXEC=str(path))["parts"])["torch"]
        assert not torch["available"]
        assert words in torch["detail"]
    broken.rename(tmp_path / "python3")
    found = named(info(PYTHON_EXEC=sys.executable, PATH=f"{tmp_path}:{os.environ['PATH']}")["parts"])["torch"]
    assert found["available"]


def test_info_shows_variables_and_their_errors():
    variables = {variable["name"]: variable for variable in info(ACCORD_TIMEOUT="7")["variables"]}
    assert variables["ACCORD_TIMEOUT"]["value"] == "7"
    assert variables["ACCORD_TIMEOUT"]["is_set"]
    assert not variables["ACCORD_LOG"]["is_set"]
    assert all(variable["meaning"] for variable in variables.values())
    misspelt = accord("info", env=clean_environment(ACCORD_TIMEOT="7"))
    assert misspelt.returncode == 1
    assert "ACCORD_TIMEOUT" in misspelt.stdout


def test_the_table_shows_the_contents_of_the_json():
    table = accord("info").stdout
    facts = info()
    for part in facts["transports"] + facts["parts"]:
        assert re.search(rf"^  {part['name']} +{'yes' if part['available'] else 'no'} ", table, re.MULTILINE)


@pytest.mark.parametrize(
    "command", [(), ("info",), ("run",), ("diagnose",), ("engine",), ("engine", "run")], ids=" ".join
)
def test_every_command_has_help(command):
    result = accord(*command, "--help")
    assert result.returncode == 0
    assert "Usage: accord" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inffo"], 'unknown command "inffo"; did you mean "info"?'),
        (["info", "--jsom"], 'unknown option "--jsom"; did you mean "--json"?'),
        (["info", "more"], 'unexpected argument "more"'),
        (["engine", "inspct", "x"], 'unknown command "inspct"; did you mean "inspect"?'),
        (["engine", "cache", "lst"], 'unknown command "lst"; did you mean "list"?'),
        (["engine", "verify"], "package is required"),
        (["engine", "run", "x", "--inptus", "y"], "--inputs"),
        (["engine", "run", "x", "--inputs", "y", "--repeat", "0"], "--repeat"),
        ([], "Usage: accord"),
        (["engine"], "Usage: accord engine"),
    ],
)
def test_invalid_usage_is_explained(arguments, message):
    result = accord(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""
