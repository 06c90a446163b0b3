"""Trains megatron-core's GPT on CPUs, for torch/test_megatron.py. Runs on every rank, over two backends of
torch.distributed in turn."""

from __future__ import annotations

import contextlib
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import checkpoint as megatron_checkpoint
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput, CudaRNGStatesTracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch.overrides import TorchFunctionMode

STEPS = 20
LENGTH = 16
WORDS = 64


class _OnCpu(TorchFunctionMode):
    """Redirects allocations on a GPU to the CPU."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = torch.device("cpu")
        return function(*arguments, **keywords)


@contextlib.contextmanager
def without_gpu():
    """Lets megatron-core run with the CPU in place of a GPU."""

    def norm(cls, config, hidden_size, eps=1e-5, **_):
        made = torch.nn.LayerNorm(hidden_size, eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")))
        stack.enter_context(mock.patch.object(torch.cuda, "synchronize", lambda *_: None))
        stack.enter_context(mock.patch.object(CudaRNGStatesTracker, "fork", lambda *_, **__: contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(megatron_random, "_get_cuda_rng_state", lambda **_: None))
        stack.enter_context(mock.patch.object(megatron_random, "_set_cuda_rng_state", lambda *_, **__: None))
        stack.enter_context(mock.patch.object(WrappedTorchNorm, "__new__", norm))
        stack.enter_context(_OnCpu())
        yield


def batch_of(step: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1000 * parallel_state.get_data_parallel_rank() + step)
    tokens = torch.randint(0, WORDS, (2, LENGTH), generator=generator)
    places = torch.arange(LENGTH).expand(2, LENGTH)
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
    return tokens, places, mask


def train(tensor: int, pipeline: int, sequence: bool) -> list[float]:
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        sequence_parallel=sequence,
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
    torch.manual_seed(7)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=WORDS,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    replicas = parallel_state.get_data_parallel_world_size()
    if replicas > 1:
        model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):

        def forward(_, part, step=step):
            tokens, places, mask = batch_of(step)
            found = part(tokens, places, mask, labels=tokens.roll(-1, 1))
            return found, lambda each: (each.mean(), {"loss": each.mean().item()})

        reduced = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=None,
            model=model,
            num_microbatches=2,
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )
        losses += [part["loss"] for part in reduced]
        for parameter in model.parameters():
            if getattr(parameter, "sequence_parallel", False):
                dist.all_reduce(parameter.grad, group=parallel_state.get_tensor_model_parallel_group())
        if replicas > 1:
            model.finish_grad_sync()
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad
        optimizer.step()
        optimizer.zero_grad(set_to_none=replicas > 1)
        if replicas > 1:
            model.zero_grad_buffer()
    return [*losses, *[parameter.sum().item() for parameter in model.parameters()]]


def gpt(tensor: int, pipeline: int, sequence: bool) -> list[float]:
    """Returns the loss of each microbatch of each step on ranks that have the last layers, followed by the sum of
    each of this rank's parameters at the end."""
    with without_gpu():
        parallel_state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
        try:
            return train(tensor, pipeline, sequence)
        finally:
            parallel_state.destroy_model_parallel()


def experts(dispatcher: str, parallel: int, recompute: str = "") -> list[torch.Tensor]:
    """Returns the output of a MoE layer of four experts over `parallel` ranks, and the gradients of its input and
    router. recompute: "full" runs the layer again in its backward pass, as recompute_granularity does with whole
    layers; "moe" is one of megatron-core's recompute_modules."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe import moe_utils

    # moe_utils lacks this name if TransformerEngine is not installed.
    with without_gpu(), mock.patch.object(moe_utils, "te_general_gemm", None, create=True):
        parallel_state.initialize_model_parallel(expert_model_parallel_size=parallel, create_gloo_process_groups=False)
        try:
            config = TransformerConfig(
                num_layers=1,
                hidden_size=16,
                num_attention_heads=2,
                num_moe_experts=4,
                moe_router_topk=2,
                moe_router_dtype="fp32",
                moe_token_dispatcher_type=dispatcher,
                expert_model_parallel_size=parallel,
                add_bias_linear=False,
                use_cpu_initialization=True,
                gradient_accumulation_fusion=False,
                moe_router_load_balancing_type="none",
                recompute_granularity="selective" if recompute == "moe" else None,
                recompute_modules=["moe"] if recompute == "moe" else None,
            )
            torch.manual_seed(3)
            layer = get_moe_module_spec(use_te=False, num_experts=4)
            layer = layer.module(config, layer.submodules, layer_number=1)
            generator = torch.Generator().manual_seed(dist.get_rank())
            x = torch.randn(6, 2, 16, generator=generator, requires_grad=True)
            result = megatron_checkpoint(lambda x: layer(x)[0], False, x) if recompute == "full" else layer(x)[0]
            result.backward(torch.randn(6, 2, 16, generator=generator))
            return [result.detach(), x.grad, layer.router.weight.grad]
        finally:
            parallel_state.destroy_model_parallel()


def recomputed_calls(experts, dispatch, combine) -> list[list[torch.Tensor]]:
    """Returns the gradients through two layers of accord's calls that share a handle: without recompute, and with
    each of megatron-core's recompute functions."""
    handles = [experts.handle(), experts.handle()]
    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(5, 8, generator=generator)
    router = torch.randn(8, 4, generator=generator)

    def layer(number, x, router):
        top = torch.softmax(x @ router, -1).topk(2, -1)
        experts.prepare(handles[number], top.indices)
        rows, weights = dispatch(experts, handles[number], x, top.values)
        return combine(experts, handles[number], torch.tanh(rows) * weights[:, None])

    def gradients(run):
        inputs = [x.clone().requires_grad_(), router.clone().requires_grad_()]
        for part in range(2):  # two microbatches that share the handles
            result = inputs[0] * (part + 1)
            for number in range(2):
                result = run(number, result, inputs[1])
            result.square().sum().backward()
        return [each.grad for each in inputs]

    def without_output(number, *arguments):
        way = CheckpointWithoutOutput(fp8=None)
        made = way.checkpoint(lambda *given: layer(number, *given), *arguments)
        result = torch.sin(made)
        way.discard_output_and_register_recompute(result)
        return result

    with without_gpu():
        return [
            gradients(layer),
            gradients(
                lambda number, *arguments: megatron_checkpoint(lambda *given: layer(number, *given), False, *arguments)
            ),
            gradients(lambda number, *arguments: torch.sin(layer(number, *arguments))),
            gradients(without_output),
        ]
