"""DeepEP's interface on CPU ranks: programs that import `deep_ep` run unchanged.

    from accord.moe import deep_ep

    buffer = deep_ep.Buffer(group)
    layout = buffer.get_dispatch_layout(topk_idx, num_experts)

After `install()`, `import deep_ep` returns this module, for programs and libraries with that line (Megatron's flex
dispatcher). The process group may be of any backend. Arguments about DeepEP's GPU resources (buffer sizes, SMs, queue
pairs, configs) and events have no meaning here: calls are complete when they return. Arguments that would change
results have their effect or raise Unsupported; arguments that DeepEP does not have raise TypeError.

Rows arrive by (source rank, token), once for each receiving rank, with the local ids of the experts there; the
low-latency calls return them expert by expert. Sums are those of `accord.moe`: in float32, in a fixed order, rounded
once. An error in one rank's arguments is raised on all ranks, and the buffer remains usable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from accord._core import Communicator, InvalidArgument, Unsupported
from accord.moe import deep_ep_arguments as arguments
from accord.moe.exchange import Exchange, Rows
from accord.moe.float8_rows import in_float8, in_ue8m0


class EventHandle:
    """An event that has already happened."""

    def current_stream_wait(self) -> None:
        pass


class EventOverlap:
    """Returned by calls where DeepEP's may still be running when they return."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        pass

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class Config:
    """The resources of a GPU kernel, which are stored but not used."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0


class Buffer:
    """Ranks that exchange the rows of a mixture of experts. All ranks make the same calls in the same order."""

    num_sms = 20

    @arguments.collective_constructor
    def __init__(
        self,
        group: dist.ProcessGroup | Communicator,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool = False,
    ) -> None:
        """group: a torch.distributed group of any backend, or a communicator; its timeout applies to all calls.
        Collective. enable_shrink and comm (of mpi4py) raise Unsupported. The other arguments configure DeepEP's GPU
        resources and are not used."""
        refused = None
        if enable_shrink:
            refused = Unsupported("enable_shrink: ranks cannot be masked; create a buffer of the remaining ranks")
        if comm is not None:
            refused = Unsupported("comm: pass `group`, a process group of torch.distributed or a communicator")
        if not isinstance(group, dist.ProcessGroup | Communicator):
            raise refused or InvalidArgument(f"group is {group!r}, expected a process group or a communicator")
        self.group = group
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.explicitly_destroy = low_latency_mode, explicitly_destroy
        self.exchange = Exchange(group, refused)
        if refused is not None:
            raise refused
        self.rank, self.group_size = self.exchange.rank, self.exchange.size

    def destroy(self) -> None:
        self.exchange.close()

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
        """For [tokens, top_k] ids, -1 for none, returns: tokens sent to each rank [ranks], None, choices of each
        expert [experts], whether a token is sent to a rank [tokens, ranks], an event. Not collective. Raises
        InvalidArgument unless the ranks divide the experts evenly."""
        num_experts = arguments.count_of("num_experts", num_experts, 1)
        local = self._local_experts(num_experts)
        arguments.check_choices(topk_idx, None, len(arguments.tensor_of("topk_idx", topk_idx)))
        chosen = (topk_idx >= 0) & (topk_idx < num_experts)
        ids = topk_idx.to(torch.int64).masked_fill(~chosen, 0)
        of_experts = torch.zeros(len(topk_idx), num_experts, dtype=torch.bool)
        rows = torch.arange(len(topk_idx)).unsqueeze(1).expand_as(ids)
        of_experts[rows[chosen], ids[chosen]] = True
        per_expert = of_experts.sum(0)
        in_rank = of_experts.view(len(topk_idx), self.group_size, local).any(-1)
        return in_rank.sum(0).int(), None, per_expert.int(), in_rank, EventOverlap(EventHandle())

    @arguments.collective
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
    ) -> tuple[Rows, torch.Tensor | None, torch.Tensor | None, list[int] | None, tuple | None, EventOverlap]:
        """Sends each token once to every rank that has an expert it chose. x: [tokens, hidden], or a pair of float8
        rows and scales [tokens, ceil(hidden / 128)].

        With get_dispatch_layout's results and topk_idx, topk_weights ([tokens, top_k]), returns: rows [N, hidden],
        local ids of this rank's experts [N, top_k] (-1 elsewhere), their weights [N, top_k] (0 elsewhere), rows of
        each local expert (rounded up to expert_alignment), a handle, an event. With the handle of an earlier dispatch
        (in a backward), returns only the rows and an event. num_worst_tokens: results have this many rows, also with
        the handle later; rows beyond N have ids of -1. Collective.
        """
        with self.exchange.arguments("dispatch"):
            if handle is not None:
                if topk_idx is not None or topk_weights is not None:
                    raise InvalidArgument(
                        "dispatch with a handle takes neither topk_idx nor topk_weights: its layout is known"
                    )
                route, worst = arguments.route_of(handle, self.exchange, int)
                alike = arguments.check_rows(x, arguments.ROWS, len(route.ids)) | {"handle": route.number}
            elif is_token_in_rank is None or num_tokens_per_expert is None:
                raise InvalidArgument(
                    "dispatch requires the results of get_dispatch_layout, or the handle of an earlier dispatch"
                )
            else:
                arguments.check_layout(is_token_in_rank, num_tokens_per_expert, self.group_size)
                local = self._local_experts(len(num_tokens_per_expert))
                tokens = len(is_token_in_rank)
                expert_alignment = arguments.count_of("expert_alignment", expert_alignment, 1)
                num_worst_tokens = arguments.count_of("num_worst_tokens", num_worst_tokens)
                if topk_idx is not None:
                    arguments.check_choices(topk_idx, topk_weights, tokens)
                elif topk_weights is not None:
                    raise InvalidArgument("topk_weights requires topk_idx: it has the weights of those choices")
                alike = arguments.check_rows(x, arguments.ROWS, tokens) | {
                    "number of experts": len(num_tokens_per_expert),
                    "top_k": None if topk_idx is None else topk_idx.shape[1],
                    "topk_weights": "given" if topk_weights is not None else "omitted",
                    "expert_alignment": expert_alignment,
                    "num_worst_tokens": num_worst_tokens,
                }
        if handle is not None:
            self.exchange.agree("dispatch", alike)
            return self.exchange.send(route, x, worst), None, None, None, None, EventOverlap(EventHandle())
        counts = self.exchange.agree("dispatch", alike, tokens)
        ids = torch.where(is_token_in_rank, torch.arange(self.group_size, dtype=torch.int32), -1).to(torch.int32)
        # Rounded up, so that groups are not recreated for each slightly larger batch.
        max_tokens = 1 << max(0, max(counts) - 1).bit_length()
        route = self.exchange.route(ids, max_tokens, self.group_size)
        received = self.exchange.send(route, x, num_worst_tokens)
        new_handle = route, num_worst_tokens
        if topk_idx is None:
            arriving = num_tokens_per_expert.to(torch.int64, copy=True).contiguous()
            self.exchange.communicator.all_reduce(arriving)
            own = arriving[self.rank * local : (self.rank + 1) * local]
            per_expert_counts = [] if num_worst_tokens else (-(-own // expert_alignment) * expert_alignment).tolist()
            return received, None, None, per_expert_counts, new_handle, EventOverlap(EventHandle())
        # Ids and weights are sent as rows of bytes.
        weights = torch.zeros(topk_idx.shape) if topk_weights is None else topk_weights
        both = torch.cat([topk_idx.to(torch.int64).view(torch.float64), weights.double()], 1)
        rows = self.exchange.send(route, both, num_worst_tokens, fill=-1)
        top_k = topk_idx.shape[1]
        received_idx = rows[:, :top_k].contiguous().view(torch.int64) - local * self.rank
        _, prepared = self.exchange.handle(route, rows)
        here = (received_idx >= 0) & (received_idx < local)
        here[prepared.recv_rows :] = False
        received_idx = received_idx.masked_fill(~here, -1).to(topk_idx.dtype)
        received_weights = None if topk_weights is None else rows[:, top_k:].float().masked_fill(~here, 0)
        per_expert = torch.bincount(received_idx[here].long(), minlength=local)
        aligned = (-(-per_expert // expert_alignment) * expert_alignment).tolist()
        per_expert_counts = [] if num_worst_tokens else aligned
        return received, received_idx, received_weights, per_expert_counts, new_handle, EventOverlap(EventHandle())

    @arguments.collective
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
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Collective. Returns the sum of each token's rows over their ranks, without weights: [tokens, hidden], the
        same sum of topk_weights [N, top_k] (for a backward), and an event. x: [N, hidden], in dispatch's order."""
        with self.exchange.arguments("combine"):
            route, _ = arguments.route_of(handle, self.exchange, int)
            alike = arguments.check_rows(x, arguments.SUMS) | {"handle": route.number}
            alike["width of topk_weights"] = arguments.width_of(topk_weights, len(x))
            biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
            for each in biases:
                if arguments.tensor_of("bias", each).shape != (len(route.ids), x.shape[1]):
                    raise InvalidArgument(f"bias is {list(each.shape)}, the sums are {[len(route.ids), x.shape[1]]}")
        self.exchange.agree("combine", alike)
        combined = self.exchange.add(route, x)
        for each in biases:
            combined += each
        weights = None if topk_weights is None else self.exchange.add(route, topk_weights.float())
        return combined, weights, EventOverlap(EventHandle())

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        pass

    @arguments.collective
    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Rows, torch.Tensor, tuple, EventOverlap, Callable[[], None]]:
        """Returns the rows of each local expert, [local experts, ranks x num_max_dispatch_tokens_per_rank, hidden],
        of which the first recv_count are valid; with use_fp8, a pair of float8_e4m3fn rows and their scales [...,
        ceil(hidden / 128)]. round_scale: the scales are powers of two; use_ue8m0: four of their exponents are packed
        into an int32, [..., ceil(hidden / 512)]. Also returns recv_count [local experts], a handle, an event, and a
        hook that does nothing. num_max_dispatch_tokens_per_rank: equal on all ranks; none has more tokens.
        Collective."""
        with self.exchange.arguments("low_latency_dispatch"):
            alike = arguments.check_rows(x, arguments.SUMS)
            num_experts = arguments.count_of("num_experts", num_experts, 1)
            limit = arguments.count_of("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank)
            local = self._local_experts(num_experts)
            stats = cumulative_local_expert_recv_stats
            arguments.check_choices(topk_idx, None, len(x))
            arguments.check_stats(stats, local)
            arguments.check_end(async_finish, return_recv_hook)
            arguments.reject_waits("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats)
            if use_ue8m0 and not round_scale:
                raise InvalidArgument("use_ue8m0 requires round_scale=True: its scales are powers of two")
            alike |= {
                "num_max_dispatch_tokens_per_rank": limit,
                "num_experts": num_experts,
                "top_k": topk_idx.shape[1],
                "use_fp8": bool(use_fp8),
                "round_scale": bool(round_scale),
            }
            sent = in_float8(x, round_scale=round_scale) if use_fp8 else x
        counts = self.exchange.agree("low_latency_dispatch", alike, len(x))
        for rank, tokens in enumerate(counts):
            if tokens > limit:
                raise InvalidArgument(f"rank {rank} has {tokens} tokens, num_max_dispatch_tokens_per_rank is {limit}")
        route = self.exchange.route(topk_idx, limit, num_experts)
        rows = self.exchange.send(route, sent)
        _, prepared = self.exchange.handle(route, x)
        counts = prepared.counts
        if stats is not None:
            stats += torch.tensor(counts, dtype=stats.dtype)

        def by_expert(flat: torch.Tensor) -> torch.Tensor:
            of_experts = flat.new_zeros(local, self.group_size * limit, flat.shape[1])
            for expert, piece in zip(of_experts, flat.split(counts), strict=True):
                expert[: len(piece)] = piece
            return of_experts

        packed = tuple(map(by_expert, rows)) if use_fp8 else by_expert(rows)
        if use_fp8 and use_ue8m0:
            packed = packed[0], in_ue8m0(packed[1])
        received = torch.tensor(counts, dtype=torch.int32)
        return packed, received, (route, counts), EventOverlap(EventHandle()), lambda: None

    @arguments.collective
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
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None]]:
        """Returns the sum of each token's rows times their weights ([tokens, top_k]): [tokens, hidden], an event and
        a hook. x: in low_latency_dispatch's form. use_logfmt and zero_copy raise Unsupported. Collective."""
        with self.exchange.arguments("low_latency_combine"):
            route, counts = arguments.route_of(handle, self.exchange, list)
            arguments.check_end(async_finish, return_recv_hook)
            arguments.reject_waits("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats)
            if use_logfmt:
                raise Unsupported("use_logfmt: rows are sent as they are, not rounded to 10 bits")
            if zero_copy:
                raise Unsupported("zero_copy: the library has no buffer for the rows; pass them as x")
            places = len(counts), self.group_size * route.max_tokens
            if arguments.tensor_of("x", x).dim() != 3 or x.shape[:2] != places:
                raise InvalidArgument(f"x is {list(x.shape)}, it has to be [{places[0]}, {places[1]}, hidden]")
            alike = arguments.check_rows(x.flatten(0, 1), arguments.SUMS) | {"handle": route.number}
            arguments.check_same_choices(topk_idx, topk_weights, route)
            if out is not None and arguments.tensor_of("out", out).shape != (len(route.ids), x.shape[2]):
                raise InvalidArgument(f"out is {list(out.shape)}, the sums are {[len(route.ids), x.shape[2]]}")
        self.exchange.agree("low_latency_combine", alike)
        flat = torch.cat([of_expert[:count] for of_expert, count in zip(x, counts, strict=True)])
        combined = self.exchange.add(route, flat, topk_weights.float())
        if out is not None:
            combined = out.copy_(combined)
        return combined, EventOverlap(EventHandle()), lambda: None

    def _local_experts(self, num_experts: int) -> int:
        if num_experts % self.group_size:
            raise InvalidArgument(f"{num_experts} experts cannot be divided evenly among {self.group_size} ranks")
        return num_experts // self.group_size


def install() -> None:
    """Makes `import deep_ep` and `import deep_ep.utils` return this module. Call it before anything imports them."""
    this = sys.modules[__name__]
    utils = ModuleType("deep_ep.utils")
    utils.EventHandle, utils.EventOverlap = EventHandle, EventOverlap
    sys.modules["deep_ep"], sys.modules["deep_ep.utils"] = this, utils
