"""Checkpoints of GPTQ, AWQ and compressed-tensors, compared with PyTorch on the numbers of their formulas."""

import itertools
import json

import numpy as np
import pytest
from float8_answers import IDS, logits_of, run_on_a_rank
from packed_checkpoints import (
    Layer,
    awq_tensors,
    check,
    compressed_tensors,
    gptq_tensors,
    write_checkpoint,
    write_tensors,
)
from small_llama import make_small_llama
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 128, "intermediate_size": 512}
Q = "model.layers.0.self_attn.q_proj"


def maker(bits=4, group=64, *, symmetric=True, dtype=torch.float16):
    return lambda name, weight: Layer(name, weight, bits, group, symmetric=symmetric, dtype=dtype)


def gptq(bits=4, group=64, **other) -> dict:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": "gptq"} | other


def compressed(bits=4, group=64, *, symmetric=True, form="pack-quantized", **other) -> dict:
    strategy = "channel" if group == -1 else "group"
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": group}
    targets = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    ours = {"format": form, "config_groups": {"group_0": targets}, "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", **ours, **other}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


GPTQ_CASES = [
    (bits, group, symmetric, stored)
    for bits, group in itertools.product((2, 3, 4, 8), (32, 64, -1))
    for symmetric, stored in ((True, "gptq"), (False, "gptq"), (False, "gptq_v2"))
]


QUICK = [(2, 64, False, "gptq"), (3, 32, False, "gptq_v2"), (4, 64, True, "gptq"), (8, -1, False, "gptq")]


@pytest.mark.parametrize("case", mostly_slow(GPTQ_CASES, *QUICK))
def test_gptq(ranks, tmp_path, case):
    bits, group, symmetric, stored = case
    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        gptq(bits, group, checkpoint_format=stored, sym=symmetric),
        lambda layer: gptq_tensors(layer, first_format=stored == "gptq"),
        maker(bits, group, symmetric=symmetric),
    )
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    types = check(ranks, path, model)
    assert types == {"int8"} if bits == 8 else types <= {"int4", "int5"}


def test_groups_are_cut_where_units_end_inside_them(ranks, tmp_path):
    sizes = {"hidden_size": 192, "intermediate_size": 320}  # heads of 48, units of 32, a last group of 64
    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**sizes),
        gptq(4, 128),
        lambda layer: gptq_tensors(layer, first_format=True),
        maker(4, 128),
    )
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    check(ranks, path, model)
    groups = {one["tensor"].split(".")[-2]: one["group"] for one in accord.inspect(path)["quantized"]}
    assert (groups["q_proj"], groups["o_proj"], groups["down_proj"]) == (128, 16, 32)


AWQ_CASES = list(itertools.product((torch.float16, torch.bfloat16, torch.float32), (32, 64, 128)))


@pytest.mark.parametrize("case", mostly_slow(AWQ_CASES, (torch.float16, 128), (torch.bfloat16, 32)))
def test_awq(ranks, tmp_path, case):
    dtype, group = case
    make = maker(4, group, symmetric=False, dtype=dtype)
    config = AWQ | {"group_size": group}
    model, _ = write_checkpoint(tmp_path / "llama", make_small_llama(**SIZES), config, awq_tensors, make)
    check(ranks, accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord"), model)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("packed", "bits", "group"), [(1, 4, 32), (1, 4, -1), (1, 8, 64), (0, 8, -1), (1, 3, 128)])
def test_compressed_tensors(ranks, tmp_path, packed, bits, group, symmetric):
    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        compressed(bits, group, symmetric=symmetric, form="pack-quantized" if packed else "int-quantized"),
        lambda layer: compressed_tensors(layer, packed=bool(packed), symmetric=symmetric),
        maker(bits, group, symmetric=symmetric, dtype=torch.bfloat16),
    )
    check(ranks, accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord"), model)


def test_inputs_in_another_order_are_widened_with_a_warning(ranks, tmp_path):
    def make(name, weight):
        layer = maker()(name, weight)
        if name.endswith("q_proj"):
            layer.group_of_input = np.random.default_rng(0).permutation(layer.group_of_input)
        return layer

    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        gptq(desc_act=True),
        lambda layer: gptq_tensors(layer, first_format=True),
        make,
    )
    with pytest.warns(UserWarning, match=rf'cannot store the codes of 2 weights, such as "{Q}.weight".*neighbors'):
        path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    check(ranks, path, model, kept=False)
    assert len(accord.inspect(path)["quantized"]) == 12


