"""Layers that keep a state from token to token: causal convolutions, state space models, gated delta rules, linear
attention.

transformers computes most of them by functions of a few names, the same in the files of all models, which stand for
the kernels of other packages (causal-conv1d, mamba-ssm, flash-linear-attention). Some models have methods of their own
instead. While a model is traced, these functions and methods call ops whose states the engine keeps for each sequence.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional


@torch.library.custom_op("accord::causal_convolution", mutates_args=())
def _causal_convolution(
    input: torch.Tensor, weight: torch.Tensor, state: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolution of each channel over the last tokens. input: [tokens, channels]; weight: [channels, taps]. Equals the
    engine's op for a sequence that begins with these tokens."""
    padded = functional.pad(input.float().T, (weight.shape[1] - 1, 0))
    given = None if bias is None else bias.float()
    output = functional.conv1d(padded[None], weight.float()[:, None], given, groups=len(weight))
    return output[0].T.to(input.dtype).contiguous()


@_causal_convolution.register_fake
def _(input, weight, state, bias=None):
    return torch.empty_like(input, memory_format=torch.contiguous_format)


@torch.library.custom_op("accord::linear_recurrence", mutates_args=())
def _linear_recurrence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    state: int,
    beta: torch.Tensor | None = None,
) -> torch.Tensor:
    """For each head, with a state S [key size, value size] of zeros, and each token: S = decay S; S += key d with d =
    beta (value - key S) if there is a beta, else value; the output is query S. query, key: [tokens, key heads, key
    size]; value: [tokens, heads, value size]; decay: [tokens, heads, 1 or key size]; beta: [tokens, heads, 1].
    Equals the engine's op for a sequence that begins with these tokens."""
    shared = value.shape[1] // key.shape[1]
    query, key = (x.float().repeat_interleave(shared, 1) for x in (query, key))
    values, outputs = value.float(), []
    kept = values.new_zeros(value.shape[1], key.shape[2], value.shape[2])
    for row in range(len(values)):
        kept = decay[row].float()[..., None] * kept
        change = values[row]
        if beta is not None:
            change = beta[row].float() * (change - torch.einsum("hkv,hk->hv", kept, key[row]))
        kept = kept + key[row][..., None] * change[:, None]
        outputs.append(torch.einsum("hkv,hk->hv", kept, query[row]))
    return torch.stack(outputs).to(value.dtype) if outputs else torch.empty_like(value)


@_linear_recurrence.register_fake
def _(query, key, value, decay, state, beta=None):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


@torch.library.custom_op("accord::wkv", mutates_args=())
def _wkv(key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, bonus: torch.Tensor, state: int) -> torch.Tensor:
    """The mean of the values of all tokens up to each one, by channel, weighted by exp(w): w is key + bonus for the
    token itself, and key + n decay for the token n + 1 before it. key, value: [tokens, channels]; decay, bonus:
    [channels]. Equals the engine's op for a sequence that begins with these tokens."""
    keys, values, outputs = key.float(), value.float(), []
    for row in range(len(keys)):
        before = torch.arange(row - 1, -1, -1, device=key.device)[:, None] * decay.float() + keys[:row]
        weights = torch.cat([before, (keys[row] + bonus.float())[None]]).softmax(0)
        outputs.append((weights * values[: row + 1]).sum(0))
    return torch.stack(outputs).to(value.dtype) if outputs else torch.empty_like(value)


@_wkv.register_fake
def _(key, value, decay, bonus, state):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


