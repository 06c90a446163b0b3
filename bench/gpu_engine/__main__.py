"""Decoding and prompts of a Llama on one GPU: an engine with its paged cache, compared with torch eager and
torch.compile with a cache of fixed length, all with the same weights.

Before anything is measured, the logits of all contenders are compared with torch's; the program exits with 1 if they
differ by more than rounding. A step is what a decoding loop waits for: token ids are sent to the GPU, and logits come
back. The bytes that a step has to read (the weights, and the keys and values of the context) are reported as a share
of the device's best read rate. Without a GPU, it prints the reason and measures nothing; `--device cpu` measures on
the CPU. With `--fp8` there is also an engine with weights in 8-bit floats, whose logits differ by the rounding of
these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import report
from bench.gpu_engine.measurement import (
    COMPARED,
    COMPILED,
    EAGER,
    FP8,
    TOLERANCES,
    VOCABULARY,
    Batch,
    Budget,
    Probe,
    cache_bytes,
    measure,
    prepare,
    seconds_of,
    why_not,
)


def run(arguments: argparse.Namespace, budget: Budget) -> Iterator[list[dict]]:
    """Yields the report lines of each batch."""
    import torch

    import accord
    from bench.gpu_engine import contenders, plain_llama

    dtype = arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32")
    sizes = plain_llama.Sizes(arguments.hidden, arguments.layers, arguments.vocabulary)
    torch.set_num_threads(arguments.threads)
    model = plain_llama.make(sizes, getattr(torch, dtype), arguments.device)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{arguments.threads} threads"
    print(f"{where}, torch {torch.__version__}: {model.weight_bytes() / 1e9:.2f} GB of weights in {dtype}", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.models) as folder:
        exporting = seconds_of(lambda: plain_llama.export(model, Path(folder) / "llama.accord"))
        print(f"exported in {exporting:.0f} s", flush=True)
        where_it_runs = {"device": arguments.device, "threads": arguments.threads}
        engine, fp8 = accord.load(f"{folder}/llama.accord", **where_it_runs), None
        weight_bytes = dict.fromkeys((EAGER, COMPILED, "accord"), model.weight_bytes())
        if arguments.fp8:
            path = plain_llama.export(model, Path(folder) / "fp8.accord", weights="fp8")
            weight_bytes[FP8] = accord.inspect(path)["weight_bytes"]
            rows = "fp8" if arguments.fp8 == "rows" else None
            fp8 = accord.load(path, activation_dtype=rows, **where_it_runs)
    probe = Probe(arguments.device)
    for size in arguments.batches:
        if size != arguments.batches[0] and budget.left() < 5:
            print(f"left out: batch {size}: the time is over")
            continue
        length = arguments.context + arguments.steps
        of_cache = cache_bytes(model, size, arguments.context + (arguments.steps + 1) / 2)
        reads = {name: each + of_cache for name, each in weight_bytes.items()}
        batch = Batch(size, arguments.context, arguments.steps, {}, reads)
        make = {
            EAGER: lambda: contenders.Torch(model, size, length),  # noqa: B023
            "accord": lambda: contenders.Accord(engine, size, length, dtype),  # noqa: B023
            FP8: lambda: contenders.Accord(fp8, size, length, dtype),  # noqa: B023
            COMPILED: lambda: contenders.Compiled(model, size, length),  # noqa: B023
        }
        if fp8 is None:
            make.pop(FP8)
        budget.later = len(arguments.batches) - 1 - arguments.batches.index(size)
        prepare(batch, make, TOLERANCES[dtype], budget)
        logits = model.embed_tokens.weight.new_zeros((size, sizes.vocabulary))
        yield measure(batch, probe, logits, arguments.rounds, budget)


def main() -> int:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(prog="scripts/bench gpu_engine", description=__doc__)
    parser.add_argument("--build", type=Path, help="accepted as in all benchmarks; PYTHONPATH selects the module")
    parser.add_argument("--output", type=Path, default=Path("build/bench/gpu_engine.json"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=list(TOLERANCES), help="bfloat16 on a GPU, otherwise float32")
    parser.add_argument(
        "--fp8",
        choices=["weights", "rows"],
        help="also measure an engine with weights in 8-bit floats, whose rows are not rounded, or are rounded to 8 "
        "bits where a GPU multiplies many",
    )
    parser.add_argument("--threads", type=int, default=report.cores(), help="of the CPU")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--context", type=int, default=512, help="tokens before the decoded ones")
    parser.add_argument("--steps", type=int, default=48, help="number of decoded tokens per measurement")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=100, help="limit of the run; what would take longer is left out and named"
    )
    parser.add_argument(
        "--models", type=Path, help="the folder for the package; by default a temporary one that is removed at the end"
    )
    arguments = parser.parse_args()
    if (
        arguments.hidden < 256
        or arguments.hidden % 256
        or arguments.vocabulary < VOCABULARY
        or arguments.steps < COMPARED
    ):
        parser.error(
            f"--hidden must be a multiple of 256, --vocabulary at least {VOCABULARY} and --steps at least {COMPARED}"
        )
    if why := why_not(arguments.device):
        print(f"skipped: {why}")
        return 0
    lines: list[dict] = []
    for more in run(arguments, Budget(began + arguments.seconds)):
        lines += more
        report.write("gpu_engine", lines, arguments.output)  # keeps results if a later batch is stopped
    return 0


if __name__ == "__main__":
    sys.exit(main())
