"""scripts/gpu_pack.py: what a machine with a GPU gets."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from accord_command import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import gpu_pack


def test_the_packed_libraries_exclude_the_c_and_cpp_runtimes():
    found = gpu_pack.libraries_of(Path("/usr/bin/env"))
    assert not any(name.startswith(("libc.", "ld-")) for name in found)


def test_equal_parts_of_programs_are_stored_once(tmp_path):
    part = os.urandom(9 << 19)  # more than the dictionary of the preset
    (tmp_path / "gpu").mkdir()
    for name in ("one", "two"):
        (tmp_path / "gpu" / name).write_bytes(name.encode() + part)
    archive = tmp_path / "gpu.tar.xz"
    gpu_pack.compress(tmp_path / "gpu", archive)
    assert archive.stat().st_size < 5 << 20
    with tarfile.open(archive) as packed:  # as scripts/test-gpu opens it
        packed.extractall(tmp_path / "there")
    assert (tmp_path / "there/gpu/two").read_bytes() == b"two" + part


def test_a_build_without_cuda_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    command = [sys.executable, str(ROOT / "scripts/gpu_pack.py"), str(tmp_path), str(tmp_path / "gpu"), "a tree"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "has a suite with Cuda in its name; was it built with CUDA?" in ended.stderr
