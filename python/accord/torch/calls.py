"""How a process group runs calls of its communicator: at once, as Work, or several as one; in the profiler's ranges."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import accord
from accord.torch import c10d, streams
from accord.torch.arguments import Tensors
from accord.torch.errors import as_torch_error
from accord.torch.listed import Listed
from accord.torch.ranges import Range, recorded
from accord.torch.tensors import CopyBack
from accord.torch.work import DeviceWork, FinishedWork, Work, checked_start, copy_back

_FINISHED = FinishedWork()
_UNSET = c10d.BarrierOptions().timeout


class Calls:
    """Mixin of a process group."""

    _comm: accord.Communicator
    _global_ranks: list[int]
    _others: Any

    def __init__(self) -> None:
        self._sequence_number = 0
        self._has_aborted = False  # the present communicator
        self._abort_hooks: dict[int, Callable[[], None]] = {}
        self._hooks_lock = threading.Lock()
        self._hooks_have_run = False  # for the present communicator
        self._new_timeout: timedelta | None = None
        self._batches: dict[int, Listed] = {}  # of threads that list calls, by thread id

    def _run(
        self,
        call: str,
        opts: Any,
        tensors: Tensors,
        back: list[CopyBack],
        *arguments: Any,
        reads: Tensors | None = None,
        **keywords: Any,
    ) -> dist.Work:
        """Runs a call of the communicator, starts it if it is asynchronous, or lists it if several are to run as one.

        reads: tensors reported to the profiler, if they are not the call's first argument.
        """
        timeout = opts.timeout
        if timeout != _UNSET:
            keywords["timeout"] = timeout
        if opts.asyncOp or self._batches:
            return self._start(call, tensors, back, *arguments, reads=reads, **keywords)
        if self._new_timeout is not None:
            keywords.setdefault("timeout", self._new_timeout)
        device = streams.device_of_call()
        if device is not None:
            keywords["stream"] = streams.current(device)
        self._sequence_number += 1
        try:
            if c10d.profiler_enabled():
                with Range(call, _reads(arguments, reads)):
                    getattr(self._comm, call)(*arguments, **keywords)
            else:
                getattr(self._comm, call)(*arguments, **keywords)
        except accord.Error as error:
            self._on_failure(error)
            raise as_torch_error(error, self._global_ranks) from None
        if back:
            copy_back(back)
        return _FINISHED

    def _start(
        self,
        call: str,
        tensors: Tensors,
        back: list[CopyBack],
        *arguments: Any,
        reads: Tensors | None = None,
        **keywords: Any,
    ) -> dist.Work:
        listed = self._batches.get(threading.get_ident()) if self._batches else None
        if listed is not None:
            keywords.pop("timeout", None)
            getattr(listed.batch, call)(*arguments, **keywords)
            return listed.add(tensors, back)
        if self._new_timeout is not None:
            keywords.setdefault("timeout", self._new_timeout)
        start = getattr(self._comm, f"{call}_async")
        device = streams.device_of_call()
        if device is not None:
            keywords["stream"] = streams.current(device)
        if c10d.profiler_enabled():
            started = functools.partial(self._work_of, lambda: start(*arguments, **keywords), tensors, back, device)
            return recorded(call, _reads(arguments, reads), started)
        return self._work_of(lambda: start(*arguments, **keywords), tensors, back, device)

    def _run_all(
        self,
        call: str,
        opts: Any,
        tensors: Tensors,
        back: list[CopyBack],
        calls: Sequence[tuple],
        **keywords: Any,
    ) -> dist.Work:
        """Runs the same call with several arguments, as one; in a coalescing block, as part of it."""
        listed = self._batches.get(threading.get_ident()) if self._batches else None
        batch = self._comm.batch() if listed is None else listed.batch
        for arguments in calls:
            getattr(batch, call)(*arguments, **keywords)
        if listed is not None:
            return listed.add(tensors, back)
        timeout = self._new_timeout if opts.timeout == _UNSET else opts.timeout
        device = streams.device_of_call()
        stream = None if device is None else streams.current(device)
        started = functools.partial(self._work_of, lambda: batch.start(timeout, stream), tensors, back, device)
        work = recorded(call, [read for read, *_ in calls], started) if c10d.profiler_enabled() else started()
        if not opts.asyncOp:
            work.wait()
        return work

    def _work_of(
        self,
        start: Callable[[], accord.Work],
        tensors: Tensors,
        back: list[CopyBack],
        device: torch.device | None,
        kind: type[Work] = Work,
    ) -> Work:
        self._sequence_number += 1
        try:
            work = checked_start(self._comm, start)
            if self._abort_hooks:
                work.on_end(self._on_failure)
            if device is not None:
                return DeviceWork(work, tensors, back, self._global_ranks, device)
            return kind(work, tensors, back, self._global_ranks)
        except accord.Error as error:
            self._on_failure(error)
            raise as_torch_error(error, self._global_ranks) from None

    # Failures.

    supports_abort_hooks = True

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Calls `hook` when a call finds that the group has failed, or when the group is aborted, once until it is
        reconfigured: on the thread of that call, or on accord's progress thread. Hooks apply to calls that begin after
        their registration."""
        with self._hooks_lock:
            if hook_id in self._abort_hooks:
                raise ValueError(f"accord: abort hook {hook_id} is already registered")
            self._abort_hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        with self._hooks_lock:
            self._abort_hooks.pop(hook_id, None)

    def get_error(self) -> Any:
        """Returns the kind of failure of the group, as torch's ErrorType: SUCCESS while it works, and after abort() of
        this rank, which is no error."""
        return c10d.error_type_of(None if self._has_aborted else self._comm.error)

    def _on_failure(self, error: BaseException | None) -> None:
        """Runs the abort hooks if the communicator has failed."""
        if error is not None and self._abort_hooks and self._comm.state == "failed":
            self._run_abort_hooks()

    def _run_abort_hooks(self) -> None:
        """Runs all hooks, also if one of them raises; then raises the first such error."""
        with self._hooks_lock:
            hooks = [] if self._hooks_have_run else list(self._abort_hooks.values())
            self._hooks_have_run = True
        with contextlib.ExitStack() as stack:
            for hook in reversed(hooks):
                stack.callback(hook)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later calls that have none of their own."""
        self._timeout = self._new_timeout = timeout

    def batches_messages(self, device: torch.device) -> bool:
        """Returns True if a batch of messages of tensors there must and can be one call: between GPUs."""
        if device.type == "cpu":
            return False
        if self._others.are_own(device):
            return True
        other = self._others.group_for(device)
        return other is not None and other._get_backend(device).supports_coalescing

    def _start_coalescing(self, device: torch.device) -> None:
        if (other := self._others.other_for(device)) is not None:
            other._start_coalescing(device)
            return
        if threading.get_ident() in self._batches:
            raise RuntimeError("accord: this thread is already in a coalescing block of the group")
        self._batches[threading.get_ident()] = Listed(self._comm.batch())

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        if (other := self._others.other_for(device)) is not None:
            return other._end_coalescing(device)
        listed = self._batches[threading.get_ident()]
        stream = None if listed.device is None else streams.current(listed.device)
        started = functools.partial(
            self._work_of, lambda: listed.batch.start(self._new_timeout, stream), (), listed.back, listed.device
        )
        try:
            listed.work = recorded("coalesced", (), started) if c10d.profiler_enabled() else started()
        finally:
            self.drop_listed()
        return listed.work

    def drop_listed(self) -> None:
        """Ends this thread's block: later calls run when they are made; listed calls that have not started never run."""
        listed = self._batches.pop(threading.get_ident(), None)
        if listed is not None:
            listed.is_open = False


def _reads(arguments: Sequence, given: Tensors | None) -> Tensors:
    """Returns the tensors that the profiler is told a call of the communicator with these arguments reads."""
    return [argument for argument in arguments[:1] if isinstance(argument, torch.Tensor)] if given is None else given
