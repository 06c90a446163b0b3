"""Wraps a function in a PyTorch module, for export tests."""

import pytest

torch = pytest.importorskip("torch")


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