def test_layers_have_the_scheme_of_the_most_exact_target(ranks, tmp_path):
    bits_of = {"k_proj": 8, "v_proj": 3}
    config = compressed(4)
    (plain,) = config["config_groups"].values()
    for name, bits in bits_of.items():
        target = "model.layers.0.self_attn.k_proj" if name == "k_proj" else "re:.*v_proj"
        config["config_groups"][name] = plain | {
            "targets": [target] if name == "v_proj" else [target, target.replace("0", "1")],
            "weights": plain["weights"] | {"num_bits": bits},
        }

    def make(name, weight):
        return maker(bits_of.get(name.rpartition(".")[2], 4))(name, weight)

    model, _ = write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        config,
        lambda layer: compressed_tensors(layer, packed=True, symmetric=True),
        make,
    )
    path = accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
    assert check(ranks, path, model) == {"int4", "int8"}


def test_fused_layers_are_split_with_their_scales(ranks, tmp_path):
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.Phi3Config(
        **sizes, num_key_value_heads=2, vocab_size=160, max_position_embeddings=64, pad_token_id=0
    )
    make = maker(4, 64, symmetric=False)
    model = transformers.Phi3ForCausalLM(config).eval()
    model, _ = write_checkpoint(tmp_path / "phi", model, AWQ, awq_tensors, make)
    path = accord.export_checkpoint(tmp_path / "phi", path=tmp_path / "phi.accord")
    check(ranks, path, model, kept=False)
    names = {one["tensor"] for one in accord.inspect(path)["quantized"]}
    assert {"model.layers.0.self_attn.qkv_proj.value.weight", "model.layers.0.mlp.gate_up_proj.up.weight"} <= names


@torch.no_grad()
def test_gpt2_has_inputs_first(ranks, tmp_path):
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=160, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    tensors, numbers = {}, model.state_dict()
    for name, module in model.named_modules():
        if type(module).__name__ == "Conv1D":
            layer = maker(4, 32)(name, module.weight.t())
            tensors |= {f"{name}.{kind}": one for kind, one in gptq_tensors(layer, first_format=True).items()}
            numbers[f"{name}.weight"] = layer.numbers().t()
    tensors |= {name: one for name, one in numbers.items() if f"{name.removesuffix('.weight')}.qweight" not in tensors}
    tensors.pop("lm_head.weight")
    write_tensors(tmp_path / "gpt2", model, gptq(4, 32), tensors)
    model.load_state_dict(numbers)
    path = accord.export_checkpoint(tmp_path / "gpt2", path=tmp_path / "gpt2.accord")
    assert len(accord.inspect(path)["quantized"]) == 6
    for given in ranks(2).run(run_on_a_rank, str(path), IDS):
        torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=2e-4, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("symmetric", mostly_slow([True, False], False))
