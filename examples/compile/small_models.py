"""Shared by the examples in this folder: small models with random weights, equal on all ranks, and a comparison."""

import torch
import torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 128,
}

# How the layers of Llama and Qwen are sharded, in torch's terms: both parallelize_module and accord.export accept
# this.
PLAN = {
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def qwen() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(seed))


def report(label: str, got: torch.Tensor, expected: torch.Tensor, rank: int | None = None) -> None:
    """Ends the program unless both are equal up to rounding. `rank`: given if there is no process group."""
    difference = ((got - expected).abs().max() / expected.abs().max()).item()
    print(
        f"rank {dist.get_rank() if rank is None else rank}: {label} differs from PyTorch by {difference:.1e}",
        flush=True,
    )
    if not difference < 1e-4:
        raise SystemExit(1)
