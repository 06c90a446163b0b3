"""What the masks of a language model let a token see: all tokens before it, or those in a window or of its chunk.

transformers builds each mask from a function of two positions and passes it to the layers. Short runs do not reveal a
mask that differs only beyond some thousand tokens, but the function does: it is evaluated at positions up to the
longest, close together around the known sizes (the layer's window, the size that comes with the mask) and around
powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from accord.exporter.language_model import Reach, attention_by, example_inputs
from accord.graph.errors import ExportError

_REMEDY = "Export the model with example_inputs (whole sequences)"


@dataclass
class _Mask:
    placeholder: torch.Tensor  # passed to the layers in its place
    sees: Callable  # function of batch, head, position and an earlier position
    size: int  # of its windows or chunks, if any


@torch.no_grad()
def attention_reaches(
    model: torch.nn.Module,
    longest: int,
    run: Callable[[torch.Tensor], object] | None = None,
    is_other: Callable[[str], bool] = lambda _: False,
) -> list[Reach]:
    """Returns how far back a token sees in each attention that the model hands over to transformers'
    AttentionInterface, in the order of the calls. `longest`: the most tokens that the model takes. `run`: runs the
    model on tokens [1, tokens], if that needs other arguments. `is_other`: whether the module of this path attends to
    other rows than the tokens. Raises ExportError for other masks."""
    masks: dict[int, _Mask] = {}
    reaches: list[Reach] = []
    paths = {module: path for path, module in model.named_modules()}

    def make_mask(*_, batch_size, q_length, kv_length, mask_function, local_size=None, **__) -> torch.Tensor:
        placeholder = torch.ones(batch_size, 1, q_length, kv_length, dtype=torch.bool)
        masks[id(placeholder)] = _Mask(placeholder, mask_function, local_size or 0)
        return placeholder

    def attend(module, query, key, value, attention_mask, sliding_window=None, **_):
        batch, heads, rows, _ = query.shape
        nothing = query.new_zeros(batch, rows, heads, value.shape[-1])
        if is_other(paths[module]):
            return nothing, None
        where = f'{type(model).__name__}: in module "{paths[module]}"'
        mask = masks.get(id(attention_mask))
        if mask is None and attention_mask is not None:
            mask = _only_one(masks, attention_mask, where)
        if mask is not None:
            reaches.append(_reach_of(where, mask, sliding_window or 0, longest))
        elif getattr(module, "is_causal", True):
            reaches.append(Reach(sliding_window or 0))
        else:
            raise ExportError(f"{where} the attention is not causal; an engine that keeps keys needs that it is")
        return nothing, None

    with attention_by(model, attend, make_mask):
        tokens = example_inputs()[0][:longest][None]
        _ = run(tokens) if run else model(input_ids=tokens, use_cache=False)
    return reaches


def _only_one(masks: dict[int, _Mask], given: torch.Tensor, where: str) -> _Mask:
    """Returns the mask that a layer has made another tensor of, without a change of its values."""
    if len(masks) == 1 and bool((given == 1).all()):
        return next(iter(masks.values()))
    raise ExportError(f"{where} the layer changes the mask, which an engine derives from positions alone. {_REMEDY}")


def _reach_of(where: str, mask: _Mask, window: int, longest: int) -> Reach:
    positions = _positions((window, mask.size), longest)
    at, before = (one.flatten() for one in torch.meshgrid(positions, positions, indexing="ij"))
    nothing = torch.tensor(0)
    try:
        sees = torch.vmap(lambda query, key: mask.sees(nothing, nothing, query, key))(at, before)
    except Exception as error:
        raise ExportError(f"{where} the mask depends on more than positions: {error}. {_REMEDY}") from error
    for reach in (Reach(window), Reach(mask.size), Reach(), Reach(chunk=mask.size)):
        if torch.equal(sees, reach.sees(at, before)):
            return reach
    expected = f"with a window or chunks of {mask.size}" if mask.size else "without a window"
    wrong = sees != Reach(mask.size).sees(at, before)
    token, other, shown = int(at[wrong][0]), int(before[wrong][0]), bool(sees[wrong][0])
    raise ExportError(
        f"{where} the mask {'shows' if shown else 'hides'} token {other} {'to' if shown else 'from'} token {token}. An "
        f"engine's attention is causal, {expected}. {_REMEDY}"
    )


def _positions(sizes: tuple[int, ...], longest: int) -> torch.Tensor:
    """Returns the first and last positions, and those around multiples of the sizes and around powers of two."""
    near = [0, longest, *(size * times for size in sizes for times in (1, 2, 3))]
    near += [1 << bit for bit in range(longest.bit_length())]
    return torch.tensor(sorted({at + by for at in near for by in (-1, 0, 1) if 0 <= at + by < longest}))