def test_experts_keep_their_codes(ranks, tmp_path, symmetric):
    config = transformers.Qwen3MoeConfig(
        hidden_size=128,
        intermediate_size=64,
        moe_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        vocab_size=160,
        max_position_embeddings=64,
    )
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    tensors, numbers = {}, model.state_dict()

    def quantize(name, weight):
        # Scales of the down projections of one expert are exact in float32 only.
        dtype = torch.float32 if name.endswith("experts.1.down_proj") else torch.float16
        layer = maker(4, 32, symmetric=symmetric, dtype=dtype)(name, weight)
        made = compressed_tensors(layer, packed=True, symmetric=symmetric)
        tensors.update({f"{name}.{kind}": one for kind, one in made.items()})
        return layer.numbers()

    for name in list(numbers):
        if name.endswith("experts.gate_up_proj"):
            layer = name.removesuffix(".gate_up_proj")
            for number, expert in enumerate(numbers[name]):
                gate, up = expert.chunk(2)
                parts = [
                    quantize(f"{layer}.{number}.{part}", one) for part, one in (("gate_proj", gate), ("up_proj", up))
                ]
                numbers[name][number] = torch.cat(parts)
        elif name.endswith("experts.down_proj"):
            layer = name.removesuffix(".down_proj")
            for number, expert in enumerate(numbers[name]):
                numbers[name][number] = quantize(f"{layer}.{number}.down_proj", expert)
        else:
            tensors[name] = numbers[name]
    write_tensors(tmp_path / "qwen", model, compressed(4, 32, symmetric=symmetric), tensors)
    model.load_state_dict(numbers)
    path = accord.export_checkpoint(tmp_path / "qwen", path=tmp_path / "qwen.accord")
    quantized = {one["tensor"]: one["type"] for one in accord.inspect(path)["quantized"]}
    assert len(quantized) == 6
    assert set(quantized.values()) <= {"int4", "int5"}
    for sharding in ("auto", {"*.experts": accord.Expert(), "*": "auto"}):
        path = accord.export_checkpoint(tmp_path / "qwen", path=tmp_path / "qwen.accord", sharding=sharding)
        for given in ranks(2 if sharding == "auto" else 1).run(run_on_a_rank, str(path), IDS):
            torch.testing.assert_close(torch.from_numpy(given), logits_of(model), rtol=2e-4, atol=2e-5)


def replaced(name, change):
    def apply(tensors):
        tensors[name] = change(tensors[name])

    return apply


def without(name):
    return lambda tensors: tensors.pop(name)


