"""Compares the masks of a language model with what the engine's attention lets a token see.

transformers builds each mask from a function of two positions and passes it to the layers. Short runs do not reveal a
mask that differs only beyond some thousand tokens, but the function does: it is evaluated at positions up to the
longest, close together around the known sizes (the layer's window, the size that comes with the mask) and around
powers of two. The engine's attention is causal, with the window that the layer passes as sliding_window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from accord.exporter.language_model import attention_by
from accord.graph.errors import ExportError

_REMEDY = "Give the layer that window, or export the model with example_inputs (whole sequences)"


@dataclass
class _Mask:
    placeholder: torch.Tensor  # passed to the layers in its place
    sees: Callable  # function of batch, head, position and an earlier position
    size: int  # of its windows or chunks, if any


@torch.no_grad()
def check_masks(model: torch.nn.Module, ids: torch.Tensor, longest: int) -> None:
    """Raises ExportError if a layer's mask differs from the engine's. `longest`: the most tokens that the model
    takes.
    """
    masks: dict[int, _Mask] = {}
    paths = {module: path for path, module in model.named_modules()}

    def make_mask(*_, batch_size, q_length, kv_length, mask_function, local_size=None, **__) -> torch.Tensor:
        placeholder = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool)
        masks[id(placeholder)] = _Mask(placeholder, mask_function, local_size or 0)
        return placeholder

    def attend(module, query, key, value, attention_mask, sliding_window=None, **_):
        mask = masks.get(id(attention_mask))
        if mask is not None:
            where = f'{type(model).__name__}: in module "{paths[module]}"'
            _check_mask(where, mask, sliding_window or 0, longest)
        batch, heads, rows, _ = query.shape
        return query.new_zeros(batch, rows, heads, value.shape[-1]), None

    with attention_by(model, attend, make_mask):
        model(input_ids=ids[None], use_cache=False)


def _check_mask(where: str, mask: _Mask, window: int, longest: int) -> None:
    positions = _positions((window, mask.size), longest)
    at, before = (one.flatten() for one in torch.meshgrid(positions, positions, indexing="ij"))
    nothing = torch.tensor(0)
    try:
        sees = torch.vmap(lambda query, key: mask.sees(nothing, nothing, query, key))(at, before)
    except Exception as error:
        raise ExportError(f"{where} the mask depends on more than positions: {error}. {_REMEDY}") from error
    right = before <= at
    if window:
        right &= at - before < window
    wrong = sees != right
    if bool(wrong.any()):
        token, other, shown = int(at[wrong][0]), int(before[wrong][0]), bool(sees[wrong][0])
        raise ExportError(
            f"{where} the mask {'shows' if shown else 'hides'} token {other} {'to' if shown else 'from'} token {token}. An "
            f"engine's attention is causal, {f'with a window of {window}' if window else 'without a window'}, as the "
            f"layer's sliding_window says. {_REMEDY}"
        )


def _positions(sizes: tuple[int, ...], longest: int) -> torch.Tensor:
    """Returns the first and last positions, and those around multiples of the sizes and around powers of two."""
    near = [0, longest, *(size * times for size in sizes for times in (1, 2, 3))]
    near += [1 << bit for bit in range(longest.bit_length())]
    return torch.tensor(sorted({at + by for at in near for by in (-1, 0, 1) if 0 <= at + by < longest}))
