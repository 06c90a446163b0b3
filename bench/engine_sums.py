"""The model that bench/engine.py measures sums of ranks with: layers of a small column and a small row product, the residual and a norm."""

from __future__ import annotations

from pathlib import Path

import torch

import accord

LAYERS = 32
INNER = 16


class Sums(torch.nn.Module):
    """`whole`: the norm of residual + product, as language models have it. Else the sums are seen in another shape before they
    are added and before they are normalized, which leaves three steps for the engine."""

    def __init__(self, width: int, dtype: torch.dtype, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.up = torch.nn.ModuleList(torch.nn.Linear(width, INNER, bias=False) for _ in range(LAYERS))
        self.down = torch.nn.ModuleList(torch.nn.Linear(INNER, width, bias=False) for _ in range(LAYERS))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(LAYERS))
        self.to(dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        width = hidden.shape[-1]
        normed = hidden
        for up, down, norm in zip(self.up, self.down, self.norms, strict=True):
            product = down(up(normed))
            if self.whole:
                hidden = hidden + product
                normed = norm(hidden)
            else:
                halves = (2, width // 2)
                hidden = (hidden.view(halves) + product.view(halves)).view(1, width)
                normed = norm(hidden)
        return normed + hidden


def export_sums(path: Path, width: int, dtype: torch.dtype, *, whole: bool, rows: int = 1) -> Path:
    """For one row, or for any number up to `rows`."""
    torch.manual_seed(0)
    model = Sums(width, dtype, whole).eval()
    sharding = {"up.*": accord.Column(unit=1), "down.*": accord.Row(unit=1)}
    x, sizes = (
        torch.rand(min(rows, 2), width, dtype=dtype),
        ({0: torch.export.Dim("rows", max=rows)},) if rows > 1 else None,
    )
    return accord.export(model, (x,), path=path, sharding=sharding, dynamic_shapes=sizes)
