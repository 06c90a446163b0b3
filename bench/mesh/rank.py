"""A rank of the benchmark `mesh`, started by torchrun: all groups of a mesh, created by accord and by torch in turn."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch.distributed as dist

import accord.process_groups
from accord.mesh import Mesh, MeshPlan
from bench import report


def main() -> None:
    sizes, rounds, output = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo")
    plan = MeshPlan(sizes, world_size=dist.get_world_size())
    shared = accord.process_groups.shared_communicator(dist.group.WORLD)

    def by_accord() -> float:
        shared.communicator.barrier()
        began = time.perf_counter()
        with Mesh.create(plan, shared.communicator) as mesh:
            for family in plan.families:
                mesh.group(family.name)
            shared.communicator.barrier()
            return 1e3 * (time.perf_counter() - began)

    def by_gloo() -> float:
        shared.communicator.barrier()
        began = time.perf_counter()
        created = [dist.new_group(ranks) for family in plan.families for ranks in plan.all_groups(family.name)]
        shared.communicator.barrier()
        took = 1e3 * (time.perf_counter() - began)
        for group in created:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        return took

    medians = report.in_turn({"accord": by_accord, "gloo": by_gloo}, rounds)
    if dist.get_rank() == 0:
        output.write_text(json.dumps(medians))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
