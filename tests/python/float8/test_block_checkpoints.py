"""Checkpoints of 8-bit floats with block scales, with experts, and from modelopt, compared with torch's reading of
their numbers."""

import json

import numpy as np
import pytest
from export_reference import read_tensors
from float8_answers import IDS, logits_of, run_on_a_rank
from small_llama import make_small_llama
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")

BLOCK = 128
# Not multiples of a block.
SIZES = {"hidden_size": 192, "intermediate_size": 320, "max_position_embeddings": 128}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": [BLOCK, BLOCK]}}},
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
EXPERTS = {
    "vocab_size": 160,
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "qwen3_moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **EXPERTS,
            head_dim=32,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=160,
            intermediate_size=64,
        )
    ),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            **EXPERTS, num_local_experts=4, num_experts_per_tok=2, intermediate_size=160, sliding_window=None
        )
    ),
}
LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 320,
    "first_k_dense_replace": 2,
    "q_lora_rank": 160,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
Q = "model.layers.1.self_attn.q_proj"


def of_elements(scales: torch.Tensor, shape) -> torch.Tensor:
    """Returns the scale of each element, which is its block's scale."""
    rows, columns = (torch.arange(size) // BLOCK for size in shape)
    return scales[rows[:, None], columns]


def rounded(weight: torch.Tensor, blocks: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the elements, the block scales or one scale for all, and the numbers that they represent."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    # Not a power of two, and different from the largest magnitude / 448.
    scales = torch.rand(rows, columns) * float(weight.abs().max()) / 200 + float(weight.abs().max()) / 440
    scales = scales if blocks else scales[0, 0]
    each = of_elements(scales, weight.shape) if blocks else scales
    elements = (weight / each).to(torch.float8_e4m3fn)
    return elements, scales, elements.float() * each


@torch.no_grad()
def write_checkpoint(folder, model, quantization, change=lambda tensors: None):
    """Writes a checkpoint of the model. Returns the model of the numbers that it represents, in float32, and the
    file's tensors."""
    blocks = quantization is not MODELOPT
    name_of_scale = "weight_scale_inv" if quantization is FP8 else "weight_scale"
    linears = {name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)} - {"lm_head"}
    mixtral = model.config.model_type == "mixtral"  # its checkpoints use older names
    tensors = {}

    def put(layer: str, weight: torch.Tensor) -> torch.Tensor:
        tensors[f"{layer}.weight"], tensors[f"{layer}.{name_of_scale}"], numbers = rounded(weight, blocks)
        if not blocks:
            tensors[f"{layer}.input_scale"] = torch.tensor(0.5)
        return numbers

    for name, tensor in model.state_dict().items():
        layer, _, kind = name.rpartition(".")
        if layer.endswith(".experts"):
            place = layer.replace(".mlp.", ".block_sparse_moe.") if mixtral else layer
            names = {"gate_up_proj": ("w1", "w3") if mixtral else ("gate_proj", "up_proj")}
            names["down_proj"] = ("w2",) if mixtral else ("down_proj",)
            for number, expert in enumerate(tensor):
                parts = zip(names[kind], expert.chunk(len(names[kind])), strict=True)
                expert.copy_(torch.cat([put(f"{place}.{number}.{part}", weight) for part, weight in parts]))
        elif layer in linears:
            tensor.copy_(put(layer, tensor))
        else:
            tensors[name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name] = tensor
    for layer in ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"):
        if not blocks:
            tensors[f"model.layers.0.{layer}"] = torch.tensor(1.0)
    change(tensors)
    folder.mkdir()
    model.config.quantization_config = quantization
    model.config.save_pretrained(folder)
    del model.config.quantization_config
    safetensors.save_file(
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    return model, tensors


def groups_of(path) -> dict[str, int]:
    return {one["tensor"].removeprefix("model.layers.1."): one["group"] for one in accord.inspect(path)["quantized"]}


@pytest.mark.parametrize(
    "quantization",
    [pytest.param(FP8, id="fp8", marks=pytest.mark.slow), pytest.param(COMPRESSED, id="compressed-tensors")],
)
def test_block_scales_become_group_scales(ranks, tmp_path, quantization):
    model, tensors = write_checkpoint(tmp_path / "llama", make_small_llama(**SIZES), quantization)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord", dtype="float32")
    groups = groups_of(path)
    # Where ranks share the inputs, a head has 48 of them, and the 320 inputs are sharded in units of 32.
    assert groups["self_attn.q_proj.weight"] == groups["mlp.up_proj.weight"] == 128
    assert (groups["self_attn.o_proj.weight"], groups["mlp.down_proj.weight"]) == (16, 32)
    stored, numbers = read_tensors(path), model.state_dict()
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            assert torch.equal(stored[name], numbers[name]), name
    assert {one["error"] for one in accord.inspect(path)["quantized"]} == {0.0}
    for size in (1, 2, 4):
        for given in ranks(size).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


def test_units_that_begin_inside_a_group_are_not_stored_as_8_bit_floats(ranks, tmp_path):
    model, _ = write_checkpoint(tmp_path / "llama", make_small_llama(hidden_size=192, intermediate_size=328), FP8)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord", dtype="float32")
    groups = groups_of(path)  # 328 inputs are sharded in units of 8
    assert "mlp.down_proj.weight" not in groups and groups["mlp.up_proj.weight"] == 128
    for given in ranks(2).run(run_on_a_rank, str(path), IDS):
        torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "quantization", [pytest.param(FP8, id="blocks", marks=pytest.mark.slow), pytest.param(MODELOPT, id="modelopt")]
)
@pytest.mark.parametrize("family", mostly_slow(FAMILIES, "mixtral"))
def test_experts_remain_8_bit_floats(ranks, tmp_path, family, quantization):
    torch.manual_seed(0)
    model, _ = write_checkpoint(tmp_path / "moe", FAMILIES[family]().eval(), quantization)
    path = accord.export_checkpoint(tmp_path / "moe", path=tmp_path / "moe.accord", dtype="float32")
    groups, blocks = groups_of(path), quantization is FP8
    assert [groups[f"mlp.experts.{part}_proj"] for part in ("gate", "up", "down")] == (
        [128, 128, 16] if blocks else [0] * 3
    )
    for size in (1, 2):
        for given in ranks(size).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


def test_experts_may_be_sharded_one_by_one(ranks, tmp_path):
    torch.manual_seed(0)
    model, _ = write_checkpoint(tmp_path / "moe", FAMILIES["qwen3_moe"]().eval(), FP8)
    sharding = {"*.experts": accord.Expert(), "*": "auto"}
    path = accord.export_checkpoint(tmp_path / "moe", path=tmp_path / "m.accord", dtype="float32", sharding=sharding)
    assert groups_of(path)["mlp.experts.down_proj"] == 128
    for given in ranks(2).run(run_on_a_rank, str(path), IDS):
        torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)


