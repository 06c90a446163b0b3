"""Provides the module xxhash, which writing packages needs, from libaccord's own library if this Python lacks it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types

LIBRARY = "libxxhash.so.0"


def provide() -> None:
    """Raises OSError if the library is missing, too."""
    with contextlib.suppress(ImportError):
        import xxhash  # noqa: F401

        return
    function = ctypes.CDLL(LIBRARY).XXH3_64bits
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]

    def xxh3_64_hexdigest(data: bytes | memoryview) -> str:
        view = memoryview(data).cast("B")
        if view.readonly:  # ctypes takes the address of read-only memory only for bytes
            data = bytes(view)
            return f"{function(data, len(data)):016x}"
        address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else None
        return f"{function(address, view.nbytes):016x}"

    module = types.ModuleType("xxhash")
    module.xxh3_64_hexdigest = xxh3_64_hexdigest
    sys.modules["xxhash"] = module
