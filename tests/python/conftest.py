"""Fixtures. `ranks(n)` returns the n rank processes (see ranks.py) that the tests of a session share."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from accord_command import BUILD, SUPPORT
from host_devices import LIBRARY
from ranks import RANK_PROGRAM, TORCH_PROGRAM, TORCHCOMMS_PROGRAM, Ranks


def pytest_configure() -> None:
    """Restores the default handling of signals that are ignored when tests run in the background of a script or under
    nohup, because programs that tests start would inherit that."""
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
    """Like `ranks`, with torch imported and a process group for each function, of the backend "accord" by default."""
    started: dict[int, Ranks] = {}
    yield lambda size: started.setdefault(size, Ranks(size, program=TORCH_PROGRAM))
    for processes in started.values():
        processes.end()


@pytest.fixture(scope="session")
def torchcomms_ranks() -> Iterator[Callable[[int], Ranks]]:
    """Like `ranks`, with a torchcomms communicator for each function, of the backend "accord" by default."""
    started: dict[int, Ranks] = {}
    yield lambda size: started.setdefault(size, Ranks(size, program=TORCHCOMMS_PROGRAM))
    for processes in started.values():
        processes.end()


@pytest.fixture
def fresh_ranks() -> Iterator[Callable[..., Ranks]]:
    """Rank processes for a single test, which may kill them. Takes the keyword arguments of Ranks."""
    started: list[Ranks] = []

    def start(size: int, **options: object) -> Ranks:
        started.append(Ranks(size, **options))
        return started[-1]

    yield start
    for processes in started:
        processes.end()


def _device_process(program: str) -> Iterator[Callable[..., object]]:
    """A process with the test library's simulated devices. Yields a callable that returns the result of
    function(None, path of the library, *arguments) in that process and takes the keyword arguments of Ranks.run().
    Each test module gets its own process, because accord reads ACCORD_NCCL only once."""
    library = str(BUILD / "tests" / LIBRARY)
    path = f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}"
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
    """The language model of text_model.py and its package, shared by all tests. Requires torch and transformers."""
    from text_model import make_text_model

    return make_text_model(tmp_path_factory.mktemp("text_model"))


@pytest.fixture
def fresh() -> Iterator[None]:
    """Discards everything that torch has compiled, before the test and after it."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