class States:
    """The states of a model's layers, numbered in the order of the calls. Has the functions that take the place of
    transformers' own, each with its signature; all are for one sequence that begins anew, as in a batch of one."""

    def __init__(self):
        self.number = 0

    def _next(self) -> int:
        self.number += 1
        return self.number - 1

    def convolution(self, hidden_states, weight, bias=None, activation=None, **_):
        """hidden_states: [1, channels, tokens]."""
        from transformers.activations import ACT2FN

        output = torch.ops.accord.causal_convolution(hidden_states[0].T, weight, self._next(), bias).T[None]
        return output if activation is None else ACT2FN[activation](output)

    def scan_of_heads(
        self,
        hidden_states,
        dt,
        A,  # noqa: N803 (transformers' names)
        B,  # noqa: N803
        C,  # noqa: N803
        chunk_size=None,
        D=None,  # noqa: N803
        z=None,
        dt_bias=None,
        dt_softplus=False,
        dt_limit=(0.0, math.inf),
        **_,
    ):
        """Mamba 2: hidden_states [1, tokens, heads, head size], dt [1, tokens, heads], A and D [heads], B and C [1,
        tokens, groups, state size]."""
        step = _steps(dt[0], dt_bias, dt_softplus).clamp(*dt_limit).float()
        values = hidden_states[0].float()
        decay = torch.exp(A.float() * step)[..., None]
        output = torch.ops.accord.linear_recurrence(
            C[0].float(), B[0].float(), values * step[..., None], decay, self._next()
        )
        output = output if D is None else output + D[:, None] * values
        return (output if z is None else output * functional.silu(z[0].float()))[None]

    def scan_of_channels(
        self,
        hidden_states,
        dt,
        A,  # noqa: N803
        B,  # noqa: N803
        C,  # noqa: N803
        D=None,  # noqa: N803
        z=None,
        delta_bias=None,
        delta_softplus=False,
        **_,
    ):
        """Mamba 1: hidden_states, dt and z [1, channels, tokens], A [channels, state size], B and C [1, state size,
        tokens]. Each channel is a head with values of one element."""
        step = _steps(dt[0].T, delta_bias, delta_softplus).float()
        values = hidden_states[0].T.float()
        decay = torch.exp(A.float() * step[..., None])
        key, query = (x[0].T.float()[:, None] for x in (B, C))
        output = torch.ops.accord.linear_recurrence(query, key, (values * step)[..., None], decay, self._next())[..., 0]
        output = output if D is None else output + D.float() * values
        output = output if z is None else output * functional.silu(z[0].T.float())
        return output.T[None].to(hidden_states.dtype)

    def delta_rule(self, query, key, value, g, beta, use_qk_l2norm_in_kernel=False, **_):
        """Gated delta rule: query and key [1, tokens, key heads, key size], value [1, tokens, heads, value size], beta
        [1, tokens, heads], g, logarithms of the decay, the same or for each element of a key."""
        queries, keys = query[0].float(), key[0].float()
        if use_qk_l2norm_in_kernel:
            queries, keys = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (queries, keys))
        decay = torch.exp(g[0].float())
        decay = decay if g.dim() == key.dim() else decay[..., None]
        output = torch.ops.accord.linear_recurrence(
            queries * key.shape[-1] ** -0.5, keys, value[0].float(), decay, self._next(), beta[0].float()[..., None]
        )
        return output[None].to(query.dtype), None

    def wkv(self, time_decay, time_first, key, value, state=None, return_state=False):
        """RWKV 4: key and value [1, tokens, channels]."""
        decay = -torch.exp(time_decay.float())
        output = torch.ops.accord.wkv(key[0].float(), value[0].float(), decay, time_first.float(), self._next())
        return output[None].to(key.dtype), None

    def shift(self, module, hidden):
        """RWKV's ZeroPad2d: each token gets the row of the token before it. hidden: [1, tokens, channels]."""
        last = hidden.new_tensor([[1.0, 0.0]]).expand(hidden.shape[2], 2).contiguous()
        return torch.ops.accord.causal_convolution(hidden[0], last, self._next())[None]

    def padded_convolution(self, module, hidden_states):
        """Conv1d with padding on both sides, whose last outputs are left out. hidden_states: [1, channels, tokens]."""
        return self.convolution(hidden_states, module.weight[:, 0], module.bias)

    def gated_unit(self, module, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=torch.float32):
        """RecurrentGemma: hidden_states and recurrent_gate [1, tokens, channels]. Each channel is a head with keys and
        values of one element."""
        values = hidden_states[0].float()[..., None]
        one = values.new_ones(1, 1, 1).expand(values.shape[0], 1, 1)
        decay = recurrent_gate[0].float()[..., None]
        output = torch.ops.accord.linear_recurrence(one, one, values, decay, self._next())
        return output[..., 0][None].to(hidden_states.dtype), None

    def lightning_attention(self, module, hidden_states, *_, **__):
        """MiniMax: hidden_states [1, tokens, hidden size]."""
        joined = module.act_fn(module.qkv_proj(hidden_states))[0]
        rows = joined.shape[0]
        heads = joined.reshape(rows, module.num_attention_heads, 3 * module.head_dim).float()
        query, key, value = heads.split(module.head_dim, 2)
        decay = torch.exp(-module.slope_rate.float()).reshape(1, -1, 1).expand(rows, -1, 1)
        output = torch.ops.accord.linear_recurrence(query, key, value, decay, self._next())
        output = module.norm(output.reshape(1, rows, -1).to(hidden_states.dtype))
        return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * output), None


def _steps(dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool) -> torch.Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return functional.softplus(dt) if softplus else dt


# transformers' name of a function: the method that takes its place.
_PLACES: dict[str, Callable] = {
    "causal_conv1d_fn": States.convolution,
    "mamba2_chunk_scan": States.scan_of_heads,
    "mamba_selective_scan": States.scan_of_channels,
    "torch_chunk_gated_delta_rule": States.delta_rule,
    "chunk_kimi_delta_attention": States.delta_rule,
    "rwkv_linear_attention": States.wkv,
}
# The class of a module, and its part and method: the method that takes its place, which gets the part first.
_METHODS: dict[tuple[str, str, str], Callable] = {
    ("RwkvSelfAttention", "time_shift", "forward"): States.shift,
    ("RwkvFeedForward", "time_shift", "forward"): States.shift,
    ("RecurrentGemmaRecurrentBlock", "conv_1d", "forward"): States.padded_convolution,
    ("RecurrentGemmaRglru", "", "_rnn_scan"): States.gated_unit,
    ("MiniMaxLightningAttention", "", "forward"): States.lightning_attention,
}


def _in_this_thread(method: Callable, otherwise: Callable) -> Callable:
    thread = threading.get_ident()

    @functools.wraps(otherwise)
    def call(*args, **kwargs):
        return (method if threading.get_ident() == thread else otherwise)(*args, **kwargs)

    return call


@contextlib.contextmanager
def kept_states(model: torch.nn.Module) -> Iterator[States]:
    """Context in which the model's functions for states are ops of the engine, for this thread; yields the states that
    it counts. Another thread must not enter it for a model of the same type."""
    states = States()
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    before = [(file, name, vars(file)[name]) for file in files for name in _PLACES if name in vars(file)]
    methods = [
        (module.get_submodule(part), name, place)
        for module in model.modules()
        for (kind, part, name), place in _METHODS.items()
        if type(module).__name__ == kind
    ]
    try:
        for file, name, function in before:
            setattr(file, name, _in_this_thread(_PLACES[name].__get__(states), function))
        for module, name, place in methods:
            setattr(module, name, functools.partial(place, states, module))
        yield states
    finally:
        for module, name, _ in methods:
            vars(module).pop(name, None)
        for file, name, function in before:
            setattr(file, name, function)
