"""Attention that models compute in code of their own: found in the traced program, or refused."""

import types

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 8}


def gptj_with(change):
    """Returns a model whose second layer changes its scores."""
    torch.manual_seed(0)
    model = transformers.GPTJForCausalLM(transformers.GPTJConfig(**SIZES)).eval()

    def attend(self, query, key, value, attention_mask=None):
        scores = change(query @ key.transpose(-1, -2) / self.scale_attn)
        weights = torch.softmax(scores + attention_mask, -1)
        return weights @ value, weights

    attention = model.transformer.h[1].attn
    attention._attn = types.MethodType(attend, attention)
    return model


def distance_of(scores):
    at = torch.arange(scores.shape[-1])
    return at[None, :] - at[:, None]


CHANGES = {
    "a cap": lambda scores: 2 * torch.tanh(scores / 2),
    "another factor for later tokens": lambda scores: scores * (1 + 0.1 * torch.arange(scores.shape[-1])),
    "a bias of another form": lambda scores: scores + torch.sin(distance_of(scores)),
    "a mask with holes": lambda scores: scores.masked_fill(distance_of(scores) == -3, -1e9),
    "a mask that begins late": lambda scores: scores.masked_fill(distance_of(scores) == -200, -1e9),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_attention_that_no_engine_computes_is_refused(change, tmp_path):
    model = gptj_with(CHANGES[change])
    with pytest.raises(accord.ExportError, match="GPTJForCausalLM: the attention at .* is not that of an engine"):
        accord.export(model, path=tmp_path / "m.accord")


def test_a_model_that_sees_later_tokens_is_refused(tmp_path):
    config = transformers.XLMConfig(vocab_size=320, emb_dim=64, n_layers=2, n_heads=4, max_position_embeddings=256)
    with pytest.raises(accord.ExportError, match="XLMWithLMHeadModel: the attention at .* is not that of an engine"):
        accord.export(transformers.XLMWithLMHeadModel(config).eval(), path=tmp_path / "m.accord")


@pytest.mark.parametrize("change", [lambda scores: 0.5 * scores, lambda scores: scores + 0.03125 * distance_of(scores)])
def test_factors_and_biases_by_distance_are_found(change, tmp_path):
    check(gptj_with(change), tmp_path)


def test_a_window_longer_than_the_runs_that_are_compared_is_found(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPTNeoConfig(
        vocab_size=320,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=256,
        attention_types=[[["global", "local"], 1]],
        window_size=100,
    )
    check(transformers.GPTNeoForCausalLM(config).eval(), tmp_path)


def check(model, folder):
    ids = np.random.default_rng(0).integers(0, 320, 180)
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)[None]).logits[0]
    with accord.load(accord.export(model, path=folder / "m.accord")) as engine:
        context = engine.create_context()
        context.create_cache(16, block_tokens=16)
        rows = np.arange(len(ids))
        given = np.array(context.run_sequences([(len(ids), 0, list(range(12)))], ids, rows, rows)[0])
    torch.testing.assert_close(torch.from_numpy(given), wanted, rtol=1e-4, atol=1e-5)


def test_a_model_that_selects_tokens_takes_contexts_of_one_selection(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    ranks = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    config = transformers.DeepseekV32Config(
        **sizes,
        **ranks,
        **experts,
        vocab_size=320,
        intermediate_size=128,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        max_position_embeddings=256,
        index_topk=48,
    )
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    with pytest.warns(UserWarning, match="takes contexts of 48 tokens"):
        path = accord.export(model, path=tmp_path / "m.accord")
    with accord.load(path) as engine:
        assert accord.LanguageModel.create(engine).max_context == 48
