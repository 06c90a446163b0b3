"""Reads how a checkpoint describes its 8-bit floats: the size of the blocks that share a scale."""

from __future__ import annotations

from accord.checkpoints.reading import known
from accord.graph.errors import ExportError
from accord.package.float8_codes import FLOAT8_GROUPS

SCHEMES = ("dynamic", "static")  # `activation_scheme` of fp8
ALGORITHMS = ("FP8",)  # `quant_algo` of modelopt


def block_of(quantization: dict) -> tuple[int, int] | None:
    """Returns the number of outputs and inputs of a block, or None if scales are for whole weights or outputs."""
    method = quantization["quant_method"]
    if method == "modelopt":
        known('its "quant_algo" is', quantization.get("quant_algo"), ALGORITHMS)
    if (scheme := quantization.get("activation_scheme")) is not None:
        known('its "activation_scheme" is', scheme, SCHEMES)
    if method == "compressed-tensors":
        return _block_of_groups(quantization)
    return _block("weight_block_size", quantization.get("weight_block_size"))


def _block_of_groups(quantization: dict) -> tuple[int, int] | None:
    """Returns the block size of compressed-tensors, where each group of layers has its own scheme."""
    groups = quantization.get("config_groups")
    schemes = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    blocks = {
        str(one["block_structure"]): one["block_structure"]
        for one in schemes
        if isinstance(one, dict) and one.get("block_structure") is not None
    }
    if len(blocks) > 1:
        raise ExportError(f"its config_groups have blocks of several sizes: {', '.join(blocks)}")
    return _block("block_structure", next(iter(blocks.values()), None))


def _block(name: str, given) -> tuple[int, int] | None:
    if given is None:
        return None
    sizes = given if isinstance(given, list | tuple) else []
    if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
        raise ExportError(f'its "{name}" is {given!r}, and not the outputs and inputs of a block, as [128, 128]')
    if sizes[1] % min(FLOAT8_GROUPS):
        raise ExportError(f'its "{name}" is {given!r}: packages have scales of groups of {min(FLOAT8_GROUPS)} inputs')
    return sizes[0], sizes[1]
