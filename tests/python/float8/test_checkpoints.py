"""Checkpoints of 8-bit floats as vendors publish them, compared with torch's reading of their numbers."""

import json
import shutil

import numpy as np
import pytest
from export_reference import read_json, read_tensors
from float8_answers import IDS, logits_of, run_on_a_rank
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("transformers")

BLOCK = 32
METHODS = {
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
        "ignore": ["lm_head"],
    },
}


def write_checkpoint(
    folder, method, kinds=("tensor", "row"), dtype=torch.bfloat16, model=None, change=lambda tensors: None
):
    """Writes a model with 8-bit float weights whose scales are of the given kinds in turn. Returns the model of the
    numbers that they represent, in float32."""
    model = model or make_small_llama()
    tensors, numbers = {}, {}
    name_of_scale = "weight_scale_inv" if method == "fp8" else "weight_scale"
    linears = {name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)} - {"lm_head"}
    for name, tensor in model.state_dict().items():
        layer = name.removesuffix(".weight")
        if layer not in linears:
            tensors[name] = numbers[name] = tensor.to(dtype).clone()
            continue
        kind = kinds[len(tensors) % len(kinds)]
        # Not a power of two, and different from the largest magnitude / 448.
        largest = tensor.abs().amax(1, keepdim=True) if kind == "row" else tensor.abs().max().reshape(1)
        if kind == "block":
            largest = torch.full([-(-size // BLOCK) for size in tensor.shape], float(tensor.abs().max()))
        scale = largest / 300
        of_numbers = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1) if kind == "block" else scale
        tensors[name] = (tensor / of_numbers).to(torch.float8_e4m3fn)
        tensors[f"{layer}.{name_of_scale}"] = scale if method == "fp8" or kind == "row" else scale.to(torch.float32)
        if method != "fbgemm_fp8":
            tensors[f"{layer}.input_scale"] = torch.tensor([0.5])
        numbers[name] = tensors[name].float() * of_numbers
    change(tensors)
    folder.mkdir()
    model.config.quantization_config = METHODS[method]
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    del model.config.quantization_config
    half = sorted(tensors)[: len(tensors) // 2]
    for number, names in enumerate((half, tensors.keys() - set(half)), 1):
        some = {name: tensors[name].clone().contiguous() for name in names}
        safetensors.save_file(some, folder / f"model-{number:05}-of-00002.safetensors")
    model.load_state_dict(numbers)
    return model.float().eval(), tensors


@pytest.mark.parametrize("method", METHODS)
def test_elements_and_scales_match_the_checkpoint(ranks, tmp_path, method):
    model, tensors = write_checkpoint(tmp_path / "llama", method)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord", dtype="float32")
    kept = [name for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn]
    assert {one["tensor"]: one["type"] for one in accord.inspect(path)["quantized"]} == dict.fromkeys(
        kept, "float8_e4m3fn"
    )
    stored = {}
    for file in read_json(path, "manifest.json")["files"][1:]:
        stored.update(safetensors.load_file(path / file["name"]))
    bits = {entry["name"]: entry for entry in read_json(path, "manifest.json")["tensors"]}
    for name in kept:  # exactly the same bytes: a unit's scales, then its elements
        entry, sizes = bits[name], list(tensors[name].shape)
        dim = entry["sharding"]["dim"] if "sharding" in entry else 0
        sizes[dim] = entry["sharding"]["unit"] if "sharding" in entry else sizes[0]
        units = [unit.numpy()[4 * sizes[0] :][: sizes[0] * sizes[1]].reshape(sizes) for unit in stored[name]]
        elements = np.concatenate(units, dim)[: tensors[name].shape[0], : tensors[name].shape[1]]
        assert np.array_equal(elements, tensors[name].view(torch.uint8).numpy()), name
        numbers = model.state_dict()[name]
        assert torch.equal(read_tensors(path)[name], numbers), name
    expected = logits_of(model)
    for size in (1, 2):
        for given in ranks(size).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), expected, rtol=1e-4, atol=1e-5)


def test_fused_weights_are_split_with_their_scales(ranks, tmp_path):
    from transformers import Phi3Config, Phi3ForCausalLM

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = Phi3ForCausalLM(Phi3Config(**sizes, vocab_size=160, max_position_embeddings=64, pad_token_id=0)).eval()
    model, _ = write_checkpoint(tmp_path / "phi", "fbgemm_fp8", kinds=("row",), model=model)
    path = accord.export_checkpoint(tmp_path / "phi", path=tmp_path / "phi.accord", dtype="float32")
    quantized = {one["tensor"] for one in accord.inspect(path)["quantized"]}
    assert {name.split("layers.0.")[1] for name in quantized} >= {
        "self_attn.qkv_proj.key.weight",
        "mlp.gate_up_proj.up.weight",
    }
    for given in ranks(2).run(run_on_a_rank, str(path), IDS):
        torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


def test_the_dtype_is_taken_from_the_checkpoint_unless_given(tmp_path):
    model, _ = write_checkpoint(tmp_path / "llama", "fp8", dtype=torch.bfloat16)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    dtypes = {entry["name"]: entry["dtype"] for entry in read_json(path, "manifest.json")["tensors"]}
    assert dtypes["model.layers.0.mlp.up_proj.weight"] == dtypes["lm_head.weight"] == "bfloat16"
    with accord.load(path) as engine:
        given = torch.from_dlpack(engine.run(IDS, np.arange(len(IDS)), np.arange(len(IDS)))[0]).float()
    torch.testing.assert_close(given, logits_of(model), rtol=0.05, atol=0.02)
    plain = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "plain.accord", dtype="float16", weights=None)
    assert accord.inspect(plain)["quantized"] == []
    with pytest.raises(accord.ExportError, match='did you mean "float16"'):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "m.accord", dtype="floot16")


