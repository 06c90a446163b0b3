"""The wheel, installed as a user would, in an environment that has nothing else."""

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
    subprocess.run(pip, check=True, timeout=300)
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
