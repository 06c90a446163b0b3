"""Types of arguments, for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

DTypeName = Literal[
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
    "complex128",
    "bool",
]
ReduceOp = Literal["sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum"]


class SupportsDLPack(Protocol):
    """A tensor of another library, such as PyTorch."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class StoreLike(Protocol):
    """An object that serves as a store, such as the stores of torch.distributed.

    For a key that is not set yet, `check([key])` returns False if the object has that method; otherwise get() returns
    None or raises LookupError. Optional methods: delete_key(key), and describe(), which returns a name for the store
    to use in error messages.
    """

    def set(self, key: str, value: bytes) -> Any: ...

    def get(self, key: str) -> bytes | str | None: ...

    def add(self, key: str, amount: int) -> int: ...


class SupportsCudaStream(Protocol):
    """A stream of another library that follows cuda.core's protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


if TYPE_CHECKING:
    ArrayLike = Buffer | SupportsDLPack
    Stream = int | SupportsCudaStream | TorchStream
