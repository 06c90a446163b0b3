"""Exports encoders of texts, such as MiniLM: the package computes one embedding for each text.

How token vectors become an embedding is part of the graph, as the model's card says: sentence-transformers keeps it in
files beside the weights.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from accord._core import Tokenizer
from accord.exporter.export import export
from accord.exporter.language_model import longest_context, tokenizer_file
from accord.graph.errors import ExportError
from accord.package.formats import Format
from accord.package.progress import Progress
from accord.package.sharding import Style

__all__ = ["POOLINGS", "SentenceEncoder", "export_encoder"]

POOLINGS = ("mean", "cls", "last")
MAX_BATCH = 64
# Keys of a card's pooling, and the newer names of its single key.
_CARD_KEYS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
_ENDING_STEPS = ("BertProcessing", "RobertaProcessing")  # post-processors that always end a text with a token
_CARD_NAMES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


class SentenceEncoder(torch.nn.Module):
    """A transformer, and the embedding that its token vectors become. Texts are padded on the right: that changes
    nothing for a decoder either, whose tokens see only those before them."""

    def __init__(self, encoder: torch.nn.Module, pooling: str, *, normalize: bool):
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize
        # Decoders would return their keys and values too.
        takes_cache = "use_cache" in inspect.signature(encoder.forward).parameters
        self._options = {"use_cache": False} if takes_cache else {}

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **self._options)
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None:
            name = type(self.encoder).__name__
            raise ExportError(
                f"{name} returns no last_hidden_state: give the model without a head, as AutoModel loads it"
            )
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = attention_mask
            if self.pooling == "last":
                mask = mask * (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True)).to(mask.dtype)
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def export_encoder(
    model: torch.nn.Module,
    *,
    path: str | os.PathLike,
    tokenizer: str | os.PathLike,
    pooling: str | None = None,
    normalize: bool | None = None,
    sharding: Mapping[str, Style | str] | str | None = "auto",
    weights: str | Mapping[str, str | Format] | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Path:
    """Exports an encoder of transformers to a package that computes embeddings of texts, and returns its path. The
    engine takes input_ids and attention_mask (int64, [batch, length], padded on the right, at most 64 texts) and
    returns the embeddings [batch, size]. `accord serve` serves it as /v1/embeddings.

    `model`: an encoder (BertModel, ...) or a decoder (Qwen3Model, MistralModel, ...). A ...ForCausalLM is exported
    without its head.
    `tokenizer`: a tokenizer.json, or a folder with one; it becomes part of the package.
    `pooling`: how token vectors become an embedding: "mean", "cls" (the first token's) or "last" (the last token's).
    With "last", texts end with the EOS token if tokenizer_config.json says `add_eos_token`.
    `normalize`: whether embeddings are scaled to length 1. Both are read from the tokenizer's folder if it has
    modules.json, as models of sentence-transformers do.
    The other arguments are those of accord.export(). Raises ExportError.
    """
    file = tokenizer_file(tokenizer)
    folder = file.parent
    of_card, normalizes = _card(folder) if pooling is None or normalize is None else (None, None)
    pooling = pooling or of_card
    if pooling not in POOLINGS:
        known = ", ".join(f'"{name}"' for name in POOLINGS)
        raise ExportError(
            f'pooling "{pooling}": expected {known}' if pooling else f"{folder} has no modules.json: give pooling"
        )
    if type(model).__name__.endswith("ForCausalLM"):
        model = model.base_model
    encoder = SentenceEncoder(model, pooling, normalize=bool(normalizes if normalize is None else normalize)).eval()
    ids = torch.ones(2, 8, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    limits = {
        0: torch.export.Dim("batch", min=1, max=MAX_BATCH),
        1: torch.export.Dim("length", min=1, max=longest_context(model)),
    }
    with tempfile.TemporaryDirectory() as temporary:
        if pooling == "last":
            file = _with_end_token(file, Path(temporary))
        return export(
            encoder,
            (ids, mask),
            path=path,
            sharding=sharding,
            dynamic_shapes={"input_ids": limits, "attention_mask": limits},
            output_names=["embeddings"],
            tokenizer=file,
            weights=weights,
            check=check,
            progress=progress,
        )


def _with_end_token(file: Path, folder: Path) -> Path:
    """Returns a tokenizer.json whose texts end with the EOS token if tokenizer_config.json beside it says
    `add_eos_token`. Transformers before version 5 adds the token to the post-processor when it loads a tokenizer, so
    the file of a model may lack it. `folder`: for a changed file."""
    config_file = file.with_name("tokenizer_config.json")
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
    if not config.get("add_eos_token"):
        return file
    end = config["eos_token"] if isinstance(config["eos_token"], str) else config["eos_token"]["content"]
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    given = tokenizer["post_processor"]
    steps = given["processors"] if given and given["type"] == "Sequence" else [given] if given else []
    if any(step["type"] in _ENDING_STEPS for step in steps):
        return file
    template = next((step for step in steps if step["type"] == "TemplateProcessing"), None)
    if template is None:
        first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
        template = {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
        steps = [*steps, template]
    if any(piece.get("SpecialToken", {}).get("id") == end for piece in template["single"]):
        return file
    for number, name in enumerate(("single", "pair")):
        template[name] = [*template[name], {"SpecialToken": {"id": end, "type_id": number}}]
    number = Tokenizer.load(file).id_of(end)
    template["special_tokens"][end] = {"id": end, "ids": [number], "tokens": [end]}
    tokenizer["post_processor"] = steps[0] if len(steps) == 1 else {"type": "Sequence", "processors": steps}
    changed = folder / "tokenizer.json"
    changed.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    return changed


def _card(folder: Path) -> tuple[str | None, bool]:
    """Returns the pooling of a model of sentence-transformers, None for another model, and whether it normalizes."""
    if not (folder / "modules.json").exists():
        return None, False
    pooling, normalizes = None, False
    for module in json.loads((folder / "modules.json").read_text(encoding="utf-8")):
        kind = module["type"].rpartition(".")[2]
        if kind == "Pooling":
            config = json.loads((folder / module["path"] / "config.json").read_text(encoding="utf-8"))
            pooling = _pooling_of(config, folder / module["path"] / "config.json")
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise ExportError(f"{folder / 'modules.json'}: the module {kind} is not supported")
    return pooling, normalizes


def _pooling_of(config: dict, path: Path) -> str:
    named = config.get("pooling_mode")
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    found = (
        _CARD_NAMES.get(named) if named else next((name for name, key in _CARD_KEYS.items() if modes == [key]), None)
    )
    if found is None:
        raise ExportError(f"{path}: the pooling {named or ', '.join(modes)} is not supported")
    return found
