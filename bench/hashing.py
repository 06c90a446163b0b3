"""The module xxhash, which writing a package needs, where this Python has none: by the library that libaccord itself has."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types

LIBRARY = "libxxhash.so.0"


def provide() -> None:
    """OSError where there is no library either."""
    with contextlib.suppress(ImportError):
        import xxhash  # noqa: F401

        return
    function = ctypes.CDLL(LIBRARY).XXH3_64bits
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]

    def xxh3_64_hexdigest(data: bytes | memoryview) -> str:
        view = memoryview(data).cast("B")
        if view.readonly:  # ctypes takes no address of such a one but of bytes
            data = bytes(view)
            return f"{function(data, len(data)):016x}"
        address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else None
        return f"{function(address, view.nbytes):016x}"

    module = types.ModuleType("xxhash")
    module.xxh3_64_hexdigest = xxh3_64_hexdigest
    sys.modules["xxhash"] = module
