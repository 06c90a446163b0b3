"""Turns errors of torch.export, of a model's own code and of its libraries into ExportErrors that say where in the
model they occurred, why, and what to do.

The module named is the innermost module of the model with a frame in the traceback, or in the traceback of an error
that caused it. The model is run once in PyTorch, to distinguish inputs that it does not accept from code that torch
cannot trace.
"""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from accord._core import Error
from accord.graph.errors import ExportError
from accord.graph.size_guards import SizeGuards, watched
from accord.graph.source_places import place_in

MOST_OF_REASON = 400  # characters
JUST_IN_TIME = 'run the model by torch.compile(model, backend="accord"), which leaves such code to PyTorch'
PYTORCH_PARTITIONS = "options={} leaves such ops to PyTorch"
DATA_DEPENDENT = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")


@contextlib.contextmanager
def explained(model: torch.nn.Module, run: Callable[[], object], *, of_any_length: bool = False) -> Iterator[None]:
    """Context in which any failure raises ExportError. run: runs the model in PyTorch with the inputs that it is
    traced with. of_any_length: the model is a language model, whose inputs and sizes are not chosen by the caller."""
    try:
        with watched(model) as guards:
            yield
    except (ExportError, Error, MemoryError):
        raise
    except Exception as error:
        raise ExportError(_explanation(model, run, error, guards, of_any_length)) from error


@contextlib.contextmanager
def told_of(what: object) -> Iterator[None]:
    """Context in which any failure raises an ExportError that begins with `what`, the object being read."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ExportError) else _reason(error)
        raise ExportError(f"{what}: {reason}") from error


@contextlib.contextmanager
def advised(remedy: str) -> Iterator[None]:
    """Context in which each ExportError ends with `remedy`."""
    try:
        yield
    except ExportError as error:
        error.args = (f"{error}; {remedy}",)
        raise


def _explanation(
    model: torch.nn.Module, run: Callable[[], object], error: Exception, guards: SizeGuards, of_any_length: bool
) -> str:
    name = type(model).__name__
    try:
        with torch.no_grad():
            run()
    except MemoryError:
        raise
    except Exception as own:
        remedy = (
            "its forward() has to take input_ids alone, as PyTorch runs it"
            if of_any_length
            else "give example_inputs that it takes when PyTorch runs it"
        )
        return f"{name}: the model itself fails with these inputs{_place(model, own)}: {_reason(own)}; {remedy}"
    text = str(error)
    if "Constraints violated" in text or "Specializations unexpectedly required" in text:
        remedy = (
            "a language model is exported for any number of tokens, so give example_inputs for a package of one size"
            if of_any_length
            else "give dynamic_shapes that say so, or none"
        )
        fixes = _suggested_fixes(text)
        equal_sizes = bool(fixes) and all(re.fullmatch(r"\w+ = [A-Za-z_]\w*", fix) for fix in fixes)
        where = _in_module(*(guards.module(equal_sizes=equal_sizes) or ("", model)))
        reason = _of_constraints(text, fixes)
        return f"{name} cannot be exported for all sizes: {reason}{where}; {remedy}, or {JUST_IN_TIME}"
    if any(kind in {type(one).__name__ for one in _chain(error)} for kind in DATA_DEPENDENT):
        return (
            f"{name} cannot be exported: its code depends on values in tensors{_place(model, error)}: {_reason(error)}; choose by "
            f"torch.where or torch.cond there, or {JUST_IN_TIME}"
        )
    place = _place(model, error)
    found = re.search(r"Found <class '([^']+)'> in (?:output|input)", text)
    if not found and not place:  # torch 2.11 looks outputs up in a set
        found = re.search(r"unhashable type: '([^']+)'", text)
    if found:
        verb, kind = "takes" if found[0].endswith("input") else "gives", found[1].rpartition(".")[2]
        return (
            f"{name} cannot be exported: it {verb} a {kind}, which torch does not know; "
            "tensors go in tuples, lists and dicts, and in dataclasses after torch.export.register_dataclass(CLASS)"
        )
    if "User output nan is not" in text:
        return (
            f"{name} cannot be exported: it gives nan itself, which torch.export does not keep; give torch.tensor(nan)"
        )
    if place:
        remedy = "change that code"
    elif _is_of_dynamic_shapes(error):
        remedy = "change dynamic_shapes, or example_inputs to what they say"
    else:
        remedy = "change the model or its inputs"
    return f"{name} cannot be exported{place}: {_reason(error)}; {remedy}, or {JUST_IN_TIME}"


def _is_of_dynamic_shapes(error: Exception) -> bool:
    return "dynamic_shapes" in str(error) or any(
        type(one).__name__ == "ConstraintViolationError"
        or any(os.path.basename(frame.f_code.co_filename) == "dynamic_shapes.py" for frame, _ in _frames(one))
        for one in _chain(error)
    )


def _suggested_fixes(text: str) -> list[str]:
    """Returns the sizes that torch suggests ("batch = 4"), or else the guards that it created."""
    _, _, fixes = text.partition("Suggested fixes:")
    found = [line.strip() for line in fixes.splitlines() if re.match(r"\s+\w+ = ", line)]
    return found or re.findall(r"generated guard (.*?)\.?$", text, re.MULTILINE)


def _of_constraints(text: str, fixes: list[str]) -> str:
    """Names the dimensions, and torch's suggestion for them."""
    dims = ", ".join(dict.fromkeys(re.findall(r"(?:violated|required) \((.*?)\)[!.]", text))) or "a dimension"
    hint = f" (torch finds {', '.join(fixes)})" if fixes else ""
    return f"its code holds for some values of {dims} only{hint}"


def _reason(error: Exception) -> str:
    """Describes the error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    kind = type(error).__name__
    return f"{kind}: {text[:MOST_OF_REASON]}{'...' if len(text) > MOST_OF_REASON else ''}".rstrip(".;: ")


def _place(model: torch.nn.Module, error: Exception) -> str:
    """Names the module and the line of its code, or of code that it calls. Empty for an error outside of the model's
    code."""
    names = {id(module): name for name, module in model.named_modules()}
    place = ""
    for one in _chain(error):  # ends with the first error, which is nearest to the cause
        frames = _frames(one)
        inside = [number for number, (frame, _) in enumerate(frames) if id(frame.f_locals.get("self")) in names]
        if not inside:
            continue
        module = frames[inside[-1]][0].f_locals["self"]
        path = names[id(module)]
        code = place_in([(frame.f_code.co_filename, line) for frame, line in frames[inside[0] :]])
        place = f"{_in_module(path, module)}{f' at {code}' if code else ''}"
    return place


def _in_module(path: str, module: torch.nn.Module) -> str:
    return f', in module "{path}" ({type(module).__name__})' if path else ""


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(error.__traceback__))


def _chain(error: BaseException | None) -> list[BaseException]:
    """Returns the error, its cause, the cause of that, and so on."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
