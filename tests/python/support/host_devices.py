"""Arrays in the memory of the test library's simulated devices, for functions that run in a rank process and start
all ranks as threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

LIBRARY = "libaccord_test_device.so"
_CUDA = 2  # DLPack's code for CUDA


class _DlpackTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


def library(path: str) -> ctypes.CDLL:
    """Loads the test library. From then on accord uses its simulated devices in this process."""
    loaded = ctypes.CDLL(path)
    for name in ("accord_test_allocate", "accord_test_stream", "accord_test_hold"):
        getattr(loaded, name).restype = ctypes.c_void_p
    for name in ("accord_test_log", "accord_test_copied_to_host", "accord_test_bytes"):
        getattr(loaded, name).restype = ctypes.c_size_t
    with open("/proc/self/maps") as maps:
        accord_library = next(line.split()[-1] for line in maps if "libaccord.so" in line)
    assert loaded.accord_test_use_devices(accord_library.encode()) == 0
    return loaded


class OnDevice:
    """A NumPy array whose memory belongs to a simulated device, as its DLPack interface reports."""

    def __init__(self, loaded: ctypes.CDLL, device: int, values: np.ndarray) -> None:
        self._device = device
        memory = loaded.accord_test_allocate(device, ctypes.c_size_t(max(values.nbytes, 1)))
        self.values = np.frombuffer((ctypes.c_byte * values.nbytes).from_address(memory), values.dtype).reshape(
            values.shape
        )
        self.values[...] = values
        self.requested_streams: list[int | None] = []  # the DLPack streams on which the memory had to be ready

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self._device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.requested_streams.append(stream)
        capsule = self.values.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = _DlpackTensor.from_address(pointer(capsule, b"dltensor"))
        tensor.device_type, tensor.device_id = _CUDA, self._device
        return capsule


class HostStream:
    """A stream with the interface of torch's streams."""

    def __init__(self, loaded: ctypes.CDLL, device: int) -> None:
        self._loaded, self._device = loaded, device
        self.cuda_stream = loaded.accord_test_stream(device)

    def synchronize(self) -> None:
        assert self._loaded.accord_test_synchronize(self._device, ctypes.c_void_p(self.cuda_stream)) == 0

    def wait_stream(self, other: HostStream) -> None:
        pointers = ctypes.c_void_p(self.cuda_stream), ctypes.c_void_p(other.cuda_stream)
        assert self._loaded.accord_test_wait_stream(self._device, *pointers) == 0

    def hold(self) -> Callable[[], None]:
        """Blocks work that is enqueued afterwards until the returned function is called."""
        busy = ctypes.c_void_p(self._loaded.accord_test_hold(self._device, ctypes.c_void_p(self.cuda_stream)))
        return lambda: self._loaded.accord_test_release(busy)


def on_thread_ranks(size: int, body: Callable[[Any, int], None], **options: Any) -> None:
    """Calls body(communicator, rank) on one thread per rank. Raises the error of the first rank that failed."""
    from thread_ranks import on_threads

    on_threads(size, lambda comm: body(comm, comm.rank), timeout=30, **options)


def on_one_and_two(package, run):
    """Returns the results of `run(engine)` on one device, and on rank 0 of two devices that share the package."""
    import accord

    with accord.load(package, device="cuda") as engine:
        found = [run(engine)]

    def body(comm, rank):
        with accord.load(package, {"tp": comm}, device=f"cuda:{rank}") as engine:
            made = run(engine)
            if rank == 0:
                found.append(made)

    on_thread_ranks(2, body)
    return found
