#!/usr/bin/env python3
"""Prints what each GPU kernel of a build uses, without a GPU: registers, memory and instructions.

    scripts/kernel_resources.py                                 all kernels in build/release
    scripts/kernel_resources.py --kernel Norm --arch sm_100     those whose names match, for another GPU
    scripts/kernel_resources.py --count HMMA,LDS a.cu.o         kernels of one object, with counts of instructions

The columns:
  threads       the most threads in a block
  registers     of each thread
  blocks        that fit on a multiprocessor by threads and registers; dynamic shared memory may lower the number
  stack         bytes of local memory for each thread: spilled registers, and arrays whose indices are not constant
  local         instructions that load from local memory or store to it
  shared        static bytes of shared memory for each block
  instructions  the length of the kernel's code
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("threads", "registers", "blocks", "stack", "local", "shared", "instructions")

# The limits of one multiprocessor; the same for sm_90 and sm_100.
REGISTERS, WARPS, BLOCKS = 65536, 64, 32
# Registers are allocated to a warp in units of this many for each of its threads.
REGISTER_UNIT, WARP = 8, 32

FUNCTION = re.compile(r"^\s*Function :? ?(\S+?):?$")
RESOURCES = re.compile(r"^\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)")
KERNEL_INFO = re.compile(r"^\.nv\.info\.(\S+)$")
MAX_THREADS = re.compile(r"^\s*Value:\s*(0x[0-9a-f]+) (0x[0-9a-f]+) (0x[0-9a-f]+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


def find_cuobjdump() -> str:
    """Searches CUOBJDUMP, the path, the CUDA toolkit, then the copy in PyPI's package triton, which torch installs."""
    environment = Path(os.environ.get("VENV", ROOT / ".venv"))
    places = [os.environ.get("CUOBJDUMP", ""), shutil.which("cuobjdump") or "", "/usr/local/cuda/bin/cuobjdump"]
    places += environment.glob("lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    for place in places:
        if place and os.access(place, os.X_OK):
            return str(place)
    raise SystemExit("error: cuobjdump was not found; set CUOBJDUMP, or install the CUDA toolkit or PyPI's triton")


def lines_of(command: list[str]) -> Iterator[str]:
    """The output of a command that may print hundreds of megabytes. Ends the script if the command fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield from process.stdout
        message = process.stderr.read()
    if process.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)}: {message.strip()}")


def parse_resources(lines: Iterator[str]) -> dict[str, dict[str, int]]:
    """Reads the output of cuobjdump --dump-resource-usage."""
    found, function = {}, ""
    for line in lines:
        if name := FUNCTION.match(line):
            function = name[1]
        elif numbers := RESOURCES.match(line):
            found[function] = dict(zip(("registers", "stack", "shared"), map(int, numbers.groups()), strict=True))
    return found


def parse_threads(lines: Iterator[str]) -> dict[str, int]:
    """Reads the output of cuobjdump --dump-elf."""
    found, function, attribute = {}, "", ""
    for line in lines:
        if not line.startswith(("\t", " ")):
            name = KERNEL_INFO.match(line.rstrip())
            function = name[1] if name else "" if line.startswith(".") else function
        elif "Attribute:" in line:
            attribute = line.split()[-1]
        elif function and attribute == "EIATTR_MAX_THREADS" and (sizes := MAX_THREADS.match(line)):
            found[function] = int(sizes[1], 16) * int(sizes[2], 16) * int(sizes[3], 16)
    return found


def parse_instructions(lines: Iterator[str]) -> dict[str, dict[str, int]]:
    """Reads the output of cuobjdump --dump-sass: how often each function has each instruction, by its first word."""
    found: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = defaultdict(int)
    for line in lines:
        if name := FUNCTION.match(line):
            counts = found.setdefault(name[1], defaultdict(int))
        elif instruction := INSTRUCTION.match(line):
            counts[instruction[1]] += 1
    return found


def blocks_of(threads: int, registers: int) -> int:
    """How many blocks fit on a multiprocessor."""
    warps = -(-threads // WARP)
    allocated = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * WARP
    return min(BLOCKS, WARPS // warps, REGISTERS // allocated // warps)


def enumerators(header: str, enumeration: str) -> list[str]:
    """Names of an enum's values from 0 on, without the k in front."""
    body = re.search(rf"enum class {enumeration}\b[^{{]*{{(.*?)}};", (ROOT / header).read_text(), re.DOTALL)[1]
    return re.findall(r"\bk(\w+)", re.sub(r"//.*", "", body))


def readable(names: list[str]) -> dict[str, str]:
    """Demangles names. A kernel struct is launched as run<K>(K): K remains, without accord's namespaces."""
    command = ["c++filt", *names] if shutil.which("c++filt") and names else []
    lines = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() if command else names
    )
    found, dtypes = {}, enumerators("include/accord/buffer.hpp", "DType")
    for name, text in zip(names, lines, strict=True):
        kernel = re.match(r"void accord::device::cuda::run<(.*)>\(.*\)$", text)
        short = kernel[1] if kernel else text
        short = re.sub(r"accord::(?:\w+::)*|\(anonymous namespace\)::", "", short)
        found[name] = re.sub(r"\(DType\)(\d+)", lambda number: dtypes[int(number[1])], short).strip()
    return found


