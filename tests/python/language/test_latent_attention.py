"""Multi-head latent attention caches its compressed keys alone, and answers as transformers does."""

import json

import numpy as np
import pytest
from tiers import mostly_slow

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from language_checks import logits_of  # noqa: E402
from served_answers import check_answers  # noqa: E402
from small_models import small_model  # noqa: E402
from thread_ranks import on_threads  # noqa: E402

import accord  # noqa: E402

LAYERS, HEADS, RANK, SHARED = 2, 4, 64, 16
TYPES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_linear", "minicpm3", "axk1")


def make_model(seed: int = 0, dense: int = 1) -> torch.nn.Module:
    """`dense`: layers without experts."""
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    experts = {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": dense,
    }
    config = transformers.DeepseekV3Config(
        **sizes,
        **experts,
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        q_lora_rank=32,
        kv_lora_rank=RANK,
        qk_rope_head_dim=SHARED,
        qk_nope_head_dim=32,
        v_head_dim=48,
        max_position_embeddings=256,
        initializer_range=0.15,
    )
    return transformers.DeepseekV3ForCausalLM(config).eval()


def attentions(path) -> list[dict]:
    nodes = json.loads((path / "graph.json").read_text())["nodes"]
    return [node["arguments"] for node in nodes if node["op"] == "accord.attention.default"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model_type", mostly_slow(TYPES, "deepseek_v2", "glm4_moe_lite"))
def test_answers_equal_those_of_transformers(model_type, ranks, tmp_path):
    model = small_model(model_type)
    path = accord.export(model, path=tmp_path / "model.accord", sharding="auto")
    assert {attention.get("value_dim") for attention in attentions(path)} == {model.config.kv_lora_rank}
    check_answers(model, path, ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_token_takes_as_much_cache_as_its_compressed_keys(ranks, tmp_path):
    path = accord.export(make_model(), path=tmp_path / "model.accord", sharding="auto")
    blocks, block_tokens = 64, 16

    def bytes_of(comm, dtype):
        with accord.load(path, {"tp": comm}) as engine:
            context = engine.create_context()
            context.create_cache(blocks, block_tokens=block_tokens, dtype=dtype)
            return context.cache_bytes

    scale = 4  # bytes, of each token's codes
    for dtype, each in (("float32", 4), ("bfloat16", 2), ("int8", 1)):
        of_token = (RANK + SHARED) * each + (scale if dtype == "int8" else 0)
        expected = LAYERS * blocks * block_tokens * of_token
        assert on_threads(ranks, lambda comm, dtype=dtype: bytes_of(comm, dtype)) == [expected] * ranks


def test_ranks_share_the_query_heads(tmp_path):
    path = accord.export(make_model(), path=tmp_path / "model.accord", sharding="auto")
    manifest = json.loads((path / "manifest.json").read_text())
    divided = {tensor["name"]: tensor.get("sharding") for tensor in manifest["tensors"]}
    for layer in range(LAYERS):
        for name, dim, unit in (
            ("q_b_proj", 0, 48),
            ("kv_b_proj.key", 0, 1),
            ("kv_b_proj.value", 0, 1),
            ("o_proj", 1, 48),
        ):
            assert divided[f"model.layers.{layer}.self_attn.{name}.weight"] == {"group": "tp", "dim": dim, "unit": unit}


@pytest.mark.parametrize(("weights", "most"), [("int8", 0.03), ("int4", 0.4)])
def test_matrices_of_heads_are_quantized(weights, most, tmp_path):
    model, ids = make_model(), np.random.default_rng(0).integers(0, 320, 60)
    formats = {"*.kv_b_proj.*": weights, "*": "same"}
    path = accord.export(model, path=tmp_path / "model.accord", weights=formats, sharding="auto")
    quantized = {tensor["tensor"]: tensor["type"] for tensor in accord.inspect(path)["quantized"]}
    for part in ("key", "value"):
        assert quantized[f"model.layers.0.self_attn.kv_b_proj.{part}.weight"] == weights
    wanted = logits_of(model, ids)

    def run(comm):
        with accord.load(path, {"tp": comm}) as engine:
            return torch.from_numpy(np.array(engine.run(ids, np.arange(60), np.arange(60))[0]))

    for logits in on_threads(2, run):
        assert float((logits - wanted).norm() / wanted.norm()) < most


def test_a_model_in_bfloat16_is_as_close_to_float32_as_in_torch(tmp_path):
    model, ids = make_model().to(torch.bfloat16), np.random.default_rng(0).integers(0, 320, 60)
    path = accord.export(model, path=tmp_path / "model.accord", sharding="auto")
    of_torch, exact = logits_of(model, ids).float(), logits_of(model.float(), ids)
    with accord.load(path) as engine:
        given = torch.from_dlpack(engine.run(ids, np.arange(60), np.arange(60))[0]).float()

    def error(logits):
        return (logits - exact).norm(dim=-1).median()

    assert error(given) < 1.2 * error(of_torch)


def test_canonical_ranks_give_the_bits_of_any_number_of_ranks(tmp_path):
    path = accord.export(make_model(dense=LAYERS), path=tmp_path / "model.accord", sharding="auto")
    ids = np.random.default_rng(0).integers(0, 320, 40)

    def run(comm):
        with accord.load(path, {"tp": comm}, canonical_ranks=2) as engine:
            return np.array(engine.run(ids, np.arange(40), np.arange(40))[0]).tobytes()

    (alone,) = on_threads(1, run)
    assert on_threads(2, run) == [alone, alone]


def test_weights_are_replaced_by_transformers_names(tmp_path):
    path = accord.export(make_model(), path=tmp_path / "model.accord")
    other, ids = make_model(1), np.random.default_rng(0).integers(0, 320, 40)
    with accord.load(path) as engine:
        engine.load_weights(other.state_dict())
        logits = torch.from_numpy(np.array(engine.run(ids, np.arange(40), np.arange(40))[0]))
    torch.testing.assert_close(logits, logits_of(other, ids), rtol=1e-4, atol=1e-4)


def test_an_attention_that_expands_its_keys_in_another_way_keeps_them_all(tmp_path, monkeypatch):
    from transformers.models.deepseek_v3 import modeling_deepseek_v3

    kind = modeling_deepseek_v3.DeepseekV3Attention
    expand = kind.expand_kv
    monkeypatch.setattr(kind, "expand_kv", lambda *given: tuple(2 * one for one in expand(*given)))
    model, ids = make_model(), np.random.default_rng(0).integers(0, 320, 40)
    path = accord.export(model, path=tmp_path / "model.accord")
    assert all("value_dim" not in attention for attention in attentions(path))
    with accord.load(path) as engine:
        logits = torch.from_numpy(np.array(engine.run(ids, np.arange(40), np.arange(40))[0]))
    torch.testing.assert_close(logits, logits_of(model, ids), rtol=1e-4, atol=1e-4)


def test_matrices_of_heads_take_no_other_sharding(tmp_path):
    model = make_model()
    for style, message in (
        (accord.Row(), "has a matrix for each head: it is divided by columns"),
        (accord.Column(unit=2), "divided in units of 1"),
    ):
        with pytest.raises(accord.ExportError, match=message):
            accord.export(model, path=tmp_path / "model.accord", sharding={"*.kv_b_proj.*": style})
