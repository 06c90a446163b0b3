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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hashing
import report

if TYPE_CHECKING:
    from gpu_engine_contenders import Decoder
    from plain_llama import Llama
    from torch import Tensor

EAGER, COMPILED, DEVICE, FP8 = "torch eager", "torch.compile", "device", "accord fp8"
FETCH = "fetch"
VOCABULARY = 1000  # smallest that the options allow
COMPARED = 4  # decoded tokens whose logits are compared
#: Limits for the Euclidean norm of the difference of logits, relative to the logits: the rounding of a few dozen
#: layers.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
FP8_TOLERANCE = 0.25  # for weights that are off by 2.6 %, in all layers of a model with random weights
COMPILING_SECONDS = 30  # time that must be left before torch compiles for the first time: it cannot be interrupted
PROBE_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}


@dataclass
class Budget:
    """The time when everything must be over, and how long compiling may take."""

    until: float
    compiling: float = COMPILING_SECONDS

    def left(self) -> float:
        return self.until - time.perf_counter()


def why_not(device: str) -> str:
    """Returns why nothing can be measured on `device`, or an empty string if it can."""
    try:
        import numpy  # noqa: F401 (writes packages)
        import torch

        import accord

        hashing.provide()
    except (ImportError, OSError) as error:
        return str(error)
    if device != "cuda":
        return ""
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    parts = {part["name"]: part for part in accord.info()["parts"]}
    if not parts["cuda"]["available"]:
        return f"accord has no GPU: {parts['cuda']['detail']}"
    if not parts["cublaslt"]["available"]:
        return (
            f"accord has no cuBLASLt, and torch is built for CUDA {torch.version.cuda}: {parts['cublaslt']['detail']}"
        )
    return ""


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Probe:
    """Measures how fast the device reads and copies its memory."""

    def __init__(self, device: str):
        import torch

        self.bytes = PROBE_BYTES[device]
        self.tensor = torch.ones(self.bytes // 4, device=device)
        self.other = torch.empty_like(self.tensor)
        self.rate()

    def rate(self) -> float:
        """Returns the better of both rates in GB/s."""
        reading = seconds_of(lambda: self.tensor.sum().item())
        copying = seconds_of(lambda: self.other.copy_(self.tensor)[-1].item())
        return max(self.bytes / reading, 2 * self.bytes / copying) / 1e9


@dataclass
class Batch:
    """The contenders for `size` sequences, each of which has computed `context` tokens."""

    size: int
    context: int
    steps: int
    decoders: dict[str, Decoder]
    reads: dict[str, int]  # by contender: average bytes that a step reads

    def __post_init__(self):
        import torch

        generator = torch.Generator().manual_seed(self.size)
        self.ids = torch.randint(VOCABULARY, (self.size, self.context + self.steps), generator=generator)
        self.tokens = [self.ids[:, at].contiguous() for at in range(self.ids.shape[1])]

    def logits(self, decoder: Decoder) -> list:
        """Returns the logits of the last token of the prompts, and of some that follow."""
        found = [decoder.prompt(self.ids[:, : self.context]).float().clone()]
        for at in range(self.context, self.context + COMPARED):
            found.append(decoder.step(self.tokens[at], at).float().clone())
        return found

    def prompt_ms(self, decoder: Decoder) -> float:
        return seconds_of(lambda: decoder.prompt(self.ids[:, : self.context])) * 1e3

    def step_ms(self, decoder: Decoder) -> float:
        def steps() -> None:
            for at in range(self.context, self.context + self.steps):
                decoder.step(self.tokens[at], at)

        return seconds_of(steps) * 1e3 / self.steps


def difference(given: list, right: list) -> float:
    return max(float((one - other).norm() / other.norm()) for one, other in zip(given, right, strict=True))


def check(batch: Batch, name: str, given: list, right: list, tolerance: float) -> bool:
    """Returns True if logits differ only by rounding. Raises SystemExit if accord's differ by more."""
    found = difference(given, right)
    print(f"batch {batch.size}: logits of {name} and {EAGER} differ by {found:.1e} of their norm", flush=True)
    if found <= tolerance:
        return True
    why = f"that is more than {tolerance:g}, what rounding makes of it"
    if name in ("accord", FP8):
        raise SystemExit(f"error: {why}")
    print(f"left out: {name}, batch {batch.size}: {why}", flush=True)
    return False


def prepare(batch: Batch, make: dict[str, Callable[[], Decoder]], tolerance: float, budget: Budget) -> None:
    """Starts the contenders, torch eager first, and compares their logits."""
    right: list = []
    for name, start in make.items():
        if name == COMPILED and budget.left() < budget.compiling:
            print(f"left out: {name}, batch {batch.size}: {budget.left():.0f} s are not enough to compile", flush=True)
            continue
        began = time.perf_counter()
        try:
            decoder = start()
            given = batch.logits(decoder)
        except Exception as error:
            if name != COMPILED:
                raise
            why = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
            print(f"left out: {name}, batch {batch.size}: {why}", flush=True)
            continue
        right = right or given
        if name == EAGER or check(batch, name, given, right, FP8_TOLERANCE if name == FP8 else tolerance):
            batch.decoders[name] = decoder
        if name == COMPILED:
            budget.compiling = 1.2 * (time.perf_counter() - began)


def as_accord(ours: str, each: dict[str, float]) -> dict[str, float]:
    """Returns the results of the contenders, with `ours` as accord's."""
    return {"accord": each[ours], **{name: value for name, value in each.items() if name not in ("accord", FP8)}}


def decoding_lines(batch: Batch, ours: str, step: dict[str, float], rate: float, fetch: float) -> list[dict]:
    """step: milliseconds. rate: measured read rate of the device in GB/s. fetch: milliseconds to copy logits to the
    CPU.
    """
    case, step, reads = f"decode, batch {batch.size}", as_accord(ours, step), as_accord(ours, batch.reads)
    case += ", fp8" if ours == FP8 else ""
    tokens = {name: batch.size * 1e3 / each for name, each in step.items()}
    read = {name: reads[name] / each / 1e6 for name, each in step.items()}
    reached = {name: each / rate for name, each in read.items()}
    return [
        report.result("gpu_engine", case, "ms", step) | {"bounds": {"logits to the CPU": fetch}},
        report.result("gpu_engine", f"{case}, rate", "tokens/s", tokens, larger_is_better=True),
        report.result("gpu_engine", f"{case}, read", "GB/s", {**read, DEVICE: rate}, larger_is_better=True),
        report.result("gpu_engine", f"{case}, of the device's", "share", reached, larger_is_better=True),
    ]


def prompt_lines(batch: Batch, ours: str, prompt: dict[str, float]) -> list[dict]:
    case, prompt = f"prompts of {batch.context}, batch {batch.size}", as_accord(ours, prompt)
    case += ", fp8" if ours == FP8 else ""
    tokens = {name: batch.size * batch.context * 1e3 / each for name, each in prompt.items()}
    return [
        report.result("gpu_engine", case, "ms", prompt),
        report.result("gpu_engine", f"{case}, rate", "tokens/s", tokens, larger_is_better=True),
    ]


def measure(batch: Batch, probe: Probe, logits: Tensor, rounds: int, budget: Budget) -> list[dict]:
    """logits: as many as in a step, on the device."""
    # Only a step is compiled: prompts are measured in torch eager alone.
    prompts = {
        name: lambda d=decoder: batch.prompt_ms(d) for name, decoder in batch.decoders.items() if name != COMPILED
    }
    steps = {name: lambda d=decoder: batch.step_ms(d) for name, decoder in batch.decoders.items()}
    # Also warms up.
    one_round = seconds_of(lambda: [work() for work in (*prompts.values(), *steps.values(), probe.rate)])
    rounds = max(1, min(rounds, int(budget.left() / one_round)))
    names = {"prompt": prompts, "step": steps}
    works = {(case, name): work for case, each in names.items() for name, work in each.items()}

    def fetch_ms() -> float:
        return seconds_of(logits.cpu) * 1e3 if logits.is_cuda else 0.0

    medians = report.in_turn({**works, DEVICE: probe.rate, FETCH: fetch_ms}, rounds)
    if logits.is_cuda:
        print(f"batch {batch.size}: {medians[FETCH]:.3f} ms of each step are the logits' way to the CPU", flush=True)
    found = {case: {name: medians[(case, name)] for name in each} for case, each in names.items()}
    lines: list[dict] = []
    for ours in [name for name in ("accord", FP8) if name in batch.decoders]:
        lines += prompt_lines(batch, ours, found["prompt"])
        lines += decoding_lines(batch, ours, found["step"], medians[DEVICE], medians[FETCH])
    return lines


def cache_bytes(model: Llama, batch: int, context: float) -> int:
    """Returns the bytes that a step reads besides all weights: keys and values of `context` tokens in each sequence."""
    sizes, element = model.sizes, model.embed_tokens.weight.element_size()
    return int(2 * batch * context * sizes.layers * sizes.kv_heads * sizes.head * element)


def run(arguments: argparse.Namespace, budget: Budget) -> Iterator[list[dict]]:
    """Yields the report lines of each batch."""
    import gpu_engine_contenders as contenders
    import plain_llama
    import torch

    import accord

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
        prepare(batch, make, TOLERANCES[dtype], budget)
        logits = model.embed_tokens.weight.new_zeros((size, sizes.vocabulary))
        yield measure(batch, probe, logits, arguments.rounds, budget)


def main() -> int:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
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
