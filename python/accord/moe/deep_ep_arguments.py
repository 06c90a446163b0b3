"""Arguments of the calls of DeepEP's interface, and the checks that a single rank can make."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from accord._core import InvalidArgument, Unsupported
from accord._integers import integer
from accord.moe.exchange import Exchange, Route
from accord.moe.float8_rows import SCALE_BLOCK
from accord.torch.tensors import dtype_name

IDS = (torch.int32, torch.int64)
SUMS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
ROWS = (*SUMS, torch.float8_e4m3fn, torch.float8_e5m2)


def _invalid_call(name: str, signature: inspect.Signature, positional: tuple, keywords: dict) -> TypeError | None:
    """Returns the error that Python would raise, with the nearest known name for an unknown argument."""
    known = [parameter for parameter in signature.parameters if parameter != "self"]
    for given in keywords:
        if given not in known:
            near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
            hint = f'; did you mean "{near[0]}"?' if near else f"; the arguments are {', '.join(known)}"
            return TypeError(f'{name}() has no argument "{given}"{hint}')
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        return TypeError(f"{name}(): {error}")
    return None


def collective(method: Callable) -> Callable:
    """Decorates a call of all ranks of a buffer: the other ranks are notified of arguments that Python rejects, too."""
    signature, name = inspect.signature(method), method.__name__

    @functools.wraps(method)
    def call(self: Any, *positional: Any, **keywords: Any) -> Any:
        error_of_call = _invalid_call(name, signature, (self, *positional), keywords)
        if error_of_call is not None:
            with self.exchange.arguments(name):
                raise error_of_call
        return method(self, *positional, **keywords)

    return call


def collective_constructor(make: Callable) -> Callable:
    """Does the same for a constructor, whose first argument is the group in whose store the ranks meet."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def construct(self: Any, *positional: Any, **keywords: Any) -> None:
        error_of_call = _invalid_call(type(self).__name__, signature, (self, *positional), keywords)
        if error_of_call is None:
            make(self, *positional, **keywords)
            return
        group = positional[0] if positional else keywords.get("group")
        if isinstance(group, dist.ProcessGroup):
            Exchange(group, error_of_call)
        raise error_of_call

    return construct


def count_of(name: str, value: Any, minimum: int = 0) -> int:
    """Converts an integer of any kind to Python's."""
    count = integer(value, name, InvalidArgument)
    if count < minimum:
        raise InvalidArgument(f"{name} is {count}, it has to be {minimum} or more")
    return count


def tensor_of(name: str, value: Any) -> torch.Tensor:
    """Returns the tensor itself if the calls can read its memory."""
    if not isinstance(value, torch.Tensor):
        raise InvalidArgument(f"{name} is {type(value).__name__}, it has to be a tensor")
    if value.device.type != "cpu" or value.layout != torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        raise InvalidArgument(f"{name} is {layout} on {value.device}, it has to be a dense tensor on cpu")
    return value


