"""Compares an exported language model with the original, in PyTorch, before anything is written.

An engine computes rows of several sequences together, and a single token after the tokens whose keys it keeps. Outside
attention and the ops that keep a state, a row may therefore depend only on its own token and position. Two short
sequences (the second one at the last positions, if the model takes positions) run as a whole through the model and
through the program: their logits must agree. In addition, each op of the program runs on a mixture of rows of both
sequences, in other numbers and at other places. Its inputs are the corresponding rows of the whole sequences, so its
outputs must equal the corresponding rows of the outputs for whole sequences. Errors therefore do not accumulate, and
the first op that differs is the one at fault. Attention and states are not run on a mixture, because the engine's own
see the right rows. Ops that reach for distant rows, which short sequences do not show, are found by inspection (masks
are by masks.py).

The program shares the model's weights. The check takes two runs of the model and four of the program, of at most 8
rows each; values are dropped after their last use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch

from accord.exporter.encoder_decoder import run_decoder
from accord.exporter.language_model import OP, PREFIX
from accord.exporter.positions import first_position, takes_positions
from accord.graph.builder import SOURCE_ATTENTION, place_of
from accord.graph.errors import ExportError
from accord.graph.joined import STATE_OPS
from accord.graph.modules import config_of
from accord.graph.traced import TracedGraph

LENGTH = 8  # tokens of each sequence
# Rows of the sequences that are computed together: (sequence, from, to).
MIXTURES = ([(0, 0, 4), (1, 0, 3)], [(1, 3, 4), (0, 5, 8)])
SAMPLED = 4096  # elements kept of a module's output
# Differences that rounding causes: for an op relative to its largest value, for logits relative to the norm of a row.
OP_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2**-8, torch.bfloat16: 2**-5}
LOGITS_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
SEE_ROWS = {OP, SOURCE_ATTENTION, *STATE_OPS}  # ops that see other rows of their sequence, or of its source


@dataclass
class Sequence:
    """A sequence, and the model's own results for it."""

    ids: torch.Tensor
    positions: torch.Tensor  # as an engine counts them
    logits: torch.Tensor | None = None
    states: torch.Tensor | None = None  # of the encoder that it attends to
    rows: torch.Tensor | None = None  # that take the places of embeddings
    index: torch.Tensor | None = None  # which of `rows` takes each token's, -1 for none
    modules: dict[str, torch.Tensor] = field(default_factory=dict)  # leading elements of each module's output, in order


@torch.no_grad()
def check_language_model(
    model: torch.nn.Module,
    traced: TracedGraph,
    longest: int,
    states: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    rows: torch.Tensor | None = None,
) -> None:
    """Raises ExportError if the program differs from its model, or if its rows depend on other rows. `model`: in the
    state that it had before tracing. `longest`: the largest number of tokens that it takes. `states`: of an encoder,
    for two sources of the same number of rows. `rows`: 3 of an encoder that take the places of embeddings."""
    config = config_of(model)
    padding = getattr(config, "pad_token_id", None)
    ordinary = torch.tensor([id for id in range(min(config.vocab_size, 1 << 16)) if id != padding] or [0])
    chosen = torch.randint(len(ordinary), (2, min(LENGTH, longest)), generator=torch.Generator().manual_seed(0))
    first, second = ordinary[chosen]
    begins = longest - len(second) if takes_positions(model) else 0
    inputs = [
        Sequence(ids, torch.arange(begin, begin + len(ids)), states=one, rows=rows, index=_places(rows, ids, at))
        for at, (ids, begin, one) in enumerate([(first, 0, states[0]), (second, begins, states[1])])
    ]
    sequences = [_run_model(model, sequence) for sequence in inputs]
    lockstep = _Lockstep(type(model).__name__, traced, sequences)
    for sequence, given, modules in zip(sequences, lockstep.run(), lockstep.modules, strict=True):
        _compare_logits(model, sequence, given, modules)