def test_matrices_of_the_heads_of_latent_attention_become_wider(ranks, tmp_path):
    torch.manual_seed(0)
    given = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**EXPERTS | LATENT)).eval()
    model, _ = write_checkpoint(tmp_path / "latent", given, FP8)
    path = accord.export_checkpoint(tmp_path / "latent", path=tmp_path / "latent.accord", dtype="float32")
    groups = groups_of(path)
    assert groups["self_attn.q_b_proj.weight"] == 128 and not any("kv_b_proj" in name for name in groups)
    for logits in ranks(2).run(run_on_a_rank, str(path), IDS):
        torch.testing.assert_close(torch.from_numpy(logits), logits_of(model), rtol=1e-4, atol=1e-5)


def test_modelopt_may_describe_quantization_in_a_separate_file(tmp_path):
    model, _ = write_checkpoint(folder := tmp_path / "llama", make_small_llama(), MODELOPT)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    config_file = folder / "hf_quant_config.json"
    config_file.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}))
    path = accord.export_checkpoint(folder, path=tmp_path / "llama.accord", dtype="float32")
    with accord.load(path) as engine:
        given = np.array(engine.run(IDS, np.arange(len(IDS)), np.arange(len(IDS)))[0])
    torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=1e-4, atol=1e-5)
    for text, words in (
        ('{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}', '"quant_algo" is "NVFP4"'),
        ('{"producer": {"name": "modelopt"}}', "hf_quant_config.json: .*quantization"),
        ("[", r"hf_quant_config\.json"),
    ):
        config_file.write_text(text)
        with pytest.raises(accord.ExportError, match=words):
            accord.export_checkpoint(folder, path=tmp_path / "m.accord")


