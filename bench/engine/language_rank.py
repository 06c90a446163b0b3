"""One process of a contender of the language models: accord or a peer.

    python -m bench.engine.language_rank NAME FILE THREADS PATH

Commands ("prefill 512 3": case, tokens, iterations) are read from PATH.RANK.in, and milliseconds are written to
PATH.RANK.out. "prefill N" computes a prompt of N tokens and the logits of the last one; "decode N" computes one token
after N others.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

Step = Callable[[], object]
REQUIRES = {
    "llama.cpp": "llama_cpp",
    "openvino": "openvino",
    "onnxruntime": "onnxruntime",
    "aotinductor": "torch",
    "transformers": "transformers",
}
MOST_TOKENS, BLOCK, CACHE_DTYPE = 1024, 16, "bfloat16"  # of accord's cache
VOCABULARY = 32000  # of the smallest model


def ids(count: int) -> list[int]:
    return [(i * 7919 + 11) % VOCABULARY for i in range(count)]


def accord_context(path: str, comm: object, **options: object) -> object:
    """Returns a context of the engine at `path` with a cache, loaded with `options`."""
    import accord

    context = accord.load(path, {"tp": comm}, **options).create_context()
    context.create_cache(MOST_TOKENS // BLOCK, block_tokens=BLOCK, dtype=CACHE_DTYPE)
    return context


def run_accord(context: object, first: int, count: int) -> None:
    """Computes `count` tokens after `first` others, and the logits of the last one."""
    import numpy as np

    blocks = list(range(MOST_TOKENS // BLOCK))
    tokens = np.array(ids(first + count)[first:])
    context.run_sequences([(count, first, blocks)], tokens, np.arange(first, first + count), np.array([count - 1]))


def accord_steps(path: str, threads: int, wide: bool = False) -> Callable[[str, int], Step]:
    """Multiplies quantized weights as the peers do, by rows in 8 bits, unless `wide`."""
    import accord

    comm = accord.Communicator.from_environment()
    activation_dtype = None if wide else "int8"  # affects only quantized weights
    context = accord_context(path, comm, threads=threads, activation_dtype=activation_dtype)

    def step(case: str, tokens: int) -> Step:
        comm.barrier()
        if case == "prefill":
            return lambda: run_accord(context, 0, tokens)
        run_accord(context, 0, tokens)
        return lambda: run_accord(context, tokens, 1)

    return step


def llama_cpp_steps(path: str, threads: int) -> Callable[[str, int], Step]:
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = MOST_TOKENS, MOST_TOKENS, 512
    options.n_threads = options.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, options)
    memory = llama_cpp.llama_get_memory(context)

    def run(first: int, count: int) -> None:
        llama_cpp.llama_memory_seq_rm(memory, 0, first, -1)
        tokens = (llama_cpp.llama_token * count)(*ids(first + count)[first:])
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, count)) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_get_logits_ith(context, -1)  # waits for the logits

    # Keeps `silent` alive: llama.cpp does not hold its callback.
    def step(case: str, tokens: int, silent: object = silent) -> Step:
        if case == "prefill":
            return lambda: run(0, tokens)
        run(0, tokens)
        return lambda: run(tokens, 1)

    return step


def transformers_steps(path: str, threads: int) -> Callable[[str, int], Step]:
    import llama
    import torch
    from transformers import DynamicCache

    torch.set_num_threads(threads)
    name, precision = path.split("-")
    model = llama.model_of(name, precision)
    cache = DynamicCache(config=model.config)

    def run(first: int, count: int) -> None:
        nonlocal cache
        if first == 0:
            cache = DynamicCache(config=model.config)
        elif cache.get_seq_length() > first:
            cache.crop(first - cache.get_seq_length())
        with torch.inference_mode():
            model(torch.tensor([ids(first + count)[first:]]), past_key_values=cache, logits_to_keep=1)

    def step(case: str, tokens: int) -> Step:
        if case == "prefill":
            return lambda: run(0, tokens)
        run(0, tokens)
        return lambda: run(tokens, 1)

    return step


def openvino_steps(path: str, threads: int) -> Callable[[str, int], Step]:
    import numpy as np
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32" if "-fp32." in path else "bf16",
    }
    request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()

    def run(count: int) -> None:
        request.infer({"ids": np.array([ids(count)])})

    def prompt(count: int) -> None:
        request.reset_state()
        run(count)

    def step(case: str, tokens: int) -> Step:
        if case == "prefill":
            return lambda: prompt(tokens)
        prompt(tokens)
        return lambda: run(1)  # each call is one token further

    return step


def onnxruntime_steps(path: str, threads: int) -> Callable[[str, int], Step]:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    _, *past = session.get_inputs()

    def step(case: str, tokens: int) -> Step:
        before, count = (0, tokens) if case == "prefill" else (tokens, 1)
        inputs = {each.name: np.zeros((1, each.shape[1], before, each.shape[3]), np.float32) for each in past}
        inputs["ids"] = np.array([ids(count)])
        return lambda: session.run(None, inputs)

    return step


def aotinductor_steps(path: str, threads: int) -> Callable[[str, int], Step]:
    import llama
    import llama_graph
    import torch

    torch.set_num_threads(threads)
    model = llama.empty_model(*os.path.basename(path).removesuffix(".pt2").split("-"))

    def step(case: str, tokens: int) -> Step:
        before, count = (0, tokens) if case == "prefill" else (tokens, 1)
        package = torch._inductor.aoti_load_package(path.replace(".pt2", f".{case}.pt2"))
        inputs = [torch.zeros(each.shape, dtype=each.dtype) for each in llama_graph.examples(model, before, count)]
        return lambda: package(*inputs)

    return step


STEPS = {
    "accord": accord_steps,
    "accord-wide": partial(accord_steps, wide=True),
    "llama.cpp": llama_cpp_steps,
    "openvino": openvino_steps,
    "onnxruntime": onnxruntime_steps,
    "aotinductor": aotinductor_steps,
    "transformers": transformers_steps,
}


def measure(step: Step, iterations: int) -> float:
    """Returns the median in milliseconds."""
    step()
    times = []
    for _ in range(iterations):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    name, file, threads, path = sys.argv[1:]
    if name == "--missing":
        print("" if importlib.util.find_spec(REQUIRES[file]) else f"there is no module {REQUIRES[file]}")
        return
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    cores = sorted(os.sched_getaffinity(0))
    if ranks > 1:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    steps = STEPS[name](file, int(threads))
    with open(f"{path}.{rank}.in") as commands, open(f"{path}.{rank}.out", "w") as answers:
        for line in commands:
            case, tokens, iterations = line.split()
            print(measure(steps(case, int(tokens)), int(iterations)), file=answers, flush=True)


if __name__ == "__main__":
    main()
