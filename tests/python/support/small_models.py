"""Small random models of every type that AutoModelForCausalLM of transformers knows, and trials of them as engines."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from thread_ranks import on_threads
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import accord

VOCABULARY = 320
LONGEST = 256  # tokens
LARGEST = 5_000_000  # parameters of a model that is made

# Fields of configurations by name, in every family that has them.
SIZES = {
    "vocab_size": VOCABULARY,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads"),
        4,
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"), 2),
    "swa_num_attention_heads": 4,
    **dict.fromkeys(("head_dim", "swa_head_dim", "global_head_dim", "d_kv", "dim_head", "kv_channels"), 16),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "n_inner",
            "d_ff",
            "dff",
            "dim_ff",
            "ffn_hidden_size",
        ),
        128,
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), LONGEST),
    # Experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    # Latent attention
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    # Windows
    **dict.fromkeys(("sliding_window", "window_size", "sliding_window_size", "attention_chunk_size"), 8),
    "max_window_layers": 1,
    # Recurrent state
    **dict.fromkeys(("mamba_d_state", "state_size"), 8),
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
# What single families need besides.
OWN: dict[str, dict[str, object]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "dots3_note_text": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 16,
        "num_kv_shared_layers": 0,
        "laurel_rank": 8,
    },
    "gemma4_text": {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "longcat_flash": {"head_dim": 8, "expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16},
    "recurrent_gemma": {"block_types": ("recurrent", "attention"), "attention_window_size": 8},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": (16, 48),
        "axial_pos_shape": (16, 16),
        "feed_forward_size": 128,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 40,
        "pronunciation_embed_dim": 16,
        "shape_vocab_size": 40,
        "shape_embed_dim": 16,
    },
    "xlm": {"emb_dim": 64, "causal": True},
    "xmod": {"default_language": "en_XX", "pad_token_id": 1},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 8,
    },
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    **{name: {"layer_types": ["conv", "full_attention"]} for name in ("lfm2", "lfm2_moe", "lfm3")},
    **{
        name: {"layer_types": ["linear_attention", "full_attention"]}
        for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", "kimi_linear", "minimax")
    },
}

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _arguments(kind: type, model_type: str) -> dict[str, object]:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = {name: size for name, size in SIZES.items() if name in fields}
    if "kv_lora_rank" in fields:
        given.pop("head_dim", None)
        if "num_key_value_heads" in given:
            given["num_key_value_heads"] = 4
    if "is_decoder" in fields:
        given["is_decoder"] = True
    given |= {name: id for name, id in (("bos_token_id", 1), ("eos_token_id", 2)) if name in fields}
    if isinstance(getattr(fields.get("pad_token_id"), "default", None), int):
        given["pad_token_id"] = 0
    for name, part in kind.sub_configs.items():
        if dataclasses.is_dataclass(part):
            given[name] = _arguments(part, part.model_type)
    return given | OWN.get(model_type, {})


def small_config(model_type: str) -> transformers.PreTrainedConfig:
    kind = transformers.CONFIG_MAPPING[model_type]
    return kind(**_arguments(kind, model_type))


def small_model(model_type: str) -> torch.nn.Module:
    """Returns a model whose weights are large enough for every layer to matter."""
    torch.manual_seed(0)
    config = small_config(model_type)
    with torch.device("meta"):
        size = sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its parts have sizes of their own: {size} parameters")
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif name.endswith("bias") or "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


PROMPT, STEPS = 40, 12
TOLERANCE = 1e-4  # of logits, relative to the norm of a row


@dataclasses.dataclass(frozen=True)
class Outcome:
    """`kind`: "equal" on one rank and on two, "refused" with an error of accord, "cannot be made" (parts of composite
    models), or a fault."""

    kind: str
    reason: str = ""


def trial(model_type: str, folder: Path) -> Outcome:
    """Exports the small model, and compares its logits with transformers' for a prompt in two pieces and tokens after
    it, one by one."""
    ids = np.random.default_rng(0).integers(3, VOCABULARY, PROMPT + STEPS)
    try:
        model = small_model(model_type)
        with torch.no_grad():
            wanted = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0]
    except Exception as error:  # of a library or of a model's own code
        return Outcome("cannot be made", f"{type(error).__name__}: {error}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            path = accord.export(model, path=folder / f"{model_type}.accord", sharding="auto")
        whole = [str(one.message) for one in caught if "every rank has all of" in str(one.message)]
        for ranks in (1, 2):
            results = on_threads(ranks, lambda comm: _continued(path, comm, ids))
            if any(one.tobytes() != results[0].tobytes() for one in results):
                return Outcome("ranks differ")
            error = (torch.from_numpy(results[0]) - wanted).norm(dim=-1) / wanted.norm(dim=-1)
            if not bool((error < TOLERANCE).all()):
                return Outcome(f"wrong on {ranks} ranks", f"by {float(error.max()):.2g}")
    except (accord.Error, accord.ExportError, accord.UnsupportedOpError) as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("unclear", f"{type(error).__name__}: {error}")
    return Outcome("equal", "; ".join(whole))


def _continued(path: Path, comm: accord.Communicator, ids: np.ndarray) -> np.ndarray:
    with accord.load(path, {"tp": comm}) as engine:
        context = engine.create_context()
        context.create_cache(8, block_tokens=16)
        blocks, logits, begin = [5, 0, 7, 2, 6, 1, 3, 4], [], 0
        for count in (PROMPT - 13, 13, *(1,) * STEPS):
            at = np.arange(begin, begin + count)
            logits.append(np.array(context.run_sequences([(count, begin, blocks)], ids[at], at, np.arange(count))[0]))
            begin += count
        return np.concatenate(logits)
