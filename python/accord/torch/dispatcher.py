"""Tensors without memory of their own: the results of functional collectives, and other classes of tensors that hold
tensors.

Torch's dispatcher finds the tensors that they hold: it asks their class (__torch_dispatch__), or unwraps them itself
where functions are transformed. torch's own backends get their tensors from it. Therefore an accord call with such a
tensor goes through an operator of the dispatcher, whose kernel repeats the call with the tensors that it gets: once,
or once for each tensor of a class that holds several. A tensor that neither the dispatcher nor its class unwraps is
rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

import accord
from accord.torch.tensors import NoMemory

# As with torch's collectives, the schema does not say that tensors are written: otherwise the dispatcher would refuse
# to unwrap some of them.
_library = torch.library.Library("accord", "DEF")
_library.define("call(Tensor[] tensors, int number) -> ()")

_REMEDY = "pass a tensor that has memory, such as the one that it holds (DTensor.to_local())"

_numbers = itertools.count()
_active_calls: dict[int, Callable[[Sequence[torch.Tensor]], None]] = {}


def _kernel(tensors: Sequence[torch.Tensor], number: int) -> None:
    _active_calls[number](tensors)


for _key in ("CPU", "CUDA"):
    _library.impl("call", _kernel, _key)


def with_memory(call: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> list[Any]:
    """Calls `call` once if all tensors have memory, however deeply they are nested in lists, and returns its result.

    Otherwise calls it once for each set of tensors that the dispatcher unwraps, with these in place of the given
    ones. REQUIRES: `call` raises NoMemory before it does anything. Raises TypeError, which names a tensor that has no
    memory even then.
    """
    try:
        return [call(*arguments, **keywords)]
    except NoMemory as found:
        missing = found
    leaves, structure = _pytree.tree_flatten((arguments, keywords))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    given: list[Any] = []
    failures: list[BaseException] = []

    def call_with(tensors: Sequence[torch.Tensor]) -> None:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = _pytree.tree_unflatten(filled, structure)
        try:
            given.append(call(*positional, **named))
        except BaseException as error:
            failures.append(error)
            raise

    number = next(_numbers)
    _active_calls[number] = call_with
    try:
        torch.ops.accord.call([leaves[place] for place in places], number)
    except accord.Error:
        raise  # the functional collective that computes the tensor has failed
    except Exception as error:
        if failures and not isinstance(failures[0], NoMemory):
            raise failures[0] from None
        raise TypeError(f"accord: {missing}; {_REMEDY} ({_first_line(error)})") from error
    finally:
        del _active_calls[number]
    if not given:
        raise TypeError(f"accord: {missing}, and its class does nothing for the call; {_REMEDY}")
    return given


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
