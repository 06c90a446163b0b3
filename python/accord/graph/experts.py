"""Layers of experts of transformers, exported as one op.

Most experts compute down(activation(gate(x)) * up(x)). Some clamp these values, scale the gate's argument or add a
constant to up(x), in code of their own. Such code is called on a few numbers and compared with the op's formula for the
numbers that the layer has as attributes; another gate is refused.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass

import torch

from accord.graph.errors import ExportError

ACTIVATIONS = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "silu": "silu",
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "ReLU": "relu",
    "Tanh": "tanh",
    "ReLUSquaredActivation": "relu_squared",
}
_FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "relu_squared": lambda x: torch.relu(x).square(),
    "none": lambda x: x,
}


@dataclass(frozen=True)
class Gate:
    """How an expert's inner values are made: up is clamped to [-limit, limit] and gate to at most limit (0: neither is
    clamped); the inner values are activation(alpha gate) / alpha (up + offset), or activation(up) without a gate."""

    activation: str = "silu"
    limit: float = 0.0
    alpha: float = 1.0
    offset: float = 0.0

    def inner(self, up: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
        activate = _FUNCTIONS[self.activation]
        if self.limit:
            up = up.clamp(-self.limit, self.limit)
        if gate is None:
            return activate(up + self.offset)
        if self.limit:
            gate = gate.clamp(max=self.limit)
        return activate(self.alpha * gate) / self.alpha * (up + self.offset)


@torch.library.custom_op("accord::experts", mutates_args=())
def _experts(
    input: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    gate: torch.Tensor | None = None,
    activation: str = "silu",
    up_bias: torch.Tensor | None = None,
    gate_bias: torch.Tensor | None = None,
    limit: float = 0.0,
    alpha: float = 1.0,
    offset: float = 0.0,
) -> torch.Tensor:
    """Passes input [rows, hidden] through the experts [rows, top_k] that each row chose, and adds the results up with
    weights [rows, top_k]. up and gate are [experts, inner, hidden], their biases [experts, inner], down is [experts,
    hidden, inner]. The other arguments are those of Gate."""
    linear = torch.nn.functional.linear
    how = Gate(activation, limit, alpha, offset)

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
        return linear(x, weight[expert], None if bias is None else bias[expert])

    output = torch.zeros(input.shape[0], down.shape[1])
    for row, choices in enumerate(experts.tolist()):
        for number, expert in enumerate(choices):
            gated = None if gate is None else product(input[row], gate, gate_bias, expert)
            inner = how.inner(product(input[row], up, up_bias, expert), gated)
            output[row] += weights[row, number].float() * linear(inner, down[expert]).float()
    return output.to(input.dtype)


@_experts.register_fake
def _(input, experts, weights, up, down, *_, **__):
    return input.new_empty(input.shape[0], down.shape[1])


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.detach(), requires_grad=False)


def is_experts(module: torch.nn.Module) -> bool:
    """Returns True for the experts of a layer in transformers 5 and later: one tensor for all experts."""
    return hasattr(module, "_is_expert_parallel") and hasattr(module, "down_proj")


class Experts(torch.nn.Module):
    """The experts of one layer of a model of transformers."""

    def __init__(self, experts: torch.nn.Module):
        super().__init__()
        kind = type(experts).__name__
        if experts.has_post_expert_norm:
            raise ExportError(f"{kind}: experts with norms of their own have no kernel")
        self.how = _gate_of(experts)
        names = ("gate_up_proj", "down_proj") if experts.has_gate else ("up_proj", "down_proj")
        up, down = (getattr(experts, name) for name in names)
        up_bias, down_bias = (getattr(experts, f"{name}_bias") if experts.has_bias else None for name in names)
        if experts.is_transposed:
            up, down = up.transpose(1, 2), down.transpose(1, 2)
        self.gate_proj = self.gate_bias = None
        if experts.has_gate:
            gate, up = _halves(up, experts.is_concatenated)
            self.gate_proj = frozen(gate)
            if up_bias is not None:
                gate_bias, up_bias = _halves(up_bias, experts.is_concatenated)
                self.gate_bias = frozen(gate_bias)
        self.up_proj, self.down_proj = frozen(up), frozen(down)
        self.up_bias, self.down_bias = (None if one is None else frozen(one) for one in (up_bias, down_bias))

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor):
        output = torch.ops.accord.experts(
            hidden_states,
            top_k_index,
            top_k_weights,
            self.up_proj,
            self.down_proj,
            self.gate_proj,
            up_bias=self.up_bias,
            gate_bias=self.gate_bias,
            **asdict(self.how),
        )
        if self.down_bias is None:
            return output
        return output + (self.down_bias[top_k_index] * top_k_weights.unsqueeze(-1)).sum(1).to(output.dtype)


def _halves(tensor: torch.Tensor, is_concatenated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gate's and the other half of the outputs, which are dimension 1."""
    return tensor.chunk(2, 1) if is_concatenated else (tensor[:, 0::2], tensor[:, 1::2])


def _gate_of(experts: torch.nn.Module) -> Gate:
    kind = type(experts).__name__
    function = getattr(experts, "act_fn", torch.nn.functional.silu)
    activation = type(function).__name__ if isinstance(function, torch.nn.Module) else function.__name__
    if activation not in ACTIVATIONS:
        raise ExportError(f"{kind}: experts with {activation} have no kernel")
    plain = Gate(ACTIVATIONS[activation])
    if not experts.has_gate or type(experts)._apply_gate.__qualname__ == "_default_apply_gate":
        return plain
    numbers = torch.cat([torch.linspace(-3, 3, 31), torch.tensor([-200.0, -20.0, 20.0, 200.0])])
    gate, up = (one.flatten() for one in torch.meshgrid(numbers, numbers, indexing="ij"))
    together = torch.cat([gate, up]) if experts.is_concatenated else torch.stack([gate, up], -1).flatten()
    wanted = experts._apply_gate(together[None])[0]
    limits, alphas = (
        {default, *(float(getattr(experts, name)) for name in names if getattr(experts, name, None))}
        for default, names in ((0.0, ("limit", "swiglu_limit")), (1.0, ("alpha", "swiglu_alpha")))
    )
    for limit, alpha, offset in itertools.product(limits, alphas, (0.0, 1.0)):
        found = Gate(plain.activation, limit, alpha, offset)
        if wanted.shape == up.shape and torch.allclose(found.inner(up, gate), wanted, rtol=1e-5, atol=1e-6):
            return found
    raise ExportError(f"{kind}: experts with this gate of their own have no kernel")
