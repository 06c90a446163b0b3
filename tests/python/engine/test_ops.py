"""Each op that a package may contain, in its own package, compared with PyTorch."""

import json

import numpy as np
import pytest

import accord
from accord.graph.ops import ARGUMENTS

torch = pytest.importorskip("torch")
import accord.exporter.language_model  # noqa: E402 - registers its ops with torch

functional = torch.nn.functional
aten = torch.ops.aten

GENERATOR = torch.Generator().manual_seed(0)


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def integers(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=GENERATOR)


X, Y, POSITIVE = floats(3, 8), floats(3, 8), floats(3, 8).abs() + 0.1
SAME = torch.where(integers(3, 8, below=2) == 0, X, Y)  # equals X in some elements
N, M = integers(3, 8, below=20), integers(3, 8, below=9) + 1
B, C = integers(3, 8, below=2) == 0, integers(3, 8, below=2) == 0
IDS = torch.tensor([2, 0, 0, 1, 2])
WEIGHT, BIAS, MATRIX = floats(5, 8), floats(5), floats(8, 5)
LEFT, RIGHT = floats(4, 3, 8), floats(4, 8, 5)
HEADS = [floats(2, 3, 7, 4) for _ in range(3)]

EXPERTS = floats(4, 70, 8), floats(4, 8, 70)
GATE = floats(4, 70, 8)
CHOSEN = torch.tensor([[3, 0], [3, 3], [1, 3]])  # no row chooses expert 2
IMAGE = floats(2, 6, 5, 7)
CONSTANTS: dict[tuple[int, ...], torch.Tensor] = {}


def floats_of(*shape: int) -> torch.Tensor:
    """Returns the same tensor every time for a shape, so that tracing a function and running it agree."""
    return CONSTANTS[shape]


for shape in (
    (7, 6, 3, 3),
    (7,),
    (8, 3, 2, 3),
    (6, 1, 3, 3),
    (70, 6, 1, 1),
    (70,),
    (5, 6, 3),
    (5,),
    (6,),
    (264, 6, 1, 1),
):
    CONSTANTS[shape] = floats(*shape)

STATES = [floats(37, 2, 5), floats(37, 2, 5), floats(37, 4, 9)]
WKV = [floats(37, 6), floats(37, 6)]
KEYS_AND_VALUES = [floats(1, 2, 37, 8), floats(1, 2, 37, 5)]