def _places(rows: torch.Tensor | None, ids: torch.Tensor, sequence: int) -> torch.Tensor | None:
    """Returns which of `rows` takes the place of each token: all of them in the first sequence, one in the second."""
    if rows is None:
        return None
    index = torch.full_like(ids, -1)
    index[2:5] = torch.tensor([0, 1, 2] if sequence == 0 else [-1, 1, -1])[: len(index[2:5])]
    return index


def _run_model(model: torch.nn.Module, sequence: Sequence) -> Sequence:
    """Returns the sequence with the model's results."""
    ids, begins = sequence.ids, int(sequence.positions[0])
    modules: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: _keep_output(modules, name, output))
        for name, module in model.named_modules()
    ]
    given = {"position_ids": sequence.positions[None] + first_position(model)} if begins else {}
    try:
        if sequence.states is not None:
            made = run_decoder(model, ids[None], sequence.states)
        elif sequence.rows is not None:
            embeddings = model.get_input_embeddings()(ids)
            embeddings[sequence.index >= 0] = sequence.rows[sequence.index[sequence.index >= 0]]
            made = model(inputs_embeds=embeddings[None], use_cache=False, **given)
        else:
            made = model(input_ids=ids[None], use_cache=False, **given)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__} itself does not run {len(ids)} tokens at positions from {begins}: {error}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return replace(sequence, logits=made.logits[0], modules=modules)


def _keep_output(modules: dict[str, torch.Tensor], name: str, output: object) -> None:
    """Keeps the output of a module that returns a single tensor."""
    tensors = [one for one in torch.utils._pytree.tree_leaves(output) if isinstance(one, torch.Tensor)]
    if len(tensors) == 1:
        modules.pop(name, None)  # if a module runs twice, the second run counts
        _keep_some(modules, name, tensors[0])


def _keep_some(modules: dict[str, torch.Tensor], name: str, output: object) -> None:
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        modules[name] = output.flatten()[:SAMPLED].float().clone()


_REMEDY = "Mend the model, export it with example_inputs (whole sequences), or leave this check out by check=False"


def _compare_logits(
    model: torch.nn.Module, sequence: Sequence, given: torch.Tensor, modules: dict[str, torch.Tensor]
) -> None:
    # Some models return float32 whatever they compute in.
    dtypes = {given.dtype, *(parameter.dtype for parameter in model.parameters())}
    tolerance = max(LOGITS_TOLERANCE[dtype] for dtype in {torch.float32, *dtypes} & LOGITS_TOLERANCE.keys())
    error = _error(given, sequence.logits)
    if error <= tolerance or error <= 3 * _noise(model, sequence):
        return
    differs = next(_differing(sequence.modules, modules, tolerance), None)
    raise ExportError(
        f"{type(model).__name__}: the exported program gives other logits than the model, by {error:.2g} of their "
        f"norm, for {len(given)} tokens at positions from {int(sequence.positions[0])}"
        + (f'; the first module that differs is "{differs}"' if differs else "")
        + f". {_REMEDY}"
    )


def _error(given: torch.Tensor, right: torch.Tensor) -> float:
    """Returns the largest relative error of any row; infinite if a value is not a number."""
    error = (given - right).float().norm(dim=-1) / right.float().norm(dim=-1).clamp(min=1e-20)
    return float(error.nan_to_num(torch.inf).max())


def _noise(model: torch.nn.Module, sequence: Sequence) -> float:
    """Returns how far the logits of a 16-bit model move if its embeddings are rounded differently. This can be far
    for models with routers, whose choices may flip, and with random weights."""
    dtype = sequence.logits.dtype
    if dtype not in (torch.float16, torch.bfloat16):
        return 0.0
    generator = torch.Generator().manual_seed(0)

    def round_otherwise(_, __, output):
        up = torch.randint(-1, 2, output.shape, generator=generator)
        return output * (1 + up * torch.finfo(dtype).eps).to(dtype)

    hook = model.get_input_embeddings().register_forward_hook(round_otherwise)
    try:
        again = _run_model(model, sequence)
    finally:
        hook.remove()
    return _error(again.logits, sequence.logits)


