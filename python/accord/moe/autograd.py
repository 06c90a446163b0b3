"""Dispatch and combine with their backwards, for torch's autograd.

Backwards are collective, too: every rank has to run them, in the same order, whatever its part in the loss. A
backward needs the map of its forward. Activation recompute prepares the handle again for the same ids, which yields
that map again. Another map is rejected, and it is rejected on all ranks, because maps follow from the ids of all
ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from accord._core import ExpertGroup, ExpertHandle, WrongState

# Not all versions of torch support 8-bit floats in DLPack; their bytes are passed with the dtype's name instead.
_BYTES = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}


class _Map:
    """Identifies a handle's map. On a GPU the fingerprint stays there, because reading it would wait. It is read only
    if the handle was prepared again."""

    def __init__(self, handle: ExpertHandle, device: torch.device) -> None:
        self.generation = handle.generation
        self.fingerprint: Any = (
            handle.fingerprint if device.type == "cpu" else self._device_fingerprint(handle, device).clone()
        )

    @staticmethod
    def _device_fingerprint(handle: ExpertHandle, device: torch.device) -> torch.Tensor:
        return torch.as_tensor(handle.device_fingerprint, device=device)

    def matches(self, handle: ExpertHandle) -> bool:
        if handle.generation == self.generation:
            return True
        if isinstance(self.fingerprint, int):
            return handle.fingerprint == self.fingerprint
        return torch.equal(self._device_fingerprint(handle, self.fingerprint.device), self.fingerprint)


def _remember(ctx: FunctionCtx, group: ExpertGroup, handle: ExpertHandle, rows: torch.Tensor) -> None:
    """Keeps what the backward needs. The saved tensor has no elements: torch.utils.checkpoint runs the forward again
    when a saved tensor is requested. If microbatches share a handle, that must happen before the backward checks the
    map."""
    ctx.group, ctx.handle, ctx.map = group, handle, _Map(handle, rows.device)
    ctx.save_for_backward(rows.new_empty(0))


def _recall(ctx: FunctionCtx) -> tuple[ExpertGroup, ExpertHandle]:
    _ = ctx.saved_tensors
    if not ctx.map.matches(ctx.handle):
        raise WrongState(
            "this expert handle was prepared again for other ids after the forward: "
            "use one handle for each microbatch in flight"
        )
    return ctx.group, ctx.handle


@contextlib.contextmanager
def _reporting_errors(group: ExpertGroup, handle: ExpertHandle) -> Iterator[None]:
    """Context that reports an error, raised before this rank has reached the call, to the ranks that wait for it."""
    try:
        yield
    except Exception as error:
        if group.config["device"] == "cpu":  # on GPUs no rank waits yet
            group.decline(handle, f"{type(error).__name__}: {error}")
        raise


def memory_of(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Returns a tensor in the form that the group's calls take: contiguous, and bytes for 8-bit floats."""
    if tensor is None:
        return None
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint8) if tensor.dtype in _BYTES else tensor


def dtype_of(tensor: torch.Tensor) -> str | None:
    return _BYTES.get(tensor.dtype)


def _stream_of(tensor: torch.Tensor) -> torch.cuda.Stream | None:
    """Returns the stream for a call on the tensor, or None on the CPU."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


def _rows_for(group: ExpertGroup, handle: ExpertHandle, tensor: torch.Tensor) -> int:
    """Returns the rows of this rank's slots. On a GPU, where the actual number is known only there, the number that
    always fits, if there is one.
    """
    return (group.config["max_recv_rows"] if tensor.is_cuda else 0) or handle.recv_rows


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, weights, group, handle):
        with _reporting_errors(group, handle):
            _remember(ctx, group, handle, tokens)
            ctx.shapes = tokens.shape, None if weights is None else weights.shape
            rows = _rows_for(group, handle, tokens)
            make = "new_zeros" if tokens.is_cuda else "new_empty"  # rows after those that arrive are zero
            received = getattr(tokens, make)(rows, tokens.shape[-1])
            received_weights = None if weights is None else getattr(weights, make)(rows)
            call = {
                "weights": memory_of(weights),
                "recv_weights": received_weights,
                "dtype": dtype_of(tokens),
                "stream": _stream_of(tokens),
            }
            rows_out = memory_of(tokens)
        group.dispatch(handle, rows_out, memory_of(received), **call)
        return received, received_weights

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_received_weights):
        group, handle = _recall(ctx)
        grad_tokens = grad.new_empty(handle.tokens, grad.shape[-1])
        grad_weights = None
        if grad_received_weights is not None:
            grad_weights = grad_received_weights.new_empty(handle.tokens, handle.top_k)
        group.dispatch_backward(
            handle,
            memory_of(grad),
            memory_of(grad_tokens),
            grad_recv_weights=memory_of(grad_received_weights),
            grad_weights=grad_weights,
            dtype=dtype_of(grad),
            stream=_stream_of(grad),
        )
        of_tokens, of_weights = ctx.shapes
        return grad_tokens.view(of_tokens), None if grad_weights is None else grad_weights.view(of_weights), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, expert_out, group, handle):
        with _reporting_errors(group, handle):
            _remember(ctx, group, handle, expert_out)
            ctx.rows = expert_out.shape[0]
            result = expert_out.new_empty(handle.tokens, expert_out.shape[-1])
            rows_in, call = memory_of(expert_out), {"dtype": dtype_of(expert_out), "stream": _stream_of(expert_out)}
        group.combine(handle, rows_in, memory_of(result), **call)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        group, handle = _recall(ctx)
        # Rows from recv_rows on did not contribute.
        if grad.is_cuda:
            grad_expert_out = grad.new_zeros(ctx.rows, grad.shape[-1])
        else:
            grad_expert_out = grad.new_empty(ctx.rows, grad.shape[-1])
            grad_expert_out[handle.recv_rows :] = 0
        group.combine_backward(
            handle, memory_of(grad), memory_of(grad_expert_out), dtype=dtype_of(grad), stream=_stream_of(grad)
        )
        return grad_expert_out, None, None


def dispatch(
    group: ExpertGroup, handle: ExpertHandle, tokens: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the rows of this rank's experts, [recv_rows, hidden], and their router weights, [recv_rows]; padding is
    zero.

    tokens: [tokens, hidden]; weights: [tokens, top_k], float32 or float64. `handle.counts` has the number of rows of
    each local expert. Collective, and so is its backward: grad_tokens is the sum over each token's choices, and
    grad_weights is returned to where each weight came from.

    On a GPU, calls are launched on torch's current stream, and nothing waits on the host if the group has
    max_recv_rows: then there are that many rows, and those after the rows that arrive (`handle.device_counts`) are
    zero.
    """
    return _Dispatch.apply(tokens, weights, group, handle)


def combine(group: ExpertGroup, handle: ExpertHandle, expert_out: torch.Tensor) -> torch.Tensor:
    """Returns the sum of each token's rows, [tokens, hidden], in the canonical order; zero for tokens without a
    choice.

    expert_out: [at least recv_rows, hidden], in the slots of dispatch, already multiplied by the weights if these are
    wanted. Collective, and so is its backward, which sends each token's gradient to its rows.
    """
    return _Combine.apply(expert_out, group, handle)