def test_new_weights_are_packed_in_groups_like_the_old_ones(tmp_path):
    model, _ = write_checkpoint(tmp_path / "llama", make_small_llama(**SIZES), FP8)
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord", dtype="float32")
    other = make_small_llama(seed=1, **SIZES)
    with accord.load(path) as engine:
        engine.load_weights(other.state_dict())
        given = torch.from_numpy(np.array(engine.run(IDS, np.arange(len(IDS)), np.arange(len(IDS)))[0]))
    expected = logits_of(other)
    assert (given - expected).norm() < 0.1 * expected.norm() < 0.1 * (logits_of(model) - expected).norm()


def run_on_devices(_, path, package, inputs):
    """Returns the logits for each of the inputs, on one device and on two."""
    import numpy as np
    from host_devices import library, on_one_and_two

    library(path)

    def logits(engine):
        return [np.array(engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0]) for ids in inputs]

    return on_one_and_two(package, logits)


@pytest.mark.parametrize("family", mostly_slow(["llama", "qwen3_moe"], "llama"))
def test_devices_multiply_with_blocks(device_process, tmp_path, family):
    torch.manual_seed(0)
    model = make_small_llama(**SIZES) if family == "llama" else FAMILIES[family]().eval()
    model, _ = write_checkpoint(tmp_path / "model", model, FP8)
    path = accord.export_checkpoint(tmp_path / "model", path=tmp_path / "model.accord", dtype="float32")
    random = np.random.default_rng(3)
    inputs = [random.integers(0, 160, rows) for rows in (1, 5, 30)]
    for logits_of_inputs in device_process(run_on_devices, str(path), inputs):
        for ids, given in zip(inputs, logits_of_inputs, strict=True):
            with torch.no_grad():
                expected = model(torch.from_numpy(ids)[None]).logits[0]
            torch.testing.assert_close(torch.from_numpy(given), expected, rtol=1e-3, atol=1e-4)


ERRORS = {"bfloat16": 0.03, "float16": 0.004}


def run_with_counts(_, path, package, inputs):
    """Returns the logits for each of the inputs on one device, the products of the library, and the memory of the
    device's weights."""
    import numpy as np
    import torch
    from host_devices import library

    def logits_for(ids):
        output = engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0]
        return torch.from_dlpack(output).float().numpy().copy()

    loaded = library(path)
    products, before = loaded.accord_test_products(), loaded.accord_test_bytes(0)
    with accord.load(package, device="cuda") as engine:
        weights = loaded.accord_test_bytes(0) - before
        logits = [logits_for(ids) for ids in inputs]
    return logits, loaded.accord_test_products() - products, weights


