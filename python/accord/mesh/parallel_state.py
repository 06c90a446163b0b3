"""The groups of a training job under the names of Megatron's programs: the interface of megatron.core.parallel_state,
over one mesh.

initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
torch.distributed.all_reduce(x, group=get_tensor_model_parallel_group())
destroy_model_parallel()
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import accord
from accord.mesh import MeshPlan
from accord.mesh import megatron_overrides as overrides
from accord.mesh.megatron_arguments import MegatronArguments, timeout_of
from accord.mesh.megatron_overrides import *  # noqa: F403 (the set_*() functions)
from accord.mesh.torch_mesh import TorchMesh
from accord.torch.fates import raise_if_unused
from accord.torch.process_group import ProcessGroup


@dataclass
class _State:
    mesh: TorchMesh
    arguments: MegatronArguments


_state: _State | None = None


def initialize_model_parallel(*positional: Any, strict: bool = False, **keywords: Any) -> None:
    """Plans every group of the job and connects all of them, in one collective step of all ranks of
    torch.distributed's default group.

    The arguments are Megatron's, in its order (MegatronArguments lists them and their defaults):
    tensor_model_parallel_size, pipeline_model_parallel_size, ..., local_world_size. strict: options that have no
    effect here raise Unsupported; report() lists what happened to each. Invalid sizes, and differences between ranks,
    are an error on all ranks.
    """
    global _state
    if _state is not None:
        raise accord.WrongState("mesh: model parallel is already initialized; call destroy_model_parallel() first")
    arguments: MegatronArguments | None = None

    def plan() -> MeshPlan:
        nonlocal arguments
        arguments = MegatronArguments(*positional, **keywords)
        if strict:
            raise_if_unused(arguments.not_applicable())
        return arguments.plan(dist.get_world_size())

    timeout = timeout_of(inspect.signature(MegatronArguments), positional, keywords)
    mesh = TorchMesh.create(plan, timeout=timeout, strict=strict)
    _state = _State(mesh, arguments)
    if arguments.virtual_pipeline_model_parallel_size is not None:
        overrides.sizes[overrides.VIRTUAL] = arguments.virtual_pipeline_model_parallel_size
        overrides.ranks[overrides.VIRTUAL] = 0


def destroy_model_parallel() -> None:
    """Ends all groups of this rank and discards the values set by set_*(). Idempotent."""
    global _state
    overrides.clear()
    if _state is not None:
        _state.mesh.close()
    _state = None


def model_parallel_is_initialized() -> bool:
    return _state is not None


is_initialized = model_parallel_is_initialized


def is_unitialized() -> bool:
    """Deprecated; Megatron has the same misspelling."""
    warnings.warn("is_unitialized is deprecated, use is_initialized", DeprecationWarning, stacklevel=2)
    return not is_initialized()


def mesh() -> TorchMesh:
    """Returns the mesh underneath the groups. Raises WrongState before initialize_model_parallel()."""
    return _used().mesh


def report() -> list[dict[str, Any]]:
    """Reports what happened to each option: dicts of key, option, value, fate and why."""
    return mesh().report() + _used().arguments.not_applicable()


def _used() -> _State:
    if _state is None:
        raise accord.WrongState("mesh: model parallel is not initialized; call initialize_model_parallel() first")
    return _state


def _has(family: str) -> bool:
    """Returns True if there are such groups: some are planned only if an argument asks for them."""
    return _state is not None and any(planned.name == family for planned in _state.mesh.plan.families)


def _group_of(family: str, check_initialized: bool = True) -> ProcessGroup | None:
    group = mesh().group(family) if check_initialized or _has(family) else None
    if group is None and check_initialized:
        raise accord.WrongState(f'mesh: rank {dist.get_rank()} is in no group of "{family}"')
    return group


def _group(family: str) -> Callable[..., ProcessGroup | None]:
    def get(check_initialized: bool = True) -> ProcessGroup | None:
        """This rank's group of the function's family. check_initialized=False: None if there is none."""
        return _group_of(family, check_initialized)

    return get


def _world_size(family: str) -> Callable[[], int]:
    def get() -> int:
        """The size of this rank's group of the function's family."""
        return _size(family)

    return get


def _rank(family: str) -> Callable[[], int]:
    def get() -> int:
        """This rank's number in its group of the function's family."""
        return _place(family)

    return get


def _source(family: str) -> Callable[[], int]:
    def get() -> int:
        """The rank of the job that is the first in this rank's group of the function's family."""
        return _ranks(family)[0]

    return get


def _ranks(family: str) -> list[int]:
    ranks = mesh().ranks(family)
    if not ranks:
        raise accord.WrongState(f'mesh: rank {dist.get_rank()} is in no group of "{family}"')
    return ranks


def _size(family: str) -> int:
    override = overrides.sizes.get(family)
    return len(mesh().ranks(family)) if override is None else override


def _place(family: str) -> int:
    override = overrides.ranks.get(family)
    return _ranks(family).index(dist.get_rank()) if override is None else override


get_model_parallel_group = _group("mp")
get_model_parallel_src_rank = _source("mp")

get_tensor_model_parallel_group = _group("tp")
get_tensor_model_parallel_world_size = _world_size("tp")
get_tensor_model_parallel_rank = _rank("tp")
get_tensor_model_parallel_src_rank = _source("tp")

get_context_parallel_group = _group("cp")
get_context_parallel_world_size = _world_size("cp")
get_context_parallel_rank = _rank("cp")

get_tensor_and_context_parallel_group = _group("tp_cp")
get_tensor_and_context_parallel_world_size = _world_size("tp_cp")
get_tensor_and_context_parallel_rank = _rank("tp_cp")

get_pipeline_model_parallel_group = _group("pp")
get_pipeline_model_parallel_world_size = _world_size("pp")
get_pipeline_model_parallel_rank = _rank("pp")
get_pipeline_model_parallel_first_rank = _source("pp")

get_embedding_group = _group("embd")
get_position_embedding_group = _group("pos_embd")

get_expert_model_parallel_group = _group("ep")
get_expert_model_parallel_world_size = _world_size("ep")
get_expert_model_parallel_rank = _rank("ep")
get_expert_model_parallel_src_rank = _source("ep")

get_expert_tensor_parallel_group = _group("ep_tp")


def get_expert_tensor_parallel_world_size() -> int | None:
    """Ranks of the group "ep_tp" that this rank is in. Before groups exist: the value set for it, or else for "tp"."""
    known = "ep_tp" in overrides.sizes or _state is not None
    return _size("ep_tp") if known else overrides.sizes.get("tp")


def get_expert_tensor_parallel_rank() -> int | None:
    """This rank's number in its group "ep_tp". Before groups exist: the value set for it, or else for "tp"."""
    known = "ep_tp" in overrides.ranks or _state is not None
    return _place("ep_tp") if known else overrides.ranks.get("tp")


