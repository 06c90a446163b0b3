"""Converts the arguments of Megatron's initialize_model_parallel to a plan."""

from __future__ import annotations

import contextlib
import inspect
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import accord
from accord._integers import integer, integers
from accord.mesh import MeshPlan
from accord.mesh.options import group_options
from accord.torch.fates import fate_of

_MAX_MINUTES = 5_256_000  # ten years, same limit as for ACCORD_TIMEOUT

_Options = str | os.PathLike[str] | Mapping[str, Mapping[str, Any]]


@dataclass
class MegatronArguments:
    """Names, order and defaults are Megatron's.

    nccl_communicator_config_path: the YAML file, or its contents. local_world_size: ranks of the mesh; None for all
    ranks of the job. get_embedding_ranks, get_position_embedding_ranks: called with the ranks of a pipeline, return
    those that hold the embedding.
    """

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    pipeline_model_parallel_comm_backend: str | None = None
    use_sharp: bool = False
    context_parallel_size: int = 1
    hierarchical_context_parallel_sizes: Sequence[int] | None = None
    hybrid_context_parallel: bool = False
    expert_model_parallel_size: int = 1
    gtp_remat_size: int = 1
    expert_gtp_remat_size: int = 1
    num_distributed_optimizer_instances: int = 1
    expert_tensor_parallel_size: int | None = None
    nccl_communicator_config_path: _Options | None = None
    distributed_timeout_minutes: float = 30
    order: str = "tp-cp-ep-dp-pp"
    get_embedding_ranks: Callable[[list[int]], list[int]] | None = None
    get_position_embedding_ranks: Callable[[list[int]], list[int]] | None = None
    create_gloo_process_groups: bool = True
    high_priority_stream_groups: Sequence[str] | None = None
    sharp_enabled_group: str | None = None
    rank_offset: int = 0
    local_world_size: int | None = None
    create_all_gather_group: bool = False

    @classmethod
    def known(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    def plan(self, world_size: int) -> MeshPlan:
        """Returns the plan for a job of `world_size` ranks. Raises InvalidArgument, which names what is invalid."""
        self._read()
        options = group_options(self.nccl_communicator_config_path, self.high_priority_stream_groups or ())
        if self.pipeline_model_parallel_comm_backend is not None:
            options.setdefault("pp", {})["backend"] = self.pipeline_model_parallel_comm_backend
        return MeshPlan(
            world_size=world_size - self.rank_offset if self.local_world_size is None else self.local_world_size,
            options=options,
            tp=self.tensor_model_parallel_size,
            pp=self.pipeline_model_parallel_size,
            cp=self.context_parallel_size,
            gtp=self.gtp_remat_size,
            ep=self.expert_model_parallel_size,
            etp=self.expert_tensor_parallel_size or 0,
            egtp=self.expert_gtp_remat_size,
            order=self.order,
            rank_offset=self.rank_offset,
            hierarchical_cp=self.hierarchical_context_parallel_sizes or [],
            hybrid_cp=self.hybrid_context_parallel,
            optimizer_instances=self.num_distributed_optimizer_instances,
            embedding_stages=self._stages("get_embedding_ranks", [0, -1]),
            position_embedding_stages=self._stages("get_position_embedding_ranks", [0]),
            all_gather_group=self.create_all_gather_group,
            gloo_groups=self.create_gloo_process_groups,
        )

    def not_applicable(self) -> list[dict[str, Any]]:
        """Returns other requested options that have no effect here, as entries of TorchMesh.report()."""
        if not self.use_sharp:
            return []
        key = "inter_ep_dp" if self.sharp_enabled_group == "dp_replica" else "dp_cp"
        return [{"key": key} | fate_of("use_sharp", "true", "not applicable", "CPU ranks have no SHARP")]

    def _read(self) -> None:
        """Converts integers to Python's. Raises InvalidArgument, which names what is wrong."""
        for field in fields(self):
            value = getattr(self, field.name)
            is_count = field.type in ("int", "int | None") and not (value is None and field.default is None)
            if not is_count:
                continue
            if isinstance(value, bool):
                raise accord.InvalidArgument(f"mesh: {field.name} is {value!r}, expected an integer")
            setattr(self, field.name, integer(value, f"mesh: {field.name}", accord.InvalidArgument))
        levels, name = self.hierarchical_context_parallel_sizes, "mesh: hierarchical_context_parallel_sizes"
        if levels is not None:
            self.hierarchical_context_parallel_sizes = integers(levels, name, accord.InvalidArgument)
        if not _is_time(self.distributed_timeout_minutes):
            text = f"mesh: distributed_timeout_minutes is {self.distributed_timeout_minutes!r}"
            raise accord.InvalidArgument(f"{text}; give a number above 0, at most {_MAX_MINUTES}")
        if isinstance(self.high_priority_stream_groups, str):
            raise accord.InvalidArgument("mesh: high_priority_stream_groups is a str, expected a list of names")
        if self.virtual_pipeline_model_parallel_size is not None and self.pipeline_model_parallel_size < 2:
            raise accord.InvalidArgument(
                "mesh: virtual_pipeline_model_parallel_size requires a pipeline of more than one stage"
            )
        if self.sharp_enabled_group is not None and not self.use_sharp:
            raise accord.InvalidArgument("mesh: sharp_enabled_group requires use_sharp=True")
        if self.sharp_enabled_group not in (None, "dp", "dp_replica"):
            raise accord.InvalidArgument(
                f'mesh: sharp_enabled_group is "{self.sharp_enabled_group}", expected "dp" or "dp_replica"'
            )
        if self.sharp_enabled_group == "dp_replica" and self.num_distributed_optimizer_instances < 2:
            raise accord.InvalidArgument(
                "mesh: sharp_enabled_group dp_replica requires several instances of the optimizer"
            )

    def _stages(self, name: str, default: list[int]) -> list[int]:
        """Returns the stages that a callable picks, determined from two pipelines with different rank numbers."""
        choose = getattr(self, name)
        if choose is None:
            return default
        picked = []
        for step in (1, 3):
            pipeline = [step * stage + step for stage in range(self.pipeline_model_parallel_size)]
            try:
                picked.append(sorted({pipeline.index(rank) for rank in choose(list(pipeline))}))
            except ValueError:
                raise accord.InvalidArgument(f"mesh: {name} returns ranks that are not in the pipeline") from None
        if picked[0] != picked[1]:
            raise accord.InvalidArgument(f"mesh: {name} picks different stages in different pipelines")
        return picked[0]


def timeout_of(signature: inspect.Signature, positional: Sequence[Any], keywords: Mapping[str, Any]) -> timedelta:
    """Returns distributed_timeout_minutes of a call, or the default if it is not a time or the call is invalid; the
    plan reports that.
    """
    minutes = None
    with contextlib.suppress(TypeError):
        minutes = signature.bind(*positional, **keywords).arguments.get("distributed_timeout_minutes")
    return timedelta(minutes=float(minutes) if _is_time(minutes) else MegatronArguments.distributed_timeout_minutes)


def _is_time(minutes: Any) -> bool:
    is_number = isinstance(minutes, numbers.Real) and not isinstance(minutes, bool)
    return is_number and 0 < minutes <= _MAX_MINUTES
