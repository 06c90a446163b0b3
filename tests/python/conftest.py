"""Fixtures: `ranks(n)` gives the n rank processes (see ranks.py) that the tests of a session share."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accord_command import BUILD
from host_devices import LIBRARY
from ranks import RANK_PROGRAM, TORCH_PROGRAM, TORCHCOMMS_PROGRAM, Ranks


def pytest_configure() -> None:
    """Tests may run in the background of a script or under nohup, which ignore these; the programs they start shall not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    started: dict[int, Ranks] = {}
    yield lambda size: started.setdefault(size, Ranks(size))
    for processes in started.values():
        processes.end()


@pytest.fixture(scope="session")
def torch_ranks() -> Iterator[Callable[[int], Ranks]]:
    """The same with torch in them, and a process group of the backend "accord", or another, for each function."""
    started: dict[int, Ranks] = {}
    yield lambda size: started.setdefault(size, Ranks(size, program=TORCH_PROGRAM))
    for processes in started.values():
        processes.end()


@pytest.fixture(scope="session")
def torchcomms_ranks() -> Iterator[Callable[[int], Ranks]]:
    """The same with a communicator of torchcomms' for each function, of the backend "accord"."""
    started: dict[int, Ranks] = {}
    yield lambda size: started.setdefault(size, Ranks(size, program=TORCHCOMMS_PROGRAM))
    for processes in started.values():
        processes.end()


@pytest.fixture
def fresh_ranks() -> Iterator[Callable[..., Ranks]]:
    """Rank processes for one test, which may kill them. Keyword arguments as for Ranks."""
    started: list[Ranks] = []

    def start(size: int, **options: object) -> Ranks:
        started.append(Ranks(size, **options))
        return started[-1]

    yield start
    for processes in started:
        processes.end()


def _device_process(program: str) -> Iterator[Callable[..., object]]:
    """A process that has the devices of the test library: what function(None, the library's path, *arguments) gives there. Keyword arguments
    as for Ranks.run(). One for a module's tests, as accord reads ACCORD_NCCL once."""
    library = str(BUILD / "tests" / LIBRARY)
    path = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    process = Ranks(1, environment={"ACCORD_NCCL": library, "PYTHONPATH": path}, program=program)
    yield lambda function, *arguments, **options: process.run(function, library, *arguments, **options)[0]
    process.end()


@pytest.fixture(scope="module")
def device_process() -> Iterator[Callable[..., object]]:
    yield from _device_process(RANK_PROGRAM)


@pytest.fixture(scope="module")
def torch_device_process() -> Iterator[Callable[..., object]]:
    yield from _device_process(TORCH_PROGRAM)


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory):
    """The language model of text_model.py, whose package tests share. Needs torch and transformers."""
    from text_model import make_text_model

    return make_text_model(tmp_path_factory.mktemp("text_model"))


@pytest.fixture
def fresh() -> Iterator[None]:
    """Without what torch has compiled before, and compiles after."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
