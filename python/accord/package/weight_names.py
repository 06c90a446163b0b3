"""Maps weights with transformers' names to the tensors of a package: export splits fused layers (graph/modules.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LATENT = re.compile(r"(.*\.kv_b_proj)\.key\.weight")
_PART = re.compile(r"(.*)\.(query|key|value|gate|up)\.(weight|bias)")
_EXPERTS_PART = re.compile(r"(.*experts)\.(gate_proj|up_proj)")
TRANSPOSED = re.compile(r".*\.(c_attn|c_proj|c_fc)\.weight")  # [in, out], in GPT-2's Conv1D


def by_package_names(
    given: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]]
) -> Mapping[str, torch.Tensor]:
    """Returns `given` with fused tensors split where a package with tensors of these `shapes` has the parts. The
    parts are views where possible. Tensors that do not fit stay as they are."""
    from accord.graph.latent_heads import head_matrices  # imports torch

    found = dict(given)
    if any(name.endswith("c_attn.weight") and _is_conv1d(tensor) for name, tensor in given.items()):
        found = {name: tensor.t() if TRANSPOSED.fullmatch(name) else tensor for name, tensor in found.items()}
    for name, shape in shapes.items():
        layer = _LATENT.fullmatch(name)
        if layer and f"{layer[1]}.weight" in found:
            value = f"{layer[1]}.value.weight"
            matrices = head_matrices(found.pop(f"{layer[1]}.weight"), shape[2], shapes[value][1])
            found.update(zip((name, value), matrices, strict=True))
    parts: dict[str, list[str]] = {}
    for name in shapes:
        whole = _whole_of(name)
        if whole in found and name not in found:
            parts.setdefault(whole, []).append(name)
    for whole, names in parts.items():
        of_experts = whole.endswith("gate_up_proj") and found[whole].dim() == 3
        dim = 1 if of_experts else 0
        names.sort(key=lambda name: _ORDER.index(name.split(".")[-1 if of_experts else -2]))
        sizes = [shapes[name][dim] for name in names]
        if found[whole].shape[dim] == sum(sizes):
            found.update(zip(names, found.pop(whole).split(sizes, dim), strict=True))
    return found


_ORDER = ("query", "key", "value", "gate", "up", "gate_proj", "up_proj")  # order of the parts in the fused tensor


def _is_conv1d(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] == 3 * tensor.shape[0]


def _whole_of(name: str) -> str | None:
    if found := _PART.fullmatch(name):
        return f"{found[1]}.{found[3]}"
    if found := _EXPERTS_PART.fullmatch(name):
        return f"{found[1]}.gate_up_proj"
    return None
