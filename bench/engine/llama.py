"""The Llamas of the engine benchmark: random weights, and the files of each contender, created once in a directory."""

from __future__ import annotations

from pathlib import Path

# Parameters of transformers' LlamaConfig, for 60 and 1,236 million parameters; the second is Llama 3.2 1B with tied
# embeddings.
MODELS = {
    "60M": {
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
    "1.2B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
}
PREFILL, CONTEXT = 512, 128  # tokens in a prompt, and before a decoded token
PRECISIONS = ["fp32", "bf16", "int8", "int4"]


def dtype_of(precision: str) -> str:
    """Returns torch's name of the dtype of the weights that a precision is derived from."""
    return "float32" if precision == "fp32" else "bfloat16"


def empty_model(name: str, precision: str):
    """Returns transformers' model without memory for its weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**MODELS[name], max_position_embeddings=2048, rope_theta=500000.0, eos_token_id=None)
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(getattr(torch, dtype_of(precision))).eval()


def model_of(name: str, precision: str):
    """Returns transformers' model, the same for every contender."""
    import torch

    model = empty_model(name, precision).to_empty(device="cpu")
    model.tie_weights()
    model.model.rotary_emb.__init__(model.config)  # restores the buffers that the empty copy lacks
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(0, 0.02, generator=generator) if weights.dim() > 1 else weights.fill_(1)
    return model


def package(name: str, precision: str, directory: Path) -> Path:
    """Returns accord's package, exported on first use."""
    import accord

    path = directory / f"{name}-{precision}.accord"
    if not path.exists():
        # All weights, as in the peers' files; a plain "int4" would leave the head in 8 bits.
        weights = {"weights": {"*": precision}} if precision.startswith("int") else {}
        accord.export(model_of(name, precision), path=path, sharding="auto", **weights)
    return path
