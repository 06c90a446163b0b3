"""scripts/kernel_resources.py reads what cuobjdump prints about kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import BUILD, ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import kernel_resources

NORM = "_ZN6accord6device4cuda3runINS_6engine8NormRowsEEEvT_"
SUM = "_ZN6accord6device4cuda3runINS_6engine14SumAndNormRowsILNS_5DTypeE9EEEEEvT_"

# A cuobjdump that knows one object, with two kernels for sm_90, one of which spills.
CUOBJDUMP = f"""#!{sys.executable}
import sys
if not sys.argv[-1].endswith("norm.cu.o") or "sm_90" not in sys.argv:
    sys.exit()
if "--dump-resource-usage" in sys.argv:
    print(" Function {SUM}:\\n  REG:120 STACK:352 SHARED:1152 LOCAL:0 CONSTANT[0]:4328 TEXTURE:0 SURFACE:0 SAMPLER:0")
    print(" Function {NORM}:\\n  REG:29 STACK:0 SHARED:1152 LOCAL:0 CONSTANT[0]:648 TEXTURE:0 SURFACE:0 SAMPLER:0")
elif "--dump-elf" in sys.argv:
    print(".nv.info\\n\\t<0x1>\\n\\tAttribute:\\tEIATTR_REGCOUNT\\n\\tValue:\\tfunction: f register count: 29")
    for name in ("{SUM}", "{NORM}"):
        print(f".nv.info.{{name}}\\n\\tAttribute:\\tEIATTR_MAX_THREADS\\n\\tFormat:\\tEIFMT_SVAL\\n\\tValue:\\t0x200 0x1 0x1 ")
else:
    print("\\t\\tFunction : {SUM}")
    print("        /*0010*/                   STL.128 [R1], RZ ;       /* 0x000000ff01007387 */")
    print("                                                            /* 0x000fe20000100c00 */")
    print("        /*0020*/              @!P0 LDL R2, [R1+0x10] ;      /* 0x0000001001007983 */")
    print("\\t\\tFunction : {NORM}")
    print("        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;  /* 0x0000000402047981 */")
    print("        /*0020*/                   EXIT ;                            /* 0x000000000000794d */")
"""


def resources(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    tool = folder / "cuobjdump"
    tool.write_text(CUOBJDUMP)
    tool.chmod(0o755)
    command = [sys.executable, ROOT / "scripts/kernel_resources.py", *options]
    environment = {**os.environ, "CUOBJDUMP": str(tool)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/norm.cu.o").touch()
    return tmp_path


def test_the_table_has_a_row_for_each_kernel(folder: Path):
    rows = resources(folder, str(folder)).stdout.splitlines()
    assert [row.split() for row in rows] == [
        ["kernel", *kernel_resources.COLUMNS],
        ["NormRows", "512", "29", "4", "0", "0", "1152", "2"],
        ["SumAndNormRows<BFloat16>", "512", "120", "1", "352", "2", "1152", "2"],
    ]


def test_json_has_the_counted_instructions_of_matching_kernels(folder: Path):
    kernels = json.loads(resources(folder, str(folder), "--json", "--kernel", "^Norm", "--count", "LDG,HMMA").stdout)
    assert [(each["kernel"], each["registers"], each["LDG"], each["HMMA"]) for each in kernels] == [
        ("NormRows", 29, 1, 0)
    ]


def test_what_is_missing_is_an_error(folder: Path):
    for options, message in (
        ([str(folder), "--arch", "sm_100"], "no kernel for sm_100 matches"),
        ([str(folder / "nowhere")], "does not exist"),
        ([str(folder / "inner"), "--kernel", "Rotary"], "no kernel for sm_90 matches"),
    ):
        ended = resources(folder, *options)
        assert ended.returncode == 1
        assert message in ended.stderr


def test_blocks_are_limited_by_registers_threads_and_their_number():
    assert kernel_resources.blocks_of(256, 197) == 1
    assert kernel_resources.blocks_of(256, 128) == 2
    assert kernel_resources.blocks_of(512, 29) == 4
    assert kernel_resources.blocks_of(32, 16) == 32


def kernels_of_the_build(pattern: str, architecture: str, kernel: str) -> list[dict]:
    """Kernels in an object of this build, read by the machine's own cuobjdump."""
    objects = sorted(BUILD.rglob(pattern))
    if not objects:
        pytest.skip("the build has no kernels for GPUs")
    try:
        cuobjdump = kernel_resources.find_cuobjdump()
    except SystemExit as error:
        pytest.skip(str(error))
    run = {"capture_output": True, "text": True, "check": True, "timeout": 120}
    if f".{architecture}.cubin" not in subprocess.run([cuobjdump, "--list-elf", objects[0]], **run).stdout:
        pytest.skip(f"the build has no kernels for {architecture}")
    options = ["--json", "--arch", architecture, "--kernel", kernel]
    command = [sys.executable, ROOT / "scripts/kernel_resources.py", objects[0], *options]
    return json.loads(subprocess.run(command, **run).stdout)


def test_norms_of_the_build_keep_everything_in_registers():
    for kernel in kernels_of_the_build("norm_kernels.cu.o", "sm_90", "^NormRows"):
        assert kernel["instructions"] > 100
        assert kernel["stack"] == kernel["local"] == 0


@pytest.mark.parametrize("architecture", ["sm_90", "sm_100"])
def test_kernels_of_two_expert_calls_fit_beside_each_other(architecture: str):
    kernels = kernels_of_the_build("expert/cuda/row_kernels.cu.o", architecture, "^(SendRows|ReturnRows)$")
    assert [(each["kernel"], each["blocks"]) for each in kernels] == [("ReturnRows", 2), ("SendRows", 2)]
