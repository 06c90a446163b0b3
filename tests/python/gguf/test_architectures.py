"""GGUF files of every architecture give the logits of transformers' models."""

import numpy as np
import pytest
from gguf_files import gguf, logits_of, logits_of_engine, write
from gguf_models import MODELS, make_small
from text_model import torch
from thread_ranks import on_threads
from tiers import mostly_slow

import accord


@pytest.mark.parametrize("name", mostly_slow(MODELS, "gpt-oss", "gemma3", "deepseek2 with sigmoid"))
def test_a_file_gives_the_logits_of_transformers(name, text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = make_small(name, vocabulary)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer)
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    wanted = logits_of(model, ids)
    torch.testing.assert_close(logits_of_engine(path, ids), wanted, rtol=1e-4, atol=1e-4)


def rounded(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """Rounds the model's matrices as they are rounded in a file, where inputs are the last dimension."""
    kind = gguf.GGMLQuantizationType[kind]
    for name, weight in model.state_dict().items():
        if weight.dim() < 2 or "gate.weight" in name or "router" in name or "bias" in name:
            continue
        swapped = model.config.model_type == "gpt_oss" and "experts" in name
        rows = (weight.transpose(1, 2) if swapped else weight).contiguous().numpy()
        made = torch.from_numpy(gguf.dequantize(gguf.quantize(rows, kind), kind))
        weight.copy_(made.transpose(1, 2) if swapped else made)
    return model


# Layers whose matrices are codes, in each layer and besides; experts of a layer count as three.
KEPT = {"phi3": (7, 2), "mixtral": (7, 2), "qwen2moe": (10, 2), "gpt-oss": (7, 2), "gemma": (7, 1)}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("name", mostly_slow(KEPT, "gpt-oss"))
def test_quantized_matrices_of_fused_layers_and_experts_keep_their_bits(name, kind, text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = rounded(make_small(name, vocabulary), kind)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, (kind,))
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    quantized = accord.inspect(path)["quantized"]
    of_layers, besides = KEPT[name]
    assert len(quantized) == of_layers * model.config.num_hidden_layers + besides
    assert {tensor["error"] for tensor in quantized} == {0.0}
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    for logits in on_threads(2, lambda comm: logits_of_engine(path, ids, {"tp": comm})):
        torch.testing.assert_close(logits, logits_of(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_experts_of_mxfp4_keep_their_codes(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = rounded(make_small("gpt-oss", vocabulary), "MXFP4")
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, ("MXFP4",))
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    of_experts = [tensor for tensor in accord.inspect(path)["quantized"] if ".experts." in tensor["tensor"]]
    assert len(of_experts) == 3 * model.config.num_hidden_layers
    assert {(tensor["type"], tensor["error"]) for tensor in of_experts} == {("table4", 0.0)}
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    torch.testing.assert_close(logits_of_engine(path, ids), logits_of(model, ids), rtol=1e-4, atol=1e-4)


def test_experts_of_k_quants_keep_their_bits(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    types = {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "ffn_down_exps": "Q6_K", "attn_q": "Q5_K"}
    model = make_small("mixtral", vocabulary, hidden_size=256)
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, types)
    path, floats = (
        accord.export_gguf(file, path=tmp_path / f"{weights}.accord", weights=weights) for weights in ("same", None)
    )
    kept = accord.inspect(path)["quantized"]
    assert {(tensor["type"], tensor["error"]) for tensor in kept} == {("int4", 0.0), ("int5", 0.0), ("int6", 0.0)}
    assert len(kept) == 4 * model.config.num_hidden_layers
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    expected = logits_of_engine(floats, ids)
    for logits in on_threads(2, lambda comm: logits_of_engine(path, ids, {"tp": comm})):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_experts_are_divided_one_by_one_with_their_bits(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = rounded(make_small("mixtral", vocabulary), "Q8_0")
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, ("Q8_0",))
    sharding = {"*.experts": accord.Expert(), "*": "auto"}
    path = accord.export_gguf(file, path=tmp_path / "model.accord", sharding=sharding)
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    for logits in on_threads(2, lambda comm: logits_of_engine(path, ids, {"tp": comm})):
        torch.testing.assert_close(logits, logits_of(model, ids), rtol=1e-4, atol=1e-4)


def test_a_gate_of_another_type_than_what_it_gates_becomes_floats(text_model, tmp_path):
    file = write(
        tmp_path / "model.gguf",
        make_small("mixtral", len(text_model.tokenizer)),
        text_model.tokenizer,
        {"ffn_gate_exps": "Q8_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q4_0"},
    )
    path = accord.export_gguf(file, path=tmp_path / "model.accord")
    assert {tensor["tensor"].split(".")[-1] for tensor in accord.inspect(path)["quantized"]} == {"down_proj"}


REFUSED = {
    "llama, several kinds of layers": ("llama", {"llama.attention.head_count_kv": [2, 2, 1, 2]}, "differs by layer"),
    "mixtral, weights of experts as they are": ("mixtral", {"llama.expert_weights_norm": False}, "expert_weights_norm"),
    "granite without positions": ("granite", {"granite.rope.scaling.finetuned": False}, "rope.scaling.finetuned"),
    "gemma2, other positions in windows": ("gemma2", {"gemma2.rope.freq_base_swa": 5e5}, "has one base for all layers"),
    "gemma3, a factor of attention": ("gemma3", {"gemma3.rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor"),
    "phi3, a part of values": ("phi3", {"phi3.attention.value_length": 16}, 'key "phi3.attention.value_length"'),
    "deepseek2, groups of softmax": (
        "deepseek2 with softmax",
        {"deepseek2.expert_group_count": 4, "deepseek2.expert_group_used_count": 2},
        '"deepseek2.expert_group_count" is 4, which an engine',
    ),
    "deepseek2, another gate": (
        "deepseek2 with softmax",
        {"deepseek2.expert_gating_func": 4},
        '"deepseek2.expert_gating_func" is 4',
    ),
    "deepseek2, tokens ahead": (
        "deepseek2 with sigmoid",
        {"deepseek2.nextn_predict_layers": 1},
        "nextn_predict_layers",
    ),
    "gpt-oss, a misspelled key": (
        "gpt-oss",
        {"gpt-oss.attention.sliding_windows": 8},
        'nearest known one is "gpt-oss.attention.sliding_window',
    ),
    "qwen2 with a window": ("qwen2", {"qwen2.attention.sliding_window": 16}, "does not apply it to this architecture"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_keys_that_an_architecture_cannot_apply_are_named(case, text_model, tmp_path):
    name, keys, message = REFUSED[case]
    file = write(tmp_path / "m.gguf", make_small(name, len(text_model.tokenizer)), text_model.tokenizer, keys=keys)
    with pytest.raises(accord.ExportError, match=f"m.gguf: .*{message}"):
        accord.export_gguf(file, path=tmp_path / "m.accord")


def test_tensors_of_another_shape_than_the_keys_say_are_named(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    for name, keys, message in (
        (
            "mixtral",
            {"llama.feed_forward_length": 128},
            r'"blk.0.ffn_gate_exps.weight" and "blk.0.ffn_up_exps.weight" is \[4, 256',
        ),
        (
            "gpt-oss",
            {"gpt-oss.attention.head_count": 8},
            r'"blk.0.attn_sinks.weight" is \[4\], but its keys make it \[8\]',
        ),
        ("gemma2", {"gemma2.block_count": 5}, "m.gguf lacks 'blk.4.attn_q.weight'"),
    ):
        file = write(tmp_path / "m.gguf", make_small(name, vocabulary), text_model.tokenizer, keys=keys)
        with pytest.raises(accord.ExportError, match=message):
            accord.export_gguf(file, path=tmp_path / "m.accord")


OLDER_KEYS = {
    "deepseek2.attention.head_count_kv": 4,
    "deepseek2.attention.key_length": 48,
    "deepseek2.attention.value_length": 32,
    "deepseek2.attention.key_length_mla": None,
    "deepseek2.attention.value_length_mla": None,
}


def older_tensors(model: torch.nn.Module) -> list[tuple[str, np.ndarray]]:
    """Keys' and values' matrices of latent attention in one tensor for each layer."""
    return [
        (f"blk.{number}.attn_kv_b.weight", layer.self_attn.kv_b_proj.weight.detach().numpy())
        for number, layer in enumerate(model.model.layers)
    ]


@pytest.mark.slow
def test_older_files_of_deepseek_have_keys_and_values_in_one_tensor(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    model = make_small("deepseek2 with softmax", vocabulary)
    file = write(
        tmp_path / "m.gguf",
        model,
        text_model.tokenizer,
        keys=OLDER_KEYS,
        more=older_tensors(model),
        without=("attn_k_b", "attn_v_b"),
    )
    path = accord.export_gguf(file, path=tmp_path / "m.accord")
    ids = np.random.default_rng(0).integers(0, vocabulary, 100)
    torch.testing.assert_close(logits_of_engine(path, ids), logits_of(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", mostly_slow(("two tensors", "one tensor"), "two tensors"))
def test_matrices_of_the_heads_of_latent_attention_keep_their_bits(form, text_model, tmp_path):
    model, kept = make_small("deepseek2 with sigmoid", len(text_model.tokenizer)), ["key", "value"]
    more: dict = {"types": {"attn_k_b": "Q8_0", "attn_v_b": "Q4_0"}}
    if form == "one tensor":
        kept = ["value"]  # the keys' matrices are transposed
        kind = gguf.GGMLQuantizationType.Q8_0
        tensors = [(name, gguf.quantize(weight, kind), kind) for name, weight in older_tensors(model)]
        more = {"keys": OLDER_KEYS, "more": tensors, "without": ("attn_k_b", "attn_v_b")}
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, **more)
    path, floats = (
        accord.export_gguf(file, path=tmp_path / f"{weights}.accord", weights=weights) for weights in ("same", None)
    )
    quantized = {tensor["tensor"]: tensor["error"] for tensor in accord.inspect(path)["quantized"]}
    assert quantized == {
        f"model.layers.{layer}.self_attn.kv_b_proj.{part}.weight": 0.0
        for layer in range(model.config.num_hidden_layers)
        for part in kept
    }
    ids = np.random.default_rng(0).integers(0, len(text_model.tokenizer), 100)
    expected = logits_of_engine(floats, ids)
    for logits in on_threads(2, lambda comm: logits_of_engine(path, ids, {"tp": comm})):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
