"""Logits that are bit-identical no matter how many ranks share a model."""

import numpy as np
import pytest
from accord_command import SUPPORT
from language_runs import bits_of_logits, make_ids
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

VOCABULARY = 576  # nine units, which eight ranks share unevenly
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}


def make_model(dtype: str) -> torch.nn.Module:
    return make_small_llama(**SIZES).to(getattr(torch, dtype))


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        dtype: str(accord.export(make_model(dtype), path=folder / f"{dtype}.accord", sharding="auto"))
        for dtype in ("float32", "bfloat16")
    }


def logits_of_ranks(comm, tests, paths):
    import sys

    sys.path.insert(0, tests)
    from language_runs import bits_of_logits

    found = {}
    for dtype, path in paths.items():
        with accord.load(path, {"tp": comm}, canonical_ranks=8) as engine:
            found[dtype] = bits_of_logits(engine)
    return found


def test_logits_are_bit_identical_on_one_two_four_and_eight_ranks(ranks, packages):
    alone = {}
    for dtype, path in packages.items():
        with accord.load(path, canonical_ranks=8) as engine:
            alone[dtype] = bits_of_logits(engine)
    for size in (2, 4, 8):
        for found in ranks(size).run(logits_of_ranks, SUPPORT, packages):
            assert found == alone, f"{size} ranks"
    ids = make_ids(24)
    with torch.no_grad():
        wanted = make_model("float32")(torch.from_numpy(ids)[None]).logits[0]
    given = torch.from_numpy(np.frombuffer(alone["float32"], np.float32).reshape(24, VOCABULARY).copy())
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=2e-6)
    narrow = torch.frombuffer(bytearray(alone["bfloat16"]), dtype=torch.bfloat16).reshape(24, VOCABULARY).float()
    torch.testing.assert_close(narrow, wanted, rtol=5e-2, atol=2e-2)


def test_invalid_canonical_ranks_are_rejected(packages):
    path = packages["float32"]
    with pytest.raises(accord.InvalidArgument, match="canonical_ranks is 6, which is not a power of two"):
        accord.load(path, canonical_ranks=6)
    with pytest.raises(
        accord.InvalidArgument, match=r"512 inputs in 8 units cannot be divided among canonical_ranks = 16"
    ):
        accord.load(path, canonical_ranks=16)
    with pytest.raises(
        accord.InvalidArgument, match=r'group "tp" has 3 ranks, which does not divide canonical_ranks = 8'
    ):
        accord.Engine.load(path, {"tp": (0, 3)}, canonical_ranks=8)
