"""What an asynchronous call gives to torchcomms: an object with wait()."""

from __future__ import annotations

from collections.abc import Sequence

import accord
from accord.torch.errors import as_torch_error
from accord.torch.tensors import CopyBack
from accord.torch.work import Results


class Work:
    """A call that goes on by itself. Its results reach the caller's tensors whether or not anybody waits."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], size: int) -> None:
        self._work = work
        self._results = Results(work, back)
        self._ranks = range(size)

    def wait(self) -> None:
        try:
            self._work.wait()
        except accord.Error as error:
            raise as_torch_error(error, self._ranks) from None
        self._results.arrive()