def kernels_of(cuobjdump: str, file: Path, architecture: str, counted: list[str]) -> list[dict]:
    """The kernels in an object, a library or a program; empty if it has none for the architecture."""
    dump = [cuobjdump, "--gpu-architecture", architecture]
    resources = parse_resources(lines_of([*dump, "--dump-resource-usage", str(file)]))
    if not resources:
        return []
    threads = parse_threads(lines_of([*dump, "--dump-elf", str(file)]))
    instructions = parse_instructions(lines_of([*dump, "--dump-sass", str(file)]))
    names = readable(list(threads))
    kernels = []
    for function, most in threads.items():
        counts = instructions.get(function, {})
        kernel = {"kernel": names[function], "threads": most, **resources[function]}
        kernel["blocks"] = blocks_of(most, kernel["registers"])
        kernel["local"] = counts.get("LDL", 0) + counts.get("STL", 0)
        kernel["instructions"] = sum(counts.values())
        kernels.append(kernel | {name: counts.get(name, 0) for name in counted})
    return kernels


def objects_in(paths: list[Path]) -> list[Path]:
    """Files as they are; of a folder, the objects that nvcc wrote."""
    found = []
    for path in paths:
        if not path.exists():
            raise SystemExit(f"error: {path} does not exist")
        found += sorted(path.rglob("*.cu.o")) if path.is_dir() else [path]
    if not found:
        raise SystemExit(f"error: no *.cu.o in {', '.join(map(str, paths))}; was it built with ACCORD_CUDA=ON?")
    return found


def table_of(kernels: list[dict], columns: list[str]) -> str:
    rows = [["kernel", *columns], *([str(kernel[name]) for name in ("kernel", *columns)] for kernel in kernels)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[ROOT / "build/release"], help="objects, or folders of a build"
    )
    parser.add_argument("--arch", default="sm_90", help="the GPU, by default sm_90 (H100, H200)")
    parser.add_argument("--kernel", default="", help="only kernels whose names match this regular expression")
    parser.add_argument("--count", default="", help="more columns: instructions by their first words, with commas")
    parser.add_argument("--json", action="store_true", help="prints a list of objects instead of a table")
    options = parser.parse_args()
    counted = [name for name in options.count.split(",") if name]
    cuobjdump = find_cuobjdump()
    kernels = [
        kernel for file in objects_in(options.paths) for kernel in kernels_of(cuobjdump, file, options.arch, counted)
    ]
    kernels = sorted(
        (each for each in kernels if re.search(options.kernel, each["kernel"])), key=lambda each: each["kernel"]
    )
    if not kernels:
        raise SystemExit(f"error: no kernel for {options.arch} matches")
    print(json.dumps(kernels, indent=1) if options.json else table_of(kernels, [*COLUMNS, *counted]))


if __name__ == "__main__":
    sys.exit(main())
