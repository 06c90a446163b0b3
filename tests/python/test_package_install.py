"""The wheel, installed as a user would, in an environment that has nothing else."""

import configparser
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow
if importlib.util.find_spec("build") is None or importlib.util.find_spec("scikit_build_core") is None:
    pytest.skip("needs the packages build and scikit-build-core", allow_module_level=True)


def clean_environment() -> dict[str, str]:
    """Without what shows the package that is built in the tree, which would stand in for the wheel's."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=clean_environment())
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of a new environment that has accord and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", str(wheel)]
    subprocess.run(
        pip, check=True, timeout=300, env=clean_environment()
    )  # else pip finds the one that is built in the tree
    return python


def run(command: list, **environment: str) -> str:
    both = {**clean_environment(), **environment}
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", env=both)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_holds_the_package_its_library_its_command_and_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"accord/__init__.py", "accord/_core.pyi", "accord/py.typed", "accord/bin/accord"} <= names
    assert any(name.startswith("accord/libaccord.so.") for name in names)
    assert any(name.startswith("accord/_core.") and name.endswith(".so") for name in names)
    assert all(name.startswith("accord") for name in names), "nothing is put beside the package"


def test_the_wheel_is_found_by_torch_and_torchcomms(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = [name for name in files.namelist() if name.endswith(".dist-info/entry_points.txt")]
    entries = configparser.ConfigParser()
    entries.read_string(files.read(name).decode())
    assert dict(entries["torch.backends"]) == {"accord": "accord_autoload:register"}
    assert dict(entries["torchcomms.backends"]) == {"accord": "accord.torchcomms"}
    assert {"accord_autoload/__init__.py", "accord/torch/__init__.py"} <= set(files.namelist())


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no torch")
def test_torch_beside_it_needs_nothing_else(python):
    program = python.parents[1] / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('accord')\n"
        "x = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(x)\n"
        "print(f'sum {x.item()}\\n', end='', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    beside = site / "beside.pth"
    beside.write_text(f"{Path(importlib.util.find_spec('torch').origin).parents[1]}\n")
    try:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
        assert run([python, *launch]).count("sum 3.0") == 2
        assert run([python.parent / "accord", "run", "-n", "2", program], PATH="/usr/bin:/bin").count("sum 3.0") == 2
    finally:
        beside.unlink()


def test_it_works_without_numpy_and_torch(python):
    program = """
import array, accord
comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
x = array.array("f", [1, 2])
comm.all_reduce(x)
print(x.tolist(), accord.info()["version"] == accord.__version__)
"""
    assert run([python, "-c", program]) == "[1.0, 2.0] True\n"
    assert "No module named 'torch'" in run(
        [python, "-c", "import accord\ntry: accord.export\nexcept ImportError as e: print(e)"]
    )


def test_its_command_is_the_programs_and_starts_ranks_with_its_python(python):
    script = python.parent / "accord"
    assert '"version"' in run([script, "info", "--json"])
    assert run([python, "-m", "accord", "info"]) == run([script, "info"])
    first = python.parents[1] / "first.py"
    first.write_text(
        "import accord, array\n"
        "comm = accord.Communicator.from_environment()\n"
        "x = array.array('i', [comm.rank + 1])\n"
        "comm.all_reduce(x)\n"
        "print('sum', x[0])\n"
    )
    assert run([script, "run", "-n", "2", first], PATH="/usr/bin:/bin").count("sum 3") == 2


def test_its_version_is_the_projects(python, wheel):
    version = run([python, "-c", "import accord; print(accord.__version__)"]).strip()
    assert wheel.name.split("-")[1] == version
    assert f"VERSION {version} " in (ROOT / "CMakeLists.txt").read_text()
