"""The model with which the benchmark `engine` measures sums over ranks: layers of a small column-parallel and a small
row-parallel product, the residual and a norm.

All layers share the products' weights, so that these stay in a core's own cache: if they came from memory, the ranks
would wait for each other's products, and the benchmark would measure the memory.
"""

from __future__ import annotations

from pathlib import Path

import torch

import accord

LAYERS = 32
INNER = 32  # half of it is the minimum width of packed weights


class Sums(torch.nn.Module):
    """`whole`: the norm of residual + product, as in language models. Otherwise the sums are reshaped before they are
    added and before they are normalized, which leaves three steps for the engine."""

    def __init__(self, width: int, dtype: torch.dtype, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.up = torch.nn.Linear(width, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, width, bias=False)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(LAYERS))
        self.to(dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        width = hidden.shape[-1]
        normed = hidden
        for norm in self.norms:
            product = self.down(self.up(normed))
            if self.whole:
                hidden = hidden + product
                normed = norm(hidden)
            else:
                halves = (2, width // 2)
                hidden = (hidden.view(halves) + product.view(halves)).view(1, width)
                normed = norm(hidden)
        return normed + hidden


def export_sums(path: Path, width: int, dtype: torch.dtype, *, whole: bool, rows: int = 1) -> Path:
    """Exports for one row, or for any number up to `rows`."""
    torch.manual_seed(0)
    model = Sums(width, dtype, whole).eval()
    sharding = {"up": accord.Column(unit=INNER // 2), "down": accord.Row(unit=INNER // 2)}
    x, sizes = (
        torch.rand(min(rows, 2), width, dtype=dtype),
        ({0: torch.export.Dim("rows", max=rows)},) if rows > 1 else None,
    )
    return accord.export(model, (x,), path=path, sharding=sharding, dynamic_shapes=sizes)
