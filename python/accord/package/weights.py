"""The layout and precision of a product's weights in a package.

A matrix is packed (stored in the layout that products read) if only linear layers use it (an embedding may also read
its rows), or only mm and addmm do. The matrices of experts and the weights of convolutions are packed, too, and the
table of an embedding if it is already quantized. A packed matrix keeps its dtype, or is quantized to 8 or 4 bits,
where groups of an output's inputs share a scale. As 8-bit floats, which GPUs multiply with, it is stored row-major
with a scale for each output or for each group of its inputs.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from accord.graph.errors import ExportError
from accord.package.codes import Quantized
from accord.package.expert_codes import QuantizedExperts, QuantizedStack
from accord.package.float8_codes import FLOAT8, Float8Codes, Float8Experts
from accord.package.formats import GROUPS, NAMED, Format, Fp8, Int4, Int8
from accord.package.sharding import DIVIDED, EMBEDDING, EXPERTS, HEAD_LINEAR, LINEAR, TensorSharding, pattern_matcher

if TYPE_CHECKING:
    import torch

    from accord.graph.builder import ExportedGraph

PRODUCTS = ("aten.mm.default", "aten.addmm.default")
CONVOLUTION = "aten.convolution.default"
PADDED_OUTPUTS = 16  # the number of a matrix's outputs is padded to a multiple of this
LARGEST_FLOAT8 = 448.0


@dataclass(frozen=True)
class Packing:
    """How a tensor is stored in its file: docs/engine-format.md, "packed"."""

    type: str  # float32, bfloat16, float16, int8, int6, int5, int4, table4, float8_e4m3fn
    transposed: bool = False  # the tensor is [in, out]
    group: int = 0
    minima: bool = False
    scales: str = "float16"  # float16, float32 or, for integers, int8; float32 for float8_e4m3fn
    table: tuple[float, ...] | None = None  # of table4: the number that each code stands for
    groups: int = 0  # of a convolution, [out, in, ..], which is packed as [groups, out / groups, .. * in]
    # Its codes, if it is already quantized.
    quantized: Quantized | QuantizedStack | Float8Codes | None = field(default=None, compare=False, repr=False)

    @property
    def rounds(self) -> bool:
        """True if packed weights differ from the original ones."""
        return self.group > 0 or self.type == FLOAT8

    def entry(self, error: float | None) -> dict:
        """Returns the entry of the manifest."""
        entry: dict = {"type": self.type}
        if self.transposed:
            entry["transposed"] = True
        if self.groups:
            entry["groups"] = self.groups
        if self.group:
            entry |= {"group": self.group, "scales": self.scales, "minima": self.minima, "error": error}
            entry |= {"table": list(self.table)} if self.table else {}
        elif self.rounds:
            entry |= {"scales": self.scales, "error": error}
        return entry


class PackedTensor:
    """A matrix, or the matrices of experts or of a convolution's groups, in units that are packed as they are
    written."""

    def __init__(self, tensor: torch.Tensor, packing: Packing, sharding: TensorSharding | None):
        self.tensor, self.packing, self.sharding = tensor, packing, sharding
        out, *inputs = unit = list(tensor.shape)
        if packing.groups:
            unit = [packing.groups, out // packing.groups, math.prod(inputs)]
        if sharding:
            unit[sharding.dim] = sharding.unit
        *matrices, rows, columns = unit
        self._unit_shape = rows, columns
        self._matrices = math.prod(matrices)
        self.units = math.ceil(tensor.shape[sharding.dim] / sharding.unit) if sharding else 1
        self._squares = self._square_errors = 0.0

    def unit_bytes(self) -> int:
        from accord import _core

        out, in_ = reversed(self._unit_shape) if self.packing.transposed else self._unit_shape
        size = _core.packed_bytes(out, in_, **self._format())
        return -(-size // 64) * 64 * self._matrices

    def packed_units(self) -> Iterator[memoryview]:
        """Yields the bytes of each unit; a shorter last unit is padded with zeros."""
        return self._units_of_numbers() if self.packing.quantized is None else self._units_of_codes()

    def _units_of_codes(self) -> Iterator[memoryview]:
        import numpy as np

        from accord import _core

        rows, _ = self._unit_shape
        for number in range(self.units):
            unit = self.packing.quantized.unit(self.sharding, number)
            packed = np.zeros((self._matrices, self.unit_bytes() // self._matrices), np.uint8)
            codes, scales, minima, super_scales, super_minima = (
                [None] * self._matrices
                if part is None
                else np.ascontiguousarray(part).reshape(self._matrices, rows, -1)
                for part in (unit.codes, unit.scales, unit.minima, unit.super_scales, unit.super_minima)
            )
            for i in range(self._matrices):
                _core.pack_quantized(
                    codes[i],
                    scales[i],
                    minima[i],
                    packed[i],
                    type=unit.type,
                    group=unit.group,
                    scale_type=unit.scale_type,
                    super_scales=super_scales[i],
                    super_minima=super_minima[i],
                    table=unit.table,
                )
            yield memoryview(packed.reshape(-1))

    def _units_of_numbers(self) -> Iterator[memoryview]:
        import numpy as np
        import torch

        from accord import _core

        # The channels at each position of a convolution's kernel are adjacent, as in the rows that are multiplied
        # with it.
        tensor = self.tensor.flatten(2).transpose(1, 2) if self.packing.groups else self.tensor
        tensor = tensor.reshape(-1, *self._unit_shape) if self.packing.groups else tensor
        pieces = tensor.split(self.sharding.unit, self.sharding.dim) if self.sharding else (tensor,)
        for piece, scales in zip(pieces, self._scales_of_pieces(tensor), strict=True):
            short = self._unit_shape[0] - piece.shape[-2], self._unit_shape[1] - piece.shape[-1]
            if any(short):
                piece = torch.nn.functional.pad(piece, (0, short[1], 0, short[0]))
            packed = np.zeros((self._matrices, self.unit_bytes() // self._matrices), np.uint8)
            matrices = piece.reshape(-1, *self._unit_shape)
            for matrix, of_outputs, to in zip(matrices, scales, packed, strict=True):
                _, relative = _core.pack_matrix(
                    matrix.cpu().contiguous(),
                    to,
                    transposed=self.packing.transposed,
                    row_scales=of_outputs,
                    **self._format(),
                )
                if self.packing.rounds:
                    squares = float(matrix.double().square().sum())
                    self._squares += squares
                    self._square_errors += relative**2 * squares
            yield memoryview(packed.reshape(-1))

    def _scales_of_pieces(self, tensor: torch.Tensor) -> list[list[torch.Tensor | None]]:
        """For float8: returns the scales [out, groups] of each piece and each of its matrices. If a group is all
        inputs of an output, the pieces of an output share its scale."""
        if self.packing.type != FLOAT8:
            return [[None] * self._matrices] * self.units
        import torch

        pad = torch.nn.functional.pad
        in_dim = tensor.dim() - (2 if self.packing.transposed else 1)
        group = self.packing.group or tensor.shape[in_dim]
        of_inputs = tensor.detach().abs().movedim(in_dim, -1)
        groups = pad(of_inputs, (0, -of_inputs.shape[-1] % group)).unflatten(-1, (-1, group))
        scales = groups.amax(-1).movedim(-1, in_dim).float().cpu() / LARGEST_FLOAT8
        pieces = [scales] * self.units
        if self.sharding and (self.packing.group or self.sharding.dim != in_dim):
            each = group if self.sharding.dim == in_dim else 1
            pieces = scales.split(self.sharding.unit // each, self.sharding.dim)
        outputs, inputs = reversed(self._unit_shape) if self.packing.transposed else self._unit_shape
        count = -(-inputs // group) if self.packing.group else 1
        moved = [piece.movedim(in_dim, -1) for piece in pieces]
        filled = [pad(piece, (0, count - piece.shape[-1], 0, outputs - piece.shape[-2])) for piece in moved]
        return [list(piece.reshape(self._matrices, outputs, count).contiguous()) for piece in filled]

    def error(self) -> float | None:
        """Returns the quantization error, after all units are packed: sqrt(sum (packed - given)^2 / sum given^2)."""
        if not self.packing.rounds:
            return None
        return math.sqrt(self._square_errors / self._squares) if self._squares else 0.0

    def _format(self) -> dict:
        packing = self.packing
        return {
            "type": packing.type,
            "group": packing.group,
            "scales": packing.scales,
            "minima": packing.minima,
            "table": packing.table,
        }


def plan_packings(
    parts: Sequence[tuple[ExportedGraph, Mapping[str, TensorSharding]]],
    weights: str
    | Mapping[str, str | Format | Quantized | QuantizedStack | Float8Codes | Float8Experts | QuantizedExperts]
    | None,
) -> list[dict[str, Packing]]:
    """Returns, for each graph, the packing of each tensor that only products use. parts: graphs with the shardings of
    their tensors. A pattern of `weights` that applies to no layer is an error."""
    decided: set[str] = set()
    layers: set[str] = set()
    planned = [_plan_packing(graph, shardings, weights, decided, layers) for graph, shardings in parts]
    if isinstance(weights, Mapping):
        for pattern in weights:
            if pattern not in decided:
                raise ExportError(_nothing_matched(pattern, sorted(layers)))
    return planned


def _plan_packing(
    graph: ExportedGraph, shardings: Mapping[str, TensorSharding], weights, decided: set[str], layers: set[str]
) -> dict[str, Packing]:
    """Plans one graph. Adds to `decided` the patterns that applied, and to `layers` the layers with packed weights."""
    modules, convolutions = _modules_of(graph), _convolution_groups(graph)
    packings = {}
    for name, tensor in graph.tensors.items():
        uses = [(op, argument) for op, argument, _ in graph.uses[name]]
        of_layers = (LINEAR, "weight") in uses and set(uses) <= {(LINEAR, "weight"), (EMBEDDING, "weight")}
        of_products = all(op in PRODUCTS and argument == "mat2" for op, argument in uses)
        of_experts = all(op == EXPERTS and argument in DIVIDED[EXPERTS] for op, argument in uses)
        of_heads = set(uses) == {(HEAD_LINEAR, "weight")}
        groups = _packed_groups(tensor, uses, convolutions[name])
        dims = tensor.dim() if groups else 3 if of_experts or of_heads else 2
        of_rows = set(uses) == {(EMBEDDING, "weight")}
        packed = of_layers or of_products or of_experts or of_heads or of_rows or groups
        if tensor.dim() != dims or not tensor.is_floating_point() or not packed:
            continue
        is_head = (EMBEDDING, "weight") in uses or any(
            module.rsplit(".", 1)[-1] == "lm_head" for module in modules[name]
        )
        found: set[str] = set()
        wanted = _wanted(weights, modules[name], is_head, found)
        if of_rows and not isinstance(wanted, Quantized):
            continue  # its numbers are not rounded
        decided |= found
        if of_heads and isinstance(wanted, Fp8):
            wanted = None
        if isinstance(wanted, (Float8Experts, QuantizedExperts)):
            wanted = wanted.matrices.get(name.rpartition(".")[2])
        packings[name] = _packing(wanted, tensor, shardings.get(name), of_products, groups)
        layers.update(modules[name])
    return packings


def _packed_groups(tensor: torch.Tensor, uses: list[tuple[str, str]], convolutions: set[int]) -> int:
    """Returns the number of groups of the convolution that a weight is packed for, or 0 if it is not packed. Groups
    of few outputs (a depthwise convolution's have one each) would be padded to many times their size: they stay
    row-major, and are packed when they are loaded."""
    if set(uses) != {(CONVOLUTION, "weight")} or len(convolutions) != 1:
        return 0
    (groups,) = convolutions
    return groups if groups == 1 or tensor.shape[0] // groups >= PADDED_OUTPUTS else 0


def _convolution_groups(graph: ExportedGraph) -> dict[str, set[int]]:
    """Returns tensor -> the numbers of groups of the convolutions that use it as their weight."""
    tensor_of = {parameter["name"]: parameter["tensor"] for parameter in graph.document["parameters"]}
    groups: dict[str, set[int]] = {name: set() for name in graph.tensors}
    for node in graph.document["nodes"]:
        if node["op"] == CONVOLUTION:
            name = tensor_of.get(node["arguments"]["weight"]["value"])
            if name is not None:
                groups[name].add(node["arguments"].get("groups", 1))
    return groups


def _modules_of(graph: ExportedGraph) -> dict[str, list[str]]:
    """Returns tensor -> the modules that use it."""
    tensor_of = {parameter["name"]: parameter["tensor"] for parameter in graph.document["parameters"]}
    modules: dict[str, list[str]] = {name: [] for name in graph.tensors}
    for node in graph.document["nodes"]:
        for value in node["arguments"].values():
            name = tensor_of.get(value.get("value")) if isinstance(value, dict) else None
            if name is not None:
                modules[name].append(node["module"])
    return modules


def _wanted(
    weights, modules: list[str], is_head: bool, decided: set[str]
) -> Format | Quantized | QuantizedStack | Float8Codes | Float8Experts | QuantizedExperts | None:
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        wanted = _format(weights)
        # The head, and a table that is also a head, are small compared with the layers and matter most.
        return Int8() if is_head and isinstance(wanted, Int4) else wanted
    for pattern, given in weights.items():
        matcher = pattern_matcher(pattern)
        if any(matcher.fullmatch(module) for module in modules):
            decided.add(pattern)
            return _format(given)
    return None


def _format(given) -> Format | Quantized | QuantizedStack | Float8Codes | Float8Experts | QuantizedExperts | None:
    if isinstance(given, (Fp8, Quantized, QuantizedStack, Float8Codes, Float8Experts, QuantizedExperts)):
        return given
    if isinstance(given, (Int8, Int4)):
        if given.group not in GROUPS:
            raise ExportError(f"weights in groups of {given.group}: groups are of 32, 64 or 128 inputs")
        if isinstance(given, Int4) and not isinstance(given.minima, bool):
            raise ExportError(f"weights with minima {given.minima!r}: give True or False")
        return given
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    near = difflib.get_close_matches(str(given), NAMED, n=1)
    hint = (
        f'did you mean "{near[0]}"?'
        if near
        else 'there are "int8", "int4", "fp8" and "same", accord.Int8, accord.Int4 and accord.Fp8'
    )
    raise ExportError(f"weights: {given!r} is not a format of weights; {hint}")


def _packing(wanted, tensor: torch.Tensor, sharding: TensorSharding | None, transposed: bool, groups: int) -> Packing:
    if wanted is None or (isinstance(wanted, Fp8) and groups):
        return Packing(str(tensor.dtype).removeprefix("torch."), transposed, groups=groups)
    if isinstance(wanted, Quantized):
        return _packing_of_codes(wanted, tensor, sharding)
    if isinstance(wanted, QuantizedStack):
        return wanted.packing(sharding, lambda codes, divided: _packing_of_codes(codes, tensor[0], divided))
    if isinstance(wanted, Float8Codes):
        return _packing_of_float8(wanted, tensor, sharding)
    if isinstance(wanted, Fp8):
        return Packing(FLOAT8, transposed, scales="float32")
    in_dim = tensor.dim() - (2 if transposed else 1)
    inputs = sharding.unit if sharding and sharding.dim == in_dim else tensor.shape[in_dim]
    if groups:
        inputs = math.prod(tensor.shape[1:])
    # A group ends with its unit; the rest of it would be stored for nothing.
    group = next((size for size in GROUPS if size <= wanted.group and inputs % size == 0), 32)
    name = "int8" if isinstance(wanted, Int8) else "int4"
    return Packing(name, transposed, group, getattr(wanted, "minima", False), groups=groups)


def _packing_of_codes(quantized: Quantized, tensor: torch.Tensor, sharding: TensorSharding | None) -> Packing:
    """The codes stay unchanged, unless units do not end at groups of inputs."""
    if sharding and sharding.dim == 1:
        whole = tensor.shape[1] % sharding.unit == 0
        quantized = quantized.in_units_of(sharding.unit) if whole else None
    if quantized is None:
        return Packing(str(tensor.dtype).removeprefix("torch."))
    minima = quantized.minima is not None
    return Packing(
        quantized.type,
        False,
        quantized.group,
        minima,
        quantized.scale_type,
        quantized.table,
        quantized=quantized,
    )


def _packing_of_float8(codes: Float8Codes, tensor: torch.Tensor, sharding: TensorSharding | None) -> Packing:
    """The codes stay unchanged, unless units would begin inside groups smaller than packages support."""
    if sharding and sharding.dim == tensor.dim() - 1:
        codes = codes.in_units_of(sharding.unit)
    if codes is None:
        return Packing(str(tensor.dtype).removeprefix("torch."))
    return Packing(FLOAT8, group=codes.group, scales="float32", quantized=codes)


def _nothing_matched(pattern: str, modules: list[str]) -> str:
    near = difflib.get_close_matches(pattern, modules, n=3, cutoff=0.3) or modules[:3]
    names = ", ".join(f'"{name}"' for name in near)
    return (
        f'weights pattern "{pattern}" decides no layer with packed weights; layers with near names: {names or "none"}'
    )
