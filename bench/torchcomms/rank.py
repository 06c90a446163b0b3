"""One rank of a backend of torchcomms, for the benchmark `torchcomms`.

python -m bench.torchcomms.rank BACKEND PATH   PATH as in worker.hpp
python -m bench.torchcomms.rank --missing      prints why torchcomms is not available; nothing if it is
"""

import importlib.util
import os
import sys

from bench.collectives.torch_rank import Call, serve


def missing() -> str:
    names = [name for name in ("torch", "torchcomms") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(names)} cannot be imported" if names else ""


def main() -> None:
    import torch
    import torchcomms

    backend, path = sys.argv[1:]
    torch.set_num_threads(1)
    comm = torchcomms.new_comm(backend, torch.device("cpu"), "bench")
    total, rank = torchcomms.ReduceOp.SUM, comm.get_rank()

    def operation(name: str, size: int, ranks: int) -> Call:
        values, gathered = torch.ones(size // 4), torch.ones(size // 4 * ranks)
        part, parts = torch.ones(size // 4 // ranks), torch.ones(size // 4 // ranks * ranks)
        exchanged = torch.empty_like(parts)
        return {
            "all_reduce": lambda: comm.all_reduce(values, total, False),
            "all_gather": lambda: comm.all_gather_single(gathered, values, False),
            "reduce_scatter": lambda: comm.reduce_scatter_single(part, parts, total, False),
            "broadcast": lambda: comm.broadcast(values, 0, False),
            "all_to_all": lambda: comm.all_to_all_single(exchanged, parts, False),
            "barrier": lambda: comm.barrier(False),
            "ping_pong": lambda: (
                (comm.send(values, 1, False), comm.recv(values, 1, False))
                if rank == 0
                else (comm.recv(values, 0, False), comm.send(values, 0, False))
            ),
            "all_reduce_async": lambda: comm.all_reduce(values, total, True).wait(),
        }[name]

    serve(path, int(os.environ["RANK"]), operation)
    comm.finalize()


if __name__ == "__main__":
    if sys.argv[1:] == ["--missing"]:
        print(missing())
    else:
        main()
