"""The errors of models that cannot be exported or compiled. This module imports no PyTorch."""


class ExportError(RuntimeError):
    """The model cannot be exported, or not in the requested way; the message says where and what to do."""


class UnsupportedOpError(ExportError):
    """An op, a dtype or a size that engines do not support; the message names it and its place in the source model."""