Q = "model.layers.1.self_attn.q_proj"
DAMAGES = {
    f"{Q}.weight.* has no scale": lambda tensors: tensors.pop(f"{Q}.weight_scale"),
    f"{Q}.weight.* has two scales": lambda tensors: tensors.update({f"{Q}.weight_scale_inv": torch.ones(1)}),
    f"{Q}.weight_scale.* scale 5 is nan": lambda tensors: tensors.update(
        {f"{Q}.weight_scale": torch.where(torch.arange(64)[:, None] == 5, torch.nan, 1.0)}
    ),
    f"{Q}.weight_scale.* scale 0 is -1": lambda tensors: tensors.update({f"{Q}.weight_scale": -torch.ones(1)}),
    f"{Q}.weight_scale.* is torch.int32": lambda tensors: tensors.update(
        {f"{Q}.weight_scale": torch.ones(1, dtype=torch.int32)}
    ),
    rf"{Q}.weight_scale.*\[63\]": lambda tensors: tensors.update({f"{Q}.weight_scale": torch.ones(63)}),
    f"{Q}.weight.* are no numbers": lambda tensors: tensors[f"{Q}.weight"].view(torch.uint8)[3].fill_(0x7F),
    f"{Q}.weight.* is torch.int8": lambda tensors: tensors.update(
        {f"{Q}.weight": torch.ones(64, 64, dtype=torch.int8)}
    ),
    f"{Q}.weight_scale.* has no weight of 8-bit floats": lambda tensors: tensors.update(
        {f"{Q}.weight": torch.ones(64, 64)}
    ),
    'lacks "model.norm.weight"': lambda tensors: tensors.pop("model.norm.weight"),
    "does not know, .*layers.1.extra": lambda tensors: tensors.update({"model.layers.1.extra": torch.ones(2)}),
    "model.norm.weight.* of another shape": lambda tensors: tensors.update({"model.norm.weight": torch.ones(2)}),
    r"mlp.up_proj.scales.* is no weight of a linear layer": lambda tensors: tensors.update(
        {"model.layers.1.mlp.up_proj.scales": tensors[f"{Q}.weight"]}
    ),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_checkpoint_is_rejected_by_name(tmp_path, words):
    write_checkpoint(tmp_path / "llama", "fbgemm_fp8", change=DAMAGES[words])
    with pytest.raises(accord.ExportError, match=words) as caught:
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "m.accord")
    assert str(tmp_path / "llama") in str(caught.value)
    assert not (tmp_path / "m.accord").exists()


