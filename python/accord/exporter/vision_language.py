"""Converts a language model of transformers that also reads images (LLaVA, InternVL, SmolVLM, ...) to the two graphs of
an engine.

The encoder's graph runs once for the images of a request: it returns the rows that take the places of the embeddings of
the prompt's image tokens. The other graph is that of a language model with two more inputs: such rows, and for each
token which of them takes its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from accord.exporter.encoder_decoder import attend_to_all_rows, without_mask
from accord.exporter.language_model import (
    MOST_TOKENS,
    Attention,
    Reach,
    attention_by,
    example_inputs,
    longest_context,
)
from accord.exporter.positions import GivenPositions, given_positions
from accord.graph.errors import ExportError

# Models whose images are known, and the module that makes rows of the hidden size of the language model.
PROJECTORS = {
    "LlavaForConditionalGeneration": "multi_modal_projector",
    "VipLlavaForConditionalGeneration": "multi_modal_projector",
    "AyaVisionForConditionalGeneration": "multi_modal_projector",
    "InternVLForConditionalGeneration": "multi_modal_projector",
    "Idefics3ForConditionalGeneration": "connector",
    "SmolVLMForConditionalGeneration": "connector",
}


def is_vision_language(model: torch.nn.Module) -> bool:
    """Returns True for a model of transformers that generates text from images and text."""
    if not hasattr(model, "config"):
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = {*PROJECTORS, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
    kinds = {kind.__name__ for kind in type(model).__mro__}
    return not known.isdisjoint(kinds) and getattr(model.config, "vision_config", None) is not None


def check_kind(model: torch.nn.Module) -> None:
    """Raises ExportError if engines do not know how the model reads images."""
    if _projector_name(model) is None:
        raise ExportError(
            f"{type(model).__name__}: engines do not know how it reads images; they know "
            f"{', '.join(sorted(PROJECTORS))}. Its language model alone can be exported"
        )


def _projector_name(model: torch.nn.Module) -> str | None:
    return next((PROJECTORS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in PROJECTORS), None)


def image_token(model: torch.nn.Module) -> int:
    """Returns the token of prompts that stands for a row of an image."""
    names = ("image_token_id", "image_token_index")
    return next(token for token in (getattr(model.config, name, None) for name in names) if token is not None)


def pixels_example(model: torch.nn.Module, images: int = 2) -> torch.Tensor:
    """Returns images [images, channels, height, width] of the size that the encoder takes."""
    vision = model.config.vision_config
    height, width = _pair(vision.image_size)
    pixels = torch.randn(
        images, getattr(vision, "num_channels", 3), height, width, generator=torch.Generator().manual_seed(0)
    )
    return pixels.to(next(model.parameters()).dtype)


def as_model_takes(model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the images of one prompt as pixel_values of the model."""
    return pixels[None] if _projector_name(model) == "connector" else pixels


