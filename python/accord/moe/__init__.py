"""Expert parallelism: tokens are sent to the ranks that hold the experts they chose, and the experts' results are
sent back.

    group = accord.moe.ExpertGroup(comm, experts=32, top_k=8, hidden=2048, max_tokens_per_rank=4096)
    handle = group.handle()
    group.prepare(handle, topk_idx)
    received, weights = accord.moe.dispatch(group, handle, tokens, topk_weights)
    result = accord.moe.combine(group, handle, experts(received, handle.counts) * weights[:, None])

`ExpertGroup` and `balance_experts` take NumPy arrays or torch tensors. `dispatch` and `combine` are autograd
functions, and `Buffer` has DeepEP's calls: these need PyTorch, which is imported on first use. The guide is
docs/expert-parallelism.md.
"""

from typing import TYPE_CHECKING

from accord._core import ExpertGroup, ExpertHandle, balance_experts
from accord._lazy import lazy_names

if TYPE_CHECKING:
    from accord.moe.autograd import combine, dispatch

__all__ = ["ExpertGroup", "ExpertHandle", "balance_experts", "combine", "dispatch"]

for _public in (ExpertGroup, ExpertHandle):
    _public.__module__ = "accord.moe"

# The module of each name that needs PyTorch.
_TORCH = {"combine": "accord.moe.autograd", "dispatch": "accord.moe.autograd"}


__getattr__ = lazy_names("accord.moe", _TORCH)


def __dir__() -> list[str]:
    return __all__