def test_the_index_decides_which_files_are_read(tmp_path):
    _, tensors = write_checkpoint(folder := tmp_path / "llama", "fp8")
    files = {name: file.name for file in folder.glob("*.safetensors") for name in safetensors.load_file(file)}
    safetensors.save_file({"model.norm.weight": torch.zeros(3)}, folder / "consolidated.safetensors")
    with pytest.raises(accord.ExportError, match='"model.norm.weight" is in another file, too'):
        accord.export_checkpoint(folder, path=tmp_path / "m.accord")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    names = {
        entry["name"]
        for entry in read_json(accord.export_checkpoint(folder, path=tmp_path / "m.accord"), "manifest.json")["tensors"]
    }
    assert "model.norm.weight" in names and set(files) == set(tensors)
    index.write_text(json.dumps({"weight_map": files | {"model.norm.weight": "gone.safetensors"}}))
    with pytest.raises(accord.ExportError, match=r"gone\.safetensors: .*[Nn]o such file"):
        accord.export_checkpoint(folder, path=tmp_path / "n.accord")
    for text in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(text)
        with pytest.raises(accord.ExportError, match="model.safetensors.index.json: "):
            accord.export_checkpoint(folder, path=tmp_path / "n.accord")


def test_a_damaged_configuration_is_named(tmp_path):
    write_checkpoint(folder := tmp_path / "llama", "fp8")
    text = (folder / "config.json").read_text()
    for damaged in (text[:-20], "[]", json.dumps(json.loads(text) | {"model_type": "lama"})):
        (folder / "config.json").write_text(damaged)
        with pytest.raises(accord.ExportError, match="config.json: "):
            accord.export_checkpoint(folder, path=tmp_path / "m.accord")


def test_block_scales_without_a_block_size_are_rejected_by_name(tmp_path):
    write_checkpoint(tmp_path / "llama", "fp8", kinds=("block",))
    with pytest.raises(accord.ExportError, match=r"proj\.weight_scale_inv.*no size of blocks is told"):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "m.accord")


def test_other_checkpoints_are_rejected(tmp_path):
    write_checkpoint(tmp_path / "llama", "fp8")
    config = json.loads((tmp_path / "llama/config.json").read_text())
    for change, words in (
        ({"quant_method": "fp6"}, 'did you mean "fp8"'),
        ({"quant_method": "spqr"}, '"spqr"; known are'),
    ):
        other = shutil.copytree(tmp_path / "llama", tmp_path / change["quant_method"])
        (other / "config.json").write_text(json.dumps(config | {"quantization_config": change}))
        with pytest.raises(accord.ExportError, match=words):
            accord.export_checkpoint(other, path=tmp_path / "m.accord")
    del config["quantization_config"]
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(accord.ExportError, match="no quantization"):
        accord.export_checkpoint(other, path=tmp_path / "m.accord")
    for file in other.glob("*.safetensors"):
        file.write_bytes(b"12345678901")
    (other / "config.json").write_text((tmp_path / "llama/config.json").read_text())
    with pytest.raises(accord.ExportError, match=r"model-00001-of-00002\.safetensors"):
        accord.export_checkpoint(other, path=tmp_path / "m.accord")
    with pytest.raises(accord.ExportError, match=r"no config\.json"):
        accord.export_checkpoint(tmp_path, path=tmp_path / "m.accord")
