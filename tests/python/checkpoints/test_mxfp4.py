"""Checkpoints of gpt-oss, whose experts are MXFP4, compared with transformers on the numbers of the formula."""

import numpy as np
import pytest
from export_reference import read_json, read_tensors
from float8_answers import IDS, logits_of, run_on_a_rank
from packed_checkpoints import write_tensors

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FLOATS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
DOWN = "model.layers.0.mlp.experts.down_proj"


def make_model():
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=160,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return transformers.GptOssForCausalLM(config).eval()


@torch.no_grad()
def write_checkpoint(folder, exponents=(116, 124), change=None):
    """Writes a checkpoint with random codes, and returns the model of their numbers. Some blocks are zeros, with the
    exponent 0."""
    model, random, tensors, numbers = make_model(), np.random.default_rng(0), {}, {}
    for name, tensor in model.state_dict().items():
        numbers[name] = tensor
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        codes = random.integers(0, 16, (experts, outputs, inputs // 32, 32))
        scales = random.integers(*exponents, (experts, outputs, inputs // 32))
        codes[:, 0, 0], scales[:, 0, 0] = 8, 0
        tensors[f"{name}_blocks"] = torch.from_numpy((codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8))
        tensors[f"{name}_scales"] = torch.from_numpy(scales.astype(np.uint8))
        made = FLOATS[torch.from_numpy(codes)] * 2.0 ** torch.from_numpy(scales - 127)[..., None]
        numbers[name] = made.reshape(experts, outputs, inputs).transpose(1, 2).float()
    if change:
        change(tensors)
    write_tensors(folder, model, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, tensors)
    model.load_state_dict(numbers)
    return model


@pytest.mark.parametrize(
    ("exponents", "scales"),
    [pytest.param((116, 124), "float16", marks=pytest.mark.slow), ((100, 124), "float32")],
)
def test_experts_keep_their_codes(ranks, tmp_path, exponents, scales):
    model = write_checkpoint(tmp_path / "gpt", exponents)
    path = accord.export_checkpoint(tmp_path / "gpt", path=tmp_path / "gpt.accord")
    packed = [one["packed"] for one in read_json(path, "manifest.json")["tensors"] if "packed" in one]
    kept = [(one["type"], one["group"], one["scales"]) for one in packed if "group" in one]
    assert kept == [("table4", 32, scales)] * 6
    stored, layer = read_tensors(path), "model.layers.1.mlp.experts"
    gate_up = model.state_dict()[f"{layer}.gate_up_proj"].transpose(1, 2)
    assert torch.equal(stored[f"{layer}.gate_proj"].float(), gate_up[:, ::2])
    assert torch.equal(stored[f"{layer}.up_proj"].float(), gate_up[:, 1::2])
    for size in (1, 2):
        for given in ranks(size).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


def replaced(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


BROKEN = {
    "no scales": (lambda tensors: tensors.pop(f"{DOWN}_scales"), f'"{DOWN}_scales" is missing'),
    "a scale that is no number": (
        replaced(f"{DOWN}_scales", lambda one: one.fill_(255)),
        f'"{DOWN}_scales" has a scale that is no number',
    ),
    "scales of another shape": (
        replaced(f"{DOWN}_scales", lambda one: one[:, 1:]),
        rf'"{DOWN}_scales" is \[4, 63, 8\]: expected \[4, 64, 8\]',
    ),
    "blocks of another size": (
        replaced(f"{DOWN}_blocks", lambda one: one[..., :8]),
        rf'"{DOWN}_blocks" is \[4, 64, 8, 8\]: expected \[4, 64, 8, 16\]',
    ),
    "fewer experts": (replaced(f"{DOWN}_blocks", lambda one: one[1:]), f'"{DOWN}_scales" is'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_refused_by_name(tmp_path, case):
    change, message = BROKEN[case]
    write_checkpoint(tmp_path / "gpt", change=change)
    with pytest.raises(accord.ExportError, match=message):
        accord.export_checkpoint(tmp_path / "gpt", path=tmp_path / "gpt.accord")
