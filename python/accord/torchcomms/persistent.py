"""torchcomms' persistent all_gather: a handle for one output, made once, with which the call is made many times."""

from __future__ import annotations

from typing import Any

import torch

import accord
from accord.torch.tensors import CopyBack, source, target
from accord.torchcomms.arguments import Timeout


class PersistentAllGather:
    """An all_gather into `output`. As long as the input stays the same, its call is prepared (accord.Prepared)."""

    def __init__(self, output: torch.Tensor, size: int, timeout: Timeout) -> None:
        """size: the number of ranks. timeout: of each call that has none; None: the communicator's."""
        back: list[CopyBack] = []
        self._into = target(output, "all_gather_p_init", back)
        if output.numel() % size:
            raise RuntimeError(
                f"all_gather_p_init: the output has {output.numel()} elements, which do not split evenly over {size} ranks"
            )
        self.output = output
        self.timeout = timeout
        self._is_dense = not back
        self._prepared: accord.Prepared | None = None
        self._prepared_for: tuple[Any, ...] = ()

    def prepared(self, comm: accord.Communicator, input: torch.Tensor, timeout: Any) -> accord.Prepared | None:
        """Returns the call for `input`, or None if one of the tensors is not dense, so that it has to be copied. Keeps
        the memory of the last input."""
        array = source(input, "all_gather_p_exec")
        if not self._is_dense or array.data_ptr() != input.data_ptr():
            return None
        of = (comm, array.data_ptr(), array.numel(), array.dtype, timeout)
        if self._prepared_for != of:
            batch = comm.batch()
            batch.all_gather(array, self._into)
            self._prepared, self._prepared_for = batch.prepare(timeout=timeout), of
        return self._prepared
