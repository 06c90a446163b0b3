"""Checks the installation that other projects use, and that every build has the same C interface."""

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
from accord_command import BUILD, ROOT, c_interface, clean_environment


def run(*command: object, **more) -> str:
    """Returns the output of a command that must succeed."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **more)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def c_functions(symbols: str) -> set[str]:
    """Returns the names of the accord_* functions without C++ mangling, from the output of nm."""
    return set(re.findall(r" T (accord_\w+)$", symbols, re.MULTILINE))


@pytest.fixture(scope="module")
def consumer(tmp_path_factory) -> Path:
    """The build folder of examples/cpp_consumer, built against nothing but an installation of this build."""
    folder = tmp_path_factory.mktemp("install")
    run("cmake", "--install", BUILD, "--prefix", folder / "prefix", "--component", "accord")
    run(
        "cmake",
        "-S",
        ROOT / "examples/cpp_consumer",
        "-B",
        folder / "build",
        f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}",
    )
    run("cmake", "--build", folder / "build")
    return folder


def test_a_cpp_project_finds_the_package_and_its_program_runs_on_two_ranks(consumer):
    accord = consumer / "prefix/bin/accord"
    output = run(accord, "run", "-n", 2, consumer / "build/sum_of_ranks", env=clean_environment(), timeout=60)
    assert sorted(output.splitlines()) == [f"[{rank}] rank {rank} of 2: the sum is 1" for rank in range(2)]


def test_the_command_shows_where_the_package_and_the_headers_are(consumer):
    accord = consumer / "prefix/bin/accord"
    assert (Path(run(accord, "--cmake-dir").strip()) / "accordConfig.cmake").exists()
    assert run(accord, "--include-dir") == f"{consumer / 'prefix/include'}\n"
    of_a_build = subprocess.run([BUILD / "bin/accord", "--cmake-dir"], capture_output=True, text=True, check=False)
    assert of_a_build.returncode == 1
    assert "this accord is not installed" in of_a_build.stderr


def test_a_c_program_queries_features(consumer):
    which = consumer / "build/which_accord"
    assert re.fullmatch(r"accord \d+\.\d+\.\d+: shm is available\n", run(which))
    blind = clean_environment(CUDA_VISIBLE_DEVICES="")
    missing = subprocess.run([which, "cuda"], capture_output=True, text=True, check=False, env=blind)
    assert missing.returncode == 1
    assert missing.stdout.endswith("cuda is unsupported\n")
    assert "cuda: built with" in missing.stderr
    unknown = subprocess.run([which, "shn"], capture_output=True, text=True, check=False)
    assert 'did you mean "shm"?' in unknown.stderr


def test_a_version_that_is_too_new_is_rejected(consumer, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(x CXX)\nfind_package(accord 99 REQUIRED)\n"
    )
    prefix = f"-DCMAKE_PREFIX_PATH={consumer / 'prefix'}"
    result = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", prefix], capture_output=True, text=True)
    assert result.returncode != 0
    assert "99" in result.stderr


def test_the_library_exports_every_function_of_the_c_header(consumer):
    declared = set(re.findall(r"^ACCORD_API .*?\b(accord_\w+)\(", c_interface(), re.MULTILINE))
    assert declared
    library = next((consumer / "prefix").glob("lib*/**/libaccord.so"))
    assert c_functions(run("nm", "-D", "--defined-only", library)) == declared


def test_the_library_hides_the_internals_of_the_c_interface(consumer):
    library = next((consumer / "prefix").glob("lib*/**/libaccord.so"))
    inside = [line for line in run("nm", "-DC", "--defined-only", library).splitlines() if "accord::c::" in line]
    assert inside == []
    archive = BUILD / "src/libaccord_c.a"
    assert "accord::c::" in run("nm", "-C", "--defined-only", archive)  # there is something to keep


def test_the_library_hides_the_cuda_runtime_and_can_be_loaded_after_others(consumer):
    library = next((consumer / "prefix").glob("lib*/**/libaccord.so"))
    symbols = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    assert [name for name in symbols if re.match(r"_*cuda", name)] == []
    # A library with static TLS cannot be loaded once Python has started: too little space is left for the CUDA
    # runtime's.
    assert "STATIC_TLS" not in run("readelf", "-d", library)


@pytest.mark.slow
def test_a_build_with_every_option_off_has_the_same_c_functions(consumer, tmp_path):
    options = [f"-DACCORD_{name}=OFF" for name in ("CUDA", "HWLOC", "PYTHON", "TESTS", "BENCH", "FUZZ")]
    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options)
    objects = re.findall(
        r"(src/CMakeFiles/accord_c\.dir/\S+\.o):", run("ninja", "-C", tmp_path, "-t", "targets", "all")
    )
    run("ninja", "-C", tmp_path, *objects, env=os.environ | {"CCACHE_BASEDIR": str(ROOT)})
    reduced = c_functions(run("nm", "-g", "--defined-only", *[tmp_path / name for name in objects]))
    library = next((consumer / "prefix").glob("lib*/**/libaccord.so"))
    assert reduced == c_functions(run("nm", "-D", "--defined-only", library))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere kernels have one instruction set")
def test_kernels_are_compiled_only_for_this_machine_on_request(tmp_path):
    def sets(build: Path) -> set[str]:
        commands = json.loads((build / "compile_commands.json").read_text())
        kernels = [one["command"] for one in commands if "/src/kernels/" in one["file"]]
        return {"".join(re.findall(r"ACCORD_ONLY_TARGET=(\w+)", command)) for command in kernels}

    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", "-DACCORD_INSTRUCTION_SETS=NATIVE", "-DACCORD_TESTS=OFF")
    has = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    wanted = {
        "HWY_AVX3": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
        "HWY_AVX2": {"avx2", "fma", "bmi2", "f16c"},
        "HWY_SSE4": {"sse4_1", "sse4_2"},
        "0": set(),
    }
    assert sets(tmp_path) == {next(name for name, flags in wanted.items() if flags <= has)}
    if "ACCORD_INSTRUCTION_SETS:STRING=ALL" in (BUILD / "CMakeCache.txt").read_text():
        assert sets(BUILD) == {""}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("-DACCORD_CUDA=ON", "nvcc was not found"),
        ("-DACCORD_CUDA=maybe", "AUTO, ON or OFF"),
        ("-DACCORD_CUDDA=ON", "unknown option ACCORD_CUDDA"),
        ("-DACCORD_UNITY=many", "a number of files"),
        ("-DACCORD_INSTRUCTION_SETS=AVX2", "is ALL or NATIVE"),
    ],
)
def test_an_unavailable_option_is_rejected(tmp_path, option, message):
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", option]
    without_nvcc = os.environ | {"CUDACXX": "no-such-nvcc"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=without_nvcc)
    assert result.returncode != 0
    assert message in result.stderr
