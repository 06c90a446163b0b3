"""A function as a module of PyTorch, for tests of what is exported."""

import pytest

torch = pytest.importorskip("torch")


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)
