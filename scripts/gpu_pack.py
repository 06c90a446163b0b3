"""Packs everything that scripts/test-gpu runs on another machine: gpu_pack.py BUILD FOLDER TREE.

FOLDER gets the GoogleTest programs that have suites with "Cuda" in their names, the benchmark, libaccord, the Python
package with its dependencies, for every Python from 3.11 to 3.14, and the shared libraries that these need, except
the C and C++ runtimes, all without debugging information; and tree.txt with the text TREE. FOLDER.tar.xz beside it
contains the same in one file.
"""

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

from gpu_run import ROOT, run
from gpu_suites import suites_in

#: Libraries of the machine that runs it: the loader's, and those that torch includes, too.
OF_THE_MACHINE = re.compile(r"^(lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|gomp|cuda)\.so|ld-linux|linux-vdso)")
LIMIT = 54 << 20
#: The programs contain the same layers and kernels. With a dictionary larger than all of them these are stored once.
COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 256 << 20}]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def libraries_of(program: Path) -> dict[str, Path]:
    """Returns all libraries that it needs, directly or indirectly, by the name under which they are requested."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*(\S+) => (/.+) \(0x", listed, re.MULTILINE)
    return {name: Path(path) for name, path in found if not OF_THE_MACHINE.match(name)}


def strip(binary: Path) -> None:
    subprocess.run(["strip", "--strip-debug", binary], check=True)


def take(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.resolve(), target)
    target.chmod(0o755)
    strip(target)


def take_package(build: Path, target: Path) -> None:
    """Copies accord's Python package and its dependencies in pyproject.toml. Wheels for all PYTHONS contain the same
    files, except modules, whose names include the version."""
    left_out = shutil.ignore_patterns("__pycache__", "bin")
    shutil.copytree(build / "python", target, ignore=left_out, ignore_dangling_symlinks=True)
    for module in target.rglob("*.so"):
        strip(module)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as wheels:
        for version in PYTHONS:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--implementation", "cp", "--python-version", version, "--dest", wheels]
            subprocess.run([*command, *project["dependencies"]], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(target)


def compress(folder: Path, archive: Path) -> None:
    with lzma.open(archive, "wb", filters=COMPRESSION) as file, tarfile.open(fileobj=file, mode="w|") as packed:
        packed.add(folder, arcname=folder.name)


def pack(build: Path, folder: Path, tree: str) -> int:
    """Packs everything. Returns the size of the archive in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    programs = sorted((build / "tests").glob("accord_*_test"))
    chosen = [program for program in programs if suites_in(run([str(program), "--gtest_list_tests"], 60).output)]
    if not chosen:
        raise SystemExit(
            f"error: no test program in {build / 'tests'} has a suite with Cuda in its name; was it built with CUDA?"
        )
    wanted = {"tests": chosen, "bin": [build / "bin" / "bench_gpu"], "lib": [build / "src" / "libaccord.so.0"]}
    libraries: dict[str, Path] = {}
    for place, files in wanted.items():
        for file in files:
            take(file, folder / place / file.name)
            libraries |= libraries_of(file)
    for name, path in libraries.items():
        take(path, folder / "lib" / name)
    take_package(build, folder / "python")
    (folder / "tree.txt").write_text(tree + "\n")
    archive = folder.with_name(folder.name + ".tar.xz")
    compress(folder, archive)
    print("\n".join(str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()))
    return archive.stat().st_size


if __name__ == "__main__":
    size = pack(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    print(f"{sys.argv[2]}.tar.xz: {size / 2**20:.1f} MiB")
    sys.exit(f"error: more than {LIMIT >> 20} MiB do not travel" if size > LIMIT else 0)
