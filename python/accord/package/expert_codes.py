"""Parts and stacks of matrices that are already quantized and stay unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from accord.package.codes import Quantized
    from accord.package.sharding import TensorSharding
    from accord.package.weights import Packing


def rows_of(quantized: Quantized, begin: int, end: int) -> Quantized:
    """Returns the outputs [begin, end) of a matrix."""
    return replace(quantized, **{name: array[begin:end] for name, array in _arrays(quantized).items()})


@dataclass(frozen=True)
class QuantizedStack:
    """A matrix [out, in] for each expert, all quantized in the same way."""

    experts: tuple[Quantized, ...]

    def unit(self, sharding: TensorSharding | None, number: int) -> Quantized:
        """Returns unit `number`, whose arrays have a dimension for experts in front."""
        import numpy as np

        parts = self.experts
        if sharding is not None and sharding.dim == 0:
            parts = parts[number * sharding.unit : (number + 1) * sharding.unit]
        elif sharding is not None:
            of_matrix = replace(sharding, dim=sharding.dim - 1)
            parts = [expert.unit(of_matrix, number) for expert in parts]
        stacks = {name: np.stack([_arrays(part)[name] for part in parts]) for name in _arrays(parts[0])}
        return replace(parts[0], **stacks)

    def packing(
        self, sharding: TensorSharding | None, packing_of: Callable[[Quantized, TensorSharding | None], Packing]
    ) -> Packing:
        """Returns the packing of the stack, whose codes stay unchanged if those of a matrix do."""
        of_matrix = replace(sharding, dim=sharding.dim - 1) if sharding and sharding.dim > 0 else None
        packings = [packing_of(expert, of_matrix) for expert in self.experts]
        kept = tuple(packing.quantized for packing in packings)
        return replace(packings[0], quantized=None if kept[0] is None else QuantizedStack(kept))


@dataclass(frozen=True)
class QuantizedExperts:
    """The matrices of a layer of experts that are quantized."""

    matrices: Mapping[str, QuantizedStack]  # keyed by gate_proj, up_proj and down_proj


def _arrays(quantized: Quantized) -> dict[str, np.ndarray]:
    """Returns the arrays by name; each has one row per output."""
    import numpy as np

    values = {field.name: getattr(quantized, field.name) for field in fields(quantized)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
