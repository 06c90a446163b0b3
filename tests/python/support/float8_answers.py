"""The logits of a small model for a fixed prompt, by PyTorch and by an engine on a rank. Requires torch."""

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")

IDS = np.array([3, 77, 12, 150, 9, 41, 8])


@torch.no_grad()
def logits_of(model) -> torch.Tensor:
    return model(torch.from_numpy(IDS)[None]).logits[0]


def run_on_a_rank(comm, path, ids):
    with accord.load(path, {"tp": comm}) as engine:
        return np.array(engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0])