get_expert_tensor_and_model_parallel_group = _group("tp_ep_mp")
get_expert_tensor_and_model_parallel_world_size = _world_size("tp_ep_mp")
get_expert_tensor_and_model_parallel_rank = _rank("tp_ep_mp")

get_expert_tensor_model_pipeline_parallel_group = _group("tp_ep_pp")
get_intra_distributed_optimizer_instance_group = _group("intra_dist_opt_instance")
get_inter_distributed_optimizer_instance_group = _group("inter_ep_dp")


def get_context_parallel_global_ranks(check_initialized: bool = True) -> list[int] | None:
    """Ranks of the job in this rank's group "cp". check_initialized=False: None if there is no group."""
    return _ranks("cp") if check_initialized or _has("cp") else None


def get_pipeline_model_parallel_last_rank() -> int:
    """The rank of the job that has the last stage of this rank's pipeline."""
    return _stage_rank(_size("pp") - 1)


def get_pipeline_model_parallel_next_rank() -> int:
    """The rank of the job that has the next stage; after the last stage comes the first."""
    return _stage_rank((_place("pp") + 1) % _size("pp"))


def get_pipeline_model_parallel_prev_rank() -> int:
    """The rank of the job that has the previous stage; before the first stage comes the last."""
    return _stage_rank((_place("pp") - 1) % _size("pp"))


