"""Small language models with experts, of several families. Requires torch and transformers."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
FAMILIES = {
    "mixtral": transformers.MixtralConfig(
        **SIZES, intermediate_size=256, num_key_value_heads=2, num_local_experts=4, sliding_window=None
    ),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **SIZES,
        num_key_value_heads=4,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=80,
        shared_expert_intermediate_size=96,
    ),
}


def make_model(name: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]).eval()
    with torch.no_grad():  # scaled up, so that errors in experts show and logits differ clearly
        for parameter_name, parameter in model.named_parameters():
            if "experts" in parameter_name or "lm_head" in parameter_name:
                parameter.mul_(8)
    return model


def with_weights(model: torch.nn.Module, stored: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Loads the tensors of a package, dequantized, into the model."""
    for name, parameter in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            parts = (stored[name.replace("gate_up", part)] for part in ("gate", "up"))
            parameter.copy_(torch.cat(list(parts), 1))
        else:
            parameter.copy_(stored[name])
    return model