def check_rows(x: Any, dtypes: tuple[torch.dtype, ...], count: int | None = None) -> dict[str, Any]:
    """Returns the facts that must be equal on all ranks about rows [count, hidden] of one of `dtypes`; float8 rows
    are a pair with their scales."""
    if isinstance(x, tuple) and len(x) != 2:
        raise InvalidArgument(f"x is a tuple of {len(x)}, it has to be rows, or a pair of them and their scales")
    x, scales = x if isinstance(x, tuple) else (x, None)
    if tensor_of("x", x).dim() != 2:
        raise InvalidArgument(f"x is {list(x.shape)}, it has to be a tensor [tokens, hidden]")
    if x.dtype not in dtypes:
        raise InvalidArgument(f"x is {dtype_name(x.dtype)}, it has to be one of {', '.join(map(dtype_name, dtypes))}")
    if count is not None and len(x) != count:
        raise InvalidArgument(f"x has {len(x)} rows, it has to have {count}")
    blocks = -(-x.shape[1] // SCALE_BLOCK)
    if scales is not None and (tensor_of("scales", scales).shape != (len(x), blocks) or scales.dtype != torch.float32):
        found = f"{list(scales.shape)} {dtype_name(scales.dtype)}"
        raise InvalidArgument(f"scales are {found}, they have to be {[len(x), blocks]} float32")
    return {"hidden": x.shape[1], "dtype": dtype_name(x.dtype), "scales": "omitted" if scales is None else "given"}


def check_choices(topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, tokens: int) -> None:
    if tensor_of("topk_idx", topk_idx).dim() != 2 or len(topk_idx) != tokens:
        raise InvalidArgument(f"topk_idx is {list(topk_idx.shape)}, it has to be [{tokens}, top_k]")
    if topk_idx.dtype not in IDS:
        raise InvalidArgument(f"topk_idx is {dtype_name(topk_idx.dtype)}, it has to be int64 or int32")
    if topk_weights is None:
        return
    if tensor_of("topk_weights", topk_weights).shape != topk_idx.shape:
        raise InvalidArgument(f"topk_weights is {list(topk_weights.shape)}, but topk_idx is {list(topk_idx.shape)}")


def check_same_choices(topk_idx: torch.Tensor, topk_weights: torch.Tensor, route: Route) -> None:
    """Checks that a combine gets the choices of its dispatch, which are in the route."""
    check_choices(topk_idx, tensor_of("topk_weights", topk_weights), len(route.ids))
    if not torch.equal(topk_idx.long(), route.ids.long()):
        raise InvalidArgument("topk_idx differs from that of the dispatch; a combine requires the same choices")


def width_of(topk_weights: torch.Tensor | None, rows: int) -> int | None:
    """Returns the number of choices that each row has a weight for, or None without weights."""
    if topk_weights is None:
        return None
    if tensor_of("topk_weights", topk_weights).dim() != 2 or len(topk_weights) != rows:
        raise InvalidArgument(f"topk_weights is {list(topk_weights.shape)}, it has to be [{rows}, top_k]")
    return topk_weights.shape[1]


def check_layout(is_token_in_rank: torch.Tensor, num_tokens_per_expert: torch.Tensor, ranks: int) -> None:
    """Checks that both have the form that get_dispatch_layout returns."""
    if tensor_of("is_token_in_rank", is_token_in_rank).shape[1:] != (ranks,) or is_token_in_rank.dtype != torch.bool:
        found = f"{list(is_token_in_rank.shape)} {dtype_name(is_token_in_rank.dtype)}"
        raise InvalidArgument(f"is_token_in_rank is {found}, it has to be [tokens, {ranks}] bool")
    if tensor_of("num_tokens_per_expert", num_tokens_per_expert).dim() != 1 or num_tokens_per_expert.dtype not in IDS:
        found = f"{list(num_tokens_per_expert.shape)} {dtype_name(num_tokens_per_expert.dtype)}"
        raise InvalidArgument(f"num_tokens_per_expert is {found}, it has to be [experts] int32")


def check_stats(stats: torch.Tensor | None, experts: int) -> None:
    if stats is None:
        return
    if tensor_of("cumulative_local_expert_recv_stats", stats).shape != (experts,) or stats.dtype not in IDS:
        found = f"{list(stats.shape)} {dtype_name(stats.dtype)}"
        raise InvalidArgument(f"cumulative_local_expert_recv_stats is {found}, it has to be [{experts}] int32")


def check_end(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise InvalidArgument(
            "async_finish and return_recv_hook exclude each other: either an event or a hook ends the call"
        )


def reject_waits(name: str, stats: torch.Tensor | None) -> None:
    if stats is not None:
        raise Unsupported(f"{name}: waits are not counted here; accord.moe.ExpertGroup.statistics() has them")


def route_of(handle: Any, exchange: Exchange, beside: type) -> tuple[Route, Any]:
    """Returns the route of a dispatch of this buffer, and the second element of its handle: an int after dispatch, a
    list after low_latency_dispatch."""
    is_ours = isinstance(handle, tuple) and len(handle) == 2 and isinstance(handle[0], Route)
    if not is_ours or handle[0].exchange is not exchange:
        raise InvalidArgument("the handle was not returned by a dispatch of this buffer")
    if not isinstance(handle[1], beside):
        found, wanted = ("low_latency_dispatch", "dispatch") if beside is int else ("dispatch", "low_latency_dispatch")
        raise InvalidArgument(f"the handle is one of {found}, it has to be one of {wanted}")
    return handle