def _stage_rank(stage: int) -> int:
    ranks = _ranks("pp")
    if stage >= len(ranks):
        raise accord.InvalidArgument(f"mesh: there is no stage {stage}: this rank's pipeline has {len(ranks)} stages")
    return ranks[stage]


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    return overrides.sizes.get(overrides.VIRTUAL)


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    return overrides.ranks.get(overrides.VIRTUAL)


def is_pipeline_first_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """vp_stage: this rank's virtual stage, used if ignore_virtual is false and there are virtual stages."""
    return _is_virtual_stage(ignore_virtual, vp_stage, last=False) and _place("pp") == 0


def is_pipeline_last_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """vp_stage: this rank's virtual stage, used if ignore_virtual is false and there are virtual stages."""
    return _is_virtual_stage(ignore_virtual, vp_stage, last=True) and _place("pp") == _size("pp") - 1


def _is_virtual_stage(ignore_virtual: bool, vp_stage: int | None, *, last: bool) -> bool:
    stages = get_virtual_pipeline_model_parallel_world_size()
    if ignore_virtual or stages is None:
        return True
    if vp_stage is None:
        raise accord.InvalidArgument("mesh: vp_stage is required because there are virtual stages")
    return vp_stage == (stages - 1 if last else 0)


def is_rank_in_embedding_group(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    ranks = mesh().ranks("embd") if _has("embd") else []
    if not ranks or ignore_virtual or dist.get_rank() not in (ranks[0], ranks[-1]):
        return bool(ranks)
    edge = is_pipeline_first_stage if dist.get_rank() == ranks[0] else is_pipeline_last_stage
    return edge(ignore_virtual=False, vp_stage=vp_stage)


def is_rank_in_position_embedding_group() -> bool:
    return _has("pos_embd") and bool(mesh().ranks("pos_embd"))


# Data parallel: selects one of several families.


def _data_parallel(with_context_parallel: bool, partial_data_parallel: bool, suffix: str = "") -> str:
    if partial_data_parallel and not with_context_parallel:
        raise accord.InvalidArgument("mesh: partial_data_parallel requires with_context_parallel=True")
    instances = _used().arguments.num_distributed_optimizer_instances
    partial = "intra_" if partial_data_parallel and instances > 1 else ""
    return f"{partial}dp{'_cp' if with_context_parallel else ''}{suffix}"


def get_data_parallel_group(
    with_context_parallel: bool = False, partial_data_parallel: bool = False, independent_all_gather: bool = False
) -> ProcessGroup:
    """partial_data_parallel: the group within this rank's optimizer instance. independent_all_gather: the second
    dp_cp group."""
    suffix = "_ag" if independent_all_gather and with_context_parallel and not partial_data_parallel else ""
    return _group_of(_data_parallel(with_context_parallel, partial_data_parallel, suffix))


def get_data_parallel_group_gloo(
    with_context_parallel: bool = False, partial_data_parallel: bool = False
) -> ProcessGroup:
    """The second group of the same ranks, for host tensors (create_gloo_process_groups); accord's, like all others."""
    return _group_of(_data_parallel(with_context_parallel, partial_data_parallel, "_gloo"))


def has_separate_all_gather_group() -> bool:
    return _state is not None and _state.arguments.create_all_gather_group


def get_data_parallel_world_size(with_context_parallel: bool = False, partial_data_parallel: bool = False) -> int:
    return len(mesh().ranks(_data_parallel(with_context_parallel, partial_data_parallel)))


def get_data_parallel_rank(with_context_parallel: bool = False, partial_data_parallel: bool = False) -> int:
    override = overrides.ranks.get("dp")
    return _place(_data_parallel(with_context_parallel, partial_data_parallel)) if override is None else override


def get_data_parallel_src_rank(with_context_parallel: bool = False) -> int:
    return _ranks(_data_parallel(with_context_parallel, False))[0]


def get_tensor_and_data_parallel_group(
    check_initialized: bool = True, with_context_parallel: bool = False
) -> ProcessGroup | None:
    return _group_of("tp_dp_cp" if with_context_parallel else "tp_dp", check_initialized)


def get_amax_reduction_group(with_context_parallel: bool = False, tp_only_amax_red: bool = False) -> ProcessGroup:
    """The group over which the largest values of FP8 tensors are agreed on."""
    data = "" if tp_only_amax_red else "_dp"
    return _group_of(f"tp{data}{'_cp' if with_context_parallel else ''}")


def get_hierarchical_context_parallel_groups(check_initialized: bool = True) -> list[ProcessGroup] | None:
    """Returns one group for each level, innermost first. check_initialized=False: None if there are none."""
    if not check_initialized and not _has("hcp_0"):
        return None
    levels = _used().arguments.hierarchical_context_parallel_sizes or []
    if not levels:
        raise accord.WrongState("mesh: hierarchical_context_parallel_sizes were not given")
    return [_group_of(f"hcp_{level}", check_initialized) for level in range(len(levels))]


def get_hybrid_data_context_parallel_groups(
    check_initialized: bool = True, group_size: int | None = None
) -> ProcessGroup | None:
    """Returns the group of `group_size` neighbors in data and context parallelism, which may be all of them. Sizes
    that were not planned raise InvalidArgument, regardless of check_initialized."""
    if group_size == get_data_parallel_world_size(with_context_parallel=True):
        return _group_of("dp_cp", check_initialized)
    prefix = "hybrid_dp_cp_"
    sizes = [planned.name.removeprefix(prefix) for planned in mesh().plan.families if planned.name.startswith(prefix)]
    if str(group_size) not in sizes:
        known = f"groups have {', '.join(sizes)} ranks" if sizes else "hybrid_context_parallel was not given"
        raise accord.InvalidArgument(f"mesh: there are no hybrid groups of {group_size} ranks: {known}")
    return _group_of(f"{prefix}{group_size}", check_initialized)


def _expert_data(partial: bool) -> str:
    several = _used().arguments.num_distributed_optimizer_instances > 1
    return "intra_ep_dp" if partial and several else "ep_dp"


def get_expert_data_parallel_group(
    check_initialized: bool = True, partial_expert_data_parallel: bool = False
) -> ProcessGroup | None:
    if not check_initialized and _state is None:
        return None
    return _group_of(_expert_data(partial_expert_data_parallel), check_initialized)


def get_data_modulo_expert_parallel_group(partial_expert_data_parallel: bool = False) -> ProcessGroup:
    """Megatron's old name for get_expert_data_parallel_group()."""
    return get_expert_data_parallel_group(partial_expert_data_parallel=partial_expert_data_parallel)


def get_expert_data_parallel_group_gloo(partial_expert_data_parallel: bool = False) -> ProcessGroup:
    """The second group of the same ranks, for host tensors."""
    return _group_of(f"{_expert_data(partial_expert_data_parallel)}_gloo")


def get_expert_data_parallel_rank(partial_expert_data_parallel: bool = False) -> int:
    return _place(_expert_data(partial_expert_data_parallel))


def get_expert_data_parallel_world_size(partial_expert_data_parallel: bool = False) -> int:
    return len(mesh().ranks(_expert_data(partial_expert_data_parallel)))


def get_all_ranks() -> str:
    """This rank's numbers along tp, dp, cp, pp and ep, joined by underscores."""
    return "_".join(str(_place(family)) for family in ("tp", "dp", "cp", "pp", "ep"))