# op -> [(function, its inputs), ...]. Tensors of this module that a function uses become weights of the package.
CASES = {
    "accord.attention.default": [
        (lambda q, k, v: torch.ops.accord.attention(q, k, v, 0, 0.3), floats(1, 4, 37, 8), *KEYS_AND_VALUES),
        (lambda q, k, v: torch.ops.accord.attention(q, k, v, 0, 1.0, 5, 2.0), floats(1, 6, 37, 8), *KEYS_AND_VALUES),
        (lambda q, k: torch.ops.accord.attention(q, k, None, 0, 1.0, value_dim=5), *[floats(1, 2, 37, 8)] * 2),
    ],
    "accord.head_linear.default": [(lambda x: torch.ops.accord.head_linear(x.mT, EXPERTS[0]), floats(9, 8, 4))],
    "accord.causal_convolution.default": [
        (lambda x, w: torch.ops.accord.causal_convolution(x, w, 0), floats(37, 6), floats(6, 4)),
        (lambda x, w, b: torch.ops.accord.causal_convolution(x.T, w, 0, b), floats(6, 37), floats(6, 1), floats(6)),
    ],
    "accord.linear_recurrence.default": [
        (lambda q, k, v, d: torch.ops.accord.linear_recurrence(q, k / 3, v, d.sigmoid(), 0), *STATES, floats(37, 4, 1)),
        (
            lambda q, k, v, d, b: torch.ops.accord.linear_recurrence(
                q.transpose(0, 1), k / 3, v, d.sigmoid(), 0, b.sigmoid()
            ),
            floats(2, 37, 5),
            *STATES[1:],
            floats(37, 4, 5),
            floats(37, 4, 1),
        ),
    ],
    "accord.wkv.default": [
        (lambda k, v, d, b: torch.ops.accord.wkv(k, v, -d.exp(), b, 0), *WKV, floats(6), floats(6)),
        (lambda k, v, b: torch.ops.accord.wkv(k.T * 300, v, b - 9, b, 0), floats(6, 37), WKV[1], floats(6)),
    ],
    "accord.experts.default": [
        (lambda x: torch.ops.accord.experts(x, CHOSEN, X[:, :2], *EXPERTS), X),
        (lambda x, ids, w: torch.ops.accord.experts(x, ids, w, *EXPERTS, GATE, "gelu"), X, CHOSEN, floats(3, 2)),
        (
            lambda x, ids, w, up, gate: torch.ops.accord.experts(
                x, ids, w, *EXPERTS, GATE, "silu", up, gate, limit=1.5, alpha=1.7, offset=1.0
            ),
            X,
            CHOSEN,
            floats(3, 2),
            floats(4, 70),
            floats(4, 70),
        ),
    ],
    "aten._log_softmax.default": [(lambda x: (x.log_softmax(1), x.log_softmax(0)), X)],
    "aten._softmax.default": [(lambda x: (x.softmax(1), x.softmax(0)), X)],
    "aten._to_copy.default": [(lambda n, x, b: (n.to(torch.float32), x.to(torch.int64), b.to(torch.int32)), N, X, B)],
    "aten.abs.default": [(torch.abs, X), (torch.abs, -N)],
    "aten.add.Scalar": [(lambda x: aten.add.Scalar(x, 2.5, 2), X)],
    "aten.add.Tensor": [(torch.add, X, Y), (lambda x, n: x + 2 + torch.add(n, x[0], alpha=3), X, N)],
    "aten.addmm.default": [
        (lambda x: torch.addmm(BIAS, x, WEIGHT.t()), X),
        (lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), X, floats(8, 5), BIAS),
    ],
    "aten.amax.default": [(lambda x: (x.amax(1), x.amax((0, 1), keepdim=True)), X)],
    "aten.amin.default": [(lambda n: (n.amin(0), n.amin((0, 1))), N)],
    "aten.any.default": [(torch.any, B), (lambda n: n.any(), N - N)],
    "aten.any.dim": [(lambda b: (b.any(1), b.any(0, keepdim=True)), B)],
    "aten.any.dims": [(lambda b: aten.any.dims(b, [0, 1]), B)],
    "aten.arange.start_step": [(lambda x: x + torch.arange(1, 17, 2), X), (lambda x: x + torch.arange(0.5, 8, 1.0), X)],
    "aten.bitwise_and.Scalar": [(lambda b: aten.bitwise_and.Scalar(b, True), B)],
    "aten.bitwise_and.Tensor": [(lambda b, c: b & c, B, C)],
    "aten.bitwise_not.default": [(lambda b: ~b, B)],
    "aten.bitwise_or.Scalar": [(lambda b: aten.bitwise_or.Scalar(b, False), B)],
    "aten.bitwise_or.Tensor": [(lambda b, c: b | c, B, C)],
    "aten.bmm.default": [(torch.bmm, LEFT, RIGHT), (lambda a: a @ a.transpose(1, 2), LEFT)],
    "aten.cat.default": [(lambda x, y: (torch.cat([x, y, x], 0), torch.cat([x, y[:, :3]], -1)), X, Y)],
    "aten.ceil.default": [(torch.ceil, X)],
    "aten.clamp.default": [(lambda x, n: (x.clamp(-0.5, 0.5), x.clamp(min=0), n.clamp(max=7)), X, N)],
    "aten.convolution.default": [
        (lambda x: functional.conv2d(x, floats_of(7, 6, 3, 3), floats_of(7), padding=1), IMAGE),
        (lambda x: functional.conv2d(x, floats_of(8, 3, 2, 3), stride=(2, 1), padding=(1, 0), groups=2), IMAGE),
        (lambda x: functional.conv2d(x, floats_of(6, 1, 3, 3), dilation=2, padding=2, groups=6).relu(), IMAGE),
        (lambda x: functional.conv2d(x + 1, floats_of(70, 6, 1, 1), floats_of(70)) * 2, IMAGE),
        (lambda x: functional.conv1d(x, floats_of(5, 6, 3), floats_of(5), stride=2, padding=1) + 1, floats(2, 6, 9)),
    ],
    "aten.cos.default": [(torch.cos, X)],
    "aten.cumsum.default": [(lambda x, n, b: (x.cumsum(0), n.cumsum(1), b.cumsum(-1), n[:, 2].cumsum(0)), X, N, B)],
    "aten.div.Scalar": [(lambda x, n: (aten.div.Scalar(x, 3.0), aten.div.Scalar(n, 4)), X, N)],
    "aten.div.Scalar_mode": [(lambda x: aten.div.Scalar_mode(x, 0.3, rounding_mode="floor"), X)],
    "aten.div.Tensor": [(torch.div, X, POSITIVE), (torch.div, N, M)],
    "aten.div.Tensor_mode": [
        (lambda x, y: torch.div(x, y, rounding_mode="floor"), X, POSITIVE),
        (lambda n, m: torch.div(n, m, rounding_mode="trunc"), N, M),
    ],
    "aten.embedding.default": [(lambda ids: functional.embedding(ids, WEIGHT), IDS.reshape(1, 5))],
    "aten.eq.Scalar": [(lambda n: n == 3, N)],
    "aten.eq.Tensor": [(torch.eq, X, SAME)],
    "aten.erf.default": [(torch.erf, X)],
    "aten.exp.default": [(torch.exp, X)],
    "aten.expand.default": [(lambda x: x[:, None].expand(3, 2, 8) + 1, X)],
    "aten.floor.default": [(torch.floor, X)],
    "aten.full.default": [
        (lambda x: x + torch.full((3, 8), 2.5), X),
        (lambda n: n * torch.zeros(8, dtype=torch.int64), N),
    ],
    "aten.full_like.default": [(lambda x: x + torch.full_like(x, 1.5), X)],
    "aten.gather.default": [(lambda x, n: x.gather(1, n), X, integers(3, 5, below=8))],
    "aten.ge.Scalar": [(lambda x: x >= 0.25, X)],
    "aten.ge.Tensor": [(torch.ge, X, SAME)],
    "aten.gelu.default": [(lambda x: (functional.gelu(x), functional.gelu(x, approximate="tanh")), X)],
    "aten.group_norm.default": [
        (lambda x: functional.group_norm(x, 3, floats_of(6), floats_of(6)), IMAGE),
        (lambda x: functional.group_norm(x + 1, 1, eps=1e-2), IMAGE),
        (lambda x: functional.group_norm(functional.conv2d(x, floats_of(264, 6, 1, 1)), 2), IMAGE),
    ],
    "aten.gt.Scalar": [(lambda x: x > 0.25, X)],
    "aten.gt.Tensor": [(torch.gt, X, SAME)],
    "aten.index.Tensor": [(lambda x, ids: (x[ids], x[ids, ids], x[:, ids]), X, IDS)],
    "aten.index_select.default": [(lambda x, ids: (x.index_select(0, ids), x.index_select(1, ids)), X, IDS)],
    "aten.layer_norm.default": [(lambda x, w: functional.layer_norm(x, (8,), w, w + 1, 1e-3), X, floats(8))],
    "aten.le.Scalar": [(lambda n: n <= 7, N)],
    "aten.le.Tensor": [(torch.le, X, SAME)],
    "aten.linalg_vector_norm.default": [
        (lambda x: (torch.linalg.vector_norm(x, dim=1), torch.linalg.vector_norm(x)), X)
    ],
    "aten.linear.default": [(lambda x: functional.linear(x, WEIGHT, BIAS), X), (functional.linear, X, WEIGHT)],
    "aten.log.default": [(torch.log, POSITIVE)],
    "aten.log1p.default": [(torch.log1p, POSITIVE)],
    "aten.logical_and.default": [(torch.logical_and, B, C)],
    "aten.logical_not.default": [(torch.logical_not, B), (torch.logical_not, N - N[0])],
    "aten.logical_or.default": [(torch.logical_or, B, C)],
    "aten.logical_xor.default": [(torch.logical_xor, B, C)],
    "aten.lt.Scalar": [(lambda x: x < 0.25, X)],
    "aten.lt.Tensor": [(torch.lt, N, M)],
    "aten.maximum.default": [(torch.maximum, X, Y)],
    "aten.mean.default": [(torch.mean, X)],
    "aten.mean.dim": [(lambda x: (x.mean(1), x.mean((0, 1), keepdim=True)), X)],
    "aten.minimum.default": [(torch.minimum, N, M)],
    "aten.mm.default": [(lambda x: x @ MATRIX, X), (torch.mm, X, floats(8, 5))],
    "aten.mul.Scalar": [(lambda x: aten.mul.Scalar(x, 2.5), X)],
    "aten.mul.Tensor": [(torch.mul, X, Y), (lambda b, c: b * c, B, C), (lambda x, n: x * n * 3, X[:1], N)],
    "aten.ne.Scalar": [(lambda n: n != 3, N)],
    "aten.ne.Tensor": [(torch.ne, X, SAME)],
    "aten.neg.default": [(torch.neg, X), (torch.neg, N)],
    "aten.permute.default": [(lambda a: a.permute(2, 0, 1) + 1, LEFT)],
    "aten.pow.Scalar": [(lambda x: 2.0**x, X)],
    "aten.pow.Tensor_Scalar": [(lambda x, p: (x**3, x**2, p**-0.5, p**0.3), X, POSITIVE)],
    "aten.pow.Tensor_Tensor": [(torch.pow, POSITIVE, X)],
    "aten.reciprocal.default": [(torch.reciprocal, POSITIVE)],
    "aten.relu.default": [(torch.relu, X), (torch.relu, N - 5)],
    "aten.rms_norm.default": [
        (lambda x, w: (functional.rms_norm(x, (8,), w, 1e-3), functional.rms_norm(x, (8,))), X, floats(8))
    ],
    "aten.rsqrt.default": [(torch.rsqrt, POSITIVE)],
    "aten.scalar_tensor.default": [(lambda x: torch.where(x > 0, x, 0.5), X)],
    "aten.scaled_dot_product_attention.default": [
        (functional.scaled_dot_product_attention, *HEADS),
        (lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), *HEADS),
        (functional.scaled_dot_product_attention, *HEADS, integers(7, 7, below=2) + torch.eye(7) > 0),
    ],
    "aten.select.int": [(lambda x: (x[1] + 1, x[:, -2]), X)],
    "aten.sigmoid.default": [(torch.sigmoid, X)],
    "aten.silu.default": [(functional.silu, X)],
    "aten.sin.default": [(torch.sin, X)],
    "aten.slice.Tensor": [(lambda x: (x[1:] + 1, x[:, 1:7:2], x[:, -3:]), X)],
    "aten.split_with_sizes.default": [(lambda x: (*x.split([3, 5], 1), *x.chunk(2, 1)), X)],
    "aten.sqrt.default": [(torch.sqrt, POSITIVE)],
    "aten.squeeze.dims": [(lambda x: aten.squeeze.dims(x, [0, 2]) + 1, X[None])],
    "aten.sub.Scalar": [(lambda x: aten.sub.Scalar(x, 2.5), X)],
    "aten.sub.Tensor": [(torch.sub, X, Y), (lambda n, x: (3 - n, 1 - x), N, X)],
    "aten.sum.dim_IntList": [(lambda x, b: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), b.sum(1)), X, B)],
    "aten.tanh.default": [(torch.tanh, X)],
    "aten.topk.default": [
        (lambda x: (*x.topk(3), *x.topk(8, largest=False)), X),
        (lambda a: a.transpose(0, 1).topk(2)[1], LEFT),
    ],
    "aten.unsqueeze.default": [(lambda x: x[:, None] + x[:, :, None], floats(3, 3))],
    "aten.upsample_nearest2d.default": [
        (lambda x: functional.interpolate(x, scale_factor=2.0), IMAGE),
        (lambda x: functional.interpolate(x, size=(9, 13)), IMAGE),
    ],
    "aten.view.default": [(lambda x: (x.view(4, 6) + 1, x.t().reshape(24)), X)],
    "aten.where.self": [(torch.where, B, X, Y), (lambda b, n, m: torch.where(b[:, :1], n, m[0]), B, N, M)],
}


