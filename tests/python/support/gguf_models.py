"""Small random models of each architecture that GGUF files can have."""

from __future__ import annotations

from text_model import CONTEXT, torch, transformers

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": CONTEXT // 4,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 256}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "routed_scaling_factor": 1.5,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0 + number / 20 for number in range(8)],
    "long_factor": [1.0 + number / 3 for number in range(8)],
    "original_max_position_embeddings": CONTEXT // 4,
}
# transformers' model type, and its configuration; each field that a file can express is in one of them.
MODELS = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": YARN}),
    "mixtral": ("mixtral", TWO_OF_FOUR),
    "mistral3": (
        "ministral3",
        {"head_dim": 32, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.3}},
    ),
    "smollm3": ("smollm3", {"tie_word_embeddings": True}),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    "granitemoe": ("granitemoe", TWO_OF_FOUR | {"attention_multiplier": 0.2, "residual_multiplier": 0.6}),
    "qwen2": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 48, "tie_word_embeddings": True}),
    "qwen2moe": ("qwen2_moe", SMALL_EXPERTS | {"shared_expert_intermediate_size": 256}),
    "qwen3moe": ("qwen3_moe", SMALL_EXPERTS | {"head_dim": 48, "norm_topk_prob": True}),
    "gemma": ("gemma", {"head_dim": 64}),
    "gemma2": (
        "gemma2",
        {"head_dim": 48, "query_pre_attn_scalar": 48, "sliding_window": 24, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "head_dim": 48,
            "query_pre_attn_scalar": 48,
            "sliding_window": 24,
            "rope_parameters": {
                "full_attention": LINEAR | {"rope_theta": 50000.0, "factor": 4.0},
                "sliding_attention": PLAIN | {"rope_theta": 5000.0},
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 40, "original_max_position_embeddings": CONTEXT}),
    "phi3 with longrope": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT // 4, "sliding_window": None},
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": (
        "olmo3",
        {"sliding_window": 24, "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    ),
    "starcoder2": ("starcoder2", {}),
    "gpt-oss": (
        "gpt_oss",
        TWO_OF_FOUR | {"head_dim": 32, "sliding_window": 24, "rope_parameters": YARN | {"truncate": False}},
    ),
    "deepseek2 with softmax": (
        "deepseek_v2",
        DEEPSEEK | {"q_lora_rank": None, "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "deepseek2 with sigmoid": (
        "deepseek_v3",
        DEEPSEEK
        | {
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
}


def make_small(name: str, vocabulary: int, **others) -> torch.nn.Module:
    """Returns a model whose weights are large enough for every layer, bias and factor to matter. `others`: sizes and
    options of its configuration."""
    kind, options = MODELS[name]
    torch.manual_seed(3)
    config = transformers.CONFIG_MAPPING[kind](**{**SIZES, "vocab_size": vocabulary, **options, **others})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight, parameter in model.state_dict().items():
            if parameter.dim() >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif "norm" in weight:
                parameter.add_(torch.randn_like(parameter) / 5)
            else:
                parameter.normal_(std=0.3)
    return model.eval()
