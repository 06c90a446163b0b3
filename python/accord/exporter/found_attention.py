"""Finds the attention of models that compute it in code of their own, and replaces it with the engine's op.

In the traced program, attention is a softmax over tokens between two products. What happens to the scores in between
is not read from the code: that part is run with queries, keys and values of its own, and the numbers must be those of
the engine's attention. Scores are a factor times the product of queries and keys, plus a bias that hides later tokens
(and tokens before a window), or falls with the distance (ALiBi), or both. So a model may build its masks in any way.
Masks are compared for as many tokens as the model takes, at most LONGEST, and fewer with many heads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils._sympy.value_ranges import ValueRanges

from accord.exporter.language_model import MOST_TOKENS
from accord.graph.builder import place_of
from accord.graph.errors import ExportError
from accord.graph.insertion import Calls
from accord.graph.modules import config_of

aten = torch.ops.aten
SOFTMAX = (aten.softmax.int, aten._softmax.default)
PRODUCTS = (aten.matmul.default, aten.bmm.default, aten.baddbmm.default)
WHOLE = aten.scaled_dot_product_attention.default
PASSING = (aten.dropout.default, aten.clone.default, aten.to.dtype, aten._to_copy.default, aten.type_as.default)
PASSING += (aten.view.default, aten.reshape.default, aten.contiguous.default)
LONGEST = 2048  # tokens for which masks are compared
MOST_SCORES = 1 << 26  # that are computed at once
LENGTH = 24  # tokens of the runs whose outputs are compared
HIDDEN = -5e3  # scores below are those of hidden tokens
# Differences that rounding causes, relative to the largest number.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2**-8, torch.bfloat16: 2**-5}


@dataclass
class Found:
    """An attention in a program: its nodes."""

    query: torch.fx.Node
    key: torch.fx.Node  # transposed, unless the attention is one op
    value: torch.fx.Node
    scores: torch.fx.Node | None  # those that the softmax gets
    product: torch.fx.Node | None
    output: torch.fx.Node


@dataclass
class Formula:
    """What the engine's attention does to scores."""

    scale: float
    window: int
    slopes: torch.Tensor | None


def replace_attention(program: torch.export.ExportedProgram, model: torch.nn.Module, longest: int) -> None:
    """Replaces each attention over tokens in the program of a language model's Steps. `longest`: the most tokens that
    the model takes. Raises ExportError for an attention that no engine computes."""
    found = list(_attentions(program.graph))
    if not found:
        return
    values, kind = _Values(program, config_of(model).vocab_size), type(model).__name__
    for layer, one in enumerate(found):
        formula = _formula(one, values, f"{kind}: the attention at {place_of(one.output)}", longest)
        _replace(program, one, layer, formula)
    for node in program.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        program.graph.erase_node(node)  # it would keep the masks
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    if not any(_takes_rows_of_table(node, values.weights) for node in program.graph.nodes):
        # Nothing depends on masks any more, nor on how many tokens they were made for.
        symbol = values.user_inputs[0].meta["val"].shape[0].node.expr
        limits = program.range_constraints[symbol]
        program.range_constraints[symbol] = ValueRanges(limits.lower, MOST_TOKENS)


def _takes_rows_of_table(node: torch.fx.Node, weights: Mapping) -> bool:
    """Returns True if the call takes as many rows of a weight as there are tokens."""
    return node.target is aten.slice.Tensor and node.args[0] in weights and isinstance(node.args[3], torch.fx.Node)


def _attentions(graph: torch.fx.Graph) -> Iterator[Found]:
    for node in graph.nodes:
        if node.op != "call_function" or node.target not in (*SOFTMAX, WHOLE):
            continue
        if node.target is WHOLE:
            query, key, value = node.args[:3]
            if _is_over_tokens(query, -2):
                yield Found(query, key, value, None, None, node)
            continue
        if not (_is_over_tokens(node, -1) and _is_over_tokens(node, -2)):
            continue
        product, last = _product_before(node), _product_after(node)
        if product is not None and last is not None:
            query, key = product.args[1:3] if product.target is aten.baddbmm.default else product.args[:2]
            yield Found(query, key, last.args[1], node.args[0], product, last)


def _is_over_tokens(node: torch.fx.Node, dim: int) -> bool:
    shape = node.meta["val"].shape
    return len(shape) > 1 and isinstance(shape[dim], torch.SymInt)


