"""The calls for op_values.py: every op of an engine, over all dtypes, in each layout that its operands can have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from op_values import ALL, FLOATS, INF, INTEGERS, NAN, SCALARS, Call, In, matrix, values

UNARY = {  # op -> (whether it is exact, further arguments)
    **{f"aten.{name}.default": (True, [{}]) for name in ("abs", "ceil", "floor", "neg", "relu", "reciprocal")},
    **{f"aten.{name}.default": (True, [{}]) for name in ("logical_not", "bitwise_not")},
    **{
        f"aten.{name}.default": (False, [{}])
        for name in ("cos", "erf", "exp", "log", "log1p", "rsqrt", "sigmoid", "silu", "sin", "sqrt", "tanh")
    },
    "aten.gelu.default": (False, [{}, {"approximate": "tanh"}]),
    "aten._to_copy.default": (True, [{"dtype": dtype} for dtype in ALL]),
}
BINARY = {  # op -> (whether it is exact on floats, further arguments)
    "aten.add.Tensor": (True, [{}]),
    "aten.sub.Tensor": (True, [{}]),
    "aten.mul.Tensor": (True, [{}]),
    "aten.div.Tensor": (True, [{}]),
    "aten.div.Tensor_mode": (True, [{"rounding_mode": "floor"}, {"rounding_mode": "trunc"}]),
    "aten.maximum.default": (True, [{}]),
    "aten.minimum.default": (True, [{}]),
    "aten.pow.Tensor_Tensor": (False, [{}]),
    **{
        f"aten.{name}.Tensor": (True, [{}])
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or")
    },
    **{f"aten.logical_{name}.default": (True, [{}]) for name in ("and", "or", "xor")},
}
WITH_NUMBER = {
    **{
        f"aten.{name}.Scalar": (True, [{}]) for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
    },
    "aten.add.Tensor": (True, [{}]),
    "aten.mul.Tensor": (True, [{}]),
    "aten.div.Tensor": (True, [{}]),
    "aten.div.Scalar_mode": (True, [{"rounding_mode": "floor"}, {"rounding_mode": "trunc"}]),
    "aten.div.Tensor_mode": (True, [{"rounding_mode": "floor"}, {"rounding_mode": "trunc"}]),
    "aten.bitwise_and.Scalar": (True, [{}]),
    "aten.bitwise_or.Scalar": (True, [{}]),
}


def unary_calls() -> Iterator[Call]:
    for (op, (exact, several)), dtype in itertools.product(UNARY.items(), ALL):
        for more, form in itertools.product(several, ("rows", "strided", "number")):
            x = matrix(dtype) if form != "number" else values(dtype)[3]
            # PyTorch computes 2 * x on the way, which overflows to infinity beyond half of the largest number.
            is_gelu = "gelu" in op
            x = x.masked_fill(x.double().abs() > 2e38, 8.0) if is_gelu and dtype.is_floating_point else x
            yield Call(op, [x], {"self": In(0), **more}, exact, form == "strided", sums=is_gelu)


def divisors(tensor: torch.Tensor) -> torch.Tensor:
    """Replaces divisors that make PyTorch raise (0), or that crash its process (the lowest number divided by -1,
    truncated)."""
    return tensor if tensor.dtype.is_floating_point else tensor.masked_fill((tensor == 0) | (tensor == -1), 3)


def binary_calls() -> Iterator[Call]:
    for (op, (exact, several)), a, b in itertools.product(BINARY.items(), ALL, ALL):
        one, other = values(a), values(b)
        if op == "aten.div.Tensor_mode":
            other = divisors(other)
        size = max(len(one), len(other))
        forms = {
            "": [one[:, None], other],
            " together": [
                one.repeat(4 * size // len(one))[: 2 * size],
                other.flip(0).repeat(4 * size // len(other))[: 2 * size],
            ],
            " number": [matrix(a), other[-1]],
            " element": [matrix(a), other[-1:]],
            " other number": [one[-1], divisors(matrix(b)) if op == "aten.div.Tensor_mode" else matrix(b)],
        }
        for more, (label, inputs) in itertools.product(several, forms.items()):
            yield Call(
                op,
                inputs,
                {"self": In(0), "other" if "pow" not in op else "exponent": In(1), **more},
                exact,
                label=label,
            )
    for op, a in itertools.product(
        ("aten.add.Tensor", "aten.sub.Tensor", "aten.maximum.default", "aten.eq.Tensor"), ALL
    ):
        yield Call(op, [matrix(a), matrix(a).flip(1)], {"self": In(0), "other": In(1)}, strided=True)
    for dtype, alpha in itertools.product((*FLOATS, *INTEGERS), (3, -2, 0.5)):
        for op in ("aten.add.Tensor", "aten.sub.Tensor"):
            x = values(dtype)
            # Only values that need no rounding, because PyTorch sometimes rounds the scaled operand.
            if dtype.is_floating_point:
                x = x[((x.abs() <= 3) & (2 * x == (2 * x).round())) | ~x.isfinite()]
            yield Call(op, [x[:, None], x], {"self": In(0), "other": In(1), "alpha": alpha})


def number_calls() -> Iterator[Call]:
    for (op, (exact, several)), dtype, number in itertools.product(WITH_NUMBER.items(), ALL, SCALARS):
        if op.endswith("mode") and number in (0, -1) and not dtype.is_floating_point:
            continue
        for more in several:
            yield Call(op, [matrix(dtype)], {"self": In(0), "other": number, **more}, exact)
    for dtype, number in itertools.product(ALL, [*SCALARS, 4, -3, 62, -0.5, 1.5]):
        # Some of PyTorch's loops keep these exponents odd, others round them to even numbers.
        if not dtype.is_floating_point or number not in (
            16777217,
            2**31 - 1,
        ):
            yield Call("aten.pow.Tensor_Scalar", [matrix(dtype)], {"self": In(0), "exponent": number}, exact=False)
        yield Call("aten.pow.Scalar", [matrix(dtype)], {"self": number, "exponent": In(0)}, exact=False)
        yield Call("aten.full_like.default", [matrix(dtype)], {"self": In(0), "fill_value": number})
        for name in ("min", "max"):
            yield Call("aten.clamp.default", [matrix(dtype)], {"self": In(0), name: number})
        yield Call("aten.clamp.default", [matrix(dtype)], {"self": In(0), "min": number, "max": 2})
        for op, more in (("aten.full.default", {"size": [3, 5]}), ("aten.scalar_tensor.default", {})):
            name = "s" if op.startswith("aten.scalar") else "fill_value"
            yield Call(op, [], {name: number, "dtype": dtype, **more})
    for dtype in ALL:
        for start, end, step in (
            (0, 7, 1),
            (5, -4, -2),
            (2**33, 2**33 + 5, 2),
            (0.5, 4.0, 0.3),
            (0, 5, 0.5),
            (0.0, 5.0, 1.0),
            (1, 2.5, 1),
        ):
            yield Call(
                "aten.arange.start_step", [], {"start": start, "end": end, "step": step, "dtype": dtype}, exact=False
            )


def where_calls() -> Iterator[Call]:
    truth = torch.tensor([[True, False, True, False, True]])
    for a, b in itertools.product(ALL, ALL):
        for other in (values(b)[:5].expand(3, 5), values(b)[0]):
            yield Call(
                "aten.where.self",
                [truth, values(a)[:3, None], other],
                {"condition": In(0), "self": In(1), "other": In(2)},
            )


def terms(dtype: torch.dtype) -> torch.Tensor:
    """[6, 5]: values whose sums do not depend on the order. The values of integer dtypes are matrix(), whose sums
    wrap."""
    if not dtype.is_floating_point:
        return matrix(dtype)
    rows = [
        [1.5, -0.5, 3, 0.25, 2],
        [1, INF, 2, 3, 4],
        [INF, 1, -INF, 2, 3],
        [1, NAN, 2, INF, 3],
        [-INF, -INF, 1, 2, 3],
        [0, -0.0, 0, 0, 0],
    ]
    return torch.tensor(rows).to(dtype)


def reduction_calls() -> Iterator[Call]:
    for dtype in ALL:
        x, sums = matrix(dtype), terms(dtype)
        for dim, keep, strided in itertools.product(([0], [1], [0, 1], [-1]), (False, True), (False, True)):
            more = {"self": In(0), "dim": dim, "keepdim": keep}
            for op in ("aten.amax.default", "aten.amin.default", "aten.any.dims"):
                yield Call(op, [x], more, strided=strided)
            yield Call("aten.sum.dim_IntList", [sums], more, False, strided)
            yield Call("aten.mean.dim", [sums], more, False, strided)
            yield Call("aten.linalg_vector_norm.default", [sums], more, False, strided)
            if len(dim) == 1:
                yield Call("aten.any.dim", [x], {**more, "dim": dim[0]}, strided=strided)
                yield Call("aten.cumsum.default", [sums], {"self": In(0), "dim": dim[0]}, False, strided)
        for other in ALL:
            x = sums
            if other.is_floating_point and not dtype.is_floating_point:
                x = (torch.arange(20).reshape(4, 5) % 7).to(dtype)
            yield Call("aten.sum.dim_IntList", [x], {"self": In(0), "dim": [1], "dtype": other}, False)
            yield Call("aten.cumsum.default", [x], {"self": In(0), "dim": 0, "dtype": other}, False)
            yield Call("aten.mean.dim", [x], {"self": In(0), "dim": [0], "dtype": other}, False)
            yield Call("aten.mean.default", [x], {"self": In(0), "dtype": other}, False)
        x = matrix(dtype)
        for op in ("aten.any.default", "aten.amax.default", "aten.amin.default"):
            yield Call(op, [x], {"self": In(0)})
        yield Call("aten.any.default", [torch.zeros(3, 4, dtype=dtype)], {"self": In(0)})
        yield Call("aten.mean.default", [sums], {"self": In(0)}, False)
        for order in (INF, 1, 0, 2.0, -INF):
            yield Call("aten.linalg_vector_norm.default", [sums], {"self": In(0), "ord": order, "dim": [1]}, False)
        if dtype in (torch.float32, torch.int32):  # in float16 the numbers are infinite and their sums NaN
            for op, dim in (("aten.sum.dim_IntList", [0]), ("aten.cumsum.default", 0)):
                far = torch.tensor([70000, -70000, 1]).to(dtype)
                yield Call(op, [far], {"self": In(0), "dim": dim, "dtype": torch.float16})
        if dtype == torch.float32:  # sums in float32 alone would give 0 and infinity
            far = torch.tensor([[1e8, 1, -1e8, 3], [3e38, 3e38, -3e38, -3e38]])
            yield Call("aten.cumsum.default", [far], {"self": In(0), "dim": 1})
            yield Call("aten.cumsum.default", [far.t().contiguous()], {"self": In(0), "dim": 0})


def top_k_calls() -> Iterator[Call]:
    for dtype, largest, strided in itertools.product(ALL, (True, False), (True, False)):
        x = matrix(dtype)
        for k, dim in itertools.product((1, 3, 5), (-1, 0)):
            if k <= x.shape[dim]:
                yield Call(
                    "aten.topk.default", [x], {"self": In(0), "k": k, "dim": dim, "largest": largest}, strided=strided
                )
        yield Call("aten.topk.default", [values(dtype)], {"self": In(0), "k": len(values(dtype)), "largest": largest})
    large = torch.tensor([1700000001, 1700000000, 1700000003, 3, 2**31 - 1, -(2**31)])
    for dtype, largest in itertools.product((torch.int32, torch.int64), (True, False)):
        for x in (large.to(dtype), large.roll(2).to(dtype)):
            yield Call("aten.topk.default", [x], {"self": In(0), "k": 3, "largest": largest})


def row_calls() -> Iterator[Call]:
    """Yields calls of softmax and norms."""
    rows = [
        [1.5, -0.5, 3, 0.25],
        [-INF, 1, 2, 3],
        [-INF] * 4,
        [INF, 1, 2, 3],
        [NAN, 1, 2, 3],
        [3e4, -3e4, 0, 1],
        [1e-3, 2e-3, -1e-3, 0],
        [0.0] * 4,
    ]
    for dtype, strided in itertools.product(ALL, (False, True)):
        x = (
            torch.tensor(rows).nan_to_num(0, 5, -5).to(dtype)
            if not dtype.is_floating_point
            else torch.tensor(rows).to(dtype)
        )
        for op, dim in itertools.product(("aten._softmax.default", "aten._log_softmax.default"), (0, 1)):
            yield Call(op, [x], {"self": In(0), "dim": dim, "half_to_float": False}, False, strided, sums=True)
        weight, bias = torch.tensor([1.0, 0.5, -2, 3]).to(dtype), torch.tensor([0.0, 1, 2, -1]).to(dtype)
        for more, inputs in (({}, [x]), ({"weight": In(1)}, [x, weight])):
            yield Call(
                "aten.rms_norm.default",
                inputs,
                {"input": In(0), "normalized_shape": [4], **more},
                False,
                strided,
                sums=True,
            )
            more = {"bias": In(2), **more} if more else more
            inputs = [*inputs, bias] if more else inputs
            yield Call(
                "aten.layer_norm.default",
                inputs,
                {"input": In(0), "normalized_shape": [4], **more},
                False,
                strided,
                sums=True,
            )
        yield Call("aten.layer_norm.default", [x], {"input": In(0), "normalized_shape": [8, 4]}, False, sums=True)
        yield Call("aten.rms_norm.default", [x], {"input": In(0), "normalized_shape": [8, 4]}, False, sums=True)
        image = x.reshape(2, 4, 2, 2)
        yield Call(
            "aten.group_norm.default",
            [image, weight, bias],
            {"input": In(0), "num_groups": 2, "weight": In(1), "bias": In(2)},
            False,
            sums=True,
        )
        yield Call("aten.group_norm.default", [x.reshape(8, 4)], {"input": In(0), "num_groups": 2}, False, sums=True)
        if dtype in (torch.float16, torch.bfloat16):
            yield Call("aten._softmax.default", [x], {"self": In(0), "dim": 1, "half_to_float": True}, False, sums=True)


def movement_calls() -> Iterator[Call]:
    for dtype, strided in itertools.product(ALL, (False, True)):
        x = matrix(dtype)
        columns = x.shape[1]
        moves = [
            ("aten.expand.default", {"size": [2, -1, -1]}),
            ("aten.permute.default", {"dims": [1, 0]}),
            ("aten.select.int", {"dim": -1, "index": -2}),
            ("aten.slice.Tensor", {"dim": 1, "start": 1, "end": -1, "step": 2}),
            ("aten.slice.Tensor", {"dim": 0, "start": -3, "end": 2**62}),
            ("aten.split_with_sizes.default", {"split_sizes": [1, columns - 1], "dim": 1}),
            ("aten.unsqueeze.default", {"dim": -1}),
            ("aten.view.default", {"size": [2, -1]}),
        ]
        for op, more in moves:
            yield Call(op, [x], {"self": In(0), **more}, strided=strided and "view" not in op)
        yield Call("aten.squeeze.dims", [x[None]], {"self": In(0), "dim": [0, 1]})
        for scale in (2, 3):
            image = x[:, :4].reshape(1, 2, 2, 4)
            yield Call("aten.upsample_nearest2d.default", [image], {"self": In(0), "output_size": [2 * scale, 7]})
        for other in ALL:
            yield Call("aten.cat.default", [x, matrix(other)], {"tensors": [In(0), In(1)], "dim": 1}, strided=strided)
        for ids in ALL:
            one = torch.tensor([2, 0, 3, 1]).to(ids)
            yield Call(
                "aten.index_select.default", [x, one], {"self": In(0), "dim": 0, "index": In(1)}, strided=strided
            )
            if ids not in (torch.bool, torch.uint8):  # PyTorch treats those as masks
                yield Call("aten.index.Tensor", [x, one], {"self": In(0), "indices": [In(1)]}, strided=strided)
            yield Call(
                "aten.gather.default", [x, one[None]], {"self": In(0), "dim": 0, "index": In(1)}, strided=strided
            )
            yield Call("aten.embedding.default", [x, one], {"weight": In(0), "indices": In(1)}, strided=strided)
        negative = torch.tensor([-1, 0, -4])
        yield Call("aten.index.Tensor", [x, negative], {"self": In(0), "indices": [In(1)]})


def matrix_calls() -> Iterator[Call]:
    rows = torch.tensor([[1.5, -0.5, 3], [INF, 1, 0], [NAN, 0, 1], [0, -INF, 2]])
    for a, b in itertools.product(ALL, ALL):
        left = (rows if a.is_floating_point else rows.nan_to_num(7, 5, -9)).to(a)
        right = torch.tensor([[0.5, -2, 0], [1, 0, 3], [2, 1, -1]]).to(b)
        bias = torch.tensor([NAN, 1, -INF] if b.is_floating_point else [5, 1, -2]).to(b)
        yield Call("aten.mm.default", [left, right], {"self": In(0), "mat2": In(1)}, False, sums=True)
        yield Call("aten.bmm.default", [left[None], right[None]], {"self": In(0), "mat2": In(1)}, False, sums=True)
        yield Call("aten.linear.default", [left, right], {"input": In(0), "weight": In(1)}, False, sums=True)
        yield Call(
            "aten.linear.default",
            [left, right, bias],
            {"input": In(0), "weight": In(1), "bias": In(2)},
            False,
            sums=True,
        )
        for more in ({}, {"beta": 0}, {"beta": 2, "alpha": 3}):
            yield Call(
                "aten.addmm.default",
                [bias, left, right],
                {"self": In(0), "mat1": In(1), "mat2": In(2), **more},
                False,
                sums=True,
            )
        image, kernel = left.reshape(1, 3, 2, 2), torch.tensor([[1.0, 2, -1], [0.5, 1, 3]]).to(b).reshape(2, 3, 1, 1)
        more = {
            "bias": None,
            "stride": [1, 1],
            "padding": [1, 1],
            "dilation": [1, 1],
            "transposed": False,
            "output_padding": [0, 0],
            "groups": 1,
        }
        yield Call(
            "aten.convolution.default",
            [image, kernel],
            {"input": In(0), "weight": In(1), **more},
            False,
            sums=True,
            weights=(1,),
        )


def attention_calls() -> Iterator[Call]:
    generator = torch.Generator().manual_seed(0)
    for dtype in ALL:
        query, key, value = (torch.randn(1, 2, size, 4, generator=generator).to(dtype) for size in (3, 5, 5))
        truth = torch.ones(3, 5, dtype=torch.bool).tril()
        truth[1] = False  # a row that attends to nothing
        numbers = torch.where(truth, 0.0, -INF).to(dtype)
        parts = {"query": In(0), "key": In(1), "value": In(2)}
        for mask in (truth, numbers, numbers.clamp(min=torch.finfo(dtype).min) if dtype.is_floating_point else truth):
            yield Call(
                "aten.scaled_dot_product_attention.default",
                [query, key, value, mask],
                {**parts, "attn_mask": In(3)},
                False,
                sums=True,
            )
        for more in ({}, {"is_causal": True}, {"scale": 0.0}, {"scale": 1.0}):
            yield Call(
                "aten.scaled_dot_product_attention.default", [query, key, value], {**parts, **more}, False, sums=True
            )
        if dtype.is_floating_point:
            value = value.clone()
            value[0, 0, 2, 1], value[0, 1, 0, 0] = NAN, INF
            yield Call("aten.scaled_dot_product_attention.default", [query, key, value], parts, False, sums=True)


FAMILIES = {
    "functions": unary_calls,
    "two operands": binary_calls,
    "a number": number_calls,
    "where": where_calls,
    "reductions": reduction_calls,
    "best elements": top_k_calls,
    "rows": row_calls,
    "movement": movement_calls,
    "matrices": matrix_calls,
    "attention": attention_calls,
}


def all_calls() -> Iterator[Call]:
    for family in FAMILIES.values():
        yield from family()
