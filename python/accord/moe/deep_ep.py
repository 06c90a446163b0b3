"""DeepEP's interface on CPU ranks: what imports `deep_ep` runs unchanged.

    from accord.moe import deep_ep

    buffer = deep_ep.Buffer(group)
    layout = buffer.get_dispatch_layout(topk_idx, num_experts)

`install()` makes it what `import deep_ep` gives, for programs and libraries (Megatron's flex dispatcher) that have that line. The process group
may be of any backend. What DeepEP is told of its GPUs' resources (buffer sizes, SMs, queue pairs, configs) and events means nothing here: calls
are done when they return.

Rows arrive by (source rank, token), each once for each rank that it goes to, with the local ids of the experts there; the low-latency
calls give them expert by expert. Sums are those of `accord.moe`: in float32, in a fixed order, rounded once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from accord import process_groups
from accord._core import Communicator, ExpertGroup, ExpertHandle, InvalidArgument
from accord.moe.autograd import dtype_of, memory_of

SCALE_BLOCK = 128
FLOAT8_LARGEST = 448.0

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class EventHandle:
    """An event that has happened."""

    def current_stream_wait(self) -> None:
        pass


class EventOverlap:
    """What calls return where DeepEP's go on after they return."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        pass

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Config:
    """The resources of a GPU kernel; kept as they are given."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class _Route:
    """The map of one dispatch: rows to ranks, or to experts."""

    def __init__(self, ids: torch.Tensor, most_tokens: int, experts: int) -> None:
        self.ids, self.most_tokens, self.experts = ids, most_tokens, experts
        self.prepared: dict[ExpertGroup, ExpertHandle] = {}


class Buffer:
    """Ranks that exchange the rows of a mixture of experts. All of them make the same calls in the same order."""

    num_sms = 20

    def __init__(
        self,
        group: dist.ProcessGroup | Communicator,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        **_ignored: Any,
    ) -> None:
        """group: of torch.distributed, of any backend, or a communicator. Other arguments are DeepEP's, and are not used. Collective."""
        self.group = group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.rank, self.group_size = process_groups.place_in(group)
        self._shared = process_groups.shared_communicator(group)
        self._groups: dict[tuple, ExpertGroup] = {}

    @property
    def _comm(self) -> Communicator:
        return self._shared.communicator

    def destroy(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    @staticmethod
    def is_sm90_compiled() -> bool:
        return False

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        return 0

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Of [tokens, top_k] ids, -1 for none: tokens to each rank [ranks], None, choices of each expert [experts], whether a token goes
        to a rank [tokens, ranks], an event. Not collective. InvalidArgument: the ranks do not divide the experts."""
        local = self._local_experts(num_experts)
        chosen = (topk_idx >= 0) & (topk_idx < num_experts)
        ids = topk_idx.to(torch.int64).masked_fill(~chosen, 0)
        per_expert = torch.zeros(num_experts, dtype=torch.int64)
        of_experts = torch.zeros(len(topk_idx), num_experts, dtype=torch.bool)
        rows = torch.arange(len(topk_idx)).unsqueeze(1).expand_as(ids)
        of_experts[rows[chosen], ids[chosen]] = True
        per_expert = of_experts.sum(0)
        in_rank = of_experts.view(len(topk_idx), self.group_size, local).any(-1)
        return in_rank.sum(0).int(), None, per_expert.int(), in_rank, EventOverlap(EventHandle())

    def dispatch(
        self,
        x: Rows,
        handle: tuple | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **_ignored: Any,
    ) -> tuple[Rows, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple | None, EventOverlap]:
        """Sends each token once to every rank that has an expert it chose. x: [tokens, hidden], or with float8 rows a pair of them and scales
        [tokens, ceil(hidden / 128)].

        With get_dispatch_layout's results and topk_idx, topk_weights ([tokens, top_k]): rows [N, hidden], local ids of this rank's experts
        [N, top_k] (-1 elsewhere), their weights [N, top_k] (0 elsewhere), rows of each local expert (rounded up to expert_alignment), a
        handle, an event. With the handle of an earlier one (in a backward, say): the rows alone, and an event. num_worst_tokens: results have so
        many rows; those beyond N have ids of -1. Collective.
        """
        if handle is not None:
            if topk_idx is not None or topk_weights is not None:
                raise InvalidArgument(
                    "dispatch with a handle takes neither topk_idx nor topk_weights: its layout is known"
                )
            (route, _) = handle
            return self._send_rows(route, x, 0), None, None, None, None, EventOverlap(EventHandle())
        if is_token_in_rank is None or num_tokens_per_expert is None:
            raise InvalidArgument(
                "dispatch takes the results of get_dispatch_layout, or the handle of an earlier dispatch"
            )
        local = self._local_experts(len(num_tokens_per_expert))
        tokens = torch.tensor([len(is_token_in_rank)])
        self._comm.all_reduce(tokens, "max")
        ranks = torch.arange(self.group_size, dtype=torch.int32)
        ids = torch.where(is_token_in_rank, ranks, -1).to(torch.int32)
        # Rounded up, so that groups are not made anew for each batch that is a little larger.
        most = 1 << max(0, int(tokens) - 1).bit_length()
        route = _Route(ids, most, self.group_size)
        received = self._send_rows(route, x, num_worst_tokens)
        if topk_idx is None:
            arriving = num_tokens_per_expert.clone()
            self._comm.all_reduce(arriving)
            own = arriving[self.rank * local : (self.rank + 1) * local]
            listed = [] if num_worst_tokens else (-(-own // expert_alignment) * expert_alignment).tolist()
            return received, None, None, listed, (route, None), EventOverlap(EventHandle())
        # Ids and weights travel as rows of bytes.
        weights = torch.zeros(topk_idx.shape) if topk_weights is None else topk_weights
        both = torch.cat([topk_idx.to(torch.int64).view(torch.float64), weights.double()], 1)
        rows = self._send_rows(route, both, num_worst_tokens, otherwise=-1)
        top_k = topk_idx.shape[1]
        received_idx = rows[:, :top_k].contiguous().view(torch.int64) - local * self.rank
        count = self._handle(route, *self._group_of(route, rows)).recv_rows
        here = (received_idx >= 0) & (received_idx < local)
        here[count:] = False
        received_idx = received_idx.masked_fill(~here, -1).to(topk_idx.dtype)
        received_weights = None if topk_weights is None else rows[:, top_k:].float().masked_fill(~here, 0)
        per_expert = torch.bincount(received_idx[here].long(), minlength=local)
        aligned = (-(-per_expert // expert_alignment) * expert_alignment).tolist()
        listed = [] if num_worst_tokens else aligned
        return received, received_idx, received_weights, listed, (route, None), EventOverlap(EventHandle())

    def combine(
        self,
        x: torch.Tensor,
        handle: tuple,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        **_ignored: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """The sum of each token's rows over the ranks it went to, without weights: [tokens, hidden], the same sum of topk_weights
        [N, top_k] (what a backward wants), and an event. x: [N, hidden], in the order of dispatch. Collective."""
        route, _ = handle
        combined = self._add_rows(route, x)
        for more in () if bias is None else bias if isinstance(bias, tuple) else (bias,):
            combined += more
        weights = None if topk_weights is None else self._add_rows(route, topk_weights.float())
        return combined, weights, EventOverlap(EventHandle())

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        pass

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        **_ignored: Any,
    ) -> tuple[Rows, torch.Tensor, tuple, EventOverlap, Callable[[], None]]:
        """The rows of each local expert: [local experts, ranks x num_max_dispatch_tokens_per_rank, hidden], of which the first recv_count count;
        with use_fp8 a pair of float8_e4m3fn rows and their scales [..., ceil(hidden / 128)]. Also recv_count [local experts], a handle, an event,
        and a hook, which has nothing left to do. Collective."""
        local = self._local_experts(num_experts)
        route = _Route(topk_idx, num_max_dispatch_tokens_per_rank, num_experts)
        rows = self._send_rows(route, _in_float8(x) if use_fp8 else x, 0)
        group = self._group_of(route, rows[0] if use_fp8 else rows)
        prepared = self._handle(route, *group)
        for rank, of_rank in enumerate(prepared.ranks):
            if of_rank["tokens"] > num_max_dispatch_tokens_per_rank:
                raise InvalidArgument(
                    f"rank {rank} has {of_rank['tokens']} tokens, num_max_dispatch_tokens_per_rank is "
                    f"{num_max_dispatch_tokens_per_rank}"
                )
        counts = prepared.counts
        if cumulative_local_expert_recv_stats is not None:
            cumulative_local_expert_recv_stats += torch.tensor(counts, dtype=cumulative_local_expert_recv_stats.dtype)

        def by_expert(flat: torch.Tensor) -> torch.Tensor:
            of_experts = flat.new_zeros(local, self.group_size * num_max_dispatch_tokens_per_rank, flat.shape[1])
            for expert, piece in zip(of_experts, flat.split(counts), strict=True):
                expert[: len(piece)] = piece
            return of_experts

        packed = tuple(map(by_expert, rows)) if use_fp8 else by_expert(rows)
        received = torch.tensor(counts, dtype=torch.int32)
        return packed, received, (route, counts), EventOverlap(EventHandle()), lambda: None

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: tuple,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        **_ignored: Any,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None]]:
        """The sum of each token's rows, each times its weight ([tokens, top_k]): [tokens, hidden], an event and a hook. x: as low_latency_dispatch
        gave the rows. Collective."""
        route, counts = handle
        flat = torch.cat([of_expert[:count] for of_expert, count in zip(x, counts, strict=True)])
        combined = self._add_rows(route, flat, topk_weights.float())
        if out is not None:
            combined = out.copy_(combined)
        return combined, EventOverlap(EventHandle()), lambda: None

    def _local_experts(self, num_experts: int) -> int:
        if num_experts % self.group_size:
            raise InvalidArgument(f"{num_experts} experts cannot be divided evenly among {self.group_size} ranks")
        return num_experts // self.group_size

    def _group_of(self, route: _Route, rows: torch.Tensor) -> tuple[ExpertGroup, torch.Tensor]:
        """The expert group for rows of this width; made at the first use, and again for more tokens. Collective."""
        hidden, top_k = rows.shape[1], route.ids.shape[1]
        key = (hidden, route.experts, top_k)
        group = self._groups.get(key)
        if group is None or group.config["max_tokens_per_rank"] < route.most_tokens:
            group = self._groups[key] = ExpertGroup(
                self._comm,
                experts=route.experts,
                top_k=top_k,
                hidden=hidden,
                max_tokens_per_rank=max(1, route.most_tokens),
                dtype="float64",
            )
        return group, route.ids

    def _handle(self, route: _Route, group: ExpertGroup, ids: torch.Tensor) -> ExpertHandle:
        if group not in route.prepared:
            handle = group.handle()
            group.prepare(handle, ids.contiguous())
            route.prepared[group] = handle
        return route.prepared[group]

    def _send_rows(self, route: _Route, x: Rows, rows: int, otherwise: float = 0) -> Rows:
        """What of x arrives here: as many rows as come, or `rows` of them, then filled up with `otherwise`."""
        x, scales = x if isinstance(x, tuple) else (x, None)
        group, ids = self._group_of(route, x)
        handle = self._handle(route, group, ids)
        most = max(of_rank["recv_rows"] for of_rank in handle.ranks)
        if rows and rows < most:
            raise InvalidArgument(f"num_worst_tokens is {rows}, {most} rows arrive on a rank")
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
            received[handle.recv_rows :] = otherwise
        return received if scales is None else (received, received_scales)

    def _add_rows(self, route: _Route, x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        group, ids = self._group_of(route, x)
        handle = self._handle(route, group, ids)
        result = x.new_empty(len(route.ids), x.shape[1])
        group.combine(handle, memory_of(x), result, weights=memory_of(weights))
        return result


def _in_float8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in float8_e4m3fn, and a scale for each 128 elements, which takes the largest of them to the largest there is."""
    tokens, hidden = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, -hidden % SCALE_BLOCK)).view(tokens, -1, SCALE_BLOCK)
    scales = blocks.abs().amax(-1).clamp(min=1e-4) / FLOAT8_LARGEST
    scaled = (blocks / scales.unsqueeze(-1)).view(tokens, -1)[:, :hidden]
    return scaled.to(torch.float8_e4m3fn).contiguous(), scales


def install() -> None:
    """Makes this module what `import deep_ep` and `import deep_ep.utils` give. To be called before whatever imports them."""
    this = sys.modules[__name__]
    utils = ModuleType("deep_ep.utils")
    utils.EventHandle, utils.EventOverlap = EventHandle, EventOverlap
    sys.modules["deep_ep"], sys.modules["deep_ep.utils"] = this, utils
