"""A small model with weights of every use, exported, and the output of its engine. Requires torch."""

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")

IDS = torch.tensor([3, 76, 0, 15, 3])


class Model(torch.nn.Module):
    """A tied table, two layers and a weight used like transformers' Conv1D."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(77, 96)
        self.up, self.down = torch.nn.Linear(96, 160), torch.nn.Linear(160, 96)
        self.head = torch.nn.Linear(96, 77, bias=False)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.randn(96, 96) / 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = self.down(torch.nn.functional.gelu(self.up(x)))
        return self.head(torch.addmm(self.down.bias, x, self.turned))


def exported(tmp_path, weights=None, sharding=None, dtype=torch.float32):
    return accord.export(
        Model().to(dtype).eval(), (IDS,), path=tmp_path / "m.accord", weights=weights, sharding=sharding
    )


def output(path) -> torch.Tensor:
    with accord.load(path) as engine:
        return torch.from_dlpack(engine.run(IDS.numpy())[0]).clone()


def on_a_rank(comm, path, ids):
    with accord.load(path, {"tp": comm}) as engine:
        report = engine.load_report
        return np.array(engine.run(ids)[0]), report.weight_bytes_read, report.shard_bytes + report.replicated_bytes
