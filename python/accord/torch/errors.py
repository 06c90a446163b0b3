"""accord's errors for PyTorch programs: each is also a torch.distributed.DistBackendError, and so a RuntimeError."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

import accord

#: Keyed by accord's own class. They are also names of accord.torch.
ALSO_OF_TORCH = {
    error: type(
        error.__name__, (error, dist.DistBackendError), {"__module__": "accord.torch", "__doc__": error.__doc__}
    )
    for error in vars(accord).values()
    if isinstance(error, type) and issubclass(error, accord.Error) and error is not accord.Error
}


def as_torch_error(error: accord.Error, global_ranks: Sequence[int]) -> accord.Error:
    """Returns `error` as an exception of both classes. Its `ranks` remain ranks of the group; a note lists the global
    ranks if they differ.

    global_ranks: of the group's ranks."""
    if isinstance(error, accord.Timeout) and "timed out" not in str(error):  # programs look for these words
        error.args = (f"timed out: {error}",)
    error.__class__ = ALSO_OF_TORCH.get(type(error), type(error))
    at_fault = [global_ranks[rank] for rank in error.ranks]
    if at_fault != list(error.ranks) and not hasattr(error, "__notes__"):
        error.add_note(f"global ranks: {', '.join(map(str, at_fault))}")
    return error