def _differing(wanted: dict[str, torch.Tensor], given: dict[str, torch.Tensor], tolerance: float) -> Iterator[str]:
    for name, one in wanted.items():
        other = given.get(name)
        comparable = name and other is not None and other.shape == one.shape
        if comparable and float((other - one).norm()) > tolerance * float(one.norm()):
            yield name


def _stack(node: torch.fx.Node) -> list[tuple[str, object]]:
    """Returns the modules that a call is in, with their paths, outermost first."""
    return list(node.meta.get("nn_module_stack", {}).values())


class _Lockstep:
    """Runs the program on all inputs at once, op by op: first the two whole sequences, then the mixtures of them."""

    def __init__(self, kind: str, traced: TracedGraph, sequences: list[Sequence]):
        self.kind, self.traced = kind, traced
        self.modules: list[dict[str, torch.Tensor]] = [{} for _ in sequences]
        self.ends: dict[str, torch.fx.Node] = {}  # the last op of each module, which computes its output
        self.varying: set[torch.fx.Node] = set()  # nodes that depend on more than the weights
        length = len(sequences[0].ids)
        self.indices = [
            torch.tensor(
                [sequence * length + row for sequence, begin, end in mixture for row in range(begin, min(end, length))]
            )
            for mixture in MIXTURES
        ]
        self.indices = [index for index in self.indices if len(index)]
        ids, positions = (torch.cat([getattr(one, part) for one in sequences]) for part in ("ids", "positions"))
        rows = [torch.arange(length) + at * length for at in range(len(sequences))] + self.indices
        self.inputs = [(ids[index], positions[index], torch.arange(len(index))) for index in rows]
        if sequences[0].states is not None:  # mixtures run no attention
            states = [sequence.states for sequence in sequences] + [sequences[0].states] * len(self.indices)
            self.inputs = [(*given, one) for given, one in zip(self.inputs, states, strict=True)]
        if sequences[0].rows is not None:
            places = torch.cat([sequence.index for sequence in sequences])
            self.inputs = [
                (*given, sequences[0].rows, places[index]) for given, index in zip(self.inputs, rows, strict=True)
            ]
        tokens, _, wanted, *_ = (node.meta["val"].shape[0].node.expr for node in traced.inputs)
        self.symbols = {tokens, wanted}

    def run(self) -> list[torch.Tensor]:
        """Returns the logits of the whole sequences."""
        values: dict[torch.fx.Node, list] = {}
        for number, node in enumerate(self.traced.inputs):
            values[node] = [given[number] for given in self.inputs]
        for weight in self.traced.weights:
            values[weight.node] = [weight.tensor] * len(self.inputs)
        live = self._live()
        self.varying.update(self.traced.inputs)
        for node in live:
            if not self.varying.isdisjoint(node.all_input_nodes):
                self.varying.add(node)
            self.ends.update((path.removeprefix(PREFIX), node) for path, _ in _stack(node))
        last_use = {used: node for node in live for used in node.all_input_nodes}
        dropped: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        for used, node in last_use.items():
            dropped.setdefault(node, []).append(used)
        for node in live:
            values[node] = self._run_op(node, values)
            for used in dropped.get(node, ()):
                if used not in self.traced.outputs:
                    del values[used]
        (logits,) = self.traced.outputs
        return values[logits][: len(self.modules)]

    def _live(self) -> list[torch.fx.Node]:
        """Returns the calls that the outputs depend on, in order."""
        needed = set(self.traced.outputs)
        for node in reversed(self.traced.nodes):
            if node in needed:
                needed.update(node.all_input_nodes)
        return [node for node in self.traced.nodes if node in needed and node.op == "call_function"]

    def _run_op(self, node: torch.fx.Node, values: dict[torch.fx.Node, list]) -> list:
        if node not in self.varying:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: values[one][0])
            return [node.target(*args, **kwargs)] * len(self.inputs)
        if _reaches_far(node):
            self._refuse(node)
        results = []
        for run in range(len(self.inputs)):
            if run >= len(self.modules) and str(node.target) in SEE_ROWS:
                results.append(None)
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one, run=run: values[one][run])
            results.append(node.target(*args, **kwargs))
        whole, mixed = results[: len(self.modules)], results[len(self.modules) :]
        ended = {path.removeprefix(PREFIX) for path, _ in _stack(node)}
        for path in (path for path in ended if self.ends[path] is node):
            for modules, value in zip(self.modules, whole, strict=True):
                _keep_some(modules, path, value)
        traced = node.meta.get("val")
        if not isinstance(traced, (tuple, list)):
            return whole + [self._right(node, traced, whole, one, at) for at, one in enumerate(mixed)]
        parts = [
            [self._right(node, val, [one[part] for one in whole], other[part], at) for part, val in enumerate(traced)]
            for at, other in enumerate(mixed)
        ]
        return whole + parts

    def _right(self, node: torch.fx.Node, traced, whole: list, given, mixture: int):
        """Returns the right result for the rows of a mixture, if it follows from the results for whole sequences."""
        if not isinstance(traced, torch.Tensor):
            return given
        dims = [dim for dim, size in enumerate(traced.shape) if isinstance(size, torch.SymInt)]
        if not dims:
            self._compare(node, given, whole[0])
            self._compare(node, whole[1], whole[0])
            return given
        (dim, *others) = dims
        if others or traced.shape[dim].node.expr not in self.symbols:
            return given  # not one entry per row: later ops take it apart
        right = torch.cat(whole, dim).index_select(dim, self.indices[mixture])
        if given is not None:
            self._compare(node, given, right)
        return right

    def _compare(self, node: torch.fx.Node, given: torch.Tensor, right: torch.Tensor) -> None:
        if given.shape == right.shape and close(given, right):
            return
        self._refuse(node)

    def _refuse(self, node: torch.fx.Node) -> NoReturn:
        module = ([""] + [path.removeprefix(PREFIX) for path, _ in _stack(node)])[-1]
        raise ExportError(
            f'{self.kind}: in module "{module}" {node.target} at {place_of(node)} makes what depends on other rows, '
            "or on how many there are. An engine computes rows of several sequences together, and new tokens one by one: "
            f"only attention and states see other rows, and positions are those of position_ids. {_REMEDY}"
        )


