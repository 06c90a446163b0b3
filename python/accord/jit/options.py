"""The options of torch.compile(backend="accord") and accord.compile()."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from accord.graph.errors import ExportError
from accord.graph.ops import ARGUMENTS
from accord.graph.traced import check_arguments


@dataclass(frozen=True)
class Options:
    """What is to be compiled, and how.

    min_block_size: minimum number of ops that a partition needs to run in an engine; a smaller one stays in PyTorch,
    unless it contains a collective or require_full_compilation is set.
    torch_executed_ops: ops that stay in PyTorch ("aten.add.Tensor", "aten.add" for all its overloads, or the op
    itself).
    require_full_compilation: anything that stays in PyTorch is an error. strict_collectives: a collective that stays
    in PyTorch is an error.
    pass_through_build_failures: an engine that cannot be built is an error, instead of running in PyTorch.
    use_fp32_acc: engines always accumulate in fp32; False is rejected. use_explicit_typing: engines compute in the
    dtypes of the model; False is rejected.
    threads: of an engine, on this rank; 0 is ACCORD_THREADS. overlap_rows, all_reduce_dtype: how sums over the ranks
    are computed and sent, same as for accord.load(); equal on all ranks.
    engine_cache: whether engines are kept on disk for other processes: "auto" keeps those with 64 MiB of weights and
    more, True all, False none.
    """

    min_block_size: int = 5
    torch_executed_ops: frozenset[str] = frozenset()
    require_full_compilation: bool = False
    strict_collectives: bool = False
    pass_through_build_failures: bool = False
    use_fp32_acc: bool = True
    use_explicit_typing: bool = True
    threads: int = 0
    overlap_rows: int = 0
    all_reduce_dtype: str | None = None
    engine_cache: bool | str = "auto"

    @staticmethod
    def read(given: Mapping[str, object] | None) -> Options:
        """Reads options. Raises ExportError for an unknown name, with the nearest known one, for an invalid value,
        and for anything that is not a mapping.
        """
        known = {field.name: field for field in fields(Options)}
        check_arguments(options=given)
        values = dict(given or {})
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
                hint = f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(known)}"
                raise ExportError(f'unknown option "{name}"{hint}')
            values[name] = _checked(name, value)
        if values.get("all_reduce_dtype") and values.get("overlap_rows"):
            raise ExportError("sums in all_reduce_dtype are not started ahead: leave out overlap_rows")
        return Options(**values)

    @property
    def is_strict(self) -> bool:
        """Returns True if running ops in PyTorch because engines cannot is an error."""
        return self.require_full_compilation or self.strict_collectives or self.pass_through_build_failures

    def of_load(self) -> dict[str, object]:
        """Returns the options of an engine, by the names of accord.load()."""
        return {name: getattr(self, name) for name in ("threads", "overlap_rows", "all_reduce_dtype")}

    def keeps_in_torch(self, op: str) -> bool:
        return op in self.torch_executed_ops or op.rsplit(".", 1)[0] in self.torch_executed_ops


def _checked(name: str, value: object):
    if name == "torch_executed_ops":
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise ExportError(f'option "{name}": a set of ops, not {value!r}')
        return frozenset(_op_name(op) for op in value)
    if name == "all_reduce_dtype":
        if value not in (None, "int8"):
            raise ExportError(f'option "{name}": sums travel as they are, None, or as "int8", not {value!r}')
        return value
    if name in ("min_block_size", "threads", "overlap_rows"):
        least = 1 if name == "min_block_size" else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ExportError(f'option "{name}": a whole number from {least} up, not {value!r}')
        return value
    if name == "engine_cache" and value == "auto":
        return value
    if not isinstance(value, bool):
        raise ExportError(f'option "{name}": True or False, not {value!r}')
    if name == "use_fp32_acc" and not value:
        raise ExportError('option "use_fp32_acc": engines always add up in fp32; leave it out')
    if name == "use_explicit_typing" and not value:
        raise ExportError(
            'option "use_explicit_typing": engines compute in the dtypes of the model; convert the model (model.bfloat16())'
        )
    return value


def _op_name(op: object) -> str:
    """Returns "aten.add.Tensor" or "aten.add". Raises ExportError if torch has no such op."""
    text = str(op).removeprefix("torch.ops.").replace("::", ".")
    found = torch.ops
    for piece in text.split("."):
        try:
            found = getattr(found, piece)
        except AttributeError:
            found = None
        if found is None:
            break
    if isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return text
    near = difflib.get_close_matches(text, [*ARGUMENTS, *(name.rsplit(".", 1)[0] for name in ARGUMENTS)], n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise ExportError(f'option "torch_executed_ops": there is no op "{text}"{hint}')
