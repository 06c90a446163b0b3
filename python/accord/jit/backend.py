"""The torch.compile backend "accord", which torch finds through the entry point "torch_dynamo_backends"."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from accord.graph.decomposition import decompositions
from accord.graph.errors import ExportError
from accord.graph.symbols import symbols_of
from accord.jit.compiled_graph import CompiledGraph
from accord.jit.options import Options


def compile_fx(
    module: torch.fx.GraphModule,
    example_inputs: Sequence,
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable:
    """Compiles one traced graph: torch.compile(model, backend="accord", options={...}) calls this for each graph. The
    options are those of accord.jit.options.Options. A graph that needs gradients or cannot be compiled stays in
    PyTorch, with a warning. `mode`: passed on by torch.compile(); accord supports only "default"."""
    if mode not in (None, "default"):
        raise ExportError(f'mode="{mode}" is one of inductor\'s: leave it out, and give options={{...}} to accord')
    chosen = Options.read(options)
    if torch.is_grad_enabled() and any(_needs_grad(value) for value in example_inputs):
        text = "accord: engines compute no gradients: call the model under torch.no_grad() or torch.inference_mode()"
        if chosen.require_full_compilation:
            raise ExportError(text)
        warnings.warn(f"{text}; this call stays in PyTorch", stacklevel=2)
        return module.forward
    try:
        return _compiled(module, example_inputs, chosen)
    except (torch._dynamo.exc.RestartAnalysis, torch._dynamo.exc.SkipFrame):
        raise  # torch retraces, or skips the frame
    except Exception as error:
        if chosen.is_strict:
            raise
        reason = str(error).partition("\n")[0]
        warnings.warn(f"accord: a graph stays in PyTorch: {type(error).__name__}: {reason}", stacklevel=2)
        return module.forward


def _compiled(module: torch.fx.GraphModule, example_inputs: Sequence, chosen: Options) -> Callable:
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch.export.exported_program import _override_composite_implicit_decomp

    _fix_numbers(module, example_inputs)
    kept, others = decompositions()
    if any(_is_divided(value) for value in example_inputs):
        # DTensors only support the decomposed ops; lower() recombines them. Attention mostly has plain tensors.
        attention = torch.ops.aten.scaled_dot_product_attention.default
        kept = {attention: kept[attention]} if _has_plain_attention(module) else {}
    with _override_composite_implicit_decomp(kept):
        return aot_module_simplified(
            module,
            example_inputs,
            fw_compiler=_no_gradients,
            inference_compiler=lambda traced, inputs: _compile(traced, chosen),
            decompositions=others,
        )


def _is_divided(value: object) -> bool:
    return torch.utils._python_dispatch.is_traceable_wrapper_subclass(value)


def _has_plain_attention(module: torch.fx.GraphModule) -> bool:
    calls = module.graph.find_nodes(op="call_function", target=torch.nn.functional.scaled_dot_product_attention)
    return not any(_is_divided(one.meta.get("example_value")) for call in calls for one in call.all_input_nodes)


def _fix_numbers(module: torch.fx.GraphModule, example_inputs: Sequence) -> None:
    """Turns floats that torch passes as tensors when sizes are dynamic (the epsilon of a norm) into constants.
    Another value is compiled anew."""
    from torch._dynamo.guards import GuardBuilder, install_guard

    for node, value in zip(module.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        argument = node.meta.get("grapharg")
        if not getattr(argument, "pass_arg_as_tensor", False):
            continue
        items = [user for user in node.users if user.op == "call_method" and user.target == "item"]
        for item in items:
            item.replace_all_uses_with(value.item())
            module.graph.erase_node(item)
        install_guard(argument.source.make_guard(GuardBuilder.CONSTANT_MATCH))
    module.recompile()


def _needs_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _no_gradients(module: torch.fx.GraphModule, example_inputs: Sequence) -> Callable:
    raise ExportError("accord: engines compute no gradients: call the model under torch.no_grad()")


def _compile(module: torch.fx.GraphModule, options: Options) -> Callable:
    from torch._functorch.aot_autograd import make_boxed_func

    facts = torch._guards.TracingContext.get().fw_metadata
    changed = set(facts.mutated_inp_runtime_indices)
    placeholders = module.graph.find_nodes(op="placeholder")
    weights = {
        index: placeholders[index].name
        for index in facts.static_input_indices
        if index not in changed and isinstance(placeholders[index].meta["val"], torch.Tensor)
    }
    return make_boxed_func(CompiledGraph(module, weights, symbols_of(module), options, just_in_time=True))
