"""Calls of every engine op, for each dtype, over values at which kernels tend to go wrong. Tests compare them with
eager PyTorch.

A Call is one node of a graph: an ATen op, its arguments, and the inputs among them. Its expected result is what
PyTorch returns for the same call.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

import accord
from accord.graph.builder import DTYPES

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool)

# fmt: off
REAL = [
    NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 0.5, -0.5, 1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0, 6.0, -6.0, 7.25, 1e-40,
    -1e-40, 1e-30, 6e-8, 255.9, 300.0, -300.7, 2048.0, 2049.0, 65504.0, 65520.0, -70000.0, 16777216.0, 16777219.0, 2147483648.0,
    -2147483648.0, 3e9, 9.3e18, -9.3e18, 3e38, -3e38, 88.8, -88.0, 103.0, 0.30078125,
]
WHOLE = [
    0, 1, -1, 2, -2, 3, -3, 7, -7, 10, 40, 127, 128, 255, 256, 2049, 16777217, -16777219, 1700000000, 1700000001, 1700000003,
    -1700000001, 2**31 - 1, -(2**31), -(2**31) + 1, 65535,
]
WIDER = [2**31, 2**32 + 1, 2**53 + 1, -(2**53) - 1, 2**62 + 1, 2**63 - 1, -(2**63), -(2**63) + 1, 6000000001]
SCALARS = [0, 1, -1, 2, 3, 16777217, 2**31 - 1, 300, -7, 0.0, -0.0, 0.3, 2.5, -2.5, 0.5, 1.0, 3.0, 1e30, INF, -INF, NAN, True, False]
# fmt: on


def values(dtype: torch.dtype) -> torch.Tensor:
    """Returns the special values of a dtype."""
    if dtype.is_floating_point:
        return torch.tensor(REAL, dtype=torch.float64).to(torch.float32).to(dtype)
    if dtype == torch.bool:
        return torch.tensor([True, False, True, True, False])
    if dtype == torch.uint8:
        return torch.tensor([0, 1, 2, 3, 7, 100, 127, 128, 254, 255], dtype=dtype)
    return torch.tensor(WHOLE + (WIDER if dtype == torch.int64 else []), dtype=dtype)


def matrix(dtype: torch.dtype) -> torch.Tensor:
    """[4, n]: the special values, each row in a different order."""
    one = values(dtype)
    return torch.stack([one.roll(3 * i) if i % 2 else one.flip(0).roll(i) for i in range(4)])


@dataclass(frozen=True)
class In:
    """The number of an input of the call."""

    number: int


@dataclass
class Call:
    op: str  # for example aten.add.Tensor
    inputs: list[torch.Tensor]
    arguments: dict
    exact: bool = True
    # strided: two-dimensional inputs are views of their transposes. sums: the outputs are sums, whose result may be
    # small compared with the terms. weights: the inputs that are parameters of the graph.
    strided: bool = False
    sums: bool = False
    label: str = ""
    weights: tuple[int, ...] = ()

    def __str__(self) -> str:
        dtypes = ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in self.inputs)
        rest = {name: one for name, one in self.arguments.items() if not isinstance(one, (In, list))}
        return f"{self.op}({dtypes}; {rest}{', strided' if self.strided else ''}{self.label})"

    def expected(self) -> list[torch.Tensor] | None:
        """Returns PyTorch's result, or None if PyTorch raises an error."""
        _, name, overload = self.op.split(".")
        try:
            result = getattr(getattr(aten, name), overload)(
                **{key: self._given(one) for key, one in self.arguments.items()}
            )
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return None
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def _given(self, one):
        if isinstance(one, In):
            return self.inputs[one.number]
        if isinstance(one, list) and any(isinstance(item, In) for item in one):
            return [self._given(item) for item in one]
        return one

    def graph(self, outputs: list[torch.Tensor]) -> dict:
        """Returns the graph.json of this one node."""
        inputs, parameters, nodes, names = [], [], [], []
        for number, tensor in enumerate(self.inputs):
            names.append(f"x{number}")
            turned = self.strided and tensor.dim() == 2
            shape = list(tensor.t().shape if turned else tensor.shape)
            given = {"name": f"given{number}" if turned else names[-1], "dtype": DTYPES[tensor.dtype], "shape": shape}
            if number in self.weights:
                parameters.append({**given, "tensor": given["name"]})
            else:
                inputs.append(given)
            if turned:
                arguments = {"self": {"value": given["name"]}, "dims": [1, 0]}
                nodes.append(self._node("aten.permute.default", arguments, [described(names[-1], tensor)]))
        made = [described(f"y{number}", tensor) for number, tensor in enumerate(outputs)]
        arguments = {name: encoded(one, names) for name, one in self.arguments.items()}
        nodes.append(self._node(self.op, arguments, made))
        return {
            "symbols": [],
            "inputs": inputs,
            "parameters": parameters,
            "nodes": nodes,
            "outputs": [one["name"] for one in made],
        }

    def _node(self, op: str, arguments: dict, outputs: list[dict]) -> dict:
        return {"op": op, "arguments": arguments, "outputs": outputs, "module": "layer", "source": "model.py:7"}

    def given(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the inputs as an engine of graph() takes them, and its weights."""
        turned = [one.t() if self.strided and one.dim() == 2 else one for one in self.inputs]
        inputs = [one.contiguous() for number, one in enumerate(turned) if number not in self.weights]
        return inputs, {f"x{number}": self.inputs[number].contiguous() for number in self.weights}


def described(name: str, tensor: torch.Tensor) -> dict:
    return {"name": name, "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}


def encoded(one, names: list[str]):
    """Encodes an argument as in graph.json."""
    if isinstance(one, In):
        return {"value": names[one.number]}
    if isinstance(one, torch.dtype):
        return {"dtype": DTYPES[one]}
    if isinstance(one, float) and not math.isfinite(one):
        return {"float": str(one)}
    if isinstance(one, list) and any(isinstance(item, In) for item in one):
        return {"values": [None if item is None else names[item.number] for item in one]}
    return one


@dataclass
class Tally:
    """Counts the outcomes of the calls."""

    equal: int = 0
    no_reference: int = 0  # calls for which PyTorch raises an error
    refused: dict[tuple[str, str], str] = field(default_factory=dict)  # (op, dtypes) -> reason
    wrong: list[str] = field(default_factory=list)

    def refuse(self, call: Call, why: str) -> None:
        dtypes = ", ".join(str(one.dtype).removeprefix("torch.") for one in call.inputs)
        self.refused.setdefault((call.op, dtypes), why)

    def __str__(self) -> str:
        wrong = "".join(f"\n  {one}" for one in self.wrong[:40])
        return (
            f"{self.equal} calls equal to PyTorch, {len(self.refused)} pairs of op and dtypes refused, {self.no_reference} calls that "
            f"PyTorch refuses, {len(self.wrong)} wrong{wrong}"
        )


def run_on_cpu(call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs the call in an engine. Raises the engine's errors."""
    inputs, weights = call.given()
    with accord.Engine.assemble(json.dumps(call.graph(outputs)), weights, threads=2) as engine:
        engine.bind()
        return [torch.from_dlpack(one).clone() for one in engine.run(*inputs)]


def compare(calls: Iterator[Call], run=run_on_cpu) -> Tally:
    """Runs each call in an engine and in PyTorch, and compares the results."""
    tally = Tally()
    for call in calls:
        expected = call.expected()
        if expected is None or any(one.dtype not in DTYPES for one in expected):
            tally.no_reference += 1
            continue
        try:
            found = run(call, expected)
        except (accord.Unsupported, accord.Corrupt) as error:
            tally.refuse(call, str(error))
            continue
        except accord.Error as error:
            tally.wrong.append(f"{call}: {error}")
            continue
        difference = difference_of(call, found, expected)
        if difference:
            tally.wrong.append(f"{call}: {difference}")
        else:
            tally.equal += 1
    return tally


def difference_of(call: Call, found: list[torch.Tensor], expected: list[torch.Tensor]) -> str | None:
    return (top_k_differs if call.op == "aten.topk.default" else differ)(call, found, expected)


def differ(call: Call, found: list[torch.Tensor], expected: list[torch.Tensor]) -> str | None:
    """Describes the first difference, or returns None if there is none."""
    return next(filter(None, (differs(call, *pair) for pair in zip(found, expected, strict=True))), None)


def top_k_differs(call: Call, found: list[torch.Tensor], expected: list[torch.Tensor]) -> str | None:
    """PyTorch does not define the order of equal elements, so the indices must select the right values, each index
    once."""
    x, dim = call.inputs[0], call.arguments.get("dim", -1)
    ordered = found[1].sort(dim).values
    apart = ordered.narrow(dim, 1, ordered.shape[dim] - 1) != ordered.narrow(dim, 0, ordered.shape[dim] - 1)
    if not apart.all():
        return "an index occurs twice"
    return differs(call, found[0], expected[0]) or differs(call, x.gather(dim, found[1]), expected[0])


def differs(call: Call, found: torch.Tensor, expected: torch.Tensor) -> str | None:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype}{list(found.shape)} instead of {expected.dtype}{list(expected.shape)}"
    close = equal(found, expected)
    if not call.exact and expected.is_floating_point():
        eps = torch.finfo(expected.dtype).eps
        step = (16 if expected.dtype == torch.float32 else 2) * eps
        least = 1e-7
        if call.sums:
            least = 8 * eps if expected.dtype == torch.float32 else eps / 4
        both = found.isfinite() & expected.isfinite()
        near = (found.double() - expected.double()).abs() <= step * expected.double().abs() + least
        close |= both & near
    if close.all():
        return None
    at = tuple(int(i) for i in (~close).nonzero()[0])
    try:
        operands = [one.broadcast_to(expected.shape)[at].item() for one in call.inputs]
    except RuntimeError:
        operands = []
    return f"{found[at].item()} instead of {expected[at].item()} at {at} of {operands}"


def equal(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    same = found == expected
    return same | (found.isnan() & expected.isnan()) if expected.is_floating_point() else same