@pytest.mark.parametrize("family", mostly_slow(["llama", "qwen3_moe"], "llama"))
@pytest.mark.parametrize("dtype", mostly_slow(ERRORS, "bfloat16"))
def test_devices_read_blocks_as_they_are(torch_device_process, tmp_path, family, dtype):
    torch.manual_seed(0)
    model = make_small_llama(**SIZES) if family == "llama" else FAMILIES[family]().eval()
    model, _ = write_checkpoint(tmp_path / "model", model, FP8)
    path = accord.export_checkpoint(tmp_path / "model", path=tmp_path / "model.accord", dtype=dtype)
    plain = accord.export_checkpoint(tmp_path / "model", path=tmp_path / "plain.accord", dtype=dtype, weights=None)
    random = np.random.default_rng(3)
    inputs = [random.integers(0, 160, rows) for rows in (1, 6, 30, 70)]  # one for each kind of kernel
    logits, products, weights = torch_device_process(run_with_counts, str(path), inputs)
    for ids, given in zip(inputs, logits, strict=True):
        with torch.no_grad():
            expected = model(torch.from_numpy(ids)[None]).logits[0]
        difference = torch.from_numpy(given) - expected
        assert float(difference.norm()) < ERRORS[dtype] * float(expected.norm()), len(ids)
    assert weights < 0.75 * torch_device_process(run_with_counts, str(plain), inputs[:1])[2]
    # The head, and the router of each of two layers, have 16-bit weights.
    of_run = 1 if family == "llama" else 3
    assert products == 2 * of_run


def without(name: str):
    return lambda tensors: tensors.pop(name)


def with_scales(*shape: int, value: float = 1.0):
    return lambda tensors: tensors.update({f"{Q}.weight_scale_inv": torch.full(shape, value)})


DAMAGES = {
    f"{Q}.weight.* has no scale": without(f"{Q}.weight_scale_inv"),
    rf"{Q}.weight_scale_inv.*\[1, 2\].*expected \[2, 2\] of blocks \[128, 128\]": with_scales(1, 2),
    rf"{Q}.weight_scale_inv.*\[2, 3\].*expected \[2, 2\]": with_scales(2, 3),
    f"{Q}.weight_scale_inv.*scale 0 is -1": with_scales(2, 2, value=-1.0),
    f"{Q}.weight_scale_inv.*scale 0 is inf": with_scales(2, 2, value=torch.inf),
}


@pytest.mark.parametrize("words", mostly_slow(DAMAGES, *list(DAMAGES)[:2]))
def test_damaged_scales_are_rejected_by_name(tmp_path, words):
    write_checkpoint(tmp_path / "llama", make_small_llama(**SIZES), FP8, DAMAGES[words])
    with pytest.raises(accord.ExportError, match=words):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "m.accord")


def widened(number: int):
    def change(tensors):
        name = f"model.layers.1.mlp.experts.{number}.up_proj"
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"].float()
        del tensors[f"{name}.weight_scale_inv"]

    return change


@pytest.mark.parametrize("number", mostly_slow([1, 3], 1))
def test_experts_of_two_kinds_are_rejected(tmp_path, number):
    write_checkpoint(tmp_path / "moe", FAMILIES["qwen3_moe"]().eval(), FP8, widened(number))
    with pytest.raises(
        accord.ExportError, match=r"layers\.1\.mlp\.experts\.up_proj.*(expert 1 is|\[3, 160, 192\], in the model)"
    ):
        accord.export_checkpoint(tmp_path / "moe", path=tmp_path / "m.accord")


def test_other_blocks_and_schemes_are_rejected(tmp_path):
    write_checkpoint(folder := tmp_path / "llama", make_small_llama(**SIZES), FP8)
    config = json.loads((folder / "config.json").read_text())
    two = {"a": {"weights": {"block_structure": [64, 64]}}, "b": {"weights": {"block_structure": [128, 128]}}}
    for change, words in (
        ({"weight_block_size": [64, 64]}, r"proj\.weight_scale_inv.* of blocks \[64, 64\]"),
        ({"weight_block_size": [128, 24]}, "groups of 16 inputs"),
        ({"weight_block_size": [128]}, '"weight_block_size" is'),
        ({"weight_block_size": "128"}, '"weight_block_size" is'),
        ({"activation_scheme": "statik"}, 'did you mean "static"'),
        ({"quant_method": "compressed-tensors", "config_groups": two}, "blocks of several sizes"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8 | change}))
        with pytest.raises(accord.ExportError, match=words):
            accord.export_checkpoint(folder, path=tmp_path / "m.accord")
