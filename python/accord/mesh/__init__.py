"""Process-group meshes: the parallelism of a job in numbers, and every group of ranks that follows from it.

    plan = accord.mesh.MeshPlan("tp=2,cp=2,pp=4,ep=2", world_size=64)
    plan.groups_of(rank=5)          # what rank 5 is in, each set of ranks once
    plan.all_groups("dp_cp")        # everybody's, in Megatron's order
    mesh = accord.mesh.Mesh.create(plan, comm)
    mesh.group("tp").all_reduce(x)  # a Communicator

docs/mesh.md is the guide.
"""

from accord._core import Mesh, MeshFamily, MeshPlan

__all__ = ["Mesh", "MeshFamily", "MeshPlan"]

for _public in (Mesh, MeshFamily, MeshPlan):
    _public.__module__ = "accord.mesh"
