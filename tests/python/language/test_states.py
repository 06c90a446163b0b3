"""Models whose layers keep a state beside keys and values, or in their place: state space models, gated delta rules,
convolutions. Their answers equal transformers', whatever is computed together and whatever is reused."""

import json

import numpy as np
import pytest
from tiers import mostly_slow

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from served_answers import check_answers  # noqa: E402
from small_models import small_model  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

import accord  # noqa: E402

TYPES = (
    "mamba",
    "jamba",
    "qwen3_5_text",
    "lfm2",
    "bamba",
    "kimi_linear",
    "olmo_hybrid",
    "zamba2",
    "rwkv",
    "recurrent_gemma",
    "minimax",
)
# Types whose state layers "auto" divides: one of these layers, and the share of a cache that each of two ranks has. It
# is more than half if both have all keys of attention, or those of a convolution.
DIVIDED = {
    "mamba": ("backbone.layers.0.mixer", 0.5),
    "jamba": ("model.layers.0.mamba", 0.5),
    "falcon_h1": ("model.layers.0.mamba", 0.6),
    "nemotron_h": ("model.layers.0.mixer", 0.51),
    "qwen3_5_text": ("model.layers.0.linear_attn", 0.5),
    "qwen3_next": ("model.layers.0.linear_attn", 0.5),
    "olmo_hybrid": ("model.layers.0.linear_attn", 0.97),
    "kimi_linear": ("model.layers.0.self_attn", 0.52),
    "lfm2": ("model.layers.0.conv", 0.5),
    "recurrent_gemma": ("model.layers.0.temporal_block", 0.98),
    "rwkv": ("rwkv.blocks.0.attention", 0.8),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model_type", mostly_slow(TYPES, "mamba", "qwen3_5_text"))
def test_answers_equal_those_of_transformers(model_type, ranks, tmp_path):
    model = small_model(model_type)
    path = accord.export(model, path=tmp_path / "model.accord", sharding="auto")
    check_answers(model, path, ranks)


@pytest.mark.parametrize("model_type", mostly_slow(DIVIDED, "mamba", "qwen3_5_text", "falcon_h1"))
def test_ranks_divide_states_by_heads(model_type, tmp_path):
    model, (layer, share) = small_model(model_type), DIVIDED[model_type]
    path = accord.export(model, path=tmp_path / "model.accord", sharding="auto")
    manifest = json.loads((path / "manifest.json").read_text())
    divided = {tensor["name"] for tensor in manifest["tensors"] if "sharding" in tensor}
    assert divided & {
        f"{layer}.out_proj.weight",
        f"{layer}.o_proj.weight",
        f"{layer}.output.weight",
        f"{layer}.linear_out.weight",
    }

    def bytes_of(comm):
        with accord.load(path, {"tp": comm}) as engine:
            made = accord.LanguageModel.create(engine, cache_tokens=1024)
            size = made.cache_bytes
            made.stop() if comm.rank == 0 else made.follow()
            return size

    (whole,), halves = on_threads(1, bytes_of), on_threads(2, bytes_of)
    assert all(half <= share * whole + 4096 for half in halves), (whole, halves)
    check_answers(model, path, 2)


def test_a_state_is_kept_for_each_block_of_256_tokens(tmp_path):
    model = small_model("mamba")
    config = model.config
    path = accord.export(model, path=tmp_path / "model.accord")
    with accord.load(path) as engine:
        made = accord.LanguageModel.create(engine, cache_tokens=1024)
        inner, taps = config.intermediate_size, config.conv_kernel
        floats = config.num_hidden_layers * (inner * config.state_size + inner * (taps - 1))
        assert made.cache_bytes == pytest.approx(4 * 4 * floats, abs=64 * 2 * config.num_hidden_layers)
        made.stop()


def test_two_threads_export_models_with_states(tmp_path):
    models = [small_model("mamba2") for _ in range(2)]

    def export(comm):
        return accord.export(models[comm.rank], path=tmp_path / f"{comm.rank}.accord", check=False)

    first, second = on_threads(2, export)
    with accord.load(first) as one, accord.load(second) as other:
        ids = np.arange(3, 12)
        given = (ids, np.arange(9), np.array([8]))
        np.testing.assert_array_equal(one.run(*given)[0], other.run(*given)[0])


@torch.no_grad()
def test_a_model_in_bfloat16_is_as_close_to_float32_as_in_torch(tmp_path):
    model = small_model("mamba").to(torch.bfloat16)  # its logits are float32
    path = accord.export(model, path=tmp_path / "model.accord")
    ids = np.random.default_rng(0).integers(3, 64, 60)
    with accord.load(path) as engine:
        given = torch.from_numpy(np.array(engine.run(ids, np.arange(60), np.arange(60))[0])).float()
    tokens = torch.from_numpy(ids)[None]
    of_torch = model(tokens, use_cache=False).logits[0].float()
    exact = model.float()(tokens, use_cache=False).logits[0]

    def error(logits):
        return ((logits - exact).norm(dim=-1) / exact.norm(dim=-1)).median()

    assert error(given) < 1.5 * error(of_torch)
