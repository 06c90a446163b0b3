"""What the benchmark measures for one batch: the contenders' logits are compared first, then their prompts and steps
are timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import report
from bench.gpu_engine import hashing

if TYPE_CHECKING:
    from torch import Tensor

    from bench.gpu_engine.contenders import Compiled, Decoder
    from bench.gpu_engine.plain_llama import Llama

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
    later: int = 0  # batches that come after this one, whose steps are compiled, too

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


def shortened(error: Exception) -> str:
    return " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__


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
            print(f"left out: {name}, batch {batch.size}: {shortened(error)}", flush=True)
            continue
        right = right or given
        if name == EAGER or check(batch, name, given, right, FP8_TOLERANCE if name == FP8 else tolerance):
            batch.decoders[name] = decoder
        if name == COMPILED:
            budget.compiling = 1.2 * (time.perf_counter() - began)
    if COMPILED in batch.decoders:
        compile_prompts(batch, batch.decoders[COMPILED], right[0], tolerance, budget)


def compile_prompts(batch: Batch, decoder: Compiled, right: Tensor, tolerance: float, budget: Budget) -> None:
    """Compiles prompts, if that leaves enough time to compile the steps of later batches. Otherwise, and if it fails,
    they remain those of torch eager, which are measured anyway.
    """
    if budget.left() < budget.compiling * (1 + budget.later):
        print(f"left out: {COMPILED}, prompts, batch {batch.size}: the time is needed for other steps", flush=True)
        return
    decoder.compile_prompts()
    try:
        given = decoder.prompt(batch.ids[:, : batch.context]).float().clone()
    except Exception as error:
        decoder.keep_eager_prompts()
        print(f"left out: {COMPILED}, prompts, batch {batch.size}: {shortened(error)}", flush=True)
        return
    if not check(batch, f"{COMPILED}, prompts", [given], [right], tolerance):
        decoder.keep_eager_prompts()


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
    prompts = {
        name: lambda d=decoder: batch.prompt_ms(d)
        for name, decoder in batch.decoders.items()
        if name != COMPILED or decoder.compiles_prompts
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
