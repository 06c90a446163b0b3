"""The results of collectives, computed slowly and plainly with NumPy alone. Floats that NumPy lacks are held as
unsigned integers."""

import numpy as np

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOAT8 = {"float8_e4m3fn": (4, 3), "float8_e5m2": (5, 2)}  # bits of exponent and mantissa
FLOATS = ["float16", "bfloat16", "float32", "float64", *FLOAT8]
COMPLEX = ["complex64", "complex128"]
ALL_DTYPES = [*INTEGERS, *FLOATS, *COMPLEX, "bool"]
ALL_OPS = ["sum", "product", "min", "max", "band", "bor", "bxor", "avg", "premul_sum"]


def ops_of(dtype: str) -> list[str]:
    """Returns the ops that docs/communicator.md lists for the dtype."""
    if dtype in INTEGERS:
        return ALL_OPS[:8]
    if dtype == "bool":
        return ALL_OPS[:7]
    return ["sum", "product", *([] if dtype in COMPLEX else ["min", "max"]), "avg", "premul_sum"]


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype("uint8" if dtype in FLOAT8 else "uint16" if dtype == "bfloat16" else dtype)


def random_array(dtype: str, count: int, seed: int) -> np.ndarray:
    """Returns floats of many magnitudes, or integers small enough that a few of them add up without overflow in 32
    bits."""
    generator = np.random.default_rng(seed)
    if dtype in FLOATS:
        values = generator.standard_normal(count) * np.exp2(generator.integers(-6, 6, count))
        return narrow(values.astype(np.float32), dtype) if dtype != "float64" else values
    if dtype in COMPLEX:
        return (generator.standard_normal(count) + 1j * generator.standard_normal(count)).astype(dtype)
    if dtype == "bool":
        return generator.integers(0, 2, count).astype(bool)
    return generator.integers(0 if dtype.startswith("u") else -1000, 200, count).astype(dtype)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Converts float32 to bfloat16, rounding to nearest, ties to even. Does not support NaNs."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _magnitudes(dtype: str) -> np.ndarray:
    """Returns the non-negative values of an 8-bit format, followed by the value that would come after the largest."""
    exponent_bits, mantissa_bits = FLOAT8[dtype]
    codes = np.arange(0x80 if dtype == "float8_e4m3fn" else 0x7D)
    exponent, mantissa = codes >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    return np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, exponent - bias))


def to_float8(values: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to nearest, ties to even. Values beyond the largest become infinity if the format has one, otherwise
    they saturate."""
    table = _magnitudes(dtype)
    magnitude = np.minimum(np.abs(values.astype(np.float64)), table[-1])
    low = np.clip(np.searchsorted(table, magnitude, side="right") - 1, 0, len(table) - 2)
    below, above = magnitude - table[low], table[low + 1] - magnitude
    code = low + ((above < below) | ((above == below) & (low % 2 == 1)))
    code = code + np.where(np.signbit(values), 0x80, 0)
    code = code - ((code & 0x7F == 0x7F) if dtype == "float8_e4m3fn" else 0)  # saturates
    return np.where(np.isnan(values), 0x7F, code).astype(np.uint8)


def from_float8(codes: np.ndarray, dtype: str) -> np.ndarray:
    table = _magnitudes(dtype)
    table = np.append(table[:-1], [np.nan] * 3 if dtype == "float8_e4m3fn" else [np.inf, np.nan, np.nan, np.nan])
    return (table[codes & 0x7F] * np.where(codes & 0x80, -1, 1)).astype(np.float32)


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return from_bfloat16(array)
    if dtype in FLOAT8:
        return from_float8(array, dtype)
    return array.astype(np.float32) if dtype == "float16" else array


def narrow(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return to_bfloat16(array)
    if dtype in FLOAT8:
        return to_float8(array, dtype)
    return array.astype(np.float16) if dtype == "float16" else array


def reduce(arrays: list[np.ndarray], op: str, dtype: str, factors: list[float] | None = None) -> np.ndarray:
    """Reduces all arrays by the canonical tree. Floats of fewer than 32 bits are combined in float32 and rounded once
    at the end."""
    wide = [widen(array, dtype) for array in arrays]
    if op == "premul_sum":
        wide = [_scale(array, factor) for array, factor in zip(wide, factors, strict=True)]
    with np.errstate(all="ignore"):
        result = _tree(wide, {"avg": "sum", "premul_sum": "sum"}.get(op, op))
        if op == "avg":
            result = _divide(result, len(arrays))
    return narrow(result, dtype)


def _scale(array: np.ndarray, factor: float) -> np.ndarray:
    if np.iscomplexobj(array):
        return _complex(array.real * array.real.dtype.type(factor), array.imag * array.real.dtype.type(factor))
    return array * array.dtype.type(factor)


def _divide(array: np.ndarray, ranks: int) -> np.ndarray:
    if np.iscomplexobj(array):
        return _complex(array.real / array.real.dtype.type(ranks), array.imag / array.real.dtype.type(ranks))
    if array.dtype.kind == "f":
        return array / array.dtype.type(ranks)
    return (array - np.fmod(array, array.dtype.type(ranks))) // array.dtype.type(ranks)  # rounds toward zero


def _complex(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    result = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    result.real, result.imag = real, imaginary
    return result


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(a):
        return a * b
    return _complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Orders -0 below +0, which NumPy leaves undefined."""
    if a.dtype.kind != "f":
        return np.minimum(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b))


COMBINE = {
    "sum": np.add,
    "product": _product,
    "min": _minimum,
    "max": lambda a, b: -_minimum(-a, -b) if a.dtype.kind == "f" else np.maximum(a, b),
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def _tree(arrays: list[np.ndarray], op: str) -> np.ndarray:
    if len(arrays) == 1:
        return arrays[0]
    half = 1
    while 2 * half < len(arrays):
        half *= 2
    return COMBINE[op](_tree(arrays[:half], op), _tree(arrays[half:], op))
