"""Coordinates the calls of a DeepEP buffer's ranks, and manages the expert groups that move its rows.

A call begins with one all_gather of the values that must be equal on all ranks, the number of tokens on each rank,
and errors in a rank's arguments. Therefore either all ranks raise an error or none does, the buffer remains usable
afterwards, and either all ranks create an expert group or none does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from accord import process_groups
from accord._core import Communicator, ExpertGroup, ExpertHandle, InvalidArgument, Mismatch, WrongState
from accord.moe.autograd import dtype_of, memory_of

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

_RECORD_BYTES = 1024
_MAX_TEXT = 400  # characters of an error


class Route:
    """The map of one dispatch: rows to ranks, or to experts."""

    def __init__(self, exchange: Exchange, number: int, ids: torch.Tensor, max_tokens: int, experts: int) -> None:
        """number: of this dispatch in its buffer, equal on all ranks."""
        self.exchange, self.number, self.ids = exchange, number, ids
        self.max_tokens, self.experts = max_tokens, experts
        self.prepared: dict[ExpertGroup, ExpertHandle] = {}


class Exchange:
    """The ranks of a buffer. They make the same calls in the same order."""

    def __init__(self, group: dist.ProcessGroup | Communicator, failure: Exception | None = None) -> None:
        """Collective. failure: why this rank cannot take part, which then is an error on all ranks."""
        self.rank, self.size = process_groups.place_in(group)
        self._shared = process_groups.shared_communicator(group, failure)
        self._groups: dict[tuple, ExpertGroup] = {}
        self._routes, self._is_closed = 0, False

    @property
    def communicator(self) -> Communicator:
        return self._shared.communicator

    def close(self) -> None:
        self._is_closed = True
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    @contextlib.contextmanager
    def arguments(self, call: str) -> Iterator[None]:
        """Context that reports errors raised inside it to the other ranks of the call."""
        try:
            yield
        except Exception as error:
            text = f"{type(error).__name__}: {error}".encode("ascii", "replace").decode()
            self._gather({"call": call, "error": text[:_MAX_TEXT]})
            raise

    def agree(self, call: str, alike: Mapping[str, Any], tokens: int = 0) -> list[int]:
        """Returns the number of tokens of each rank. Raises InvalidArgument with an error in another rank's
        arguments, and Mismatch with a difference in `alike`."""
        records = self._gather({"call": call, "alike": dict(alike), "tokens": tokens})
        for rank, record in enumerate(records):
            if "error" in record:
                raise InvalidArgument(f"{call}: rank {rank}: {record['error']}")
        first = records[0]
        for rank, record in enumerate(records):
            if record["call"] != first["call"]:
                raise Mismatch(f"rank {rank} called {record['call']}, rank 0 called {first['call']}")
            for name, value in record["alike"].items():
                if value != first["alike"][name]:
                    raise Mismatch(f"{call}: {name} is {first['alike'][name]} on rank 0 and {value} on rank {rank}")
        return [record["tokens"] for record in records]

    def _gather(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self._is_closed:
            raise WrongState(f"{record['call']}: the buffer was destroyed; create another one")
        mine = torch.frombuffer(bytearray(json.dumps(record).encode().ljust(_RECORD_BYTES)), dtype=torch.uint8)
        gathered = torch.empty(self.size, _RECORD_BYTES, dtype=torch.uint8)
        self.communicator.all_gather(mine, gathered.view(-1))
        return [json.loads(bytes(each.numpy()).decode()) for each in gathered]

    def route(self, ids: torch.Tensor, max_tokens: int, experts: int) -> Route:
        self._routes += 1
        return Route(self, self._routes, ids, max_tokens, experts)

    def handle(self, route: Route, rows: torch.Tensor) -> tuple[ExpertGroup, ExpertHandle]:
        """Returns the map of a route for rows of this width, and its expert group, which is created on first use and
        recreated for more tokens."""
        hidden, top_k = rows.shape[1], route.ids.shape[1]
        key = (hidden, route.experts, top_k)
        group = self._groups.get(key)
        if group is None or group.config["max_tokens_per_rank"] < route.max_tokens:
            group = self._groups[key] = ExpertGroup(
                self.communicator,
                experts=route.experts,
                top_k=top_k,
                hidden=hidden,
                max_tokens_per_rank=max(1, route.max_tokens),
                dtype="float64",
            )
        if group not in route.prepared:
            handle = group.handle()
            group.prepare(handle, route.ids.contiguous())
            route.prepared[group] = handle
        return group, route.prepared[group]

    def send(self, route: Route, x: Rows, rows: int = 0, fill: float = 0) -> Rows:
        """Returns the rows of x that arrive on this rank. rows: pad to this many with rows of `fill`."""
        x, scales = x if isinstance(x, tuple) else (x, None)
        group, handle = self.handle(route, x)
        max_rows = max(of_rank["recv_rows"] for of_rank in handle.ranks)
        if rows and rows < max_rows:
            raise InvalidArgument(f"num_worst_tokens is {rows}, but up to {max_rows} rows arrive on a rank")
        count = rows or handle.recv_rows
        received = x.new_empty(count, x.shape[1])
        received_scales = None if scales is None else scales.new_zeros(count, scales.shape[1])
        group.dispatch(
            handle,
            memory_of(x),
            memory_of(received),
            scales=memory_of(scales),
            recv_scales=received_scales,
            dtype=dtype_of(x),
        )
        if count > handle.recv_rows:
            received[handle.recv_rows :] = fill
        return received if scales is None else (received, received_scales)

    def add(self, route: Route, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the sum of each token's rows of x, [tokens, hidden]."""
        group, handle = self.handle(route, x)
        result = x.new_empty(len(route.ids), x.shape[1])
        group.combine(handle, memory_of(x), memory_of(result), weights=memory_of(weights), dtype=dtype_of(x))
        return result
