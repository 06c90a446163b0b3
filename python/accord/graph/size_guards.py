"""Finds the module whose code works only for certain sizes.

torch adds a guard to the sizes that it traces with wherever code depends on one. Hooks count the guards before and
after each module. New guards belong to the innermost module after which they appear.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sympy
import torch


class SizeGuards:
    """The guards of each module, in the order in which modules end."""

    def __init__(self) -> None:
        self._counts: list[int] = []  # number of guards at the start of each module that is being traced
        self._attributed = 0
        self._found: list[tuple[str, torch.nn.Module, list[sympy.Basic]]] = []

    def module(self, *, equal_sizes: bool) -> tuple[str, torch.nn.Module] | None:
        """Returns the first module whose guards fix a size to one value, or else the first module that has guards.
        equal_sizes: the problem is that two sizes must be equal; otherwise such guards are taken as intended."""

        def rank(guard: sympy.Basic) -> int:
            if not isinstance(guard, sympy.Eq):
                return 1
            return 2 if not equal_sizes and guard.lhs.is_Symbol and guard.rhs.is_Symbol else 0

        found = min(self._found, key=lambda one: min(map(rank, one[2])), default=None)
        return found and found[:2]

    def begin(self, inputs: tuple) -> None:
        self._counts.append(len(_guards_of(inputs)))

    def end(self, path: str, module: torch.nn.Module, inputs: tuple) -> None:
        began, guards = self._counts.pop(), _guards_of(inputs)
        new = guards[max(began, self._attributed) :]
        if new:
            self._attributed = len(guards)
            self._found.append((path, module, [guard.expr for guard in new]))


def _guards_of(inputs: tuple) -> list:
    for one in torch.utils._pytree.tree_leaves(inputs):
        for size in one.shape if isinstance(one, torch.Tensor) else (one,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env.guards
    return []


@contextlib.contextmanager
def watched(model: torch.nn.Module) -> Iterator[SizeGuards]:
    """Context in which the guards are counted while torch traces the model."""
    guards = SizeGuards()
    handles = []
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # does not support such hooks
        handles.append(
            module.register_forward_pre_hook(lambda _, args, kwargs: guards.begin((args, kwargs)), with_kwargs=True)
        )
        handles.append(
            module.register_forward_hook(
                lambda module, args, kwargs, __, path=path: guards.end(path, module, (args, kwargs)), with_kwargs=True
            )
        )
    try:
        yield guards
    finally:
        for handle in handles:
            handle.remove()
