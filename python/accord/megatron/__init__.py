"""megatron-core's groups through a mesh plan.

    import accord.megatron
    accord.megatron.install()
    parallel_state.initialize_model_parallel(...)  # megatron-core's own, unmodified

The function remains megatron-core's own: it computes its lists of ranks and keeps its groups. Its requests to
torch.distributed, one collective call after the other for a group of each list, are served from a mesh that all ranks
connected beforehand in one step. A list that the mesh does not have is an error, so every start compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist

import accord
from accord.mesh import MeshPlan
from accord.mesh.megatron_arguments import MegatronArguments, timeout_of
from accord.mesh.torch_mesh import TorchMesh
from accord.torch.fates import raise_if_unused

__all__ = ["install", "installed_mesh", "report", "uninstall"]

# Families by the descriptions that megatron-core gives its groups. Two groups with equal ranks and options are shared
# anyway.
_FAMILIES = {
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp_cp_ag",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp_cp_gloo",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "intra_dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": "intra_dp_cp_gloo",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp_gloo",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "embd",
    "POSITION_EMBEDDING_GROUP": "pos_embd",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "ep_tp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "tp_ep_mp",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "tp_ep_pp",
    "EXPERT_DATA_PARALLEL_GROUP": "ep_dp",
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": "ep_dp_gloo",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0": "intra_ep_dp",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_GLOO_L0": "intra_ep_dp_gloo",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1": "inter_ep_dp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "intra_dist_opt_instance",
}


def family_of(description: str | None) -> str | None:
    """Returns the mesh's name of a group with megatron-core's description, or None if that is unknown or missing."""
    description = description or ""
    for prefix, family in (("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L", "hcp_"), ("HYBRID_DP_CP_GROUP_", "hybrid_dp_cp_")):
        if description.startswith(prefix):
            return family + description.removeprefix(prefix)
    return _FAMILIES.get(description)


class _Installed:
    """The functions that replace megatron-core's, and the original ones."""

    def __init__(self, parallel_state: ModuleType, strict: bool) -> None:
        self.module = parallel_state
        self.strict = strict
        self.initialize = parallel_state.initialize_model_parallel
        self.create_group = parallel_state.create_group
        self.nccl_options = parallel_state.get_nccl_options
        self.destroy = parallel_state.destroy_model_parallel
        self.initial = {
            name: {} if isinstance(value, dict) else None
            for name, value in vars(parallel_state).items()
            if _is_state(name) or name == "_global_process_group_list"
        }
        self.mesh: TorchMesh | None = None
        self.is_active = True  # False after uninstall()
        self.unused: list[dict[str, Any]] = []

    def group(self, family: str | None, ranks: Sequence[int], description: str | None) -> Any:
        """Returns this rank's group with these ranks."""
        own = {
            known.name: self.mesh.ranks(known.name)
            for known in self.mesh.plan.families
            if self.mesh.ranks(known.name) == sorted(ranks)
        }
        chosen = family if family in own else next(iter(own), None)
        if chosen is None:
            text = (
                f"megatron-core requests a group {description} of ranks {list(ranks)}, which the mesh does not have: "
            )
            raise accord.Mismatch(text + self.mesh.plan.text)
        return self.mesh.group(chosen)


def _is_state(name: str) -> bool:
    return name.startswith("_") and name.upper() == name and not name.startswith("__")


_installed: _Installed | None = None


def install(strict: bool = False) -> None:
    """Makes megatron-core's initialize_model_parallel create its groups through one mesh, until uninstall().
    Idempotent.

    strict: options that have no effect here (CTA limits, SHARP) raise Unsupported. torch.distributed's default group
    may be of any backend.
    """
    global _installed
    from megatron.core import parallel_state

    if _installed is None:
        if dist.is_initialized() and parallel_state.is_initialized():
            raise accord.WrongState(
                "megatron-core already has its groups; call install() before initialize_model_parallel"
            )
        _installed = _Installed(parallel_state, strict)
    _installed.strict, _installed.is_active = strict, True
    parallel_state.initialize_model_parallel = _initializing(_installed)
    parallel_state.destroy_model_parallel = _destroying(_installed)


def uninstall() -> None:
    """Restores megatron-core. Existing groups remain until destroy_model_parallel(), and so does report()."""
    if _installed is None:
        return
    _installed.module.initialize_model_parallel = _installed.initialize
    _installed.is_active = False
    if _installed.mesh is None:
        _forget(_installed)


def _forget(installed: _Installed) -> None:
    global _installed
    installed.module.destroy_model_parallel = installed.destroy
    _installed = None


def installed_mesh() -> TorchMesh:
    """Returns the mesh underneath megatron-core's groups. Raises WrongState before initialize_model_parallel."""
    if _installed is None or _installed.mesh is None:
        raise accord.WrongState("megatron-core has no groups through a mesh: install(), then initialize_model_parallel")
    return _installed.mesh


def report() -> list[dict[str, Any]]:
    """Reports what happened to each option: dicts of key, option, value, fate and why."""
    return installed_mesh().report() + _installed.unused


def _initializing(installed: _Installed) -> Callable[..., None]:
    signature = inspect.signature(installed.initialize)

    def initialize_model_parallel(*positional: Any, **keywords: Any) -> None:
        def plan() -> MeshPlan:
            bound = signature.bind(*positional, **keywords)
            bound.apply_defaults()
            known = {name: bound.arguments[name] for name in MegatronArguments.known() if name in bound.arguments}
            arguments = MegatronArguments(**known)
            installed.unused = arguments.not_applicable()
            if installed.strict:
                raise_if_unused(installed.unused)
            return arguments.plan(dist.get_world_size())

        if installed.mesh is not None:
            raise accord.WrongState("megatron-core already has its groups; call destroy_model_parallel() first")
        timeout = timeout_of(signature, positional, keywords)
        installed.mesh = TorchMesh.create(plan, timeout=timeout, strict=installed.strict)
        installed.module.create_group = _creating(installed)
        installed.module.get_nccl_options = lambda *_: None  # options are part of the plan
        try:
            installed.initialize(*positional, **keywords)
        except BaseException:
            _end(installed)
            raise
        finally:
            installed.module.create_group = installed.create_group
            installed.module.get_nccl_options = installed.nccl_options

    initialize_model_parallel.__doc__ = installed.initialize.__doc__
    initialize_model_parallel.__signature__ = signature
    return initialize_model_parallel


def _creating(installed: _Installed) -> Callable[..., Any]:
    def create_group(ranks: Sequence[int], *_: Any, group_desc: str | None = None, **__: Any) -> Any:
        if dist.get_rank() not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        group = installed.group(family_of(group_desc), ranks, group_desc)
        known = installed.module._global_process_group_list
        if known is None:
            known = installed.module._global_process_group_list = [None]  # stands for the default group
        if group not in known:
            known.append(group)
        return group

    return create_group


def _destroying(installed: _Installed) -> Callable[[], None]:
    def destroy_model_parallel() -> None:
        _end(installed)

    destroy_model_parallel.__doc__ = installed.destroy.__doc__
    return destroy_model_parallel


def _end(installed: _Installed) -> None:
    """Ends the groups and clears megatron-core's references to them."""
    installed.destroy()
    vars(installed.module).update(installed.initial)
    if installed.mesh is not None:
        installed.mesh.close()
    installed.mesh = None
    if not installed.is_active:
        _forget(installed)
