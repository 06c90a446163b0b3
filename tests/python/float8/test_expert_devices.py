"""Experts in 8-bit floats on simulated devices. transformers, with the package's numbers, provides the expected
values."""

import numpy as np
import pytest
from export_reference import read_tensors
from tiers import mostly_slow

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXPERTS, WIDTH, INNER = 4, 64, 96
FEW, MANY = (1, 6, 8), (30,)  # numbers of rows: for the kernel of few rows, and others
DTYPES = {"float32": 1e-4, "bfloat16": 0.04, "float16": 0.005}
SHARDINGS = {"parts of all": "auto", "some of them": {"*.experts": accord.Expert(), "*": "auto"}}


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    config = transformers.MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        vocab_size=96,
        max_position_embeddings=64,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    with torch.no_grad():  # scaled up, so that experts differ clearly
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    return model


def run_all(_, path, package, inputs):
    """Returns the logits as bytes on one device and on two, and the bytes of device memory that the weights use."""
    import numpy as np
    from host_devices import library, on_one_and_two
    from language_runs import bits

    loaded = library(path)
    before = loaded.accord_test_bytes(0)

    taken = []  # measured before the first run

    def logits(engine):
        taken.append(loaded.accord_test_bytes(0) - before)
        made = []
        for ids in inputs:
            rows = engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))[0]
            made.append(bits(rows))
        return made

    return on_one_and_two(package, logits), taken[0]


@pytest.mark.parametrize("sharding", mostly_slow(SHARDINGS, "some of them"))
@pytest.mark.parametrize("dtype", mostly_slow(DTYPES, "bfloat16"))
def test_experts_remain_8_bit_floats(device_process, tmp_path, dtype, sharding):
    model = make_model().to(getattr(torch, dtype))
    options = {"sharding": SHARDINGS[sharding]}
    path = accord.export(model, path=tmp_path / "fp8.accord", weights={"*.experts": "fp8"}, **options)
    plain = accord.export(model, path=tmp_path / "plain.accord", **options)
    random = np.random.default_rng(3)
    inputs = [random.integers(0, 96, rows) for rows in (*FEW, *MANY)]
    found, taken = device_process(run_all, str(path), inputs)
    _, taken_plain = device_process(run_all, str(plain), inputs[:1])
    # In each expert's three matrices, an element takes one byte and an output four more.
    elements, outputs = 3 * EXPERTS * WIDTH * INNER, EXPERTS * (2 * INNER + WIDTH)
    each = getattr(torch, dtype).itemsize
    assert taken_plain - taken == elements * (each - 1) - 4 * outputs

    model = model.float()
    with torch.no_grad():
        tensors = {name: tensor.float() for name, tensor in read_tensors(path).items() if ".experts." in name}
        experts = next(module for name, module in model.named_modules() if name.endswith(".experts"))
        prefix = next(iter(tensors)).rsplit(".", 1)[0]
        gate_up = torch.cat([tensors[f"{prefix}.gate_proj"], tensors[f"{prefix}.up_proj"]], 1)
        assert not torch.equal(experts.gate_up_proj, gate_up)
        experts.gate_up_proj.copy_(gate_up)
        experts.down_proj.copy_(tensors[f"{prefix}.down_proj"])
        for logits_of_inputs in found:
            for ids, given in zip(inputs, logits_of_inputs, strict=True):
                expected = model(torch.from_numpy(ids)[None]).logits[0].numpy()
                given = torch.frombuffer(bytearray(given), dtype=getattr(torch, dtype)).float().numpy()
                given = given.reshape(expected.shape)
                error = np.linalg.norm(given - expected, axis=1) / np.linalg.norm(expected, axis=1)
                assert np.median(error) < DTYPES[dtype], len(ids)
                # With narrow dtypes a row may choose another expert if two are nearly equal.
                assert dtype != "float32" or error.max() < DTYPES[dtype], len(ids)
