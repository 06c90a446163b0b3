"""Expert weights in the layout of matrix products, unquantized, in 8 and 4 bits and in 8-bit floats: stored, mapped,
used, replaced."""

import json
from pathlib import Path

import numpy as np
import pytest
from expert_models import FAMILIES, SIZES, make_model, with_weights
from export_reference import read_tensors
from language_checks import check_at_each_size
from mapped_weights import load_on_a_rank

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Units of whole groups, and units that do not fill their last group.
SHARDINGS = {"mixtral": "auto", "qwen2_moe": {"*.experts": accord.Row(unit=24)}}
MINIMA = {"*.experts": accord.Int4(minima=True)}
CASES = {
    "int8": ("mixtral", "int8", 1 / 127),
    "int4 with minima": ("mixtral", MINIMA, 1 / 15),
    "int4 in odd units": ("qwen2_moe", "int4", 1 / 7.5),
    "fp8 in odd units": ("qwen2_moe", "fp8", 1 / 16),
}


def exported(path: Path, model: torch.nn.Module, weights, sharding="auto") -> Path:
    return accord.export(model, path=path, sharding=sharding, weights=weights, progress=lambda done, total: None)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A function that returns a case's package and the tensors that the slow reader finds in it, made on first use."""
    folder, made = tmp_path_factory.mktemp("packages"), {}

    def get(case: str) -> tuple[Path, dict[str, torch.Tensor]]:
        if case not in made:
            name, weights, _ = CASES[case]
            path = exported(folder / f"{len(made)}.accord", make_model(name), weights, SHARDINGS[name])
            made[case] = path, read_tensors(path)
        return made[case]

    return get


def given_experts(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the model's expert weights, under the names and in the parts that the package uses."""
    experts = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, 1)
            experts |= {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
        elif name.endswith("experts.down_proj"):
            experts[name] = tensor
    return experts


def test_a_report_counts_the_products_of_the_chosen_experts(package):
    with accord.load(package("int8")[0]) as engine:
        (experts,) = [
            op for op in engine.report({"tokens": 5, "rows": 1})["ops"] if op["op"] == "accord.experts.default"
        ]
    config = FAMILIES["mixtral"]
    matrices = 3 * config.hidden_size * config.intermediate_size
    assert experts["flops"] == 2 * 5 * config.num_experts_per_tok * matrices


@pytest.mark.parametrize("case", CASES)
def test_expert_weights_have_the_product_layout_and_report_their_error(package, case):
    name, weights, step = CASES[case]
    path, stored = package(case)
    entries = {entry["name"]: entry for entry in json.loads((path / "manifest.json").read_text())["tensors"]}
    quantized = {entry["tensor"]: entry for entry in accord.inspect(path)["quantized"]}
    experts = given_experts(make_model(name))
    assert len(experts) == 3
    for tensor, given in experts.items():
        entry = entries[tensor]
        assert entry["shape"] == list(given.shape)
        assert entry["offset"] % 64 == entry["granule_bytes"] % 64 == 0
        wanted = {"fp8": ("float8_e4m3fn", False)}.get(case.split()[0], (case.split()[0], weights is MINIMA))
        assert (quantized[tensor]["type"], quantized[tensor]["minima"]) == wanted
        difference = (stored[tensor] - given).double()
        assert difference.abs().max() <= 1.01 * step * given.abs().max()
        error = float(difference.square().sum().sqrt() / given.double().square().sum().sqrt())
        assert quantized[tensor]["error"] == pytest.approx(error, rel=1e-3)
        assert 0 < error < 1.5 * step


def test_experts_match_pytorch_with_the_stored_weights_on_1_2_and_4_ranks(ranks, package):
    made = [package(case) for case in CASES]
    models = [
        with_weights(make_model(name), stored) for (name, _, _), (_, stored) in zip(CASES.values(), made, strict=True)
    ]
    check_at_each_size(ranks, [str(path) for path, _ in made], models, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_model_with_quantized_experts_is_as_close_to_float32_as_pytorch_is(tmp_path, dtype):
    path = exported(tmp_path / "m.accord", make_model("mixtral").to(dtype), "int8")
    stored = read_tensors(path)
    ids = np.random.default_rng(0).integers(0, 320, 40)
    at = np.arange(len(ids))
    with torch.no_grad():
        pytorch, exact = (
            with_weights(make_model("mixtral").to(one), stored)(torch.from_numpy(ids)[None]).logits[0]
            for one in (dtype, torch.float32)
        )
    with accord.load(path) as engine:
        logits = torch.from_dlpack(engine.run(ids, at, at)[0])
        assert logits.dtype == dtype
        assert (logits - exact).abs().mean() <= 1.1 * (pytorch - exact).abs().mean()


def test_rows_of_quantized_experts_are_rounded_to_8_bits_on_request(package):
    path, _ = package("int4 with minima")  # no other layer is quantized
    at = np.arange(40)
    with accord.load(path) as engine, accord.load(path, activation_dtype="int8") as rounding:
        exact, rounded = (np.array(one.run(at, at, at)[0]) for one in (engine, rounding))
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 2e-2


@pytest.mark.parametrize("weights", [None, "int8"])
def test_ranks_map_their_parts_of_the_experts_and_copy_nothing(ranks, tmp_path, weights):
    config = transformers.MixtralConfig(
        **SIZES | {"hidden_size": 256}, num_key_value_heads=4, intermediate_size=1024, num_local_experts=8
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    path = exported(tmp_path / "m.accord", model, weights)
    entries = json.loads((path / "manifest.json").read_text())["tensors"]
    of_experts = [entry for entry in entries if entry["name"] in given_experts(model)]
    experts = sum(entry["granule_bytes"] * len(entry["xxh3"]) for entry in of_experts)
    weight_bytes = 4 if weights is None else 66 / 64
    assert experts == sum(given.numel() for given in given_experts(model).values()) * weight_bytes
    if weights is None:
        stored = read_tensors(path)
        assert all(torch.equal(stored[name], given) for name, given in given_experts(model).items())
        assert all(entry["packed"] == {"type": "float32"} for entry in of_experts)
    for size in (1, 2):
        for resident, copied, anonymous, shard, read in ranks(size).run(load_on_a_rank, str(path), ["tp"]):
            assert read == shard
            assert 0 < shard - experts / size < 2 << 20  # attention, tables
            assert shard <= resident < shard + experts / 4  # the pages that contain them
            assert copied == 0
            assert anonymous < experts / 16


def test_new_weights_are_packed_like_the_old_ones(package):
    path, _ = package("int4 in odd units")
    at = np.arange(20)
    with accord.load(path) as engine:
        before = np.array(engine.run(at, at, at)[0])
        engine.load_weights(make_model("qwen2_moe", 1).state_dict())
        assert not np.allclose(engine.run(at, at, at)[0], before, rtol=0.1)
        engine.load_weights(make_model("qwen2_moe", 0).state_dict())
        assert np.array_equal(engine.run(at, at, at)[0], before)
