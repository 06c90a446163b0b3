"""Process-group meshes: the parallelism of a job in numbers, and every group of ranks that follows from it.

    plan = accord.mesh.MeshPlan("tp=2,cp=2,pp=4,ep=2", world_size=64)
    plan.groups_of(rank=5)          # what rank 5 is in, each set of ranks once
    plan.all_groups("dp_cp")        # everybody's, in Megatron's order
    mesh = accord.mesh.Mesh.create(plan, comm)
    mesh.group("tp").all_reduce(x)  # a Communicator

With PyTorch there are also TorchMesh, with process groups of torch.distributed;
accord.mesh.initialize_model_parallel(...) and the functions of accord.mesh.parallel_state, with the names of
Megatron's programs; and HyperCommGrid, for grids. The guide is docs/mesh.md.
"""

from __future__ import annotations

from accord._core import Mesh, MeshFamily, MeshPlan
from accord._lazy import lazy_names

__all__ = [
    "HyperCommGrid",
    "Mesh",
    "MeshFamily",
    "MeshPlan",
    "TorchMesh",
    "destroy_model_parallel",
    "initialize_model_parallel",
    "parallel_state",
    "plan_of_device_mesh",
]

for _public in (Mesh, MeshFamily, MeshPlan):
    _public.__module__ = "accord.mesh"

# The modules of names that need PyTorch, imported on first use.
_OF_TORCH = {
    "HyperCommGrid": "accord.mesh.grid",
    "TorchMesh": "accord.mesh.torch_mesh",
    "destroy_model_parallel": "accord.mesh.parallel_state",
    "initialize_model_parallel": "accord.mesh.parallel_state",
    "parallel_state": "accord.mesh.parallel_state",
    "plan_of_device_mesh": "accord.mesh.torch_mesh",
}


__getattr__ = lazy_names("accord.mesh", _OF_TORCH)


def __dir__() -> list[str]:
    return __all__
