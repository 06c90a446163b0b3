"""Tensors in the form that accord takes: dense, row-major, of a supported dtype, on the CPU or on the call's GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from accord.torch import c10d, streams

#: dtypes that the core reduces. Others are moved as bytes, and rejected where they would be reduced.
DTYPES = frozenset(
    {
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.complex64,
        torch.complex128,
        torch.bool,
    }
)

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
    dist.ReduceOp.PREMUL_SUM: "premul_sum",
}

#: A tensor, and the memory that replaces it during the operation and is copied to it afterwards.
CopyBack = tuple[torch.Tensor, torch.Tensor]


def op_of(op: dist.ReduceOp) -> tuple[str, dict]:
    """Returns the op's name, and keywords for its factor."""
    name = _OPS[op.op]
    if name != "premul_sum":
        return name, {}
    factor = c10d.factor_of(op)
    if isinstance(factor, torch.Tensor):
        factor = factor.reshape(-1)[:1]
    return name, {"factor": factor}


class WrongDevice(Exception):
    """A tensor is not on the device of the call (at first the CPU). For torch's calls, another backend may serve it."""

    def __init__(self, device: torch.device, call: str) -> None:
        super().__init__(
            f"accord: {call} of a tensor on {device}: this group has no backend for it; name one, "
            f'as in init_process_group("cpu:accord,{device.type}:BACKEND")'
        )
        self.device = device


class NoMemory(Exception):
    """A tensor has no memory of its own, or its class handles calls itself; accord.torch.dispatcher may find the
    tensors that it holds."""

    def __init__(self, tensor: torch.Tensor, call: str) -> None:
        super().__init__(
            f"{call} of a {type(tensor).__name__} of shape {tuple(tensor.shape)}, which has no memory of its own"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Returns accord's name of the dtype."""
    return str(dtype).removeprefix("torch.")


def counts_of(parts: Sequence[torch.Tensor]) -> list[int]:
    """Returns the number of elements of each part, as the core counts those of source() and target()."""
    return [part.numel() if part.dtype in DTYPES else part.nbytes for part in parts]


def check(tensor: torch.Tensor, call: str) -> None:
    """Rejects a tensor without memory that accord could use."""
    if not tensor.is_cpu and tensor.device != streams.device_of_call():
        raise WrongDevice(tensor.device, call)
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"accord: {call} of a tensor of layout {tensor.layout}: only dense ones can be used; pass "
            "tensor.to_dense(), and to DDP an Embedding with sparse=False"
        )
    if not _has_memory(tensor):
        raise NoMemory(tensor, call)


_DEFAULT_DISPATCH = torch.Tensor.__torch_dispatch__
_DEFAULT_DLPACK = torch.Tensor.__dlpack__


def _has_memory(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    if kind is not torch.Tensor:
        if kind.__dlpack__ is not _DEFAULT_DLPACK:  # the class exports its memory itself
            return True
        if kind.__torch_dispatch__ is not _DEFAULT_DISPATCH:
            return False
    try:
        return (tensor.data_ptr() != 0 or tensor.numel() == 0) and not tensor.is_nested
    except RuntimeError:  # there is not even a storage
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype in DTYPES and not (tensor.is_conj() or tensor.is_neg())


def _as_known(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype in DTYPES else tensor.reshape(-1).view(torch.uint8)


def source(tensor: torch.Tensor, call: str, *, reduces: bool = False) -> torch.Tensor:
    """Returns the tensor for a call that reads `tensor`: its own memory, or a copy if it is not dense."""
    check(tensor, call)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if _is_plain(tensor):
        return tensor
    _check_dtype(tensor, call, reduces)
    return _as_known(tensor.resolve_conj().resolve_neg().contiguous())


def target(
    tensor: torch.Tensor, call: str, back: list[CopyBack], *, reads: bool = False, reduces: bool = False
) -> torch.Tensor:
    """Returns the tensor for a call that writes `tensor`: its own memory, or if that is not dense, other memory,
    which is added to `back`.

    reads: the call also reads it.
    """
    check(tensor, call)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if _is_plain(tensor):
        return tensor
    _check_dtype(tensor, call, reduces)
    if any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError(
            f"accord: {call} cannot write an expanded tensor, whose elements share memory; pass tensor.contiguous()"
        )
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return _as_known(tensor)
    memory = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if reads:
        memory.copy_(tensor)
    back.append((tensor, memory))
    return _as_known(memory)


def _check_dtype(tensor: torch.Tensor, call: str, reduces: bool) -> None:
    if reduces and tensor.dtype not in DTYPES:
        raise TypeError(f"accord: {call} of {tensor.dtype}: accord cannot reduce this dtype; convert the tensor first")


def joined_source(parts: Sequence[torch.Tensor], call: str, *, reduces: bool = False) -> torch.Tensor:
    """Returns the elements of all `parts` in one piece of memory: their own, if they are adjacent, or a copy."""
    memory = [source(part, call, reduces=reduces) for part in parts]
    _check_one_dtype(memory, call)
    return _as_one_tensor(memory) if _are_adjacent(memory) else torch.cat([part.reshape(-1) for part in memory])


def joined_target(parts: Sequence[torch.Tensor], call: str, back: list[CopyBack]) -> torch.Tensor:
    """Returns memory for the elements of all `parts`: their own if they are adjacent, or else other memory, added to
    `back`.
    """
    memory = [target(part, call, back) for part in parts]
    _check_one_dtype(memory, call)
    if _are_adjacent(memory):
        return _as_one_tensor(memory)
    joined = torch.empty(sum(part.numel() for part in memory), dtype=memory[0].dtype, device=memory[0].device)
    pieces = joined.split([part.numel() for part in memory])
    # Inserted at the front: a part that is itself replaced is copied from its replacement afterwards.
    back[:0] = [(part.reshape(-1), piece) for part, piece in zip(memory, pieces, strict=True)]
    return joined


def _check_one_dtype(memory: Sequence[torch.Tensor], call: str) -> None:
    for part in memory:
        if part.dtype != memory[0].dtype:
            raise TypeError(
                f"accord: {call} of tensors of {memory[0].dtype} and {part.dtype} together; they need one dtype"
            )


def _are_adjacent(memory: Sequence[torch.Tensor]) -> bool:
    storage = memory[0].untyped_storage().data_ptr()
    end = memory[0].data_ptr()
    for part in memory:
        if part.data_ptr() != end or part.untyped_storage().data_ptr() != storage or part.dtype != memory[0].dtype:
            return False
        end += part.nbytes
    return True


def _as_one_tensor(memory: Sequence[torch.Tensor]) -> torch.Tensor:
    count = sum(part.numel() for part in memory)
    return memory[0].as_strided((count,), (1,))
