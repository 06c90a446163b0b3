"""A Llama sharded by torch's plan and compiled just in time.

accord run -n 2 examples/compile/llama_tensor_parallel.py
"""

import small_models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

import accord


def run(make) -> None:
    dist.init_process_group("gloo")
    model = make()
    prompts = [small_models.tokens(2, 9), small_models.tokens(4, 17)]
    with torch.no_grad():
        expected = [model(ids).logits for ids in prompts]
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, small_models.PLAN)
        compiled = torch.compile(model, backend="accord", dynamic=True, options={"require_full_compilation": True})
        for ids, logits in zip(prompts, expected, strict=True):
            small_models.report(f"logits of {tuple(ids.shape)}", compiled(ids).logits, logits)
    if dist.get_rank() == 0:
        print(*accord.compilation_report(model), sep="\n")


if __name__ == "__main__":
    run(small_models.llama)