class Function(torch.nn.Module):
    """A module that calls one function and returns a tuple."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        outputs = self.function(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def ops_of(path) -> set[str]:
    return {node["op"] for node in json.loads((path / "graph.json").read_text())["nodes"]}


def test_every_op_of_the_table_has_a_case():
    elsewhere = ("_c10d_functional.", "accord.adapted_linear.", "accord.cache_source.", "accord.cross_attention.")
    assert set(CASES) == {op for op in ARGUMENTS if not op.startswith(elsewhere)}


def narrow_ops(x, y, mask, weight):
    """Applies one op for each way in which kernels read 16-bit floats."""
    return (
        *(
            x + y,
            x * 0.3,
            1.0 - x,
            x / y,
            x**3,
            torch.maximum(x, y),
            x.exp(),
            functional.gelu(x),
            -x,
            x.clamp(-0.5, 0.7),
        ),
        *(
            torch.where(mask, x, y),
            x > y,
            x.to(torch.float32),
            x.to(torch.int64),
            torch.cat([x, y], 1).transpose(0, 1) + 1,
        ),
        *(x.softmax(1), x.sum(0), x.mean(1), x.amax(1), functional.layer_norm(x, (8,)), functional.rms_norm(x, (8,))),
        *(functional.linear(x, weight), torch.mm(x, y.transpose(0, 1)), torch.full((3, 8), 0.3, dtype=x.dtype) + x),
        functional.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None]),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ops_in_16_bit_floats_match_pytorch(dtype, tmp_path):
    inputs = (X.to(dtype), Y.to(dtype), B)
    module = Function(lambda x, y, mask: narrow_ops(x, y, mask, WEIGHT.to(x.dtype))).eval()
    path = accord.export(module, inputs, path=tmp_path / "narrow.accord")
    with accord.load(path) as engine:
        outputs = [torch.from_dlpack(output).clone() for output in engine.run(*inputs)]
    for number, (given, expected) in enumerate(zip(outputs, module(*inputs), strict=True)):
        assert given.dtype == expected.dtype, number
        # Both round once. Where PyTorch also rounds in between, it may be one more step off.
        step = torch.finfo(dtype).eps if expected.dtype == dtype else 0.0
        torch.testing.assert_close(given, expected, rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize("op", sorted(CASES))
def test_an_op_matches_pytorch(op, tmp_path):
    for number, (function, *inputs) in enumerate(CASES[op]):
        module = Function(function).eval()
        path = accord.export(module, tuple(inputs), path=tmp_path / f"{number}.accord")
        assert op in ops_of(path)
        with accord.load(path) as engine:
            outputs = [torch.from_numpy(np.array(output)) for output in engine.run(*inputs)]
        torch.testing.assert_close(outputs, list(module(*inputs)), rtol=1e-5, atol=1e-5)