BROKEN = {
    "scales missing": (gptq(), without(f"{Q}.scales"), f'"{Q}.scales" is missing'),
    "zeros of another shape": (
        gptq(),
        replaced(f"{Q}.qzeros", lambda one: one[:, 1:]),
        rf'"{Q}.qzeros" is \[2, 15\]: expected \[2, 16\]',
    ),
    "scales of another shape": (
        gptq(),
        replaced(f"{Q}.scales", lambda one: one[1:]),
        rf'"{Q}.scales" is \[1, 128\]: expected \[2, 128\]',
    ),
    "codes of another type": (
        gptq(),
        replaced(f"{Q}.qweight", lambda one: one.to(torch.int16)),
        f'"{Q}.qweight" is torch.int16',
    ),
    "scale not finite": (
        gptq(),
        replaced(f"{Q}.scales", lambda one: one * torch.inf),
        f'"{Q}.scales": a scale is inf',
    ),
    "group too large": (
        gptq(),
        replaced(f"{Q}.g_idx", lambda one: one + 1),
        f'"{Q}.g_idx" has groups from 1 to 2; there are 2',
    ),
    "group negative": (gptq(), replaced(f"{Q}.g_idx", lambda one: one - 1), f'"{Q}.g_idx" has groups from -1 to 0'),
    "order too short": (gptq(), replaced(f"{Q}.g_idx", lambda one: one[1:]), f'"{Q}.g_idx" is .127.: expected .128.'),
    "other bits": (gptq(5), None, 'its "bits" are "5"; known are 2, 3, 4, 8'),
    "other bits than stored": (gptq(8), None, r'"model.layers.0.mlp.down_proj.qzeros" is'),
    "other format": (gptq(checkpoint_format="marlin"), None, 'its "checkpoint_format" is "marlin"'),
    "group size": (gptq(group=0), None, 'its "group_size" is 0'),
    "bits by layer": (gptq(dynamic={"+:.*up": {"bits": 8}}), None, 'its "dynamic" gives "\\+:.*up" other bits'),
    "unknown method": (gptq(quant_method="gptk"), None, 'quantized by "gptk"; did you mean "gptq"'),
    "unknown layer": (
        gptq(),
        lambda tensors: [
            tensors.update({name.replace("q_proj", "x_proj"): one}) for name, one in list(tensors.items()) if Q in name
        ],
        "its model does not know",
    ),
    "integers beside": (
        gptq(),
        lambda tensors: tensors.update({"model.x": torch.ones(2, dtype=torch.int32)}),
        'tensor "model.x" is torch.int32',
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_gptq_checkpoint_is_refused_by_name(tmp_path, case):
    config, change, message = BROKEN[case]
    write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        config,
        lambda layer: gptq_tensors(layer, first_format=True),
        maker(),
        change=change,
    )
    with pytest.raises(accord.ExportError, match=message):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")


def with_weights(**given) -> dict:
    config = compressed()
    config["config_groups"]["group_0"]["weights"] |= given
    return config


BROKEN_COMPRESSED = {
    "ignored": (compressed(ignore=["re:.*q_proj"]), None, f'"{Q}.weight_packed" is quantized, but.*"ignore"'),
    "no target": (compressed(config_groups={}), None, 'weight_packed" matches no target'),
    "expression": (
        compressed(config_groups={"a": {"targets": ["re:("], "weights": {}}}),
        None,
        '"config_groups" has the target "re:\\("',
    ),
    "strategy": (with_weights(strategy="block"), None, 'the "strategy" of ".*weight_packed" is "block"'),
    "type": (with_weights(type="float"), None, 'weight_packed": float weights of 4 bits'),
    "format": (compressed(format="nvfp4-pack-quantized"), None, 'its "format" is "nvfp4-pack-quantized"'),
    "sparse": (compressed(sparsity_config={"format": "sparse-24-bitmask"}), None, 'its "sparsity_config" is'),
    "rotated": (compressed(transform_config={"config_groups": {"a": 1}}), None, 'its "transform_config" is'),
    "shape": (
        compressed(),
        replaced(f"{Q}.weight_shape", lambda one: one + 8),
        rf'"{Q}.weight_packed" is \[128, 16\]: expected \[136, 17\]',
    ),
    "shape of three": (
        compressed(),
        replaced(f"{Q}.weight_shape", lambda one: torch.cat([one, one])),
        f'"{Q}.weight_shape" is .128, 128, 128, 128., and not',
    ),
    "zeros missing": (with_weights(symmetric=False), None, 'weight_zero_point" is missing'),
    "scale missing": (compressed(), without(f"{Q}.weight_scale"), f'"{Q}.weight_scale" is missing'),
}


@pytest.mark.parametrize("case", BROKEN_COMPRESSED)
def test_a_broken_compressed_checkpoint_is_refused_by_name(tmp_path, case):
    config, change, message = BROKEN_COMPRESSED[case]
    write_checkpoint(
        tmp_path / "llama",
        make_small_llama(**SIZES),
        config,
        lambda layer: compressed_tensors(layer, packed=True, symmetric=True),
        maker(),
        change=change,
    )
    with pytest.raises(accord.ExportError, match=message):
        accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")


def test_other_settings_of_awq_are_refused(tmp_path):
    make = maker(4, 64, symmetric=False)
    write_checkpoint(tmp_path / "llama", make_small_llama(**SIZES), AWQ, awq_tensors, make)
    file = tmp_path / "llama" / "config.json"
    config = json.loads(file.read_text())
    for changed, message in (
        ({"version": "gemv"}, 'its "version" is "gemv"; did you mean "gemm"'),
        ({"bits": 8}, 'its "bits" are "8"'),
        ({"modules_to_not_convert": ["mlp"]}, r'"model.layers.0.mlp.down_proj.qweight" belongs to "mlp"'),
    ):
        file.write_text(json.dumps(config | {"quantization_config": AWQ | changed}))
        with pytest.raises(accord.ExportError, match=message):
            accord.export_checkpoint(tmp_path / "llama", path=tmp_path / "llama.accord")
