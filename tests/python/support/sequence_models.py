"""Small random encoder-decoder models of transformers, and their greedy answers."""

from __future__ import annotations

import numpy as np
import torch
import transformers

VOCABULARY = 200
CONTEXT = 160  # tokens of a source and of an answer, in models with position tables
START, END, PADDING = 2, 3, 1

_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": CONTEXT,
}
_TOKENS = {
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "forced_eos_token_id": None,
    "pad_token_id": PADDING,
    "bos_token_id": 0,
}
_T5 = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4}
_AUDIO = {"num_mel_bins": 8, "max_source_positions": 37, "max_target_positions": CONTEXT}

CONFIGURATIONS = {
    "bart": lambda: transformers.BartConfig(**_SIZES, **_TOKENS),
    "marian": lambda: transformers.MarianConfig(**_SIZES, **_TOKENS),
    "t5": lambda: transformers.T5Config(**_T5, **_TOKENS),
    "flan_t5": lambda: transformers.T5Config(
        **_T5, **_TOKENS, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    ),
    "whisper": lambda: transformers.WhisperConfig(
        **{name: size for name, size in _SIZES.items() if name != "max_position_embeddings"},
        **_AUDIO,
        **{**_TOKENS, "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "mt5": lambda: transformers.MT5Config(**_T5, **_TOKENS),
    "mbart": lambda: transformers.MBartConfig(**_SIZES, **_TOKENS),
    "pegasus": lambda: transformers.PegasusConfig(**_SIZES, **_TOKENS),
    "blenderbot": lambda: transformers.BlenderbotConfig(**_SIZES, **_TOKENS),
    "m2m_100": lambda: transformers.M2M100Config(**_SIZES, **_TOKENS, tie_word_embeddings=False),
}


def sequence_model(name: str, seed: int = 0, **changes: object) -> torch.nn.Module:
    """Returns a model whose weights are large enough for every layer to matter. `changes`: of its configuration."""
    torch.manual_seed(seed)
    config = CONFIGURATIONS[name]()
    for field, value in changes.items():
        setattr(config, field, value)
    kind = transformers.AutoModelForSpeechSeq2Seq if name == "whisper" else transformers.AutoModelForSeq2SeqLM
    model = kind.from_config(config)
    for part, parameter in model.named_parameters():
        if "relative_attention_bias" in part:
            torch.nn.init.normal_(parameter, std=2.0)
        elif parameter.dim() >= 2 and "embed_positions" not in part:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif part.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.generation_config = transformers.GenerationConfig(**_TOKENS)
    return model.eval()


def sources(model: torch.nn.Module, lengths: tuple[int, ...] = (5, 33, 1, 150, 16)) -> list[np.ndarray]:
    """Returns token ids of these lengths; features of as many recordings if the model takes those."""
    random = np.random.default_rng(3)
    if model.main_input_name == "input_features":
        shape = (model.config.num_mel_bins, 2 * model.config.max_source_positions)
        return [random.standard_normal(shape).astype(np.float32) for _ in lengths]
    return [random.integers(4, VOCABULARY, length) for length in lengths]


@torch.no_grad()
def greedy_answer(
    model: torch.nn.Module, source: np.ndarray, tokens: int, start: tuple[int, ...] = (START,)
) -> list[int]:
    """Returns the best tokens after `start`, from whole runs of the model without a cache."""
    given = {model.main_input_name: torch.from_numpy(source)[None]}
    states = model.get_encoder()(**given).last_hidden_state
    outputs = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
    ids = list(start)
    for _ in range(tokens):
        logits = model(encoder_outputs=outputs, decoder_input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(start) :]
