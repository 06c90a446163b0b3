"""Operations in progress, in the form that torch.distributed expects."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

import accord
from accord.torch import futures, streams
from accord.torch.c10d import never_compiled
from accord.torch.errors import as_torch_error
from accord.torch.ranges import Range
from accord.torch.tensors import CopyBack

_KEPT_BYTES = 4096  # tensor bytes of a Work that is kept; DDP.join's is a single number
NO_TIMEOUT = timedelta(0)  # value that torch passes if no timeout is given


class Results:
    """Copies received data to the tensors that it is for, exactly once, even if no thread waits (`without_waiting`)."""

    def __init__(self, work: accord.Work, back: Sequence[CopyBack], without_waiting: bool = True) -> None:
        self._back = back
        self._copied_in: torch.cuda.Stream | None = None  # by arrive_in()
        self._arriving = threading.Lock()
        if back and without_waiting:
            work.on_end(lambda error: self.arrive() if error is None else None)

    def arrive(self) -> None:
        """REQUIRES: the operation has succeeded. Waiting threads also call it, as they may continue before the
        callback.
        """
        if not self._back:
            return
        with self._arriving:
            copy_back(self._back)
            self._back = ()

    def arrive_in(self, stream: torch.cuda.Stream) -> None:
        """The same in `stream`, which is the current one. If another stream has copied, this one waits for it."""
        with self._arriving:
            if self._back:
                copy_back(self._back)
                for tensor in itertools.chain.from_iterable(self._back):
                    streams.keep(tensor, stream)
                self._back, self._copied_in = (), stream
            elif self._copied_in is not None:
                stream.wait_stream(self._copied_in)


@never_compiled
class Work(dist.Work):
    """An operation that progresses in the background. Its future ends with it, so DDP's hooks can be chained to it."""

    _range: Range | None = None
    _awaited = True
    # C++ may hold a Work (from DDP.join) and wait for it after Python has released it; but it finds wait() only in
    # the Python object, and without that would wait forever. Works that no thread has waited for are therefore kept,
    # the latest of them.
    _kept: ClassVar[deque[Work]] = deque(maxlen=16)

    def __init__(
        self,
        work: accord.Work,
        tensors: Sequence[torch.Tensor],
        back: Sequence[CopyBack],
        global_ranks: Sequence[int],
    ) -> None:
        super().__init__()
        self._work = work
        self._tensors = list(tensors)
        self._results = Results(work, back)
        self._global_ranks = global_ranks
        self._future: torch.futures.Future | None = None
        self._awaited = False

    def __del__(self) -> None:
        if not self._awaited and sum(tensor.nbytes for tensor in self._tensors) <= _KEPT_BYTES:
            self._kept.append(self)

    def attach_range(self, span: Range) -> None:
        """Makes the profiler's range end with the operation, and at the latest when wait() returns."""
        self._range = span
        self._work.on_end(lambda _: span.end())

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        self._awaited = True
        limit = timeout if timeout > NO_TIMEOUT else None
        try:
            ended = self._work.wait(limit)
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None
        if not ended:
            text = (
                f"Work.wait: the operation has not ended after {timeout.total_seconds():g} s; it is still in progress"
            )
            raise as_torch_error(accord.Timeout(text), self._global_ranks)
        self._receive()
        if self._range is not None:
            self._range.wait()
        return True

    def _receive(self) -> None:
        self._results.arrive()

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._work.test():
            return False
        if self._work.error is None:
            self._receive()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._work.error is None

    def exception(self) -> BaseException | None:
        error = self._work.error
        return as_torch_error(error, self._global_ranks) if isinstance(error, accord.Error) else error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        # Only a function chained to a future can end it with an error that C++ (DDP) recognizes as one.
        if self._future is None:
            self._future = futures.future_of(self._work).then(lambda _: self.result())
        return self._future


@never_compiled
class DeviceWork(Work):
    """An operation on a GPU: wait() makes the current stream wait, not its caller, unless a timeout is given. Results
    that were received in other memory are copied to their tensors in that stream, so wait() must be called.

    The future has ended when it is returned, as that of torch's NCCL group: whoever uses it makes a stream wait. An
    operation that fails later is an error of the group's next call."""

    def __init__(
        self,
        work: accord.Work,
        tensors: Sequence[torch.Tensor],
        back: Sequence[CopyBack],
        global_ranks: Sequence[int],
        device: torch.device,
    ) -> None:
        super().__init__(work, tensors, (), global_ranks)
        self._results = Results(work, back, without_waiting=False)
        self.device = device

    def follow(self, stream: torch.cuda.Stream) -> list[torch.Tensor]:
        """Makes `stream`, which is the current one, wait for the results, and returns them. Raises accord.Error."""
        self._work.block(stream)
        self._results.arrive_in(stream)
        return self._tensors

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if timeout > NO_TIMEOUT:
            return super().wait(timeout)
        self._awaited = True
        try:
            self.follow(streams.current(self.device))
        except accord.Error as error:
            raise as_torch_error(error, self._global_ranks) from None
        return True

    def _receive(self) -> None:
        self._results.arrive_in(streams.current(self.device))

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Returns the results once they are available to all streams."""
        Work.wait(self)
        streams.current(self.device).synchronize()
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            try:
                self._future = _future_after([self])
            except accord.Error:
                return super().get_future()  # it ends with the error
        return self._future


def _future_after(works: Sequence[DeviceWork]) -> torch.futures.Future:
    """Returns a future that has ended, whose users wait in their streams for `works`. Raises accord.Error."""
    device = works[0].device
    stream = streams.other(device)
    with streams.made_current(stream):
        results = [tensor for work in works for tensor in work.follow(stream)]
        return futures.future_on(device, results)


@never_compiled
class FinishedWork(dist.Work):
    """An operation that had already succeeded when it was returned."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._tensors)
        return future


def checked_start(comm: accord.Communicator, start: Callable[[], accord.Work]) -> accord.Work:
    """Returns the work of start(), an asynchronous call of `comm`. Raises errors in its arguments, and the error of a
    communicator that has failed or is closed before it, as torch's backends do: a program may never wait for a message
    that it sends."""
    is_ready = comm.error is None
    work = start()
    error = work.error
    if error is not None and (not is_ready or isinstance(error, accord.InvalidArgument | accord.Unsupported)):
        raise error
    return work


@never_compiled
class Works(dist.Work):
    """Several operations as one, which ends with the last of them."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> accord.Error | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        on_device = [work for work in self._works if isinstance(work, DeviceWork)]
        if len(on_device) == len(self._works):
            with contextlib.suppress(accord.Error):  # the other future ends with the error
                return _future_after(on_device)
        ended = torch.futures.collect_all([work.get_future() for work in self._works])
        return ended.then(lambda _: self.result())


def as_one(works: Sequence[dist.Work]) -> dist.Work:
    return works[0] if len(works) == 1 else Works(works)


def copy_back(back: Sequence[CopyBack]) -> None:
    """Copies received data to the tensors that it is for."""
    for tensor, memory in back:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(memory)
