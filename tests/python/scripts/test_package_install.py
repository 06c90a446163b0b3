"""The wheel from scripts/wheel, installed as a user would install it, in environments that contain nothing else; and
docs/install.md."""

import configparser
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/install.md").read_text()
BACKEND = "nanobind-backend"

pytestmark = pytest.mark.slow
for needed in ("build", "scikit_build_core", "auditwheel", "twine"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs the package {needed}", allow_module_level=True)


def clean_environment() -> dict[str, str]:
    """Returns the environment without the variables that lead to the package built in the tree, which would replace
    the wheel's."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}


def run(command: list, cwd: Path | str = "/", timeout: float = 120, **environment: str) -> str:
    both = {**clean_environment(), **environment}
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=both)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@dataclass
class Published:
    """The files that scripts/wheel writes."""

    wheel: Path
    source: Path


def published_from(tree: Path, folder: Path) -> Published:
    run([tree / "scripts" / "wheel", folder], timeout=3600, VENV=sys.prefix)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Published(wheel, source)


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Published:
    return published_from(ROOT, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def wheel(published) -> Path:
    return published.wheel


def interpreters() -> dict[str, Path]:
    """Finds one interpreter for each Python version that the wheel supports: this one, and those in pyenv and in
    PATH."""
    places = [Path.home() / ".pyenv/versions", *map(Path, os.environ["PATH"].split(os.pathsep))]
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
    for path in (path for place in places for path in [*place.glob("3.*/bin/python"), *place.glob("python3.*")]):
        if path.name.startswith("python3.") and not re.fullmatch(r"python3\.\d+", path.name):
            continue
        result = subprocess.run([path, "-c", "import sys, venv; print(*sys.version_info[:2])"], capture_output=True)
        if result.returncode == 0 and tuple(map(int, result.stdout.split())) >= (3, 11):
            found.setdefault(result.stdout.decode().strip().replace(" ", "."), path)
    return found


def wheel_of_installed(package: str, folder: Path) -> None:
    """Rebuilds a wheel of a package from the files that are installed, without its scripts."""
    installed = importlib.metadata.distribution(package)
    (tag, *_) = re.findall(r"^Tag: (\S+)$", installed.read_text("WHEEL"), re.MULTILINE)
    name = f"{package.replace('-', '_')}-{installed.version}"
    left_out = ("INSTALLER", "RECORD")
    kept = [file for file in installed.files if file.suffix != ".pyc" and file.name not in left_out]
    kept = [file for file in kept if ".." not in file.parts]
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as made:
        for file in kept:
            made.write(file.locate(), file)
        record = f"{name}.dist-info/RECORD"
        made.writestr(record, "".join(f"{file},,\n" for file in [*kept, record]))


@pytest.fixture(scope="module")
def links(tmp_path_factory) -> Path:
    """A folder in which pip finds everything that the wheel and the examples need, for this Python."""
    folder = tmp_path_factory.mktemp("links")
    for package in (BACKEND, "numpy"):
        wheel_of_installed(package, folder)
    return folder


def environment_with(wheel: Path, links: Path, interpreter: Path, folder: Path) -> Path:
    """Returns the interpreter of a new environment that contains accord and its requirements only."""
    run([interpreter, "-m", "venv", "--without-pip", folder])
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--find-links", links]
    run([*pip, wheel], timeout=300)
    return python


@pytest.fixture(scope="module")
def python(wheel, links, tmp_path_factory) -> Path:
    return environment_with(wheel, links, Path(sys.executable), tmp_path_factory.mktemp("environment"))


def contents(wheel: Path) -> dict[str, bytes]:
    files = zipfile.ZipFile(wheel)
    return {name: files.read(name) for name in files.namelist() if not name.endswith("/")}


def test_the_wheel_contains_the_package_its_library_its_command_and_its_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"accord/__init__.py", "accord/_core.pyi", "accord/py.typed", "accord/bin/accord"} <= names
    assert {"accord/_core.abi3.so", "accord/lib/libaccord.so.0", "accord/lib/cmake/accord/accordConfig.cmake"} <= names
    headers = {f"accord/{path.relative_to(ROOT)}" for path in (ROOT / "include/accord").rglob("*.h*")}
    assert headers and headers <= names
    beside = {name.split("/")[0] for name in names}
    assert len(beside) == 4
    assert all(name.startswith("accord") for name in beside), "nothing is installed beside the package"


def test_one_wheel_serves_all_pythons_and_its_platform_matches_auditwheel(wheel):
    assert "-cp311-abi3-manylinux_2_" in wheel.name
    found = " ".join(run([sys.executable, "-m", "auditwheel", "show", wheel]).split())
    (platform,) = re.findall(r'following platform tag: "(manylinux_\w+)"', found)
    assert platform in wheel.stem.split("-")[-1].split(".")


def test_published_files_pass_the_checks_of_pypi(published):
    output = run([sys.executable, "-m", "twine", "check", "--strict", published.wheel, published.source])
    assert output.count("PASSED") == 2


def test_the_wheel_includes_the_licence_of_each_bundled_library(wheel):
    files = contents(wheel)
    (metadata,) = [text.decode() for name, text in files.items() if name.endswith(".dist-info/METADATA")]
    named = set(re.findall(r"^License-File: (\S+)$", metadata, re.MULTILINE))
    folder = ".dist-info/licenses/"
    assert named == {name.split(folder)[1] for name in files if folder in name}
    libraries = {re.sub(r"-[0-9a-f]{8}\.so", ".so", name) for name in files if name.startswith("accord.libs/")}
    assert any("libgomp.so" in name for name in libraries) and len(libraries) > 8
    for library in libraries:
        (owner, *_) = run(["dpkg-query", "--search", f"*/{Path(library).name}"]).split(":")
        assert f"{owner}.txt" in named, f"there is no licence of {library}"
    headers = {"libcli11-dev.txt", "libtomlplusplus-dev.txt", "nlohmann-json3-dev.txt"}
    assert headers | {"nanobind-LICENSE.txt"} <= named
    texts = {name.split(folder)[1]: text for name, text in files.items() if folder in name}
    assert b"Apache License" in texts["Apache-2.0.txt"]  # the text to which Debian's files only point


def test_a_wheel_built_from_the_source_distribution_has_the_same_files(published, tmp_path):
    with tarfile.open(published.source) as packed:
        packed.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    kept = {"README.md", "CHANGELOG.md", "docs/install.md", "examples/hello_communicator.cpp", "pyproject.toml"}
    assert all((tree / name).read_bytes() == (ROOT / name).read_bytes() for name in kept)
    again = published_from(tree, tmp_path / "again")
    assert again.wheel.name == published.wheel.name
    # auditwheel's bill of materials names the packages that it finds, which differ from run to run.
    of_tree, of_source = (
        {name: text for name, text in contents(made.wheel).items() if "/sboms/" not in name}
        for made in (published, again)
    )
    assert of_source.keys() == of_tree.keys()
    made_of_objects = (".so", ".so.0", "bin/accord", "RECORD")
    differing = [name for name, text in of_tree.items() if text != of_source[name]]
    assert [name for name in differing if not name.endswith(made_of_objects) and ".libs/" not in name] == []


def test_torch_and_torchcomms_find_the_wheel(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = [name for name in files.namelist() if name.endswith(".dist-info/entry_points.txt")]
    entries = configparser.ConfigParser()
    entries.read_string(files.read(name).decode())
    assert dict(entries["torch.backends"]) == {"accord": "accord_autoload:register"}
    assert dict(entries["torchcomms.backends"]) == {"accord": "accord.torchcomms"}
    assert {"accord_autoload/__init__.py", "accord/torch/__init__.py"} <= set(files.namelist())


@pytest.fixture
def torch_beside(python):
    """Lets the environment import this Python's packages, torch among them, while a test runs."""
    torch = importlib.util.find_spec("torch")
    if torch is None:
        pytest.skip("there is no torch")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    beside = site / "beside.pth"
    beside.write_text(f"{Path(torch.origin).parents[1]}\n")
    yield
    beside.unlink()


def test_torch_works_with_it_without_other_packages(python, torch_beside):
    program = python.parents[1] / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('accord')\n"
        "x = torch.tensor([dist.get_rank() + 1.0])\n"
        "dist.all_reduce(x)\n"
        "print(f'sum {x.item()}\\n', end='', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
    assert run([python, *launch]).count("sum 3.0") == 2
    assert run([python.parent / "accord", "run", "-n", "2", program], PATH="/usr/bin:/bin").count("sum 3.0") == 2


#: Its arguments are the path of a package to write, and modules in the order in which to import them. Attention calls
#: oneDNN, which requests threads from OpenMP.
OPENMP_PROGRAM = """
import importlib, os, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
import accord, torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

def threads():
    return len(os.listdir("/proc/self/task"))

torch.manual_seed(0)
inputs = tuple(torch.randn(2, 4, 256, 64) for _ in range(3))
torch.set_num_threads(1)
accord.export(Attention(), inputs, path=sys.argv[1])
engine = accord.load(sys.argv[1], threads=1)
torch.set_num_threads(3)
(x := torch.randn(600, 600)).mul_(2).exp_().sum()
(x @ x).sum()
before = threads()
results = [torch.from_dlpack(engine.run(*inputs)[0]) for _ in range(2)]
print("OpenMP's threads for accord", max(0, threads() - before - 1))  # one is accord's own
print("those of torch", torch.get_num_threads())
print("same", all(torch.allclose(result, Attention()(*inputs), atol=1e-5) for result in results))
expected = results[0].numpy().tobytes()
sys.stdout.flush()
if os.fork() == 0:  # where torch's threads are gone, and it would wait for them
    engine = accord.load(sys.argv[1], threads=1)
    print("same in a child", torch.from_dlpack(engine.run(*inputs)[0]).numpy().tobytes() == expected, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("order", ["accord torch", "torch accord"])
def test_its_openmp_and_that_of_torch_do_not_interfere(python, torch_beside, order, tmp_path):
    command = [python, "-c", OPENMP_PROGRAM, tmp_path / "attention.accord", *order.split()]
    lines = run(command, OMP_NUM_THREADS="8").splitlines()
    assert lines == ["OpenMP's threads for accord 0", "those of torch 3", "same True", "same in a child True"]


SMALL_PROGRAM = """
import array, accord
comm = accord.Communicator.create(accord.MemoryStore(), 0, 1)
x = array.array("f", [1, 2])
comm.all_reduce(x)
print(x.tolist(), accord.info()["version"] == accord.__version__)
"""


def test_it_works_without_numpy_and_torch(python):
    assert run([python, "-c", SMALL_PROGRAM]) == "[1.0, 2.0] True\n"
    assert "No module named 'torch'" in run(
        [python, "-c", "import accord\ntry: accord.export\nexcept ImportError as e: print(e)"]
    )


@pytest.mark.parametrize("version", interpreters())
def test_the_same_wheel_works_under_each_python(wheel, links, tmp_path, version):
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != here:
        only = ["--only-binary", ":all:", "--no-deps", "--python-version", version]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", tmp_path, BACKEND]
        result = subprocess.run(pip, capture_output=True, text=True)
        if result.returncode != 0:
            pytest.skip(f"the package {BACKEND} for Python {version} cannot be had here: {result.stderr[-200:]}")
    python = environment_with(
        wheel, links if version == here else tmp_path, interpreters()[version], tmp_path / "environment"
    )
    assert run([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]).strip() == version
    assert run([python, "-c", SMALL_PROGRAM]) == "[1.0, 2.0] True\n"
    assert "yes" in run([python.parent / "accord", "info"])


def test_its_command_runs_the_program_and_starts_ranks_with_its_python(python):
    script = python.parent / "accord"
    assert '"version"' in run([script, "info", "--json"])
    assert run([python, "-m", "accord", "info"]) == run([script, "info"])
    assert "/site-packages/accord/lib/cmake/accord\n" in run([python, "-m", "accord", "--cmake-dir"])
    first = python.parents[1] / "first.py"
    first.write_text(
        "import accord, array\n"
        "comm = accord.Communicator.from_environment()\n"
        "x = array.array('i', [comm.rank + 1])\n"
        "comm.all_reduce(x)\n"
        "print('sum', x[0])\n"
    )
    assert run([script, "run", "-n", "2", first], PATH="/usr/bin:/bin").count("sum 3") == 2


def test_its_command_uses_the_nccl_package_beside_it(python):
    torch = importlib.util.find_spec("torch")
    library = torch and Path(torch.origin).parents[1] / "nvidia/nccl/lib/libnccl.so.2"
    if not library or not library.exists():
        pytest.skip("there is no NCCL of PyPI")
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    beside = site / "nvidia/nccl/lib/libnccl.so.2"
    beside.parent.mkdir(parents=True)
    beside.symlink_to(library)
    parts = json.loads(run([python.parent / "accord", "info", "--json"]))["parts"]
    shutil.rmtree(site / "nvidia")
    (detail,) = [part["detail"] for part in parts if part["name"] == "nccl"]
    assert f"({beside})" in detail


def test_its_version_matches_the_project(python, wheel):
    version = run([python, "-c", "import accord; print(accord.__version__)"]).strip()
    assert wheel.name.split("-")[1] == version
    assert f"VERSION {version} " in (ROOT / "CMakeLists.txt").read_text()


def test_the_commands_of_the_installation_page_work(wheel, links, tmp_path):
    """Runs all commands of the page in order, in one folder that contains the wheel and the examples."""
    shutil.copy(wheel, tmp_path)
    for name in ("hello_communicator.cpp", "hello_communicator.c"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (project,) = re.findall(r"^```cmake\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "CMakeLists.txt").write_text(project)
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    output = run(["sh", "-e", "-c", "\n".join(blocks)], cwd=tmp_path, timeout=300, PATH=path, **pip)
    assert "transports" in output
    assert output.count("of 2: 3 3 3 3") == 4  # two ranks of each program


def test_uninstalling_leaves_nothing(wheel, links, tmp_path):
    python = environment_with(wheel, links, Path(sys.executable), tmp_path / "environment")
    pip = [sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes"]
    run([python, "-c", "import accord"])  # compiles Python files
    run([*pip, "accord"])
    left = [str(path.relative_to(tmp_path)) for path in (tmp_path / "environment").rglob("*") if "accord" in path.name]
    assert left == []
