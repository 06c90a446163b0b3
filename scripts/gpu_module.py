"""Builds the Python module against a libaccord that is there, for the Python that runs this: gpu_module.py LIBRARY FOLDER.

For the machine of scripts/test-gpu, where what is built elsewhere is tested by another Python. Needs g++, nanobind and Python's headers; says what is missing
and exits with 3. FOLDER becomes what PYTHONPATH names: the package, the module in it, and the entry points by which torch finds accord.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MISSING = 3


def missing() -> str:
    """What this machine lacks; empty if nothing."""
    if shutil.which("g++") is None:
        return "g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return f"Python.h of Python {sysconfig.get_python_version()}"
    try:
        import nanobind  # noqa: F401
    except ImportError:
        return "nanobind"
    return ""


def build(library: Path, folder: Path) -> None:
    """Raises CalledProcessError where a file does not compile; the compiler has said why."""
    import nanobind

    package, objects = folder / "accord", folder.parent / "gpu-module"
    shutil.copytree(ROOT / "python", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    objects.mkdir(parents=True, exist_ok=True)
    here = Path(nanobind.__file__).parent
    sources = [*sorted((ROOT / "bindings").glob("*.cpp")), here / "src" / "nb_combined.cpp"]
    includes = [ROOT / "include", ROOT / "src", here / "include", here / "ext" / "robin_map" / "include"]
    includes += [Path(sysconfig.get_path("include"))]
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-strict-aliasing",
        "-DNDEBUG",
        "-DNB_DOMAIN=accord",
    ]
    flags += [f"-I{include}" for include in includes]

    def compile_one(source: Path) -> Path:
        made = objects / f"{source.stem}.o"
        subprocess.run(["g++", *flags, "-c", source, "-o", made], check=True)
        return made

    with ThreadPoolExecutor() as pool:
        made = list(pool.map(compile_one, sources))
    module = package / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run(["g++", "-shared", *made, library, "-o", module], check=True)
    version = re.search(r"project\(accord VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
    entry_points = ROOT / "bindings" / "entry_points.py"
    subprocess.run([sys.executable, entry_points, ROOT / "pyproject.toml", version, folder], check=True)


def main() -> int:
    lacking = missing()
    if lacking:
        print(f"there is no {lacking} here")
        return MISSING
    try:
        build(Path(sys.argv[1]), Path(sys.argv[2]))
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} failed on {error.cmd[-3:]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
