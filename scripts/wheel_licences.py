"""Adds the licences of all third-party code to a wheel that contains it, and prints its size.

wheel_licences.py WHEEL FOLDER: FOLDER gets the wheel with the licences. The code comes from Debian packages whose
libraries auditwheel added, and from packages of which only headers or archives went into accord's own library. The
texts are those that the owner ships: for a Debian package the file "copyright" and the common licences that it points
to, for a PyPI package its licence files.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from auditwheel.wheeltools import InWheelCtx
from elftools.elf.elffile import ELFFile

#: Compiled into accord from their headers.
DEBIAN_HEADERS = ("libcli11-dev", "libtomlplusplus-dev", "nlohmann-json3-dev")
PYPI_HEADERS = ("nanobind",)
#: Linked into accord if it has kernels for GPUs.
CUDA_RUNTIME = "nvidia-cuda-runtime"
COMMON = Path("/usr/share/common-licenses")


def debian_package(library: Path) -> str:
    """Returns the package that auditwheel took the library from. auditwheel adds the start of a hash to the name."""
    name = re.sub(r"-[0-9a-f]{8}\.so", ".so", library.name)
    asked = subprocess.run(["dpkg-query", "--search", f"*/{name}"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise SystemExit(f"error: no Debian package has {name}, so its licence is not known")
    return asked.stdout.split(":")[0]


def has_kernels(library: Path) -> bool:
    with library.open("rb") as file:
        return ELFFile(file).get_section_by_name(".nv_fatbin") is not None


def take_debian(package: str, licences: Path) -> None:
    text = Path("/usr/share/doc") / package / "copyright"
    shutil.copyfile(text, licences / f"{package}.txt")
    for name in set(re.findall(rf"{COMMON}/([\w.+-]*\w)", text.read_text(errors="replace"))):
        shutil.copyfile((COMMON / name).resolve(), licences / f"{name}.txt")


def take_pypi(package: str, licences: Path) -> None:
    files = importlib.metadata.files(package) or []
    texts = [file for file in files if "licenses" in file.parts]
    if not texts:
        raise SystemExit(f"error: the package {package} carries no licence")
    for file in texts:
        shutil.copyfile(file.locate(), licences / f"{package}-{Path(file.name).stem}.txt")


def add_to_metadata(information: Path, licences: Path) -> None:
    """Lists the files as PEP 639 requires, which was introduced with metadata version 2.4."""
    path = information / "METADATA"
    head, body = path.read_text().split("\n\n", 1)
    head = re.sub(r"^Metadata-Version: .*", "Metadata-Version: 2.4", head)
    names = [f"License-File: {file.name}" for file in sorted(licences.iterdir())]
    path.write_text("\n".join([head, *names]) + "\n\n" + body)


def main() -> None:
    wheel, folder = Path(sys.argv[1]), Path(sys.argv[2])
    made = folder / wheel.name
    with InWheelCtx(wheel.resolve(), made.resolve()) as context:
        (information,) = context.path.glob("*.dist-info")
        licences = information / "licenses"
        licences.mkdir(exist_ok=True)
        owners = {debian_package(library) for library in (context.path / "accord.libs").iterdir()}
        for package in (*owners, *DEBIAN_HEADERS):
            take_debian(package, licences)
        kernels = has_kernels(context.path / "accord" / "lib" / "libaccord.so.0")
        for package in (*PYPI_HEADERS, CUDA_RUNTIME) if kernels else PYPI_HEADERS:
            take_pypi(package, licences)
        add_to_metadata(information, licences)
    unpacked = sum(entry.file_size for entry in zipfile.ZipFile(made).infolist())
    size = f"{made.stat().st_size / 2**20:.1f} MiB, unpacked {unpacked / 2**20:.1f} MiB"
    print(f"{made}: {size}, {'with' if kernels else 'without'} kernels for NVIDIA GPUs")


if __name__ == "__main__":
    main()