def _pair(size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def image_rows(model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Returns the rows [rows, hidden size] that take the places of image tokens, for images without padding."""
    name = _projector_name(model)
    if name == "connector":
        made = model.model.connector(model.model.vision_model(pixel_values=pixels).last_hidden_state)
        return made.reshape(-1, made.shape[-1])
    found: list[torch.Tensor] = []

    def as_one_image(_, __, rows):  # because what follows goes through the images one by one, which fixes their number
        found.append(rows.reshape(-1, rows.shape[-1]))
        return found[0][None]

    hook = getattr(model.model, name).register_forward_hook(as_one_image)
    try:
        model.get_image_features(pixel_values=pixels)
    finally:
        hook.remove()
    return found[0]


def rows_of_an_image(model: torch.nn.Module) -> int:
    with _whole_images(model):
        return len(image_rows(model, pixels_example(model, 1)))


def most_images(model: torch.nn.Module) -> int:
    """Returns how many images a prompt can have."""
    return max(1, (longest_context(model) - 1) // rows_of_an_image(model))


def pixels_shapes(model: torch.nn.Module) -> tuple:
    most = most_images(model)
    return ({0: torch.export.Dim("images", min=1, max=most)},) if most > 1 else (None,)


def inserted(model: torch.nn.Module, ids: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Returns the embeddings [1, tokens, hidden size] of `ids` [tokens], with row index[token] of `rows` in place of
    each token's for which that is not -1."""
    embeddings = model.get_input_embeddings()(ids[None])
    return torch.where((index >= 0)[None, :, None], rows[index.clamp(min=0)][None], embeddings)


class VisionSteps(torch.nn.Module):
    """The language model as an engine runs it: like language_model.Steps, with the rows [rows, hidden size] that tokens
    stand for, and which of them each token stands for [tokens], -1 for none."""

    keeps_states = False

    def __init__(self, model: torch.nn.Module, given: GivenPositions, attend: Attention):
        super().__init__()
        self.language_model = model
        self._given, self._attend = given, attend

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        source: torch.Tensor,
        source_index: torch.Tensor,
    ) -> torch.Tensor:
        self._given.value, self._attend.calls = positions[None], 0
        embeddings = inserted(self.language_model, input_ids, source, source_index)
        return self.language_model(
            inputs_embeds=embeddings, position_ids=positions[None], logits_to_keep=rows, use_cache=False
        ).logits[0]


class _ImageSteps(torch.nn.Module):
    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.language_model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return image_rows(self.language_model, pixel_values)


@contextlib.contextmanager
def vision_steps_of(model: torch.nn.Module, reaches: Sequence[Reach]) -> Iterator[VisionSteps]:
    """Context in which the language model runs as in an engine."""
    attend = Attention(reaches, selects=False)
    with attention_by(model, attend, without_mask), given_positions(model) as given:
        yield VisionSteps(model, given, attend).eval()


@contextlib.contextmanager
def image_steps_of(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Context in which the encoder of images runs as in an engine."""
    with attention_by(model, _to_all_patches, without_mask), _whole_images(model):
        yield _ImageSteps(model).eval()


def _to_all_patches(module, query, key, value, attention_mask, scaling=None, **_):
    return attend_to_all_rows(module, query, key, value, attention_mask, scaling), None


@contextlib.contextmanager
def _whole_images(model: torch.nn.Module) -> Iterator[None]:
    """Context in which encoders that read images of any size inside a padded one know the positions of patches of
    whole images beforehand."""
    changed = [module for module in model.modules() if _finds_positions(module)]
    try:
        for module in changed:
            module.forward = _with_positions(module, _positions_of_patches(module))
        yield
    finally:
        for module in changed:
            vars(module).pop("forward", None)


def _finds_positions(module: torch.nn.Module) -> bool:
    parts = dict(module.named_children())
    return {"patch_embedding", "position_embedding"} <= parts.keys() and hasattr(module, "num_patches_per_side")


def _positions_of_patches(module: torch.nn.Module) -> torch.Tensor:
    """Returns the positions [patches] that the module finds for a whole image."""
    found: list[torch.Tensor] = []
    hook = module.position_embedding.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    weight, side = module.patch_embedding.weight, module.num_patches_per_side
    try:
        module(
            weight.new_zeros(1, weight.shape[1], module.image_size, module.image_size), torch.ones(1, side, side).bool()
        )
    finally:
        hook.remove()
    return found[0][0]


def _with_positions(module: torch.nn.Module, positions: torch.Tensor) -> Callable:
    def forward(pixel_values: torch.Tensor, patch_attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        patches = module.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + module.position_embedding(positions)

    return forward


def random_rows(model: torch.nn.Module, count: int = 3) -> torch.Tensor:
    """Returns rows [count, hidden size] as an encoder might make them."""
    table = model.get_input_embeddings().weight
    return torch.randn(count, table.shape[1], generator=torch.Generator().manual_seed(0)).to(table.dtype)


def vision_example(model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """Returns inputs of VisionSteps for tracing."""
    return *example_inputs(), random_rows(model), torch.tensor([-1, 0, 2, 1, -1])


def vision_shapes() -> tuple[dict, ...]:
    tokens, rows, source = (
        torch.export.Dim(name, min=1, max=MOST_TOKENS) for name in ("tokens", "rows", "source_rows")
    )
    return {0: tokens}, {0: tokens}, {0: rows}, {0: source}, {0: tokens}
