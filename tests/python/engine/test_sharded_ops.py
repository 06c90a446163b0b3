"""Ops between a column-parallel and a row-parallel layer, on two ranks, compared with PyTorch."""

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")
import accord.exporter.language_model  # noqa: E402 - registers its ops with torch

functional = torch.nn.functional
aten = torch.ops.aten


def heads(h: torch.Tensor) -> torch.Tensor:
    """[1, 4 heads, rows, 4]"""
    return h.view(1, -1, 4, 4).permute(0, 2, 1, 3)


def rows(h: torch.Tensor) -> torch.Tensor:
    return h.permute(0, 2, 1, 3).reshape(-1, 16)


GENERATOR = torch.Generator().manual_seed(0)
TAPS = torch.randn(16, 4, generator=GENERATOR)
OF_HEADS = torch.randn(4, 4, 4, generator=GENERATOR)


def heads_of_rows(h):
    return h.reshape(-1, 4, 4)


def of_positive(function):
    return lambda h: function(h.abs() + 1)


# Functions that may come between a column-parallel and a row-parallel layer, on [rows, 16], whose columns are
# sharded.
BETWEEN = {
    **{name: getattr(torch, name) for name in ("relu", "tanh", "sigmoid", "exp", "sin", "cos", "erf", "neg", "abs")},
    **{name: getattr(torch, name) for name in ("floor", "ceil")},
    **{name: of_positive(getattr(torch, name)) for name in ("sqrt", "rsqrt", "log", "log1p", "reciprocal")},
    "silu": functional.silu,
    "gelu": functional.gelu,
    "arithmetic": lambda h: (1 - h) * h - h / (h.abs() + 2) + 2 * (h - 1),
    "powers": lambda h: h**2 + 2.0**h + (h.abs() + 1) ** h,
    "minimum": lambda h: torch.minimum(h, h * h),
    "maximum": lambda h: torch.maximum(h, h * h).clamp(max=1.5),
    "comparisons": lambda h: (
        torch.stack([h > 0, h < 1, h >= 0, h <= 1, h == h, h != h.floor()]).to(torch.float32).sum(0)
    ),
    "logic": lambda h: torch.where(((h > 0) & (h < 1)) | ~(h > -1), h, -h),
    "logical": lambda h: (
        torch.logical_xor(torch.logical_and(h, h > 0), torch.logical_or(h > 1, torch.logical_not(h))) * h
    ),
    "expand": lambda h: h.unsqueeze(0).expand(3, 5, 16).sum(0),
    "squeeze": lambda h: aten.squeeze.dims(h.unsqueeze(0) * 2, [0]),
    "slice and cat": lambda h: torch.cat([h[2:], h[:2]], 0),
    "select": lambda h: h + h[1],
    "split": lambda h: torch.cat(h.split([2, 3], 0)[::-1], 0),
    "softmax": lambda h: h.softmax(0) + h.log_softmax(0),
    "reductions": lambda h: h + h.sum(0) + h.mean(0, keepdim=True) + h.amax(0) - h.amin(0, keepdim=True),
    "layer_norm": lambda h: rows(functional.layer_norm(heads(h), (4,))),
    "rms_norm": lambda h: rows(functional.rms_norm(heads(h), (4,))),
    "attention": lambda h: rows(functional.scaled_dot_product_attention(heads(h), heads(h), heads(h))),
    "causal convolution": lambda h: torch.ops.accord.causal_convolution(h, TAPS, 0, TAPS[:, 0]),
    "wkv": lambda h: torch.ops.accord.wkv(h, h / 2, -TAPS[:, 0].exp(), TAPS[:, 1], 0),
    "linear recurrence": lambda h: torch.ops.accord.linear_recurrence(
        *(heads_of_rows(x) for x in (h, h / 2, h, h.sigmoid())), 0, heads_of_rows(h.sigmoid())[..., :1]
    ).reshape(-1, 16),
    "bmm by heads that all ranks have": lambda h: rows(torch.bmm(heads(h)[0], OF_HEADS)[None]),
    "bmm by heads from the left": lambda h: rows(torch.bmm(OF_HEADS, heads(h)[0].mT).mT[None]),
    "bmm": lambda h: rows(torch.bmm(torch.bmm(heads(h)[0], heads(h)[0].transpose(1, 2)), heads(h)[0])[None]),
}


class Cut(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.up, self.down, self.function = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), function

    def forward(self, x):
        return self.down(self.function(self.up(x)))


def run_all(comm, paths, x):
    outputs = []
    for path in paths:
        with accord.load(path, groups={"tp": comm}) as engine:
            outputs.append(np.array(engine.run(x)[0]))
    return outputs


def test_ops_between_sharded_layers_match_pytorch(ranks, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(5, 8)
    modules = {name: Cut(function).eval() for name, function in BETWEEN.items()}
    paths = []
    for number, module in enumerate(modules.values()):
        sharding = {"up": accord.Column(unit=4), "down": accord.Row(unit=4)}
        path = accord.export(module, (x,), path=tmp_path / f"{number}.accord", sharding=sharding)
        paths.append(str(path))
    for outputs in ranks(2).run(run_all, paths, x.numpy()):
        for (name, module), output in zip(modules.items(), outputs, strict=True):
            wanted = module(x).detach()
            torch.testing.assert_close(
                torch.from_numpy(output), wanted, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
