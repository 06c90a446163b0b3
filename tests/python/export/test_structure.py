"""Saved models return the same structure as the original model, from packages of one engine and of several parts."""

import collections
import dataclasses
import hashlib
import json
import subprocess
import sys
import threading

import pytest

import accord

torch = pytest.importorskip("torch")
outputs_of_transformers = pytest.importorskip("transformers.modeling_outputs")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
LOOSE = {"min_block_size": 1}
BATCH = ({0: torch.export.Dim("batch", min=2, max=8)},)

Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    number: int


torch.export.register_dataclass(Output)


class Returns(torch.nn.Module):
    """Returns the result of a function of the module itself, which has a weight, and of the input."""

    def __init__(self, function):
        super().__init__()
        self.register_buffer("weight", torch.arange(3.0))
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def mixed(self, x):
    return {"y": torch.relu(x) + 1, "rows": x.shape[0], "none": None, "text": "a", "float": 2.5, "yes": True}


STRUCTURES = {
    "mixed": mixed,
    "tuple of one": lambda self, x: (torch.relu(x) + 1,),
    "list of one": lambda self, x: [torch.relu(x) + 1],
    "no nesting": lambda self, x: torch.relu(x) + 1,
    "named tuple": lambda self, x: Pair(torch.relu(x) + 1, {0: [x.shape[0] * 2 + 1, None, float("-inf")]}),
    "dataclass": lambda self, x: Output(torch.relu(x) + 1, 3),
    "model output": lambda self, x: outputs_of_transformers.BaseModelOutput(torch.relu(x) + 1, (x * 2, x + 1)),
    "empty ones": lambda self, x: ([{"a": (torch.relu(x) + 1,)}], (), {}, [None]),
    "twice": lambda self, x: (y := torch.relu(x) + 1, y, y[0], x),
}
# PyTorch has to compute these, so the package is a program of several parts.
IN_PARTS = {
    "cumprod": lambda self, x: Pair(torch.cumprod(torch.relu(x) + 1, 0).exp(), {"rows": x.shape[0], "none": None}),
    "numbers": lambda self, x: {"y": x.exp(), "half": x.shape[0] // 2, "ratio": x.shape[0] / 4, "sum": x.sum().item()},
    "weight": lambda self, x: (torch.relu(x) + self.weight, self.weight, torch.tensor([1.0, 2.0])),
}


def assert_same(got, expected) -> None:
    leaves, nested = torch.utils._pytree.tree_flatten(got)
    wanted, as_wanted = torch.utils._pytree.tree_flatten(expected)
    assert nested == as_wanted
    for one, other in zip(leaves, wanted, strict=True):
        assert type(one) is type(other)
        if isinstance(one, (torch.Tensor, float)):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        else:
            assert one == other


def x(rows: int) -> torch.Tensor:
    return torch.linspace(-1, 1, rows * 3).reshape(rows, 3)


@pytest.mark.parametrize("name", [*STRUCTURES, *IN_PARTS])
@torch.no_grad()
def test_structure_survives_saving_and_loading(name, tmp_path):
    model = Returns((STRUCTURES | IN_PARTS)[name]).eval()
    compiled = accord.compile(model, (x(4),), LOOSE, dynamic_shapes=BATCH)
    saved = accord.load(compiled.save(tmp_path / "saved.accord"))
    assert isinstance(saved, accord.Program) == (name in IN_PARTS or name == "twice")
    options = {"options": LOOSE} if name in IN_PARTS else {}
    exported = accord.load(accord.export(model, (x(4),), path=tmp_path / "e.accord", dynamic_shapes=BATCH, **options))
    for rows in (4, 6):
        for module in (compiled, saved.module(), exported.module()):
            assert_same(module(x(rows)), model(x(rows)))


@torch.no_grad()
def test_arguments_may_be_nested_and_have_constants(tmp_path):
    class Nested(torch.nn.Module):
        def forward(self, pair, scale=1.0, *, mask=None):
            return {"y": torch.relu(pair["x"]) * scale + pair["more"][0]}

    given = ({"x": x(4), "more": [x(4)]}, 2.0)
    for path in (
        accord.compile(Nested().eval(), given, LOOSE).save(tmp_path / "saved.accord"),
        accord.export(Nested().eval(), given, path=tmp_path / "e.accord"),
    ):
        module = accord.load(path).module()
        assert_same(module(*given), Nested()(*given))
        with pytest.raises(TypeError, match=r"input 2 was 2.0 when the model was compiled, and is 3.0"):
            module(given[0], 3.0)


def test_without_the_classes_a_process_creates_named_tuples_and_imports_those_of_transformers(tmp_path):
    for name in ("named tuple", "model output", "dataclass"):
        compiled = accord.compile(Returns(STRUCTURES[name]).eval(), (x(4),), LOOSE)
        compiled.save(tmp_path / f"{name}.accord")
    program = """
import sys, torch, accord
load = lambda name: accord.load(f"{sys.argv[1]}/{name}.accord").module()(torch.ones(4, 3))
pair = load("named tuple")
print(type(pair).__name__, pair._fields, pair.second)
print(type(load("model output")))
try:
    load("dataclass")
except accord.Unsupported as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program, tmp_path], capture_output=True, text=True)
    pair, output, dataclass = run.stdout.splitlines()
    assert pair == "Pair ('first', 'second') {0: [9, None, -inf]}", run.stderr
    assert output == "<class 'transformers.modeling_outputs.BaseModelOutput'>"
    assert 'gives a "' in dataclass
    assert 'Output", which this process does not know: import the module that defines it' in dataclass


@torch.no_grad()
def test_packages_without_structure_still_load(tmp_path):
    package = accord.export(Returns(STRUCTURES["tuple of one"]).eval(), (x(4),), path=tmp_path / "old.accord")
    manifest = json.loads((package / "manifest.json").read_text())
    assert manifest.pop("structure")["outputs"] == [{"value": manifest_output(package)}]
    text = json.dumps(manifest).encode()
    (package / "manifest.json").write_bytes(text)
    (package / "manifest.sha256").write_text(hashlib.sha256(text).hexdigest() + "\n")
    torch.testing.assert_close(accord.load(package).module()(x(4)), torch.relu(x(4)) + 1)


def manifest_output(package) -> str:
    (output,) = json.loads((package / "graph.json").read_text())["outputs"]
    return output


@torch.no_grad()
def test_a_structure_that_cannot_be_saved_is_an_error_with_the_reason(tmp_path):
    @dataclasses.dataclass
    class Unknown:
        y: torch.Tensor

    for function, message in (
        (
            lambda self, x: Unknown(torch.relu(x)),
            r"it gives a Unknown, which torch does not know; .*register_dataclass",
        ),
        (lambda self, x: x.shape[0], "the model returns no tensor"),
        (lambda self, x: (torch.relu(x), x.shape[0] / 3), "a number that it computes; .* with options={}"),
        (lambda self, x: {(1, 2): torch.relu(x)}, "is not saved: JSON does not keep the keys of its dicts"),
    ):
        with pytest.raises(accord.ExportError, match=message):
            accord.export(Returns(function).eval(), (x(4),), path=tmp_path / "a.accord", dynamic_shapes=BATCH)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(3, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        return Pair({"y": y, "rows": x.shape[0]}, None)


def run_both(comm, paths, x):
    import torch

    outs = [accord.load(path, {"tp": comm}).module()(torch.tensor(x)) for path in paths]
    return [(type(out).__name__, out._fields, out.first["y"].tolist(), out.first["rows"], out.second) for out in outs]


@torch.no_grad()
def test_ranks_that_are_threads_of_one_process_call_their_modules(tmp_path):
    model, given = Layers().eval(), x(4)
    package = accord.export(
        model,
        (given,),
        path=tmp_path / "m.accord",
        sharding={"up": accord.Column(unit=4), "down": accord.Row(unit=4)},
    )
    store, found = accord.MemoryStore(), {}

    def run(rank):
        comm = accord.Communicator.create(store, rank, 2, timeout=20)
        found[rank] = accord.load(package, {"tp": comm}).module()(given)

    ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert sorted(found) == [0, 1]
    for out in found.values():
        assert torch.allclose(out.first["y"], model(given).first["y"], atol=1e-6)


def test_structure_is_the_same_on_two_ranks(fresh_ranks, tmp_path):
    class AlsoInParts(Layers):
        def forward(self, x):
            out = super().forward(x)
            return Pair({"y": torch.cumprod(out.first["y"], 0), "rows": x.shape[0]}, None)

    plan = {"up": accord.Column(unit=2), "down": accord.Row(unit=2)}
    models = {"whole": Layers().eval(), "parts": AlsoInParts().eval()}
    paths = [
        str(
            accord.export(
                model, (x(4),), path=tmp_path / f"{name}.accord", sharding=plan, dynamic_shapes=BATCH, options=LOOSE
            )
        )
        for name, model in models.items()
    ]
    given = x(5)
    for results in fresh_ranks(2).run(run_both, paths, given.tolist(), torch=True):
        for (kind, fields, y, rows, second), model in zip(results, models.values(), strict=True):
            assert (kind, fields, rows, second) == ("Pair", ("first", "second"), 5, None)
            torch.testing.assert_close(torch.tensor(y), model(given).first["y"].detach(), rtol=1e-4, atol=1e-5)
