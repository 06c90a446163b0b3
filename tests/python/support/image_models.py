"""Small random models of transformers that read images and text, and their greedy answers."""

from __future__ import annotations

import torch
import transformers

VOCABULARY, IMAGE = 160, 100  # IMAGE: the token that stands for a row of an image

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 7,
}

CONFIGURATIONS = {
    "llava": lambda: transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(projection_dim=32, **_VISION),
        text_config=transformers.LlamaConfig(**_TEXT),
        image_token_id=IMAGE,
    ),
    "vipllava": lambda: transformers.VipLlavaConfig(
        vision_config=transformers.CLIPVisionConfig(projection_dim=32, **_VISION),
        text_config=transformers.LlamaConfig(**_TEXT),
        image_token_id=IMAGE,
        vision_feature_layers=[-2, -1],
    ),
    "aya_vision": lambda: transformers.AyaVisionConfig(
        vision_config={"model_type": "siglip_vision_model", **_VISION},
        text_config={"model_type": "cohere2", "head_dim": 16, **_TEXT},
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    ),
    "internvl": lambda: transformers.InternVLConfig(
        vision_config={**_VISION, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config={"model_type": "qwen2", **_TEXT},
        image_token_id=IMAGE,
    ),
    "idefics3": lambda: transformers.Idefics3Config(
        vision_config=dict(_VISION), text_config={"model_type": "llama", **_TEXT}, image_token_id=IMAGE, scale_factor=2
    ),
    "smolvlm": lambda: transformers.SmolVLMConfig(
        vision_config=dict(_VISION), text_config={"model_type": "llama", **_TEXT}, image_token_id=IMAGE, scale_factor=2
    ),
}


def image_model(name: str, seed: int = 0, *, text_config: dict | None = None, **changes: object) -> torch.nn.Module:
    """Returns a model whose weights are large enough for every layer to matter. text_config, changes: of its
    configuration."""
    torch.manual_seed(seed)
    config = CONFIGURATIONS[name]()
    for part, fields in ((config.text_config, text_config or {}), (config, changes)):
        for field, value in fields.items():
            setattr(part, field, value)
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                fan_in = parameter[0].numel()
                parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
    return model


def pixels_of(model: torch.nn.Module, images: int, seed: int) -> torch.Tensor:
    """Returns random images [images, 3, 28, 28]."""
    return torch.randn(images, 3, 28, 28, generator=torch.Generator().manual_seed(seed))


def rows_of(model: torch.nn.Module, pixels: torch.Tensor) -> int:
    """Returns how many tokens stand for the images."""
    made = model.get_image_features(pixel_values=_as_given(model, pixels)).pooler_output
    return sum(one.numel() for one in made) // model.config.text_config.hidden_size


def _as_given(model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the images as the model's own processor gives them."""
    return pixels[None] if model.config.model_type in ("idefics3", "smolvlm") else pixels


@torch.no_grad()
def greedy_answer(model: torch.nn.Module, prompt: list[int], pixels: torch.Tensor | None, tokens: int) -> list[int]:
    """Returns the best tokens, each computed from all tokens before it, without a cache."""
    ids = list(prompt)
    images = {} if pixels is None else {"pixel_values": _as_given(model, pixels)}
    for _ in range(tokens):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False, **images).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
