"""The codes and scales in the blocks of GGUF's quantized types.

A block has consecutive elements of a row: 32, which share a scale, or in the types whose names end in K, 256. Those
are a super-group: the scales of its groups of 16 or 32 elements are integers, which one float16 multiplies. A type's
function takes blocks [rows, blocks of a row, bytes of a block].

Codes of 2 and 3 bits become codes of 4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accord.package.codes import MXFP4_TABLE, Quantized, mxfp4_scales


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """Returns the float16 at byte `at` of each block: [rows, blocks] of float32."""
    return blocks[..., at : at + 2].copy().view(np.float16)[..., 0].astype(np.float32)


def _bits(data: np.ndarray, bits: int, run: int) -> np.ndarray:
    """Returns the numbers of `bits` bits in bytes [.., bytes]. A run of that many bytes has its bytes' lowest bits
    first, then their next bits, and so on."""
    runs = data.reshape(*data.shape[:-1], -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (runs >> shifts & np.uint8(2**bits - 1)).reshape(*data.shape[:-1], -1)


def _rows(parts: np.ndarray) -> np.ndarray:
    """Returns [rows, ..] as [rows, all of them]."""
    return parts.reshape(len(parts), -1)


def _floats(parts: np.ndarray) -> np.ndarray:
    return _rows(parts).astype(np.float32)


def _q8_0(blocks: np.ndarray) -> Quantized:
    codes = blocks[..., 2:] ^ 128  # two's complement to code = q + 128
    return Quantized("int8", 32, _rows(codes), _halves(blocks, 0))


def _q4_0(blocks: np.ndarray) -> Quantized:
    return Quantized("int4", 32, _rows(_bits(blocks[..., 2:], 4, 16)), _halves(blocks, 0))


def _q4_1(blocks: np.ndarray) -> Quantized:
    return Quantized("int4", 32, _rows(_bits(blocks[..., 4:], 4, 16)), _halves(blocks, 0), _halves(blocks, 2))


def _fifth_bits(data: np.ndarray) -> np.ndarray:
    """Returns the highest bits of 32 codes of 5 bits, one after the other in 4 bytes [.., 4]."""
    return np.unpackbits(data, axis=-1, bitorder="little") << 4


def _q5_0(blocks: np.ndarray) -> Quantized:
    codes = _bits(blocks[..., 6:], 4, 16) | _fifth_bits(blocks[..., 2:6])
    return Quantized("int5", 32, _rows(codes), _halves(blocks, 0))


def _q5_1(blocks: np.ndarray) -> Quantized:
    codes = _bits(blocks[..., 8:], 4, 16) | _fifth_bits(blocks[..., 4:8])
    return Quantized("int5", 32, _rows(codes), _halves(blocks, 0), _halves(blocks, 2))


def _with_minima(type: str, blocks: np.ndarray, codes: np.ndarray) -> Quantized:
    """For Q4_K and Q5_K. The 6 bits of 8 scales and 8 minima are in 12 bytes: those of the first four of each in
    bytes 0 to 7, whose two highest bits are the highest bits of the last four. Bytes 8 to 11 have the other bits of
    these: scales in the lower half, minima in the upper."""
    low, middle, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate((low & 63, rest & 15 | low >> 6 << 4), -1)
    minima = np.concatenate((middle & 63, rest >> 4 | middle >> 6 << 4), -1)
    # A minimum is subtracted.
    supers = _halves(blocks, 0), -_halves(blocks, 2)
    return Quantized(type, 32, _rows(codes), _floats(scales), _floats(minima), "int8", *supers)


def _q4_k(blocks: np.ndarray) -> Quantized:
    return _with_minima("int4", blocks, _bits(blocks[..., 16:], 4, 32))


def _q5_k(blocks: np.ndarray) -> Quantized:
    return _with_minima("int5", blocks, _bits(blocks[..., 48:], 4, 32) | _bits(blocks[..., 16:48], 1, 32) << 4)


def _q6_k(blocks: np.ndarray) -> Quantized:
    codes = _bits(blocks[..., :128], 4, 64) | _bits(blocks[..., 128:192], 2, 32) << 4
    scales = blocks[..., 192:208].view(np.int8)
    return Quantized("int6", 16, _rows(codes), _floats(scales), scale_type="int8", super_scales=_halves(blocks, 208))


def _q2_k(blocks: np.ndarray) -> Quantized:
    codes, scales = _bits(blocks[..., 16:80], 2, 32), blocks[..., :16]
    supers = _halves(blocks, 80), -_halves(blocks, 82)  # a minimum is subtracted
    return Quantized("int4", 16, _rows(codes), _floats(scales & 15), _floats(scales >> 4), "int8", *supers)


def _q3_k(blocks: np.ndarray) -> Quantized:
    # The third bit of a code stands for 4, and its zero is 4. As a code of 4 bits, its zero is 8.
    codes = _bits(blocks[..., 32:96], 2, 32) + (_bits(blocks[..., :32], 1, 32) << 2) + 4
    scales = _bits(blocks[..., 96:104], 4, 8) | _bits(blocks[..., 104:108], 2, 4) << 4
    return Quantized(
        "int4", 16, _rows(codes), _floats(scales) - 32, scale_type="int8", super_scales=_halves(blocks, 108)
    )


# The numbers that the codes of IQ4_NL and IQ4_XS stand for.
IQ4_TABLE = tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)))


def _iq4_nl(blocks: np.ndarray) -> Quantized:
    return Quantized("table4", 32, _rows(_bits(blocks[..., 2:], 4, 16)), _halves(blocks, 0), table=IQ4_TABLE)


def _iq4_xs(blocks: np.ndarray) -> Quantized:
    codes = _rows(_bits(blocks[..., 8:], 4, 16))
    scales = _floats(_bits(blocks[..., 4:8], 4, 1) | _bits(blocks[..., 2:4], 2, 1) << 4) - 32
    return Quantized("table4", 32, codes, scales, scale_type="int8", super_scales=_halves(blocks, 0), table=IQ4_TABLE)


def _mxfp4(blocks: np.ndarray) -> Quantized:
    codes = _bits(blocks[..., 1:], 4, 16)
    return Quantized(
        "table4", 32, _rows(codes), mxfp4_scales(blocks[..., 0], codes), None, "float32", table=MXFP4_TABLE
    )


# The types whose numbers packages have exactly, as codes.
CODES: dict[str, Callable[[np.ndarray], Quantized]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
