"""Models other than causal language models: encoders and an image network, through the general path, on 1, 2 and 4
ranks."""

import re
import sys
from pathlib import Path

import accord_command
import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}


class Embedding(torch.nn.Module):
    """A sentence's mean over its tokens, normalized to length 1."""

    def __init__(self, encoder: torch.nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


ENCODERS = {
    "bert": transformers.BertConfig(**SIZES),
    "distilbert": transformers.DistilBertConfig(
        vocab_size=320, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64
    ),
}


class Scores(torch.nn.Module):
    """A masked language model's scores for each token. Its head is tied to its table, and no rule shards both
    alike."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


MASKED = {
    "bert": transformers.BertConfig(**SIZES),
    "electra": transformers.ElectraConfig(**SIZES, embedding_size=32),
}


def sentences(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(2, 320, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    return ids, (torch.arange(length) < lengths).to(torch.int64)


def run_at_each_size(comm, paths, batches):
    results = []
    for size in (1, 2, 4):
        group = comm.split(comm.rank // size)
        for path in paths:
            with accord.load(path, {"tp": group}) as engine:
                results.append([np.array(engine.run(*batch)[0]) for batch in batches])
    return results


@pytest.mark.filterwarnings("ignore:sharding=")
def test_encoders_give_equal_results_on_1_2_and_4_ranks(ranks, tmp_path):
    torch.manual_seed(0)
    models = {name: Embedding(transformers.AutoModel.from_config(config)).eval() for name, config in ENCODERS.items()}
    tied = {f"masked {name}": transformers.AutoModelForMaskedLM.from_config(config) for name, config in MASKED.items()}
    models |= {name: Scores(model).eval() for name, model in tied.items()}
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=1, max=64)}
    paths = [
        str(
            accord.export(
                model, sentences(2, 9), path=tmp_path / f"{name}.accord", sharding="auto", dynamic_shapes=(dims, dims)
            )
        )
        for name, model in models.items()
    ]
    batches = [sentences(1, 1), sentences(3, 40)]
    results = ranks(4).run(run_at_each_size, paths, [tuple(part.numpy() for part in batch) for batch in batches])
    with torch.no_grad():
        expected = [[model(*batch) for batch in batches] for model in models.values()]
    for rank in results:
        for number, given in enumerate(rank):
            for one, wanted in zip(given, expected[number % len(models)], strict=True):
                torch.testing.assert_close(torch.from_numpy(one), wanted, rtol=1e-4, atol=1e-6)
            assert all(map(np.array_equal, given, results[0][number]))


def test_layers_that_rules_do_not_fit_are_shared_as_far_as_possible(ranks, tmp_path):
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 320, "n_positions": 64}
    # One has a single key head for all heads; the other has norms over all heads and over all inputs of down_proj.
    models = {
        "attn.c_attn.query": transformers.GPTBigCodeForCausalLM(transformers.GPTBigCodeConfig(**sizes)).eval(),
        "self_attn.q_proj": transformers.BitNetForCausalLM(
            transformers.BitNetConfig(**SIZES, num_key_value_heads=2)
        ).eval(),
    }
    paths = []
    for number, (layer, model) in enumerate(models.items()):
        with pytest.warns(UserWarning, match=f'every rank has all of ".*{layer}"'):
            paths.append(str(accord.export(model, path=tmp_path / f"{number}.accord", sharding="auto")))
        assert accord.inspect(paths[-1])["sharded_bytes"] > 0
    ids = np.random.default_rng(0).integers(0, 320, 40)
    batch = ids, np.arange(40), np.arange(40)
    results = ranks(4).run(run_at_each_size, paths, [batch])
    with torch.no_grad():
        expected = [model(torch.from_numpy(ids)[None]).logits[0] for model in models.values()]
    for rank in results:
        for number, (given,) in enumerate(rank):
            torch.testing.assert_close(torch.from_numpy(given), expected[number % 2], rtol=1e-4, atol=1e-5)
            assert np.array_equal(given, results[0][number][0])


class ImageNetwork(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(6, 64, 3, padding=1), torch.nn.GroupNorm(8, 64)
        self.grouped, self.last = torch.nn.Conv2d(64, 64, 3, stride=2, groups=4), torch.nn.Conv1d(64, 7, 3)

    def forward(self, x):
        functional = torch.nn.functional
        h = functional.interpolate(functional.silu(self.norm(self.first(x))), scale_factor=2.0)
        return self.last(self.grouped(h + 1).flatten(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_image_network_is_as_close_to_float32_as_pytorch_is(dtype, tmp_path):
    torch.manual_seed(0)
    model, x = ImageNetwork().eval(), torch.randn(2, 6, 9, 11)
    with torch.no_grad():
        exact = model(x)
        pytorch = model.to(dtype)(x.to(dtype))
    path = accord.export(model, (x.to(dtype),), path=tmp_path / "model.accord")
    for threads in (1, 3):
        with accord.load(path, threads=threads) as engine:
            given = torch.from_dlpack(engine.run(x.to(dtype))[0]).clone()
        assert given.dtype == dtype
        assert (given - exact).abs().mean() <= 1.1 * (pytorch - exact).abs().mean()


def run_example(name: str, package: Path) -> str:
    result = accord_command.accord("run", "-n", 2, sys.executable, EXAMPLES / name, package, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_diffusion_network_is_data_parallel(tmp_path):
    pytest.importorskip("diffusers")
    output = run_example("unet_data_parallel.py", tmp_path / "unet.accord")
    error = re.search(r"4 images on 2 ranks, at most (\S+) from PyTorch's", output)
    assert error, output
    assert float(error[1]) < 1e-5


@pytest.mark.slow
def test_a_language_model_is_data_parallel(tmp_path):
    output = run_example("gpt2_data_parallel.py", tmp_path / "gpt2.accord")
    assert "5 of 5 answers of 2 ranks are those of transformers" in output
