"""A small random encoder with the files of a model of sentence-transformers, and its embeddings by transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import accord

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE = 32


@dataclass(frozen=True)
class EncoderModel:
    path: Path  # the package, which pools by the mean and normalizes
    model: torch.nn.Module


def make_encoder(vocabulary: int) -> torch.nn.Module:
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=vocabulary,
        hidden_size=SIZE,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return transformers.BertModel(config).eval()


def make_encoder_model(text_model, folder: Path) -> EncoderModel:
    """Creates an encoder with the tokenizer of another model, and exports it to a package in `folder`."""
    model = make_encoder(len(text_model.tokenizer))
    config = {"word_embedding_dimension": SIZE, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    kinds = ("Transformer", "Pooling", "Normalize")
    card = write_card(folder / "card", text_model.path.parent / "tokenizer.json", config, kinds=kinds)
    return EncoderModel(accord.export_encoder(model, path=folder / "encoder.accord", tokenizer=card), model)


def write_card(folder: Path, tokenizer: Path, config: dict, *, kinds: tuple[str, ...]) -> Path:
    """Writes the files of a model of sentence-transformers."""
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"{n}_{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))
    return folder


def expected_embedding(model: torch.nn.Module, ids: list[int], pooling: str, *, normalize: bool) -> np.ndarray:
    """Returns transformers' embedding of one text, without padding."""
    with torch.no_grad():
        hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy().astype(np.float64)
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return pooled / np.linalg.norm(pooled) if normalize else pooled
