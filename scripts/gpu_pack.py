"""Packs what scripts/test-gpu runs on another machine: gpu_pack.py BUILD FOLDER.

FOLDER gets the GoogleTest programs that have suites with "Cuda" in their names, the benchmark, libaccord, and the shared libraries that these need, but for
those of the C and C++ runtimes, all without debugging information; beside it FOLDER.tar.xz is the same in one file.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from gpu_checks import run, suites_in

#: Of the machine that runs it: the loader's, and those that torch brings as well.
OF_THE_MACHINE = re.compile(r"^(lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|gomp|cuda)\.so|ld-linux|linux-vdso)")
LIMIT = 60 << 20


def libraries_of(program: Path) -> dict[str, Path]:
    """By the name under which it asks for each; all that it needs, and that those need."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return {name: Path(path) for name, path in found if not OF_THE_MACHINE.match(name)}


def take(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.resolve(), target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-debug", target], check=True)


def pack(build: Path, folder: Path) -> int:
    """The bytes of the file that travels."""
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
    archive = folder.with_name(folder.name + ".tar.xz")
    with tarfile.open(archive, "w:xz", preset=4) as packed:
        packed.add(folder, arcname=folder.name)
    print("\n".join(str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()))
    return archive.stat().st_size


if __name__ == "__main__":
    size = pack(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{sys.argv[2]}.tar.xz: {size / 2**20:.1f} MiB")
    sys.exit(f"error: more than {LIMIT >> 20} MiB do not travel" if size > LIMIT else 0)