def _product_before(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the nearest product of two token dimensions that the node's input comes from."""
    ahead, seen = list(node.all_input_nodes), set()
    while ahead:
        at = ahead.pop(0)
        if at in seen or not isinstance(at.meta.get("val"), torch.Tensor):
            continue
        seen.add(at)
        if at.target in PRODUCTS:
            return at if _is_over_tokens(at, -1) and _is_over_tokens(at, -2) else None
        ahead += at.all_input_nodes
    return None


def _product_after(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the product whose first factor is the node's output."""
    ahead = [node]
    while ahead:
        at = ahead.pop(0)
        for user in at.users:
            if user.target in PRODUCTS and user.args[0] is at:
                return user
            if user.target in PASSING:
                ahead.append(user)
    return None


class _Values:
    """Computes values of nodes of a program, for any number of tokens."""

    def __init__(self, program: torch.export.ExportedProgram, vocabulary: int):
        self.graph, self.vocabulary = program.graph, vocabulary
        self.weights, self.user_inputs = {}, []
        nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
        for spec in program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            if spec.kind == InputKind.USER_INPUT:
                self.user_inputs.append(node)
            else:
                tensor = program.state_dict.get(spec.target)
                self.weights[node] = program.constants[spec.target] if tensor is None else tensor

    def inputs(self, tokens: int) -> dict[torch.fx.Node, torch.Tensor]:
        """Returns inputs of the program, which are those of Steps."""
        ids = torch.randint(self.vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))
        return dict(zip(self.user_inputs, (ids, torch.arange(tokens), torch.tensor([0])), strict=True))

    @torch.no_grad()
    def of(self, wanted: set[torch.fx.Node], given: Mapping[torch.fx.Node, object]) -> dict[torch.fx.Node, object]:
        """Returns the values of the wanted nodes. `given`: values of some nodes, the inputs among them."""
        needed, ahead = set(), [node for node in wanted if node not in given]
        while ahead:
            node = ahead.pop()
            if node not in needed:
                needed.add(node)
                ahead += [one for one in node.all_input_nodes if one not in given and one not in needed]
        values = {**self.weights, **given}
        for node in self.graph.nodes:
            if node in needed and node.op == "call_function":
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
        return {node: values[node] for node in wanted}


def _formula(one: Found, values: _Values, where: str, longest: int) -> Formula:
    tokens = min(LENGTH, longest)
    random = torch.Generator().manual_seed(0)
    given = {
        node: 2 * torch.randn(_sizes(node, tokens), generator=random).to(node.meta["val"].dtype)
        for node in (one.query, one.key, one.value)
    }
    query, key, value = (_by_head(given[node]) for node in (one.query, one.key, one.value))
    product = query @ _repeated(key if one.product else key.transpose(-1, -2), query)
    wanted = {one.output, one.scores} if one.scores else {one.output}
    made = {node: _by_head(one) for node, one in values.of(wanted, {**values.inputs(tokens), **given}).items()}
    if one.product is None:
        scale = one.output.kwargs.get("scale", one.output.args[6] if len(one.output.args) > 6 else None)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
    else:
        bias = _bias(one, values, tokens)
        seen = (bias > HIDDEN).all(0)
        scale = float(((made[one.scores] - bias) * product)[:, seen].sum() / product[:, seen].square().sum())
    tolerance = TOLERANCE[one.output.meta["val"].dtype]
    bias = _bias(one, values, min(longest, LONGEST, math.isqrt(MOST_SCORES // product.shape[0])))
    window = _window(bias, where)
    slopes = _slopes(bias, tolerance, where).expand(product.shape[0])
    distance = _distance(tokens)
    hidden = (distance > 0) | (distance <= -window if window else torch.tensor(False))
    scores = (scale * product + slopes[:, None, None] * distance).masked_fill(hidden, -torch.inf)
    right, output = scores.softmax(-1) @ _repeated(value, query), made[one.output]
    if not torch.allclose(output, right, rtol=0, atol=tolerance * float(right.abs().max())):
        raise ExportError(f"{where} {_REASON}")
    return Formula(scale, window, slopes.contiguous() if bool(slopes.any()) else None)


_REASON = (
    "is not that of an engine, which scales the product of queries and keys, hides later tokens and those before a "
    "window, and adds at most a bias that is proportional to the distance"
)


def _by_head(tensor: torch.Tensor) -> torch.Tensor:
    """Returns [heads, ...], as there is one sequence, in float32."""
    return tensor.reshape(-1, *tensor.shape[-2:]).float()


def _repeated(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Returns keys or values with as many heads as the queries."""
    return tensor.repeat_interleave(query.shape[0] // tensor.shape[0], 0)


def _sizes(node: torch.fx.Node, tokens: int) -> list[int]:
    return [tokens if isinstance(size, torch.SymInt) else size for size in node.meta["val"].shape]


def _distance(tokens: int) -> torch.Tensor:
    """Returns how far each token is ahead of each other one: [query, key]."""
    at = torch.arange(tokens)
    return at[None, :] - at[:, None]


def _bias(one: Found, values: _Values, tokens: int) -> torch.Tensor:
    """Returns the scores of queries and keys that are zeros: [heads or 1, tokens, tokens]."""
    inputs = values.inputs(tokens)
    if one.product is not None:
        zeros = {node: torch.zeros(_sizes(node, tokens), dtype=node.meta["val"].dtype) for node in (one.query, one.key)}
        return _by_head(values.of({one.scores}, {**inputs, **zeros})[one.scores])
    mask = one.output.args[3] if len(one.output.args) > 3 else one.output.kwargs.get("attn_mask")
    if mask is None:
        is_causal = one.output.args[5] if len(one.output.args) > 5 else one.output.kwargs.get("is_causal", False)
        bias = torch.zeros(1, tokens, tokens)
        return bias.masked_fill(_distance(tokens) > 0, -torch.inf) if is_causal else bias
    given = values.of({mask}, inputs)[mask]
    if given.dtype == torch.bool:
        given = torch.zeros(given.shape).masked_fill(~given, -torch.inf)
    return _by_head(given).expand(-1, tokens, tokens)


def _window(bias: torch.Tensor, where: str) -> int:
    """Returns how many tokens a token sees, or 0 if it sees all before it."""
    seen, distance = bias > HIDDEN, _distance(bias.shape[-1])
    count = int(seen[0, -1].sum())
    if not torch.equal(seen, ((distance <= 0) & (distance > -count)).expand_as(seen)):
        raise ExportError(f"{where} {_REASON}")
    return count if count < bias.shape[-1] else 0


def _slopes(bias: torch.Tensor, tolerance: float, where: str) -> torch.Tensor:
    """Returns what is added to a score for each token that the key is ahead of the query, by head."""
    seen, distance = bias[0] > HIDDEN, _distance(bias.shape[-1])
    relative = (bias - bias.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)).masked_fill(~seen, 0.0)
    steps = (distance * seen).double()
    slopes = ((relative.double() * steps).sum((-2, -1)) / steps.square().sum().clamp(min=1)).float()
    error = (relative - slopes[:, None, None] * steps.float()).abs().max()
    if float(error) > tolerance * max(1.0, float(relative.abs().max())):
        raise ExportError(f"{where} {_REASON}")
    return slopes


def _replace(program: torch.export.ExportedProgram, one: Found, layer: int, formula: Formula) -> None:
    output, call = one.output, Calls(one.output)

    def heads(node: torch.fx.Node, *, is_transposed: bool = False) -> torch.fx.Node:
        """Returns [1, heads, tokens, dim] in the output's dtype."""
        if is_transposed:
            node = call(aten.transpose.int, node, -1, -2)
        if node.meta["val"].dtype != output.meta["val"].dtype:
            node = call(aten.to.dtype, node, output.meta["val"].dtype)
        return call(aten.unsqueeze.default, node, 0) if node.meta["val"].dim() == 3 else node

    slopes = (
        None if formula.slopes is None else _constant(program, f"attention_slopes.{layer}", formula.slopes, call.fake)
    )
    key = heads(one.key, is_transposed=one.product is not None)
    options = (layer, formula.scale, formula.window, 0.0, None, slopes)
    made = call(torch.ops.accord.attention.default, heads(one.query), key, heads(one.value), *options)
    made = call(aten.permute.default, made, [0, 2, 1, 3])
    if output.meta["val"].dim() == 3:
        made = call(aten.squeeze.dim, made, 0)
    output.replace_all_uses_with(made)


def _constant(program: torch.export.ExportedProgram, name: str, tensor: torch.Tensor, fake) -> torch.fx.Node:
    """Adds a constant tensor to the program."""
    specs = program.graph_signature.input_specs
    index = next(index for index, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT)
    first = next(node for node in program.graph.nodes if node.name == specs[index].arg.name)
    with program.graph.inserting_before(first):
        node = program.graph.placeholder("c_" + name.replace(".", "_"))
    node.meta["val"] = fake.from_tensor(tensor, static_shapes=True)
    specs.insert(index, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name))
    program.constants[name] = tensor
    return node
