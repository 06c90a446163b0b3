"""Small models through the exporter: how each kind of construct appears in the graph."""

import re
from pathlib import Path

import pytest
import torch
from export_reference import read_json, run_graph

from accord.exporter.export import export
from accord.graph import ops as export_ops
from accord.graph.errors import ExportError, UnsupportedOpError

BATCH = torch.export.Dim("batch", min=1, max=16)


def exported(module: torch.nn.Module, *inputs: torch.Tensor, path: Path, **options) -> Path:
    return export(module.eval(), inputs, path=path / "m.accord", **options)


class Function(torch.nn.Module):
    """A module that calls one function, for short tests."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_the_op_table_matches_the_engine():
    text = (Path(__file__).parents[3] / "src" / "engine" / "graph" / "ops.inc").read_text()
    joined = re.sub(r'"\s*\n\s*"', "", text)
    pairs = re.findall(r'^ACCORD_OP\("([^"]+)",\s*"((?:[^"\\]|\\.)*)"\)$', joined, re.MULTILINE)
    table = {name: arguments.replace('\\"', '"') for name, arguments in pairs}
    assert table == export_ops.ARGUMENTS
    assert list(table) == sorted(table)


@pytest.mark.parametrize("op", sorted(export_ops.ARGUMENTS.keys() - export_ops.ONLY_IN_ENGINES))
def test_the_op_table_matches_the_schemas_of_torch(op):
    namespace, name, overload = op.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    schema = {argument.name: argument for argument in found._schema.arguments}
    known = []
    for piece in export_ops.ARGUMENTS[op].split(", "):
        _, declared = piece.split(" ", 1)
        argument, _, default = declared.partition("=")
        known.append(argument)
        assert schema[argument].has_default_value() == bool(default)
        if default:
            actual = schema[argument].default_value
            assert default == (f'"{actual}"' if isinstance(actual, str) else str(actual))
    assert set(schema) - set(known) <= export_ops.IGNORED


def test_symbolic_sizes_become_expressions(tmp_path):
    module = Function(lambda x: x.unsqueeze(1).expand(x.shape[0], x.shape[0], 4).reshape(x.shape[0] * x.shape[0], 4))
    path = exported(module, torch.rand(3, 4), path=tmp_path, dynamic_shapes=({0: BATCH},))
    graph = read_json(path, "graph.json")
    assert graph["nodes"][-1]["outputs"][0]["shape"] == ["batch*batch", 4]
    for batch in (1, 2, 16):
        x = torch.rand(batch, 4)
        assert torch.equal(run_graph(path, [x])[0], module(x))


def test_dynamic_shapes_are_accepted_by_name_in_any_order(tmp_path):
    class Both(torch.nn.Module):
        def forward(self, first, second):
            return first.sum(1) * 2.0, second.sum(0) * 2.0

    rows, columns = torch.export.Dim("rows", min=1, max=9), torch.export.Dim("columns", min=1, max=7)
    dims = {"second": {1: columns}, "first": {0: rows}}
    path = exported(Both(), torch.rand(3, 4), torch.rand(5, 6), path=tmp_path, dynamic_shapes=dims)
    graph = read_json(path, "graph.json")
    assert [(value["name"], value["shape"]) for value in graph["inputs"]] == [
        ("first", ["rows", 4]),
        ("second", [5, "columns"]),
    ]
    assert graph["symbols"] == [{"name": "columns", "min": 1, "max": 7}, {"name": "rows", "min": 1, "max": 9}]


def test_dynamic_shapes_of_a_variable_number_of_inputs_are_named(tmp_path):
    class Sum(torch.nn.Module):
        def forward(self, *tensors):
            return tensors[0] * 2.0 + tensors[1]

    dims = {"tensors": ({0: BATCH}, {0: BATCH})}
    path = exported(Sum(), torch.rand(3, 4), torch.rand(3, 4), path=tmp_path, dynamic_shapes=dims)
    assert [value["shape"] for value in read_json(path, "graph.json")["inputs"]] == [["batch", 4], ["batch", 4]]


def test_sizes_with_factors_and_constants_are_written_as_sums(tmp_path):
    module = Function(lambda x: torch.arange(0, 2 * x.shape[0] - 1))
    path = exported(module, torch.rand(3, 4), path=tmp_path, dynamic_shapes=({0: BATCH},))
    assert run_graph(path, [torch.rand(5, 4)])[0].tolist() == list(range(9))


def test_tied_weights_are_stored_once(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(16, 8)
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    module = Tied()
    ids = torch.tensor([[1, 2, 3]])
    path = exported(module, ids, path=tmp_path)
    assert [tensor["name"] for tensor in read_json(path, "manifest.json")["tensors"]] == ["embedding.weight"]
    assert torch.allclose(run_graph(path, [ids])[0], module(ids), atol=1e-6)


def test_constants_in_the_code_become_weights(tmp_path):
    table = torch.tensor([1.0, 2.0, 4.0])
    module = Function(lambda x: x * table)
    path = exported(module, torch.rand(2, 3), path=tmp_path)
    x = torch.rand(2, 3)
    assert torch.equal(run_graph(path, [x])[0], x * table)


def test_a_slice_of_a_weight_is_stored_separately(tmp_path):
    class Sliced(torch.nn.Module):
        def __init__(self):
            super().__init__()
            base = torch.arange(12.0).reshape(3, 4)
            self.register_buffer("columns", base.t())

        def forward(self, x):
            return x + self.columns

    module = Sliced()
    path = exported(module, torch.rand(4, 3), path=tmp_path)
    x = torch.rand(4, 3)
    assert torch.equal(run_graph(path, [x])[0], module(x))


def test_dropout_and_other_no_ops_produce_no_node(tmp_path):
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU())
    path = exported(module, torch.rand(2, 4), path=tmp_path)
    ops = [node["op"] for node in read_json(path, "graph.json")["nodes"]]
    assert ops == ["aten.linear.default", "aten.gelu.default"]


def test_source_locations_name_module_and_line(tmp_path):
    path = exported(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.rand(2, 4), path=tmp_path)
    (node,) = read_json(path, "graph.json")["nodes"]
    assert node["module"] == "0"
    assert re.fullmatch(r"[\w/.]+\.py:\d+", node["source"])
    assert not node["source"].startswith("/")


def test_outputs_have_the_given_names(tmp_path):
    module = Function(lambda x: (x * 2.0, x + 1.0))
    path = exported(module, torch.rand(2, 4), path=tmp_path, output_names=["twice", "more"])
    assert read_json(path, "graph.json")["outputs"] == ["twice", "more"]
    x = torch.rand(2, 4)
    twice, more = run_graph(path, [x])
    assert torch.equal(twice, x * 2)
    assert torch.equal(more, x + 1)


@pytest.mark.parametrize("names", [None, ["first", "second", "given"]])
def test_a_value_returned_twice_and_an_input_are_separate_outputs(tmp_path, names):
    def function(x):
        y = x * 2.0
        return y, y, x

    path = exported(Function(function), torch.rand(2, 4), path=tmp_path, output_names=names)
    outputs = read_json(path, "graph.json")["outputs"]
    assert outputs == names if names else len(set(outputs) | {"x"}) == 4
    x = torch.rand(2, 4)
    assert all(torch.equal(got, wanted) for got, wanted in zip(run_graph(path, [x]), function(x), strict=True))


def test_more_dimensions_than_engines_support_are_rejected_with_the_source_line(tmp_path):
    with pytest.raises(ExportError, match=r'test_graph\.py:\d+: "view" has 9 dimensions; engines take up to 8'):
        exported(Function(lambda x: x.view([1] * 8 + [4]) * 2.0), torch.rand(4), path=tmp_path)


def test_an_unsupported_op_is_named_with_its_source_line(tmp_path):
    with pytest.raises(UnsupportedOpError, match=r'"aten\.erfinv\.default" at \S*test_graph\.py:\d+; options='):
        exported(Function(torch.erfinv), torch.rand(2, 4), path=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_that_engines_lack_is_named(tmp_path):
    with pytest.raises(ExportError, match=r"torch\.float64 is not supported"):
        exported(Function(lambda x: x * 2.0), torch.rand(2, 4, dtype=torch.float64), path=tmp_path)


def test_a_model_that_keeps_state_is_rejected(tmp_path):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen.add_(1.0)
            return x + self.seen

    with pytest.raises(ExportError, match='changes "seen" while it runs'):
        exported(Counter(), torch.rand(2, 4), path=tmp_path)


def test_a_model_in_training_mode_is_rejected(tmp_path):
    with pytest.raises(ExportError, match=r"call model\.eval"):
        export(torch.nn.Linear(4, 4).train(), (torch.rand(2, 4),), path=tmp_path / "m.accord")


def test_a_dimension_without_a_maximum_is_rejected(tmp_path):
    rows = torch.export.Dim("rows")
    with pytest.raises(ExportError, match='dimension "rows" has no upper bound'):
        exported(Function(lambda x: x * 2.0), torch.rand(3, 4), path=tmp_path, dynamic_shapes=({0: rows},))


def test_a_graph_that_is_valid_only_for_larger_sizes_is_rejected(tmp_path):
    # torch evaluates `shape[0] == 1` once, while it traces with 3 rows.
    module = Function(lambda x: x * 2.0 if x.shape[0] == 1 else x * 3.0)
    with pytest.raises(
        ExportError, match=r"at the smallest sizes \(\[1, 4\]\) the exported program differs from the model"
    ):
        exported(module, torch.rand(3, 4), path=tmp_path, dynamic_shapes=({0: BATCH},))


def test_exports_of_equal_models_are_equal_byte_for_byte(tmp_path):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    packages = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.accord"
        packages.append(export(module.eval(), (torch.rand(2, 8),), path=path, dynamic_shapes=({0: BATCH},)))
    for file in sorted(packages[0].iterdir()):
        assert file.read_bytes() == (packages[1] / file.name).read_bytes()
