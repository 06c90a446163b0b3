"""Compares greedy decoding on 1, 2 and 4 ranks with whole runs of a transformers model. Requires torch."""

import numpy as np
import pytest
from accord_command import SUPPORT
from language_runs import STEPS

torch = pytest.importorskip("torch")


def logits_of(model: torch.nn.Module, ids: np.ndarray) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0]


def decode_on_a_rank(comm, tests, paths):
    import sys

    sys.path.insert(0, tests)
    from language_runs import decoded_at_each_size

    return decoded_at_each_size(comm, paths)


def check_greedy(ids: np.ndarray, logits: np.ndarray, model: torch.nn.Module, atol: float) -> None:
    """Checks that the logits are the model's and that each token is the model's best, up to the first near tie."""
    wanted = logits_of(model, ids[:-1])
    torch.testing.assert_close(torch.from_numpy(logits), wanted, rtol=1e-4, atol=atol)
    best = wanted.topk(2, -1)
    close = (best.values[:, 0] - best.values[:, 1] < 1e-4).nonzero().flatten().tolist()
    sure = range(len(ids) - STEPS - 2, next((row for row in close if row >= len(ids) - STEPS - 2), len(wanted)))
    assert len(sure) > 10, "the test says too little"
    assert [ids[row + 1] for row in sure] == [best.indices[row, 0] for row in sure]


def check_at_each_size(ranks, paths: list[str], models: list[torch.nn.Module], atol: float = 2e-6) -> None:
    results = ranks(4).run(decode_on_a_rank, SUPPORT, paths, deadline=180)
    for number, model in enumerate(models):
        for size in (1, 2, 4):
            ids, logits = results[0][number][size]
            check_greedy(ids, logits, model, atol)
            for rank in results[1:]:
                assert rank[number][size][1].tobytes() == logits.tobytes(), f"{paths[number]} on {size} ranks"