def _reaches_far(node: torch.fx.Node) -> bool:
    """Returns True if the op reads rows at places that short sequences may not have: a convolution over rows (which
    may be dilated), or an op that adds rows before or after the others, or drops some (a delay)."""
    value = node.meta.get("val")
    shapes = [one.shape for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]
    if any(_begins_above_zero(size) for shape in shapes for size in shape):
        return True
    if not getattr(node.target, "_opname", "").startswith("conv"):
        return False
    rows, kernel = (one.meta["val"].shape for one in node.args[:2])
    along = zip(rows[2 - len(kernel) :], kernel[2:], strict=True)
    return any(isinstance(length, torch.SymInt) and size != 1 for length, size in along)


def _begins_above_zero(size: int | torch.SymInt) -> bool:
    """Returns True if a size that depends on symbols has a constant part, as in tokens + 12."""
    if not isinstance(size, torch.SymInt):
        return False
    expression = size.node.expr
    return expression.subs(dict.fromkeys(expression.free_symbols, 0)) != 0


def close(given: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns True if two tensors of one shape differ by no more than rounding."""
    if not right.is_floating_point():
        return torch.equal(given, right)
    finite = right[right.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    tolerance = OP_TOLERANCE.get(right.dtype, 1e-4) * largest
    return bool(torch.isclose(given, right, rtol=0.0, atol=tolerance, equal_nan=True).all())
