"""Engines compute PyTorch's numbers for every op and dtype that they accept, including special ones: infinite, NaN,
zero of either sign, beyond 2^24, at the limits of a dtype."""

import itertools

import pytest

import accord

torch = pytest.importorskip("torch")
from op_cases import FAMILIES, all_calls  # noqa: E402
from op_devices import compare_on_device  # noqa: E402
from op_values import Call, In, compare, run_on_cpu  # noqa: E402

from accord.graph.ops import ARGUMENTS  # noqa: E402


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_matches_pytorch(family):
    tally = compare(FAMILIES[family]())
    print(f"{family}: {tally}")
    assert tally.equal > 0
    assert not tally.wrong, str(tally)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_device_matches_pytorch(every, torch_device_process, tmp_path):
    tally = compare_on_device(itertools.islice(all_calls(), 0, None, every), torch_device_process, tmp_path)
    print(f"every {every}: {tally}")
    assert tally.equal > 0
    assert not tally.wrong, str(tally)


def test_every_op_is_called():
    # They are not single ops of PyTorch. engine/test_ops.py covers them.
    apart = {op for op in ARGUMENTS if op.startswith("accord.")}
    exchanges = {op for op in ARGUMENTS if op.startswith("_c10d_functional.")}
    assert {call.op for call in all_calls()} == set(ARGUMENTS) - apart - exchanges


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_an_integer_divided_by_zero_is_an_error_that_names_the_op(mode, dtype):
    x = torch.tensor([1, 2, 3], dtype=dtype)
    for other in (In(1), 0):
        call = Call(
            "aten.div.Tensor_mode",
            [x, x - 2][: 2 if other else 1],
            {"self": In(0), "other": other, "rounding_mode": mode},
        )
        assert call.expected() is None
        with pytest.raises(accord.InvalidArgument, match="zero"):
            run_on_cpu(call, [x])


def test_a_negative_id_is_an_error_although_pytorch_accepts_it():
    x, ids = torch.arange(12.0).reshape(4, 3), torch.tensor([0, -1])
    for op, arguments in (
        ("aten.index_select.default", {"self": In(0), "dim": 0, "index": In(1)}),
        ("aten.embedding.default", {"weight": In(0), "indices": In(1)}),
    ):
        with pytest.raises(accord.InvalidArgument, match=r"id -1 at position 1 is outside \[0, 4\)"):
            run_on_cpu(Call(op, [x, ids], arguments), [torch.zeros(2, 3)])
