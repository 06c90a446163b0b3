"""Layers that keep a state from token to token: causal convolutions, state space models, gated delta rules.

transformers computes them by functions of a few names, the same in the files of all models, which stand for the
kernels of other packages (causal-conv1d, mamba-ssm, flash-linear-attention). While a model is traced, functions of
these names call one of two ops instead, whose states the engine keeps for each sequence.
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

from accord.graph.joined import CONVOLUTION, RECURRENCE

OPS = (CONVOLUTION, RECURRENCE)


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
    try:
        for file, name, function in before:
            setattr(file, name, _in_this_thread(_PLACES[name].__get__(states), function))
        yield states
    finally:
        for file, name, function in before:
            setattr(file, name, function)
